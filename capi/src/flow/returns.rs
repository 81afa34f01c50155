//! The return addresses that compressed returns go to.

/// How many calls the processor remembers.
const DEPTH: usize = 64;

/// The last calls that have not returned; when there is no room, the oldest one is dropped.
#[derive(Clone, Debug)]
pub(super) struct Returns {
    addresses: [u64; DEPTH],
    /// The index where the next address goes.
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
