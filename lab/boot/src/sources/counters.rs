//! AMD's performance counters: they count events, and interrupt after each period.

use alloc::boxed::Box;
use pugmark_kernel::amd::counters::{CountedEvent, CounterRunning, CounterUnit};
use pugmark_kernel::arch::GuardedMsr;
use pugmark_kernel::cpuid::this_processor;
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::loss::Loss;
use pugmark_kernel::msr::GeneralProtection;
use pugmark_kernel::pmi::{Handler, Pmi};
use pugmark_protocol::{Count, Line, Samples};

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

/// AMD's performance counters.
pub(super) struct Counters;

impl Source for Counters {
    fn passes(&self, _: u32) -> u32 {
        COUNTED.len() as u32
    }

    fn prepare(&self, pass: u32, plan: &Plan) -> Result<Prepared, SourceError> {
        let counting = COUNTED[pass as usize];
        plan.require("what is counted or sampled", &[]).map_err(SourceError::refused)?;
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
