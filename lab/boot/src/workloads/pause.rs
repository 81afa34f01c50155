//! A trace that is paused and resumed: by the program, and by the overflow of a counter, whose interrupt is an NMI.

use super::churn::Churn;
use crate::plan::Plan;
use crate::session;
use crate::workload::{Mismatch, Workload, expect};
use pugmark_kernel::lapic::Delivery;

const ROUNDS: u64 = 40;

/// Executes many branches. The buffer holds the whole trace, so that all PMIs are the counter's: a PMI of the trace
/// that is requested while the counter's is served would be dropped. The driver notices that, but this workload counts
/// it as a mistake.
pub(super) struct Pauses {
    churn: Churn,
    /// Number of pauses before this workload.
    before: u64,
    faults: u64,
}

impl Pauses {
    pub(super) fn new() -> Self {
        Self { churn: Churn::default(), before: session::gate().pauses(), faults: 0 }
    }

    fn count(&mut self, faults: bool) {
        self.faults += u64::from(faults);
    }
}

impl Workload for Pauses {
    fn plan(&self) -> Plan {
        Plan::everything()
            .configured(|config| config.return_compression(false))
            .delivered(Delivery::Nmi)
            .without_interrupts()
            .paused_by_counter([1009, 307])
    }

    fn run(&mut self) {
        for _ in 0..ROUNDS {
            self.churn.turn(150);
            self.count(session::pause().is_err());
            self.churn.turn(20);
            // PMIs are held back, including the counter's.
            session::hold(|| ());
            self.churn.turn(20);
            self.count(session::resume().is_err());
        }
    }

    fn check(&self) -> Result<(), Mismatch> {
        // The slot is this processor's; the next trace must not find it paused.
        let resumed = session::resume();
        self.churn.check()?;
        expect("accesses that raised #GP", self.faults + u64::from(resumed.is_err()), 0)?;
        expect("enough pauses", u64::from(session::gate().pauses() - self.before >= ROUNDS), 1)
    }
}
