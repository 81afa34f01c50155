//! Kinds of buffers: small ones with dozens of interrupts, interrupts that are NMIs, a single range, a STOP, a ring
//! that wraps.

use super::churn::Churn;
use super::returns::Returns;
use crate::plan::Plan;
use crate::workload::{Mismatch, Workload, expect};
use pugmark_boot::expectation::Expected;
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::intel::pt::RegionSize;
use pugmark_kernel::intel::pt::{Layout, Mode};
use pugmark_kernel::lapic::Delivery;

/// The distinctive feature of the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Two pages, with cycle counts; an interrupt for each page.
    Small,
    /// A ring with an interrupt for each page.
    Circular,
    /// The interrupt is an NMI, and all other interrupts are off.
    Nmi,
    /// One range without interrupts, large enough.
    SingleRange,
    /// Interrupts are off until the buffer has stopped at its end; this happens twice.
    Stop,
    /// A ring without interrupts: only the newest bytes are kept.
    Ring,
}

/// Generates many trace bytes into little memory.
pub(super) struct Buffers {
    kind: Kind,
    churn: Churn,
    returns: Returns,
}

/// The number of returns in one stack of them.
const RETURNS: usize = 400;

impl Kind {
    /// Returns the amount of work.
    fn rounds(self) -> u64 {
        match self {
            Self::Small => 26,
            Self::Nmi | Self::Circular | Self::Ring => 12,
            Self::SingleRange => 1,
            Self::Stop => 14,
        }
    }
}

impl Buffers {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, churn: Churn::default(), returns: Returns::new(RETURNS) }
    }

    /// Runs ordinary code, and code that generates many trace bytes.
    fn both(&mut self, rounds: u64) {
        for _ in 0..rounds {
            self.churn.turn(100);
            self.returns.run();
        }
    }
}

impl Workload for Buffers {
    fn plan(&self) -> Plan {
        let plan = Plan::everything();
        let loud = |config: PtConfig| config.return_compression(false);
        let pages = |regions| Layout::topa(RegionSize::K4, regions);
        let drained = Mode::StopWhenFull { spare: 1 };
        match self.kind {
            Kind::Small => {
                let cycles = |config: PtConfig| config.return_compression(false).cycles(0);
                plan.configured(cycles).into(pages(2), drained)
            }
            Kind::Circular => plan.configured(loud).into(pages(3), Mode::Circular { interrupt_every: 1 }),
            Kind::Nmi => {
                plan.configured(loud).into(pages(2), drained).delivered(Delivery::Nmi).without_interrupts()
            }
            Kind::SingleRange => plan.into(Layout::SingleRange { bytes: 1 << 17 }, Mode::Overwrite),
            Kind::Stop => {
                plan.configured(loud).into(pages(2), drained).without_interrupts().losing(Expected::Stop)
            }
            Kind::Ring => plan.configured(loud).into(pages(3), Mode::Overwrite).losing(Expected::Wrap),
        }
    }

    fn run(&mut self) {
        let rounds = self.kind.rounds();
        if !matches!(self.kind, Kind::Stop) {
            return self.both(rounds);
        }
        for _ in 0..2 {
            self.both(rounds / 2);
            // The pending interrupt is delivered here.
            x86_64::instructions::interrupts::enable();
            self.churn.turn(200);
            x86_64::instructions::interrupts::disable();
        }
    }

    fn check(&self) -> Result<(), Mismatch> {
        expect("stacks of returns", self.returns.finished(), self.kind.rounds())?;
        self.churn.check()
    }
}
