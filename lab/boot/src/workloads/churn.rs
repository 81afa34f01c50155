//! Code that generates many trace bytes per instruction, for the workloads that test buffers.

use core::hint::black_box;

use crate::workload::{Mismatch, expect};

const OPERATIONS: [fn(u64) -> u64; 4] = [
    |n| n.wrapping_add(0x9e37_79b9),
    |n| if n & 1 == 0 { n ^ 0x55 } else { n.wrapping_mul(5) },
    |n| n.rotate_left(11),
    |n| if n % 3 == 0 { !n } else { n.wrapping_sub(3) },
];

/// A value that is passed through many indirect calls.
#[derive(Default)]
pub(crate) struct Churn {
    value: u64,
    rounds: u64,
}

impl Churn {
    /// Makes `rounds` indirect calls.
    #[inline(never)]
    pub(crate) fn turn(&mut self, rounds: u64) {
        for _ in 0..rounds {
            let operation = black_box(&OPERATIONS)[(self.value >> 7 & 3) as usize];
            self.value = operation(self.value);
        }
        self.rounds += rounds;
    }

    pub(crate) fn check(&self) -> Result<(), Mismatch> {
        let expected = (0..self.rounds).fold(0u64, |n, _| match n >> 7 & 3 {
            0 => n.wrapping_add(0x9e37_79b9),
            1 if n & 1 == 0 => n ^ 0x55,
            1 => n.wrapping_mul(5),
            2 => n.rotate_left(11),
            _ if n % 3 == 0 => !n,
            _ => n.wrapping_sub(3),
        });
        expect("value", self.value, expected)
    }
}
