//! Overflows, on a machine that drops packets that come too fast: bursts of packets alternate with quiet stretches in
//! which the output catches up.

use core::hint::black_box;

use super::returns::Returns;
use crate::plan::Plan;
use crate::workload::{Mismatch, Workload, expect};
use pugmark_boot::expectation::Expected;

const ROUNDS: u64 = 10;
/// Returns in a burst; each is one instruction and three bytes of trace.
const BURST: usize = 500;
/// Iterations of the quiet loop.
const QUIET: u64 = 300;

/// Counts the iterations of the quiet loop.
pub(super) struct Overflows {
    returns: Returns,
    count: u64,
}

impl Overflows {
    pub(super) fn new() -> Self {
        Self { returns: Returns::new(BURST), count: 0 }
    }
}

impl Workload for Overflows {
    fn plan(&self) -> Plan {
        Plan::everything().losing(Expected::Overflow).with_packets(true)
    }

    fn run(&mut self) {
        for _ in 0..ROUNDS {
            self.returns.run();
            for turn in 0..QUIET {
                self.count = black_box(self.count + turn % 2);
            }
        }
    }

    fn check(&self) -> Result<(), Mismatch> {
        expect("bursts", self.returns.finished(), ROUNDS)?;
        expect("count", self.count, ROUNDS * QUIET / 2)
    }
}
