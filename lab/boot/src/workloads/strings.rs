//! String instructions: each is one instruction in the trace, regardless of its repetitions.

use alloc::vec;
use alloc::vec::Vec;
use core::arch::asm;

use crate::workload::{Mismatch, Workload, expect};

const SIZE: usize = 200;
const ROUNDS: usize = 20;

/// Fills, copies, compares and searches with every string instruction.
pub(super) struct Strings {
    from: Vec<u8>,
    to: Vec<u8>,
    found: usize,
    differs: usize,
    sum: u64,
}

impl Strings {
    pub(super) fn new() -> Self {
        Self { from: vec![0; SIZE], to: vec![0; SIZE], found: 0, differs: 0, sum: 0 }
    }
}

impl Workload for Strings {
    fn run(&mut self) {
        for round in 0..ROUNDS {
            // The counts include 0 and 1.
            let len = if round < 2 { round } else { SIZE - round };
            fill(&mut self.from[..len], round as u8 + 1);
            copy(&self.from[..len], &mut self.to[..len]);
            if let Some(last) = self.to[..len].last_mut() {
                *last = 0xff;
            }
            self.found += search(&self.to[..len], 0xff);
            self.differs += compare(&self.from[..len], &self.to[..len]);
            self.sum += sum(&self.from[..len]);
        }
    }

    fn check(&self) -> Result<(), Mismatch> {
        let lengths = || (0..ROUNDS).map(|round| if round < 2 { round } else { SIZE - round });
        let ends = lengths().map(|len| len.saturating_sub(1)).sum::<usize>() as u64;
        expect("place found", self.found as u64, ends)?;
        expect("difference", self.differs as u64, ends)?;
        let sum = lengths().enumerate().map(|(round, len)| (round + 1) * len).sum::<usize>();
        expect("sum", self.sum, sum as u64)
    }
}

fn fill(bytes: &mut [u8], byte: u8) {
    let (words, rest) = (bytes.len() / 8, bytes.len() % 8);
    let pattern = u64::from(byte) * 0x0101_0101_0101_0101;
    // SAFETY: both instructions together write exactly the slice.
    unsafe {
        asm!(
            "rep stosq", "mov rcx, {rest}", "rep stosb",
            inout("rcx") words => _, inout("rdi") bytes.as_mut_ptr() => _,
            in("rax") pattern, rest = in(reg) rest, options(nostack, preserves_flags),
        );
    }
}

fn copy(from: &[u8], to: &mut [u8]) {
    let len = from.len().min(to.len());
    // SAFETY: reads and writes `len` bytes of slices that are as long and do not overlap.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") len => _, inout("rsi") from.as_ptr() => _, inout("rdi") to.as_mut_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Returns the index of the first `byte`, or 0.
fn search(bytes: &[u8], byte: u8) -> usize {
    let left: usize;
    // SAFETY: reads the slice and no more.
    unsafe {
        asm!(
            "repne scasb",
            inout("rcx") bytes.len() => left, inout("rdi") bytes.as_ptr() => _, in("al") byte,
            options(nostack, readonly),
        );
    }
    (bytes.len() - left).saturating_sub(1)
}

/// Returns the index of the first difference, or 0.
fn compare(left: &[u8], right: &[u8]) -> usize {
    let len = left.len().min(right.len());
    let rest: usize;
    // SAFETY: reads `len` bytes of slices that are as long.
    unsafe {
        asm!(
            "repe cmpsb",
            inout("rcx") len => rest, inout("rsi") left.as_ptr() => _, inout("rdi") right.as_ptr() => _,
            options(nostack, readonly),
        );
    }
    (len - rest).saturating_sub(1)
}

fn sum(bytes: &[u8]) -> u64 {
    let (mut sum, mut at) = (0, bytes.as_ptr());
    for _ in 0..bytes.len() {
        let byte: u64;
        // SAFETY: `at` walks through the slice.
        unsafe {
            asm!("xor eax, eax", "lodsb", out("rax") byte, inout("rsi") at, options(nostack, readonly));
        }
        sum += byte;
    }
    sum
}
