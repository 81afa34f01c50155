//! One trace: started, interrupted, stopped; its bytes in an archive.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use pugmark_boot::archive::Archive;
use pugmark_boot::command_line::Source;
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::buffer::{Buffer, BufferError};
use pugmark_kernel::config::Refusal;
use pugmark_kernel::cpuid::Capabilities;
use pugmark_kernel::detect::DetectError;
use pugmark_kernel::drain::{KeepAll, Piece, Sink};
use pugmark_kernel::ds::{self, DsArea, Half};
use pugmark_kernel::lapic::XApic;
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi::{Counts, Handler, Pmi, PmiSource};
use pugmark_kernel::pt::{self, StartError, StopFailed, Stopped, Unit};
use pugmark_kernel::slot::Slot;
use x86_64::instructions::interrupts;

use super::branches::{BranchFailure, Branches};
use super::frames::KernelFrames;
use super::linear::KernelLinear;
use super::plan::Plan;
use crate::arch::paging::AddressSpace;
use crate::arch::{apic, marker};

/// What the PMI handler works with.
struct Tracer {
    running: Running,
    handler: Handler,
    archive: Archive<'static>,
    msr: GuardedMsr,
    apic: XApic,
    fault: Option<GeneralProtection>,
}

/// What traces.
#[allow(clippy::large_enum_variant, reason = "there is one")]
enum Running {
    Pt(pt::Running<GuardedMsr, KernelFrames>),
    Bts(ds::Running<GuardedMsr, KernelLinear>),
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
    /// There are no branch records.
    Branches(BranchFailure),
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
            Self::Branches(failure) => failure.is_refusal(),
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
            Self::Branches(failure) => failure.fmt(f),
            Self::Busy => f.write_str("there is another trace"),
        }
    }
}

/// A unit with a buffer, ready to trace.
pub(super) struct Ready {
    unit: ReadyUnit,
    plan: Plan,
}

#[allow(clippy::large_enum_variant, reason = "there is one")]
enum ReadyUnit {
    Pt(Unit<GuardedMsr>, Buffer<KernelFrames>),
    Bts(ds::Unit<GuardedMsr>, DsArea<KernelLinear>, Branches),
}

impl Ready {
    /// Finds the unit, checks the configuration and allocates the buffer.
    pub(super) fn new(source: Source, plan: Plan) -> Result<Self, Failure> {
        let unit = match source {
            Source::Pt => ReadyUnit::of_processor_trace(&plan)?,
            Source::Bts => {
                let (unit, area, branches) = Branches::ready(&plan, msr()).map_err(Failure::Branches)?;
                ReadyUnit::Bts(unit, area, branches)
            }
        };
        Ok(Self { unit, plan })
    }

    /// Traces `work` as trace session `session`.
    pub(super) fn record(
        self,
        session: u32,
        archive: Archive<'static>,
        work: impl FnOnce(),
    ) -> Result<Recorded, Failure> {
        let Self { unit, plan } = self;
        let archive = match unit {
            ReadyUnit::Bts(..) if Branches::is_drained(&plan) => archive.apart(),
            _ => archive,
        };
        set_interrupts(plan.interrupts);
        marker::set(session);
        let started = TRACER.with(
            |slot| {
                let handler = Handler::new(plan.delivery);
                let mut apic = apic();
                handler.arm(&mut apic).map_err(|fault| Failure::Start(StartError::Fault(fault)))?;
                let running = unit.start(&plan)?;
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

impl ReadyUnit {
    fn of_processor_trace(plan: &Plan) -> Result<Self, Failure> {
        let capabilities =
            Capabilities::of_this_processor().map_err(|absent| Failure::Detect(absent.into()))?;
        plan.config.check(&capabilities).map_err(|refusal| Failure::Start(refusal.into()))?;
        let unit = Unit::with_capabilities(capabilities, msr()).map_err(Failure::Detect)?;
        let buffer =
            Buffer::allocate(KernelFrames, &capabilities, plan.layout, plan.mode).map_err(Failure::Buffer)?;
        Ok(Self::Pt(unit, buffer))
    }

    fn start(self, plan: &Plan) -> Result<Running, Failure> {
        match self {
            Self::Pt(unit, buffer) => unit
                .start(&plan.config, buffer)
                .map(Running::Pt)
                .map_err(|failed| Failure::Start(failed.error())),
            Self::Bts(unit, area, branches) => unit
                .start(&branches.config, area)
                .map(Running::Bts)
                .map_err(|failed| Failure::Branches(BranchFailure::Start(failed.error()))),
        }
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

/// Before another address space becomes current: of branch records only the kernel knows which one they are of.
pub(crate) fn leave_address_space() {
    TRACER.with(
        |slot| {
            let Some(Tracer { running: Running::Bts(running), archive, fault, .. }) = slot else { return };
            archive.enter(AddressSpace::current().cr3());
            if let Err(error) = running.drain(archive, &mut KeepAll) {
                fault.get_or_insert(error);
            }
        },
        serve,
    );
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
    let mut serve = |source: &mut dyn PmiSource| match interrupted {
        Some(rip) => handler.handle_at(rip, msr, apic, &mut [source]),
        None => handler.handle(msr, apic, &mut [source]),
    };
    let handled = match running {
        Running::Pt(running) => serve(&mut running.source(archive)),
        Running::Bts(running) => {
            archive.enter(AddressSpace::current().cr3());
            // There are no samples.
            serve(&mut running.source(archive, &mut KeepAll))
        }
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
    let loss = match running {
        Running::Pt(running) => {
            let Stopped { trace, loss, .. } = running.stop().map_err(Failure::from)?;
            keep(&mut archive, trace.pieces());
            loss
        }
        Running::Bts(running) => {
            let stopped = running.stop().map_err(|failed| Failure::Branches(failed.into()))?;
            archive.enter(AddressSpace::current().cr3());
            keep(&mut archive, stopped.records.pieces(Half::Bts));
            *stopped.records.loss(Half::Bts)
        }
    };
    handler.disarm(&mut apic).map_err(Failure::Stop)?;
    Ok(Recorded { archive, loss, counts: *handler.counts(), fault })
}

fn keep<'t>(archive: &mut Archive<'_>, pieces: impl Iterator<Item = Piece<'t>>) {
    for piece in pieces {
        match piece {
            Piece::Bytes(bytes) => _ = archive.bytes(bytes),
            Piece::Gap(gap) => _ = archive.gap(gap),
        }
    }
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
