//! Finds the functions that executed most instructions.

use alloc::vec;
use alloc::vec::Vec;

use crate::symbols::{Function, Symbols};

/// Counts of instructions by function.
#[derive(Clone, Debug)]
pub struct Histogram<'s> {
    symbols: &'s Symbols<'s>,
    counts: Vec<u64>,
    elsewhere: u64,
    /// The function of the last address, because the next one is usually in the same function.
    last: Option<usize>,
}

impl<'s> Histogram<'s> {
    /// Returns a histogram of the functions of `symbols`, with all counts 0.
    #[must_use]
    pub fn new(symbols: &'s Symbols<'s>) -> Self {
        Self { symbols, counts: vec![0; symbols.functions().len()], elsewhere: 0, last: None }
    }

    /// Counts one instruction.
    pub fn add(&mut self, address: u64) {
        let holds = |function: &Function<'_>| address.wrapping_sub(function.address) < function.size;
        if !self.last.is_some_and(|index| holds(&self.symbols.functions()[index])) {
            self.last = self.symbols.find(address);
        }
        match self.last {
            Some(index) => self.counts[index] += 1,
            None => self.elsewhere += 1,
        }
    }

    /// Returns the `n` functions with the highest counts, the hottest first; among equal counts the lower address comes
    /// first.
    #[must_use]
    pub fn top(&self, n: usize) -> Vec<(Function<'s>, u64)> {
        let mut order: Vec<usize> = (0..self.counts.len()).filter(|&index| self.counts[index] > 0).collect();
        order.sort_unstable_by_key(|&index| (core::cmp::Reverse(self.counts[index]), index));
        order.into_iter().take(n).map(|index| (self.symbols.functions()[index], self.counts[index])).collect()
    }

    /// Returns the number of instructions in no known function.
    #[must_use]
    pub fn elsewhere(&self) -> u64 {
        self.elsewhere
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(address: u64, size: u64, name: &str) -> Function<'_> {
        Function { address, size, name }
    }

    #[test]
    fn counts_by_function_and_orders_by_count() {
        let symbols = Symbols::from_functions([
            function(0x100, 0x10, "a"),
            function(0x110, 0, "b"),
            function(0x200, 1, "c"),
        ]);
        let mut histogram = Histogram::new(&symbols);
        for address in [0x100, 0x101, 0x111, 0x1ff, 0x112, 0x10f, 0x200, 0x201, 0xff] {
            histogram.add(address);
        }
        let names = |n| {
            histogram.top(n).into_iter().map(|(function, count)| (function.name, count)).collect::<Vec<_>>()
        };
        assert_eq!(names(9), [("a", 3), ("b", 3), ("c", 1)]);
        assert_eq!(names(1), [("a", 3)]);
        assert_eq!(histogram.elsewhere(), 2);
    }
}
