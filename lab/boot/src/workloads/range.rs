//! Code filtered by address: a range that is traced, and one that ends the trace.

use core::hint::black_box;

use crate::plan::Plan;
use crate::workload::{Mismatch, Workload, expect};

const ROUNDS: u64 = 100;
/// The round in which the trace ends.
const STOP: u64 = 70;

/// Functions inside and outside a range that call each other.
pub(super) struct AddressRanges {
    stop: bool,
    inside: u64,
    outside: u64,
    stopping: u64,
}

impl AddressRanges {
    /// Traces only the range, or, if `stop`, everything until another range is entered.
    pub(super) fn new(stop: bool) -> Self {
        Self { stop, inside: 0, outside: 0, stopping: 0 }
    }
}

impl Workload for AddressRanges {
    fn plan(&self) -> Plan {
        if self.stop {
            Plan::everything().until_stopping_code()
        } else {
            Plan::everything().in_filtered_code()
        }
    }

    fn run(&mut self) {
        for round in 0..ROUNDS {
            self.inside += inside(round, add_three);
            self.outside += outside(round);
            if self.stop && round >= STOP {
                self.stopping += stopping(round);
            }
        }
    }

    fn check(&self) -> Result<(), Mismatch> {
        let inside = |round: u64| (round % 7..=7).sum::<u64>() + round + 3;
        expect("sum inside", self.inside, (0..ROUNDS).map(inside).sum())?;
        expect("sum outside", self.outside, (0..ROUNDS).map(|round| 2 * inside(round / 2) + 1).sum())?;
        let stopping = if self.stop { (STOP..ROUNDS).map(|round| round * 3).sum() } else { 0 };
        expect("sum after the stop", self.stopping, stopping)
    }
}

/// Loops, and calls `then`, which may be inside or outside the range.
#[inline(never)]
#[unsafe(link_section = ".text.filtered.inside")]
fn inside(n: u64, then: fn(u64) -> u64) -> u64 {
    let (mut sum, mut left) = (0, n % 7);
    while left <= 7 {
        sum += black_box(left);
        left += 1;
    }
    sum + then(n)
}

#[inline(never)]
#[unsafe(link_section = ".text.filtered.leaf")]
fn add_three(n: u64) -> u64 {
    black_box(n) + 3
}

#[inline(never)]
fn outside(n: u64) -> u64 {
    black_box(inside(n / 2, add_one_outside)) + inside(n / 2, add_six_outside)
}

#[inline(never)]
fn add_one_outside(n: u64) -> u64 {
    black_box(n) + 1
}

#[inline(never)]
fn add_six_outside(n: u64) -> u64 {
    add_three(black_box(n) + 3)
}

#[inline(never)]
#[unsafe(link_section = ".text.stopping.triple")]
fn stopping(n: u64) -> u64 {
    black_box(n) * 3
}
