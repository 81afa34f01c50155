//! Finds walks that never end.

/// A detector of endless loops, by Brent's method: it remembers the target of one jump, compares it with each later
/// one, and replaces it after 1, 2, 4, 8 … jumps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loops {
    mark: Option<u64>,
    jumps: u64,
    limit: u64,
}

impl Loops {
    pub(super) const NEW: Self = Self { mark: None, jumps: 0, limit: 1 };

    /// Notes a jump without the trace. Returns true if the walk was at its target since the trace was used last.
    pub(super) fn closes(&mut self, target: u64) -> bool {
        if self.mark == Some(target) {
            return true;
        }
        self.jumps += 1;
        if self.jumps == self.limit {
            *self = Self { mark: Some(target), jumps: 0, limit: self.limit.saturating_mul(2) };
        }
        false
    }
}
