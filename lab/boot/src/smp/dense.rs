//! The requested number of PMIs on each processor, with as few instructions between them as possible: each is decoded
//! in its NMI handler, in place.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use pugmark_kernel::intel::pt::{Layout, Mode, RegionSize};
use pugmark_kernel::lapic::Delivery;

use super::SmpWorkload;
use crate::plan::Plan;
use crate::runner::Runner;
use crate::session;
use crate::sources::InPlace;
use crate::workload::{Mismatch, Workload, expect};
use crate::workloads::{Churn, Returns};

/// Number of PMIs for which each processor waits.
static WANTED: AtomicU64 = AtomicU64::new(0);

/// The number of returns in one stack of them.
const RETURNS: usize = 600;

pub(super) fn run(smp: &SmpWorkload<'_>) {
    WANTED.store(smp.command_line.pmis, Relaxed);
    let mut runner = Runner::new(smp.symbols, &InPlace, smp.command_line);
    runner.run_on_all("dense", || Box::new(Dense::new()), smp.report);
}

/// Generates many trace bytes until enough PMIs were served.
struct Dense {
    churn: Churn,
    returns: Returns,
    served: u64,
}

impl Dense {
    fn new() -> Self {
        Self { churn: Churn::default(), returns: Returns::spread(RETURNS), served: 0 }
    }
}

impl Workload for Dense {
    fn plan(&self) -> Plan {
        Plan::everything()
            .configured(|config| config.return_compression(false).cycles(0))
            .into(Layout::topa(RegionSize::K4, 2), Mode::StopWhenFull { spare: 1 })
            .delivered(Delivery::Nmi)
            .without_interrupts()
    }

    fn run(&mut self) {
        while self.served < WANTED.load(Relaxed) {
            self.churn.turn(10);
            self.returns.run();
            // Reading holds the slot, which delays a PMI that arrives just then.
            self.served = session::served();
        }
    }

    fn check(&self) -> Result<(), Mismatch> {
        // There may be one more: the time of the last PMI is unknown.
        expect("whether there were enough PMIs", u64::from(self.served >= WANTED.load(Relaxed)), 1)?;
        self.churn.check()
    }
}
