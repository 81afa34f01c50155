//! Reading a count with RDPMC.

use super::MASK;

/// A way to read a count without RDMSR, also from user code if CR4.PCE is set: call [`crate::arch::rdpmc`] with
/// [`Rdpmc::index`], then [`Rdpmc::count`] with the result.
///
/// The value is valid until a handler serves the counter's next overflow, which begins a new period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rdpmc {
    pub(super) index: u32,
    pub(super) begin: u64,
    pub(super) total: u64,
}

impl Rdpmc {
    /// Returns the index, for ECX.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Returns the number of events since the start, from the value that RDPMC returned.
    #[must_use]
    pub const fn count(&self, counter: u64) -> u64 {
        self.total.wrapping_add(counter.wrapping_sub(self.begin) & MASK)
    }
}
