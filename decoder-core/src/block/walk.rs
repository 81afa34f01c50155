//! The way since the trace last said something: its length, and whether it has an end.
//!
//! As in the instruction flow: Brent's method, with one remembered address.

/// Counts instructions and finds endless loops.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    /// Instructions since the last place that the trace named, which TRIG packets count from.
    insns: u64,
    /// Jumps since the mark was set, and after how many it is set anew.
    jumps: u64,
    limit: u64,
    mark: Option<u64>,
}

impl Walk {
    pub(super) const fn new() -> Self {
        Self { insns: 0, jumps: 0, limit: 1, mark: None }
    }

    /// The trace said something: what was walked until here cannot be part of an endless loop.
    #[inline]
    pub(super) fn consumed(&mut self) {
        self.jumps = 0;
        self.limit = 1;
        self.mark = None;
    }

    /// The trace said where this is.
    #[inline]
    pub(super) fn anchor(&mut self) {
        self.insns = 0;
        self.consumed();
    }

    /// So many instructions.
    #[inline]
    pub(super) fn step(&mut self, insns: u64) {
        self.insns += insns;
    }

    /// How many instructions there were since the last anchor.
    pub(super) const fn insns(&self) -> u64 {
        self.insns
    }

    /// A direct jump to `target`, without trace; `false` when the walk has been there since the trace said something.
    #[inline]
    #[must_use]
    pub(super) fn jump(&mut self, target: u64) -> bool {
        if self.mark == Some(target) {
            return false;
        }
        self.jumps += 1;
        if self.jumps == self.limit {
            self.mark = Some(target);
            self.jumps = 0;
            self.limit = self.limit.saturating_mul(2);
        }
        true
    }
}
