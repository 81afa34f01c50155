//! Performance counters: AMD's count events, and interrupt after each period; Intel's count.

use alloc::boxed::Box;
use pugmark_kernel::amd::counters::{CountedEvent, CounterRunning, CounterUnit};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::cpuid::this_processor;
use pugmark_kernel::intel::counters::{IntelCounterRunning, IntelCounterUnit, IntelEvent};
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_protocol::{Count, Line, Samples};
use raw_cpuid::CpuId;

use super::addresses::Addresses;
use super::source::Source;
use crate::arch::registers;
use crate::arch::serial::say;
use crate::plan::Plan;
use crate::report::{Recorded, RecordingError, SessionReport};
use crate::session::{Prepared, Running, Serve, SourceError, Stopped};

/// The event to count, and its sampling period.
#[derive(Clone, Copy, Debug)]
struct Counting {
    /// The event select (12 bits).
    event: u16,
    period: Option<u32>,
}

/// Retired instructions, branches and far transfers, which all families count with the same event selects; then
/// instructions again, with an interrupt after each period. Each has a pass of its own, because only a single counter
/// counts exactly the instructions in the truth's log.
///
/// Source: BKDG 31116, "Performance Counter Events"; PPR 56176, "Core Performance Monitor Counters".
const COUNTED: [Counting; 4] = [
    Counting { event: 0xc0, period: None },
    Counting { event: 0xc2, period: None },
    Counting { event: 0xc6, period: None },
    // Longer than the handler, which is counted too and takes some 940 instructions.
    Counting { event: 0xc0, period: Some(1499) },
];

/// The event selects of the events that Intel's processors count: retired instructions and branches, which are
/// architectural.
const OF_INTEL: [(u16, IntelEvent); 2] = [(0xc0, IntelEvent::INSTRUCTIONS), (0xc4, IntelEvent::BRANCHES)];

/// Returns true if the processor is Intel's.
fn is_intel() -> bool {
    CpuId::new().get_vendor_info().is_some_and(|vendor| vendor.as_str() == "GenuineIntel")
}

/// The performance counters.
pub(super) struct Counters;

impl Source for Counters {
    fn passes(&self, _: u32) -> u32 {
        if is_intel() { OF_INTEL.len() as u32 } else { COUNTED.len() as u32 }
    }

    fn prepare(&self, pass: u32, plan: &Plan) -> Result<Prepared, SourceError> {
        plan.require("what is counted or sampled", &[]).map_err(SourceError::refused)?;
        if is_intel() {
            return prepare_intel(pass, plan);
        }
        let counting = COUNTED[pass as usize];
        let unit = CounterUnit::detect(this_processor, registers::msr()).map_err(SourceError::absent)?;
        let event = CountedEvent::new(counting.event, 0).os(plan.os()).user(plan.user());
        let event = counting.period.map_or(event, |period| event.every(period.into()));
        let addresses = Addresses::new();
        // The interrupts are always NMIs, so that none of them is delayed.
        Ok(Prepared::by_nmi(Handler::amd(Delivery::Nmi), move || {
            let running = unit.start(&[event]).map_err(|failed| SourceError::failed(failed.error()))?;
            Ok(RunningCounters { running, counting, addresses })
        }))
    }
}

/// Prepares to count one event on a processor of Intel's.
fn prepare_intel(pass: u32, plan: &Plan) -> Result<Prepared, SourceError> {
    let unit = IntelCounterUnit::detect(this_processor, registers::msr()).map_err(SourceError::absent)?;
    let (select, event) = OF_INTEL[pass as usize];
    let event = event.os(plan.os()).user(plan.user());
    Ok(Prepared::by_nmi(Handler::new(Delivery::Nmi), move || {
        let running = unit.start(&[event]).map_err(|failed| SourceError::failed(failed.error()))?;
        Ok(RunningIntelCounter { running, select })
    }))
}

struct RunningIntelCounter {
    running: IntelCounterRunning<GuardedMsr>,
    select: u16,
}

impl Running for RunningIntelCounter {
    fn serve(&mut self, _: Option<u64>, serve: Serve<'_>) -> Result<Pmi, GeneralProtection> {
        serve(&mut [])
    }

    fn stop(self: Box<Self>, _: &mut Handler) -> Result<Stopped, SourceError> {
        let Self { running, select } = *self;
        let stopped = running.stop().map_err(|failed| SourceError::does_not_stop(failed.fault))?;
        let counting = Counting { event: select, period: None };
        let value = stopped.totals().first().copied().filter(|_| !stopped.turned_off);
        let (addresses, samples) = (Addresses::new(), Samples::default());
        Ok(Stopped::new(Counted { counting, value, addresses, samples }, Loss::default()))
    }
}

struct RunningCounters {
    running: CounterRunning<GuardedMsr>,
    counting: Counting,
    addresses: Addresses,
}

impl Running for RunningCounters {
    fn serve(&mut self, interrupted: Option<u64>, serve: Serve<'_>) -> Result<Pmi, GeneralProtection> {
        serve(&mut [&mut self.running.source(&mut self.addresses.sink(interrupted))])
    }

    fn stop(self: Box<Self>, handler: &mut Handler) -> Result<Stopped, SourceError> {
        let Self { running, counting, addresses } = *self;
        let stopped =
            running.stop().map_err(|failed| SourceError::does_not_stop(failed.fault))?.expect(handler);
        let overflows = stopped.overflows;
        let samples = Samples {
            lost: overflows.lost,
            skipped: overflows.skipped + overflows.unseen,
            unplaced: addresses.unplaced,
            ..Samples::default()
        };
        let value = stopped.totals().first().copied();
        Ok(Stopped::new(Counted { counting, value, addresses, samples }, Loss::default()))
    }
}

struct Counted {
    counting: Counting,
    /// Number of events.
    value: Option<u64>,
    addresses: Addresses,
    /// The counts of samples without an address.
    samples: Samples,
}

impl Recorded for Counted {
    fn report(&self, session: &SessionReport<'_>) -> Result<(), RecordingError> {
        let Self { counting: Counting { event, period }, value, addresses, samples } = self;
        if let &Some(value) = value {
            say(Line::Count(session.name, Count { session: session.number, event: *event, value }));
        }
        if let &Some(period) = period {
            session.say_addresses(Samples { period: period.into(), ..*samples }, &addresses.kept);
        }
        session.say_code_and_losses(addresses.kept.full());
        Ok(())
    }
}
