//! NMIs of other origin together with the tracing unit's own.

use super::churn::Churn;
use crate::arch::nmi::{self, NmiCounts};
use crate::arch::serial::say;
use crate::plan::Plan;
use crate::session;
use crate::workload::{Mismatch, Workload, expect};
use pugmark_kernel::intel::pt::RegionSize;
use pugmark_kernel::intel::pt::{Layout, Mode};
use pugmark_kernel::lapic::Delivery;
use pugmark_protocol::{Access, Line};

const ROUNDS: u64 = 12;

/// Generates many trace bytes into little memory, so that PMIs come. NMIs are sent in between, both while the handler
/// is free and while it is running.
pub(super) struct ForeignNmis {
    churn: Churn,
    /// The counts before this workload.
    before: NmiCounts,
    /// Calls of [`nmi::send`].
    sent: u64,
    faults: bool,
}

impl ForeignNmis {
    pub(super) fn new() -> Self {
        Self { churn: Churn::default(), before: nmi::counts(), sent: 0, faults: nmi::faults() }
    }
}

impl Workload for ForeignNmis {
    fn plan(&self) -> Plan {
        let pages = Layout::topa(RegionSize::K4, 2);
        Plan::everything()
            .configured(|config| config.return_compression(false))
            .into(pages, Mode::StopWhenFull { spare: 1 })
            .delivered(Delivery::Nmi)
            .without_interrupts()
            .with_nmis()
    }

    fn run(&mut self) {
        for round in 0..ROUNDS {
            // Rounds of equal length could send every NMI just when a PMI comes.
            self.churn.turn(200 + 3 * round);
            nmi::send();
            self.churn.turn(10);
            self.sent += 1 + u64::from(session::hold(nmi::send));
        }
    }

    fn check(&self) -> Result<(), Mismatch> {
        let (seen, before) = (nmi::counts(), self.before);
        let (taken, merged) = (seen.taken - before.taken, seen.merged - before.merged);
        // The #GPs are intended, but the handler could not announce them.
        let (msr, value) = nmi::probe();
        for _ in 0..seen.faults - before.faults + u64::from(self.faults) {
            say(Line::Probe("foreign-nmis", Access { msr, value: Some(value) }));
        }
        self.churn.check()?;
        expect("NMIs that came or became one with a PMI", taken + merged, 2 * self.sent)?;
        expect("enough of them came", u64::from(taken > self.sent / 2), 1)?;
        let accesses = if self.faults { seen.accesses - before.accesses } else { 0 };
        expect("accesses that raised #GP", seen.faults - before.faults, accesses)
    }
}
