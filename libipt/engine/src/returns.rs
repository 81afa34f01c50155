//! The return stack, for compressed returns.

/// Depth of the processor's return stack.
const DEPTH: usize = 64;

/// The return addresses of the last open calls; a push on a full stack drops the oldest one.
#[derive(Clone, Debug)]
pub struct Returns {
    addresses: [u64; DEPTH],
    /// The index of the next push.
    top: usize,
    len: usize,
}

impl Default for Returns {
    fn default() -> Self {
        Self::new()
    }
}

impl Returns {
    /// Starts with no call.
    #[must_use]
    pub const fn new() -> Self {
        Self { addresses: [0; DEPTH], top: 0, len: 0 }
    }

    /// Forgets all calls.
    pub const fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds the return address of a call.
    pub fn push(&mut self, address: u64) {
        self.addresses[self.top % DEPTH] = address;
        self.top = (self.top + 1) % DEPTH;
        self.len = (self.len + 1).min(DEPTH);
    }

    /// Takes the return address of the last call.
    pub fn pop(&mut self) -> Option<u64> {
        self.len = self.len.checked_sub(1)?;
        self.top = (self.top + DEPTH - 1) % DEPTH;
        Some(self.addresses[self.top])
    }
}
