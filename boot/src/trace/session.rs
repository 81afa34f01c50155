//! One trace session: it is started, interrupted and stopped, and its bytes go into an archive.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use pugmark_boot::archive::Archive;
use pugmark_kernel::amd::ibs::SampleSink;
use pugmark_kernel::amd::{counters, ibs};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::drain::{KeepAll, Piece, Sink};
use pugmark_kernel::intel::ds::{self, DsArea, DsConfig, Half};
use pugmark_kernel::intel::lbr::{self, LbrConfig};
use pugmark_kernel::intel::pt::PtCapabilities;
use pugmark_kernel::intel::pt::PtConfigRefusal;
use pugmark_kernel::intel::pt::{self, PtRefusal, PtStopped, PtUnit};
use pugmark_kernel::intel::pt::{Buffer, BufferError};
use pugmark_kernel::lapic::{Delivery, LocalApic, XApic};
use pugmark_kernel::lifecycle::{Absent, StartError};
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::{Counts, Handler, Pmi};
use pugmark_kernel::slot::{Interrupt, NotTraced, Slot, SlotError, Traced};
use pugmark_protocol::{EventKind, Samples};
use x86_64::instructions::interrupts;

use super::amd::{Addresses, AmdFailure, Counting, sampling};
use super::branches::{Branches, StoreFailure};
use super::frames::KernelFrames;
use super::last::{self, LastFailure};
use super::linear::KernelLinear;
use super::plan::{Plan, Unfit};
use super::samples::Sampling;
use crate::arch::paging::AddressSpace;
use crate::arch::{apic, marker};

/// The state that the PMI handler uses.
struct Tracer {
    running: Running,
    archive: Archive<'static>,
    fault: Option<GeneralProtection>,
    /// How many samples have no known address.
    unplaced: u64,
}

/// The running unit that traces, counts or samples.
#[allow(clippy::large_enum_variant, reason = "there is one")]
enum Running {
    Pt(pt::PtRunning<GuardedMsr, KernelFrames>),
    Bts(ds::DsRunning<GuardedMsr, KernelLinear>),
    Pebs(ds::DsRunning<GuardedMsr, KernelLinear>, Sampling),
    Last(lbr::LbrRunning<GuardedMsr>),
    Counters(counters::CounterRunning<GuardedMsr>),
    Ibs(ibs::IbsRunning<GuardedMsr>, Samples),
}

/// The processor's registers and its local APIC.
type Processor = fn() -> (GuardedMsr, XApic);

// SAFETY: there is one processor.
static TRACER: Slot<Tracer, Processor> =
    unsafe { Slot::new(Handler::new(Delivery::Nmi), || (msr(), apic())) };

/// Whether PMIs are NMIs.
static BY_NMI: AtomicBool = AtomicBool::new(true);

/// Branch records are being written: code that drains them must know to which address space they belong.
static RECORDS_BRANCHES: AtomicBool = AtomicBool::new(false);

/// The result of a session.
pub(super) struct Recorded {
    pub(super) archive: Archive<'static>,
    pub(super) loss: Loss,
    pub(super) counts: Counts,
    /// How often the event happened, if events were counted.
    pub(super) counted: Option<u64>,
    /// What became of samples; those in the archive are not counted here yet.
    pub(super) samples: Samples,
    /// The fault that the PMI handler had, if any.
    pub(super) fault: Option<GeneralProtection>,
}

/// Why there is no trace.
#[derive(Debug)]
pub(crate) enum Failure {
    Detect(Absent),
    Buffer(BufferError),
    Start(StartError<PtRefusal>),
    /// The unit could not be stopped, or its position could not be read.
    Stop(GeneralProtection),
    /// There are no branch records or samples of the debug store.
    Store(StoreFailure),
    /// There are no last branch records.
    Last(LastFailure),
    /// The plan cannot be done by Intel PT.
    Unfit(Unfit),
    /// Nothing was counted or sampled.
    Amd(AmdFailure),
    /// Another trace is running.
    Busy,
}

impl Failure {
    /// Whether this processor merely lacks what the plan needs.
    pub(crate) fn is_refusal(&self) -> bool {
        match self {
            Self::Detect(absent) => absent.is_missing(),
            Self::Buffer(BufferError::Missing(_))
            | Self::Start(StartError::Refused(PtRefusal::Buffer(BufferError::Missing(_)))) => true,
            Self::Start(StartError::Refused(PtRefusal::Config(refusal))) => {
                matches!(
                    refusal,
                    PtConfigRefusal::Missing(_)
                        | PtConfigRefusal::Encoding { .. }
                        | PtConfigRefusal::Ranges { .. }
                )
            }
            Self::Store(failure) => failure.is_refusal(),
            Self::Last(failure) => failure.is_refusal(),
            Self::Unfit(_) => true,
            Self::Amd(failure) => failure.is_refusal(),
            _ => false,
        }
    }
}

