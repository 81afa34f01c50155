//! The outcomes that the walk has not used yet.

use crate::packet::Tnt;

/// The outcomes of a TNT packet, the oldest in bit 63.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnusedOutcomes {
    bits: u64,
    /// The number of outcomes left, and that of the packet.
    len: u8,
    filled: u8,
}

impl UnusedOutcomes {
    pub(super) const fn new() -> Self {
        Self { bits: 0, len: 0, filled: 0 }
    }

    /// Returns the outcomes of a packet, all unused.
    pub(super) fn of(tnt: Tnt) -> Self {
        let len = tnt.len.min(63);
        let bits = if len == 0 { 0 } else { tnt.bits << (64 - len) };
        Self { bits, len, filled: len }
    }

    /// Returns the outcomes that are left.
    pub(super) const fn left(&self) -> Tnt {
        let bits = if self.len == 0 { 0 } else { self.bits >> (64 - self.len) };
        Tnt { bits, len: self.len }
    }

    /// Marks all outcomes as used, including those that were read elsewhere.
    pub(super) const fn use_up(&mut self) {
        *self = Self { bits: 0, len: 0, filled: 1 };
    }

    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    /// Returns the number of outcomes left.
    pub(super) const fn len(&self) -> u8 {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if no outcome was used.
    pub(super) const fn is_untouched(&self) -> bool {
        self.len == self.filled
    }

    /// Takes the oldest outcome.
    pub(super) fn take(&mut self) -> Option<bool> {
        self.len = self.len.checked_sub(1)?;
        let taken = self.bits >> 63 != 0;
        self.bits <<= 1;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;
    use std::vec::Vec;

    #[test]
    fn outcomes_are_taken_oldest_first() {
        let mut outcomes = UnusedOutcomes::of(Tnt { bits: 0b1011, len: 4 });
        assert!(outcomes.is_untouched());
        assert_eq!(outcomes.take(), Some(true));
        assert!(!outcomes.is_untouched());
        assert_eq!(outcomes.left(), Tnt { bits: 0b011, len: 3 });
        let rest: Vec<_> = core::iter::from_fn(|| outcomes.take()).collect();
        assert_eq!(rest, [false, true, true]);
        assert_eq!((outcomes.left(), outcomes.is_empty()), (Tnt::EMPTY, true));
    }

    #[test]
    fn outcomes_that_were_used_elsewhere_are_not_untouched() {
        let mut outcomes = UnusedOutcomes::new();
        assert!(outcomes.is_untouched());
        outcomes.use_up();
        assert!(outcomes.is_empty() && !outcomes.is_untouched());
    }
}
