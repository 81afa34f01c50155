//! The return stack, for compressed returns.

/// Depth of the processor's return stack.
const DEPTH: usize = 64;

/// The return addresses of the last open calls; a push on a full stack drops the oldest one.
#[derive(Clone, Debug)]
pub(super) struct Returns {
    addresses: [u64; DEPTH],
    /// The index of the next push.
    top: usize,
    len: usize,
}

impl Returns {
    pub(super) const fn new() -> Self {
        Self { addresses: [0; DEPTH], top: 0, len: 0 }
    }

    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    pub(super) fn push(&mut self, address: u64) {
        self.addresses[self.top % DEPTH] = address;
        self.top = (self.top + 1) % DEPTH;
        self.len = (self.len + 1).min(DEPTH);
    }

    pub(super) fn pop(&mut self) -> Option<u64> {
        self.len = self.len.checked_sub(1)?;
        self.top = (self.top + DEPTH - 1) % DEPTH;
        Some(self.addresses[self.top])
    }
}
