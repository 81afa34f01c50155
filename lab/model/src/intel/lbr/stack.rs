//! The records of the stack.

/// The size of the largest stack.
pub(super) const MAX_ENTRIES: usize = 32;

/// A record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastBranch {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) info: u64,
}

/// The records, and the index of the latest one.
#[derive(Debug)]
pub(crate) struct LbrStack {
    pub(super) entries: [LastBranch; MAX_ENTRIES],
    pub(super) tos: u64,
    /// Number of entries.
    count: u64,
}

impl LbrStack {
    pub(crate) fn new(count: u32) -> Self {
        Self {
            entries: [LastBranch::default(); MAX_ENTRIES],
            tos: 0,
            count: u64::from(count).clamp(1, MAX_ENTRIES as u64),
        }
    }

    /// Returns the records, the latest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = LastBranch> {
        (0..self.count).map(|back| self.entries[((self.tos + self.count - back) % self.count) as usize])
    }

    pub(super) fn push(&mut self, entry: LastBranch) {
        self.tos = (self.tos + 1) % self.count;
        self.entries[self.tos as usize] = entry;
    }

    /// Removes the latest record.
    pub(super) fn flush(&mut self) {
        self.entries[self.tos as usize] = LastBranch::default();
        self.tos = (self.tos + self.count - 1) % self.count;
    }
}
