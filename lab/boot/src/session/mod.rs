//! One session: a unit is started, interrupted and stopped.

mod error;
mod unit;

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::lapic::{Delivery, LocalApic};
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::{Counts, Handler, Pmi};
use pugmark_kernel::slot::{Interrupt, PauseGate, Slot, SlotError, Traced};
use x86_64::instructions::interrupts;

use crate::arch::traps::{self, Arrival};
use crate::arch::{processors, registers};
use pugmark_machine::mark_truth;

pub(crate) use error::SourceError;
pub(crate) use unit::{Prepared, Running, Serve, Stopped};

/// The state that the PMI handler uses.
struct Tracer {
    unit: Box<dyn Running>,
    fault: Option<GeneralProtection>,
}

/// The processor's registers and its local APIC.
type Processor = fn() -> (GuardedMsr, registers::Apic);

/// A slot for each processor.
static TRACERS: [Slot<Tracer, Processor>; processors::MOST] = [const {
    // SAFETY: each processor uses the slot with its number, and its work stays there.
    unsafe { Slot::new(Handler::new(Delivery::Nmi), || (registers::msr(), registers::local_apic())) }
}; processors::MOST];

/// Returns this processor's slot.
fn tracer() -> &'static Slot<Tracer, Processor> {
    &TRACERS[processors::this()]
}

/// PMIs are NMIs. All processors that record at the same time use the same kind.
static BY_NMI: AtomicBool = AtomicBool::new(true);

/// The unit must be drained before another address space becomes current.
static DRAINED_BETWEEN_SPACES: AtomicBool = AtomicBool::new(false);

/// The result of a session.
pub(crate) struct Finished {
    pub(crate) stopped: Stopped,
    pub(crate) counts: Counts,
    /// The fault in the PMI handler, if any.
    pub(crate) fault: Option<GeneralProtection>,
}

/// Registers the PMI handler.
pub(crate) fn init() {
    traps::on_pmi(interrupt);
}

/// Records `work` as session `session`. If `interrupts_on`, interrupts are on when it begins.
pub(crate) fn record(
    prepared: Prepared,
    session: u16,
    interrupts_on: bool,
    work: impl FnOnce(),
) -> Result<Finished, SourceError> {
    let Prepared { mut unit, handler, by_nmi, drained_between_spaces } = prepared;
    DRAINED_BETWEEN_SPACES.store(drained_between_spaces, Relaxed);
    tracer().replace(handler)?;
    BY_NMI.store(by_nmi, Relaxed);
    set_interrupts(interrupts_on);
    mark_truth(session.into());
    let started = tracer().start(|| Ok(Tracer { unit: unit.start()?, fault: None }));
    let result = started.map_err(SourceError::from).and_then(|()| {
        work();
        interrupts::disable();
        tracer().stop(|Tracer { unit, fault }, handler| {
            let stopped = unit.stop(handler)?;
            Ok((stopped, fault))
        })?
    });
    mark_truth(0);
    // A stray interrupt may be in flight. STI does not admit it before the next instruction.
    interrupts::enable();
    x86_64::instructions::nop();
    interrupts::disable();
    tracer().disarm()?;
    let counts = tracer().handler(|handler| handler.counts())?;
    result.map(|(stopped, fault)| Finished { stopped, counts, fault })
}

fn interrupt(arrival: Arrival, interrupted: u64) -> Pmi {
    match (arrival, BY_NMI.load(Relaxed)) {
        // A fault is kept with the recording.
        (Arrival::Nmi, true) | (Arrival::Vector, false) => {
            tracer().interrupt(Some(interrupted)).unwrap_or(Pmi::Served)
        }
        _ => Pmi::NotOurs,
    }
}

/// Returns the gate that pauses this processor's trace.
pub(crate) fn gate() -> &'static PauseGate {
    tracer().gate()
}

/// Pauses the trace of this processor, if Intel PT traces it.
pub(crate) fn pause() -> Result<(), GeneralProtection> {
    tracer().pause()
}

/// Resumes the trace of this processor.
pub(crate) fn resume() -> Result<(), GeneralProtection> {
    tracer().resume().map(|_| ())
}

/// Runs `work` while PMIs are held back. Returns false, without running it, if nothing is recorded.
pub(crate) fn hold(work: impl FnOnce()) -> bool {
    tracer().with(|_| work()).is_ok()
}

/// Returns the number of PMIs that this processor has served in this session.
pub(crate) fn served() -> u64 {
    // The slot is free: its users do not call this.
    tracer().handler(|handler| handler.counts().served).unwrap_or(u64::MAX)
}

/// Drains the unit. Must be called before another address space becomes current: only the kernel knows to which one
/// branch records belong.
pub(crate) fn leave_address_space() {
    // Other units need not hold back interrupts.
    if !DRAINED_BETWEEN_SPACES.load(Relaxed) {
        return;
    }
    let drained: Result<(), SlotError> = tracer().with(|Tracer { unit, fault }| {
        if let Err(error) = unit.drain() {
            fault.get_or_insert(error);
        }
    });
    // If nothing is recorded, there is nothing to drain.
    let _ = drained;
}

impl Traced for Tracer {
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection> {
        let interrupted = interrupt.interrupted();
        let mut interrupt = Some(interrupt);
        let served = self.unit.serve(interrupted, &mut |sources| match interrupt.take() {
            Some(interrupt) => interrupt.serve(sources),
            None => Ok(Pmi::Served),
        });
        served.inspect_err(|error| _ = self.fault.get_or_insert(*error))
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.unit.resume().inspect_err(|error| _ = self.fault.get_or_insert(*error))
    }
}

fn set_interrupts(on: bool) {
    if on { interrupts::enable() } else { interrupts::disable() }
}
