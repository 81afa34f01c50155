//! Sorting: branches that cannot be predicted.

use alloc::vec::Vec;

use crate::workload::{Mismatch, Workload, expect, numbers};

const COUNT: usize = 250;

/// Sorts the same numbers with both of the library's algorithms and by insertion.
pub(crate) struct Sort {
    numbers: Vec<u64>,
    unstable: Vec<u64>,
    stable: Vec<u64>,
    insertion: Vec<u64>,
}

impl Sort {
    pub(crate) fn new() -> Self {
        let numbers: Vec<u64> = numbers(7).take(COUNT).map(|number| number >> 40).collect();
        let insertion = numbers[..COUNT / 8].to_vec();
        Self { unstable: numbers.clone(), stable: numbers.clone(), insertion, numbers }
    }
}

impl Workload for Sort {
    fn run(&mut self) {
        self.unstable.sort_unstable();
        self.stable.sort();
        sort_by_insertion(&mut self.insertion);
    }

    fn check(&self) -> Result<(), Mismatch> {
        let descents = |sorted: &[u64]| sorted.windows(2).filter(|pair| pair[0] > pair[1]).count() as u64;
        // A sum and a sum of squares distinguish a permutation from most other lists.
        let sum = |numbers: &[u64]| numbers.iter().fold(0u64, |sum, n| sum.wrapping_add(n * n + n));
        for (name, sorted) in
            [("unstable", &self.unstable), ("stable", &self.stable), ("insertion", &self.insertion)]
        {
            expect(name, descents(sorted), 0)?;
            expect(name, sum(sorted), sum(&self.numbers[..sorted.len()]))?;
        }
        Ok(())
    }
}

#[inline(never)]
fn sort_by_insertion(numbers: &mut [u64]) {
    for end in 1..numbers.len() {
        let mut at = end;
        while at > 0 && numbers[at - 1] > numbers[at] {
            numbers.swap(at - 1, at);
            at -= 1;
        }
    }
}
