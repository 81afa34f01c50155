//! One trace: started, interrupted, stopped; its bytes in an archive.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use pugmark_boot::archive::Archive;
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::buffer::{Buffer, BufferError};
use pugmark_kernel::config::Refusal;
use pugmark_kernel::cpuid::Capabilities;
use pugmark_kernel::detect::DetectError;
use pugmark_kernel::drain::{Piece, Sink};
use pugmark_kernel::lapic::XApic;
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi::{Counts, Handler, Pmi, PmiSource};
use pugmark_kernel::pt::{Running, StartError, StopFailed, Stopped, Unit};
use pugmark_kernel::slot::Slot;
use x86_64::instructions::interrupts;

use super::frames::KernelFrames;
use super::plan::Plan;
use crate::arch::{apic, marker};

/// What the PMI handler works with.
struct Tracer {
    running: Running<GuardedMsr, KernelFrames>,
    handler: Handler,
    archive: Archive<'static>,
    msr: GuardedMsr,
    apic: XApic,
    fault: Option<GeneralProtection>,
}

// SAFETY: there is one processor.
static TRACER: Slot<Tracer> = unsafe { Slot::new() };

/// Interrupts with nothing being traced.
static STRAYS: AtomicU64 = AtomicU64::new(0);

/// A trace that is over.
pub(super) struct Recorded {
    pub(super) archive: Archive<'static>,
    pub(super) loss: Loss,
    pub(super) counts: Counts,
    /// What the PMI handler could not do.
    pub(super) fault: Option<GeneralProtection>,
}

/// Why there is no trace.
#[derive(Debug)]
pub(crate) enum Failure {
    Detect(DetectError),
    Buffer(BufferError),
    Start(StartError),
    /// The trace did not let itself be stopped, or did not say how far it came.
    Stop(GeneralProtection),
    /// There is another one.
    Busy,
}

impl Failure {
    /// Whether this processor simply lacks what it takes.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Detect(DetectError::Cpuid(_))
            | Self::Buffer(BufferError::Missing(_))
            | Self::Start(StartError::Buffer(BufferError::Missing(_))) => true,
            Self::Start(StartError::Config(refusal)) => {
                matches!(refusal, Refusal::Missing(_) | Refusal::Encoding { .. } | Refusal::Ranges { .. })
            }
            _ => false,
        }
    }
}

impl From<StopFailed<GuardedMsr, KernelFrames>> for Failure {
    fn from(failed: StopFailed<GuardedMsr, KernelFrames>) -> Self {
        match failed {
            StopFailed::Running { fault, .. } | StopFailed::Off { fault, .. } => Self::Stop(fault),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Detect(error) => error.fmt(f),
            Self::Buffer(error) => error.fmt(f),
            Self::Start(error) => error.fmt(f),
            Self::Stop(fault) => write!(f, "the trace does not stop: {fault}"),
            Self::Busy => f.write_str("there is another trace"),
        }
    }
}

/// A unit with a buffer, ready to trace.
pub(super) struct Ready {
    unit: Unit<GuardedMsr>,
    buffer: Buffer<KernelFrames>,
    plan: Plan,
}

impl Ready {
    /// Finds the unit, checks the configuration and allocates the buffer.
    pub(super) fn new(plan: Plan) -> Result<Self, Failure> {
        let capabilities =
            Capabilities::of_this_processor().map_err(|absent| Failure::Detect(absent.into()))?;
        plan.config.check(&capabilities).map_err(|refusal| Failure::Start(refusal.into()))?;
        let unit = Unit::with_capabilities(capabilities, msr()).map_err(Failure::Detect)?;
        let buffer =
            Buffer::allocate(KernelFrames, &capabilities, plan.layout, plan.mode).map_err(Failure::Buffer)?;
        Ok(Self { unit, buffer, plan })
    }

    /// Traces `work` as trace session `session`.
    pub(super) fn record(
        self,
        session: u32,
        archive: Archive<'static>,
        work: impl FnOnce(),
    ) -> Result<Recorded, Failure> {
        let Self { unit, buffer, plan } = self;
        set_interrupts(plan.interrupts);
        marker::set(session);
        let started = TRACER.with(
            |slot| {
                let handler = Handler::new(plan.delivery);
                let mut apic = apic();
                handler.arm(&mut apic).map_err(|fault| Failure::Start(StartError::Fault(fault)))?;
                let running =
                    unit.start(&plan.config, buffer).map_err(|failed| Failure::Start(failed.error()))?;
                *slot = Some(Tracer { running, handler, archive, msr: msr(), apic, fault: None });
                Ok(())
            },
            serve,
        );
        let result = match started {
            Some(Ok(())) => {
                work();
                interrupts::disable();
                stop()
            }
            Some(Err(failure)) => Err(failure),
            None => Err(Failure::Busy),
        };
        marker::set(0);
        // One more interrupt may have been on its way. STI lets none in before the instruction behind it.
        interrupts::enable();
        x86_64::instructions::nop();
        interrupts::disable();
        result
    }
}

/// The tracing unit's interrupt, which came at RIP `interrupted`; false if it is none of it.
pub(crate) fn pmi(interrupted: u64) -> bool {
    // A handler that finds the slot taken has left a note there.
    TRACER.in_handler(|slot| handle(slot, Some(interrupted))).unwrap_or(true)
}

/// Interrupts with nothing being traced, since this was asked last.
pub(super) fn take_strays() -> u64 {
    STRAYS.swap(0, Relaxed)
}

/// Serves an interrupt that came while the slot was taken.
fn serve(slot: &mut Option<Tracer>) {
    handle(slot, None);
}

fn handle(slot: &mut Option<Tracer>, interrupted: Option<u64>) -> bool {
    let Some(Tracer { running, handler, archive, msr, apic, fault }) = slot else {
        STRAYS.fetch_add(1, Relaxed);
        return true;
    };
    let mut source = running.source(archive);
    let sources: &mut [&mut dyn PmiSource] = &mut [&mut source];
    let handled = match interrupted {
        Some(rip) => handler.handle_at(rip, msr, apic, sources),
        None => handler.handle(msr, apic, sources),
    };
    match handled {
        Ok(pmi) => pmi != Pmi::NotOurs,
        Err(error) => {
            fault.get_or_insert(error);
            true
        }
    }
}

fn stop() -> Result<Recorded, Failure> {
    let Some(Some(tracer)) = TRACER.with(Option::take, serve) else { return Err(Failure::Busy) };
    let Tracer { running, handler, mut archive, mut apic, fault, .. } = tracer;
    let Stopped { trace, loss, .. } = running.stop().map_err(Failure::from)?;
    handler.disarm(&mut apic).map_err(Failure::Stop)?;
    for piece in trace.pieces() {
        match piece {
            Piece::Bytes(bytes) => _ = archive.bytes(bytes),
            Piece::Gap(gap) => _ = archive.gap(gap),
        }
    }
    Ok(Recorded { archive, loss, counts: *handler.counts(), fault })
}

fn set_interrupts(on: bool) {
    if on { interrupts::enable() } else { interrupts::disable() }
}

fn msr() -> GuardedMsr {
    // SAFETY: this is CPL 0, the #GP handler obeys `fixup`, and there is one processor.
    unsafe { GuardedMsr::new() }
}

fn apic() -> XApic {
    let base = NonNull::without_provenance(apic::ADDRESS);
    // SAFETY: the local APIC's page is mapped there for good, writable and uncached, and `apic::init` has checked the mode.
    unsafe { XApic::new(base) }
}