impl From<NotTraced<Self>> for Failure {
    fn from(failed: NotTraced<Self>) -> Self {
        match failed {
            NotTraced::Start(failure) => failure,
            NotTraced::Slot(error) => error.into(),
        }
    }
}

impl From<SlotError> for Failure {
    fn from(error: SlotError) -> Self {
        match error {
            SlotError::Fault(fault) => Self::Start(StartError::Fault(fault)),
            SlotError::InUse | SlotError::Empty | SlotError::Occupied => Self::Busy,
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
            Self::Store(failure) => failure.fmt(f),
            Self::Last(failure) => failure.fmt(f),
            Self::Unfit(unfit) => unfit.say("packets", f),
            Self::Amd(failure) => failure.fmt(f),
            Self::Busy => f.write_str("there is another trace"),
        }
    }
}

/// A unit with a buffer, prepared to trace.
pub(super) struct Ready {
    unit: ReadyUnit,
    plan: Plan,
}

#[allow(clippy::large_enum_variant, reason = "there is one")]
enum ReadyUnit {
    Pt(PtUnit<GuardedMsr>, Buffer<KernelFrames>),
    Bts(ds::DsUnit<GuardedMsr>, DsArea<KernelLinear>, DsConfig),
    Pebs(ds::DsUnit<GuardedMsr>, DsArea<KernelLinear>, DsConfig, Sampling),
    Last(lbr::LbrUnit<GuardedMsr>, LbrConfig),
    Counters(counters::CounterUnit<GuardedMsr>, counters::CountedEvent),
    Ibs(ibs::IbsUnit<GuardedMsr>, ibs::IbsConfig, Samples),
}

/// What to record.
#[derive(Clone, Copy)]
pub(super) enum Wanted {
    Packets,
    Branches,
    /// Samples of one event by the debug store.
    Precise(EventKind),
    /// The last branches, or the calls that have not returned.
    Last {
        calls: bool,
    },
    Count(Counting),
    Samples {
        /// How many rounds of sampling came before.
        round: u32,
    },
}

impl Ready {
    /// Finds the unit, checks the configuration and allocates the buffer.
    pub(super) fn new(wanted: Wanted, plan: Plan) -> Result<Self, Failure> {
        let unit = match wanted {
            Wanted::Packets => ReadyUnit::of_processor_trace(&plan)?,
            Wanted::Branches => {
                let (unit, area, config) = Branches::ready(&plan, msr()).map_err(Failure::Store)?;
                ReadyUnit::Bts(unit, area, config)
            }
            Wanted::Precise(kind) => {
                let ((unit, area, config), sampling) =
                    Sampling::ready(kind, &plan, msr()).map_err(Failure::Store)?;
                ReadyUnit::Pebs(unit, area, config, sampling)
            }
            Wanted::Last { calls } => {
                let (unit, config) = last::ready(calls, &plan, msr()).map_err(Failure::Last)?;
                ReadyUnit::Last(unit, config)
            }
            Wanted::Count(counting) => {
                let (unit, event) = counting.ready(&plan, msr()).map_err(Failure::Amd)?;
                ReadyUnit::Counters(unit, event)
            }
            Wanted::Samples { round } => {
                let (unit, config, samples) = sampling(&plan, round, msr(), apic()).map_err(Failure::Amd)?;
                ReadyUnit::Ibs(unit, config, samples)
            }
        };
        Ok(Self { unit, plan })
    }

    /// Traces `work` as session `session`.
    pub(super) fn record(
        self,
        session: u16,
        archive: Archive<'static>,
        work: impl FnOnce(),
    ) -> Result<Recorded, Failure> {
        let Self { unit, plan } = self;
        let archive = match unit {
            ReadyUnit::Bts(..) if Branches::is_drained(&plan) => archive.apart(),
            _ => archive,
        };
        RECORDS_BRANCHES.store(matches!(unit, ReadyUnit::Bts(..)), Relaxed);
        let (handler, by_nmi) = unit.handler(&plan);
        TRACER.replace(handler)?;
        BY_NMI.store(by_nmi, Relaxed);
        set_interrupts(plan.interrupts);
        marker::set(session.into());
        let started =
            TRACER.start(|| Ok(Tracer { running: unit.start(&plan)?, archive, fault: None, unplaced: 0 }));
        let result = started.map_err(Failure::from).and_then(|()| {
            work();
            interrupts::disable();
            TRACER.stop(Tracer::stop).unwrap_or(Err(Failure::Busy))
        });
        marker::set(0);
        // Another interrupt, a stray one, may be on its way. STI does not let it in before the next instruction.
        interrupts::enable();
        x86_64::instructions::nop();
        interrupts::disable();
        TRACER.disarm()?;
        let counts = TRACER.handler(|handler| *handler.counts())?;
        result.map(|recorded| Recorded { counts, ..recorded })
    }
}

