//! A count by RDPMC.

use super::MASK;

/// How a count is read without RDMSR, also by user code where CR4.PCE is set: [`crate::arch::rdpmc`] with
/// [`Rdpmc::index`], then [`Rdpmc::count`].
///
/// It is good until a handler serves the counter's next overflow, which begins a new period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rdpmc {
    pub(super) index: u32,
    pub(super) begin: u64,
    pub(super) total: u64,
}

impl Rdpmc {
    /// What goes into ECX.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The events since the start, from what RDPMC gave.
    #[must_use]
    pub const fn count(&self, counter: u64) -> u64 {
        self.total.wrapping_add(counter.wrapping_sub(self.begin) & MASK)
    }
}
