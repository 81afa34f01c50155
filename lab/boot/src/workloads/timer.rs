//! Timer interrupts at random places, including string instructions.

use alloc::vec;
use alloc::vec::Vec;
use core::arch::asm;
use core::sync::atomic::Ordering::Relaxed;

use crate::arch::apic;
use crate::arch::traps::TICKS;
use crate::workload::{Mismatch, Workload, expect};

const SIZE: usize = 1000;
/// Stops after this many interrupts,
const INTERRUPTS: u64 = 12;
/// or after this many rounds if the timer does not tick.
const ROUNDS: u64 = 300_000;
/// Ticks of the timer's clock between interrupts: 1 to 40 ms, with timers of 24 MHz to 1 GHz that count every second
/// tick.
const PERIOD: u32 = 500_000;

/// Adds numbers and copies bytes until enough interrupts have come.
pub(super) struct Timer {
    from: Vec<u8>,
    to: Vec<u8>,
    interrupts: u64,
    rounds: u64,
    sum: u64,
}

impl Timer {
    pub(super) fn new() -> Self {
        Self {
            from: (0..SIZE).map(|n| n as u8).collect(),
            to: vec![0; SIZE],
            interrupts: 0,
            rounds: 0,
            sum: 0,
        }
    }
}

impl Workload for Timer {
    fn run(&mut self) {
        let before = TICKS.load(Relaxed);
        apic::start_timer(PERIOD);
        while self.interrupts < INTERRUPTS && self.rounds < ROUNDS {
            self.rounds += 1;
            self.sum += self.rounds;
            let (from, to) = (self.from.as_ptr(), self.to.as_mut_ptr());
            // SAFETY: copies as many bytes as both buffers have.
            unsafe {
                asm!(
                    "rep movsb",
                    inout("rcx") SIZE => _, inout("rsi") from => _, inout("rdi") to => _,
                    options(nostack, preserves_flags),
                );
            }
            self.interrupts = TICKS.load(Relaxed) - before;
        }
        apic::start_timer(0);
    }

    fn check(&self) -> Result<(), Mismatch> {
        expect("enough interrupts", u64::from(self.interrupts >= INTERRUPTS), 1)?;
        expect("sum", self.sum, self.rounds * (self.rounds + 1) / 2)?;
        expect("bytes copied", u64::from(self.from == self.to), 1)
    }
}