impl ReadyUnit {
    fn of_processor_trace(plan: &Plan) -> Result<Self, Failure> {
        let capabilities =
            PtCapabilities::of_this_processor().map_err(|absent| Failure::Detect(absent.into()))?;
        Unfit::only_area(plan).map_err(Failure::Unfit)?;
        plan.config
            .check(&capabilities)
            .map_err(|refusal| Failure::Start(StartError::Refused(refusal.into())))?;
        let unit = PtUnit::with_capabilities(capabilities, msr()).map_err(Failure::Detect)?;
        let buffer =
            Buffer::allocate(KernelFrames, &capabilities, plan.layout, plan.mode).map_err(Failure::Buffer)?;
        Ok(Self::Pt(unit, buffer))
    }

    /// Returns the unit's handler, and whether its interrupts are NMIs. Interrupts of AMD's sources always are,
    /// whatever the workload requests, so that none of them is delayed.
    fn handler(&self, plan: &Plan) -> (Handler, bool) {
        match self {
            Self::Pt(..) | Self::Bts(..) | Self::Pebs(..) | Self::Last(..) => {
                (Handler::new(plan.delivery), plan.delivery == Delivery::Nmi)
            }
            Self::Counters(..) => (Handler::amd(Delivery::Nmi), true),
            Self::Ibs(..) => (Handler::extended(), true),
        }
    }

    fn start(self, plan: &Plan) -> Result<Running, Failure> {
        match self {
            Self::Pt(unit, buffer) => unit
                .start(&plan.config, buffer)
                .map(Running::Pt)
                .map_err(|failed| Failure::Start(failed.error())),
            Self::Bts(unit, area, config) => unit
                .start(&config, area)
                .map(Running::Bts)
                .map_err(|failed| Failure::Store(StoreFailure::Start(failed.error()))),
            Self::Pebs(unit, area, config, sampling) => unit
                .start(&config, area)
                .map(|running| Running::Pebs(running, sampling))
                .map_err(|failed| Failure::Store(StoreFailure::Start(failed.error()))),
            Self::Last(unit, config) => unit
                .start(&config)
                .map(Running::Last)
                .map_err(|failed| Failure::Last(LastFailure::Start(failed.error()))),
            Self::Counters(unit, event) => unit
                .start(&[event])
                .map(Running::Counters)
                .map_err(|failed| Failure::Amd(AmdFailure::Count(failed.error()))),
            Self::Ibs(unit, config, samples) => unit
                .start(&config)
                .map(|running| Running::Ibs(running, samples))
                .map_err(|failed| Failure::Amd(AmdFailure::Sample(failed.error()))),
        }
    }
}

/// Called for an NMI that came at RIP `interrupted`: returns what the tracing unit reports about it.
pub(crate) fn nmi(interrupted: u64) -> Pmi {
    if BY_NMI.load(Relaxed) { interrupt(interrupted) } else { Pmi::NotOurs }
}

/// Called for the interrupt with the tracing unit's vector.
pub(crate) fn pmi(interrupted: u64) {
    if !BY_NMI.load(Relaxed) {
        interrupt(interrupted);
    }
}

fn interrupt(interrupted: u64) -> Pmi {
    // A fault is kept with the trace.
    TRACER.interrupt(Some(interrupted)).unwrap_or(Pmi::Served)
}

/// Runs `work` while PMIs have to wait. Returns false, without running it, if nothing is traced.
pub(crate) fn hold(work: impl FnOnce()) -> bool {
    TRACER.with(|_| work()).is_ok()
}

/// Must be called before another address space becomes current: only the kernel knows to which one branch records
/// belong.
pub(crate) fn leave_address_space() {
    // For other sources, interrupts need not wait.
    if !RECORDS_BRANCHES.load(Relaxed) {
        return;
    }
    let drained = TRACER.with(|Tracer { running, archive, fault, .. }| {
        let Running::Bts(running) = running else { return };
        archive.enter(AddressSpace::current().cr3());
        if let Err(error) = running.drain(archive, &mut KeepAll) {
            fault.get_or_insert(error);
        }
    });
    // If nothing is traced, there is nothing to drain.
    let _ = drained;
}

