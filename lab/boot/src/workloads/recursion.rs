//! Deep recursion: more calls are outstanding than return compression remembers. With return compression, a return to
//! the instruction after its call needs only a bit of trace.

use core::hint::black_box;

use crate::workload::{Mismatch, Workload, expect};

const DEPTH: u64 = 300;
const ROUNDS: u64 = 5;
const FIBONACCI: u64 = 12;

/// Computes sums with one recursive call, and Fibonacci numbers with two.
#[derive(Default)]
pub(super) struct Recursion {
    sum: u64,
    fibonacci: u64,
}

impl Workload for Recursion {
    fn run(&mut self) {
        for _ in 0..ROUNDS {
            self.sum += sum(black_box(DEPTH));
        }
        self.fibonacci = fibonacci(black_box(FIBONACCI));
    }

    fn check(&self) -> Result<(), Mismatch> {
        expect("sum", self.sum, ROUNDS * DEPTH * (DEPTH + 1) / 2)?;
        let (by_loop, _) = (0..FIBONACCI).fold((0, 1), |(a, b), _| (b, a + b));
        expect("Fibonacci number", self.fibonacci, by_loop)
    }
}

#[inline(never)]
fn sum(n: u64) -> u64 {
    // The result must be used after the call; otherwise the compiler would turn the recursion into a loop.
    if n == 0 { 0 } else { black_box(sum(n - 1)) + n }
}

#[inline(never)]
fn fibonacci(n: u64) -> u64 {
    if n < 2 { n } else { black_box(fibonacci(n - 1)) + black_box(fibonacci(n - 2)) }
}
