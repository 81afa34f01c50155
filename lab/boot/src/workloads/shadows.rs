//! The interrupt shadows of STI and of MOV to SS, with every kind of instruction in them. In an interrupt shadow, which
//! lasts for one instruction, no interrupt is taken.

use core::arch::asm;

use crate::workload::{Mismatch, Workload, expect};

const ROUNDS: u64 = 60;

/// A counter that is incremented in all the shadows.
#[derive(Default)]
pub(super) struct Shadows {
    count: u64,
}

impl Workload for Shadows {
    fn run(&mut self) {
        for _ in 0..ROUNDS {
            // SAFETY: interrupts are on again at the end, SS is loaded with its own value, and the calls return.
            self.count += unsafe { round() };
        }
    }

    fn check(&self) -> Result<(), Mismatch> {
        expect("count", self.count, ROUNDS * 8)
    }
}

/// Makes eight increments, one after each kind of instruction in a shadow.
///
/// # Safety
/// Interrupts must be on: they are turned off and on again.
unsafe fn round() -> u64 {
    let mut count = 0u64;
    // SAFETY: the caller promises it; pushes and pops are paired, and this block assumes no red zone.
    unsafe {
        asm!(
            "mov {ss:e}, ss",
            // STI, then a plain instruction, a jump, a conditional jump, a call.
            "cli", "sti", "inc {n}",
            "cli", "sti", "jmp 2f", "2:", "inc {n}",
            "cli", "test {n}, {n}", "sti", "jnz 3f", "ud2", "3:", "inc {n}",
            "cli", "sti", "call 6f",
            // The same for MOV to SS.
            "mov ss, {ss:e}", "inc {n}",
            "mov ss, {ss:e}", "jmp 4f", "4:", "inc {n}",
            "test {n}, {n}", "mov ss, {ss:e}", "jz 5f", "inc {n}", "5:",
            "mov ss, {ss:e}", "call 6f",
            "jmp 7f",
            "6:", "inc {n}", "ret",
            "7:",
            n = inout(reg) count,
            ss = out(reg) _,
        );
    }
    count
}