impl Traced for Tracer {
    fn serve<M: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, M, A>,
    ) -> Result<Pmi, GeneralProtection> {
        let Self { running, archive, fault, unplaced } = self;
        let interrupted = interrupt.interrupted();
        let served = match running {
            Running::Pt(running) => interrupt.serve(&mut [&mut running.source(archive)]),
            Running::Bts(running) => {
                archive.enter(AddressSpace::current().cr3());
                // This source has no samples.
                interrupt.serve(&mut [&mut running.source(archive, &mut KeepAll)])
            }
            Running::Pebs(running, sampling) => {
                // This source has no branch records.
                let sink = &mut sampling.sink(archive, unplaced);
                interrupt.serve(&mut [&mut running.source(&mut KeepAll, sink)])
            }
            // This source never requests an interrupt.
            Running::Last(_) => interrupt.serve(&mut []),
            Running::Counters(running) => {
                let sink = &mut Addresses { archive, interrupted, unplaced };
                interrupt.serve(&mut [&mut running.source(sink)])
            }
            Running::Ibs(running, _) => {
                let sink = &mut Addresses { archive, interrupted, unplaced };
                interrupt.serve(&mut [&mut running.source(sink)])
            }
        };
        served.inspect_err(|error| _ = fault.get_or_insert(*error))
    }
}

impl Tracer {
    fn stop(self, handler: &mut Handler) -> Result<Recorded, Failure> {
        let Self { running, mut archive, fault, mut unplaced } = self;
        let (mut counted, mut samples) = (None, Samples::default());
        let loss = match running {
            Running::Pt(running) => {
                let PtStopped { trace, loss, .. } =
                    running.stop().map_err(|failed| Failure::Stop(failed.fault))?;
                keep(&mut archive, trace.pieces());
                loss
            }
            Running::Bts(running) => {
                let stopped =
                    running.stop().map_err(|failed| Failure::Store(StoreFailure::Stop(failed.fault)))?;
                archive.enter(AddressSpace::current().cr3());
                keep(&mut archive, stopped.records.pieces(Half::Bts));
                *stopped.records.loss(Half::Bts)
            }
            Running::Pebs(running, sampling) => {
                let stopped =
                    running.stop().map_err(|failed| Failure::Store(StoreFailure::Stop(failed.fault)))?;
                sampling.finish(&stopped.records, &mut archive, &mut unplaced);
                let loss = *stopped.records.loss(Half::Pebs);
                samples = Samples {
                    event: sampling.kind,
                    period: sampling.period.into(),
                    lost: loss.samples,
                    ..Samples::default()
                };
                loss
            }
            Running::Last(running) => {
                last::finish(running, &mut archive)
                    .map_err(|fault| Failure::Last(LastFailure::Stop(fault)))?;
                Loss::default()
            }
            Running::Counters(running) => {
                let stopped = running.stop().map_err(|failed| Failure::Stop(failed.fault))?.expect(handler);
                let overflows = stopped.overflows;
                counted = stopped.totals().first().copied();
                samples.lost = overflows.lost;
                samples.skipped = overflows.skipped + overflows.unseen;
                Loss::default()
            }
            Running::Ibs(running, configured) => {
                let stopped = running.stop().map_err(|failed| Failure::Stop(failed.fault))?.expect(handler);
                let mut last =
                    Addresses { archive: &mut archive, interrupted: None, unplaced: &mut unplaced };
                let left_out =
                    stopped.last().map(|sample| last.sample(sample)).filter(|taken| !taken).count();
                samples = Samples { lost: stopped.counts.lost + left_out as u64, ..configured };
                unplaced += stopped.counts.unplaced;
                Loss::default()
            }
        };
        samples.unplaced = unplaced;
        Ok(Recorded { archive, loss, counts: *handler.counts(), counted, samples, fault })
    }
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

/// This processor's MSRs.
pub(super) fn msr() -> GuardedMsr {
    // SAFETY: this is CPL 0 of the only processor, and the #GP handler obeys `fixup`.
    unsafe { GuardedMsr::new() }
}

fn apic() -> XApic {
    let base = NonNull::without_provenance(apic::ADDRESS);
    // SAFETY: the local APIC's page is always mapped there, writable and uncached, and `apic::init` has checked the
    // mode.
    unsafe { XApic::new(base) }
}
