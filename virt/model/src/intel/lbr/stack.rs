//! The records of the stack.

/// The size of the largest stack.
pub(super) const MOST: usize = 32;

/// A record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LastBranch {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) info: u64,
}

/// The records, and the index of the latest one.
#[derive(Debug)]
pub(crate) struct Stack {
    pub(super) entries: [LastBranch; MOST],
    pub(super) tos: u64,
    /// How many entries the stack has.
    count: u64,
}

impl Stack {
    pub(crate) fn new(count: u32) -> Self {
        Self { entries: [LastBranch::default(); MOST], tos: 0, count: u64::from(count).clamp(1, MOST as u64) }
    }

    /// Returns the records, the latest first.
    pub(crate) fn latest(&self) -> impl Iterator<Item = LastBranch> {
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
