//! Outcomes that the walk has not come to yet.

use crate::packet::Tnt;

/// The outcomes of one TNT packet; the oldest is in bit `len - 1`.
#[derive(Clone, Copy, Debug)]
pub(super) struct TntBuffer {
    bits: u64,
    len: u8,
}

impl TntBuffer {
    pub(super) const fn new() -> Self {
        Self { bits: 0, len: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// How many outcomes are left.
    pub(super) const fn len(&self) -> u8 {
        self.len
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes a packet's outcomes; the buffer must be empty.
    #[inline]
    pub(super) fn fill(&mut self, tnt: Tnt) {
        *self = Self { bits: tnt.bits, len: tnt.len.min(63) };
    }

    /// The oldest outcome.
    #[inline]
    pub(super) fn take(&mut self) -> Option<bool> {
        self.len = self.len.checked_sub(1)?;
        Some(self.bits >> self.len & 1 != 0)
    }
}
