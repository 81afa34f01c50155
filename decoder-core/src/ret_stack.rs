//! The return stack: the targets of compressed returns.
//!
//! Return compression: the processor may trace a near return to the address after its call as one taken bit in a TNT
//! packet, instead of a TIP packet with the target. It does so only if the call is one of the last 64 that have not
//! returned and comes after the last PSB. The trace then omits the target, so the decoder keeps its own stack of calls.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Indirect Transfer Compression for Returns (RET)".

/// The last 64 calls that have not returned; when the stack is full, the oldest is discarded.
#[derive(Clone, Debug)]
pub(crate) struct ReturnStack {
    addresses: [u64; Self::DEPTH],
    /// The index of the next address: pushes minus pops, modulo the depth.
    top: usize,
    len: usize,
}

impl ReturnStack {
    /// The number of return addresses that the processor remembers.
    pub(crate) const DEPTH: usize = 64;

    /// Returns an empty stack.
    pub(crate) const fn new() -> Self {
        Self { addresses: [0; Self::DEPTH], top: 0, len: 0 }
    }

    /// Copies `other` into this stack, without a temporary copy.
    pub(crate) fn copy_from(&mut self, other: &Self) {
        self.addresses.copy_from_slice(&other.addresses);
        (self.top, self.len) = (other.top, other.len);
    }

    /// Pushes the return address of a call.
    #[inline]
    pub(crate) fn push(&mut self, address: u64) {
        self.addresses[self.top % Self::DEPTH] = address;
        self.top = (self.top + 1) % Self::DEPTH;
        self.len = (self.len + 1).min(Self::DEPTH);
    }

    /// Removes and returns the return address of the last call that has not returned.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u64> {
        self.len = self.len.checked_sub(1)?;
        self.top = (self.top + Self::DEPTH - 1) % Self::DEPTH;
        Some(self.addresses[self.top])
    }

    /// Returns the addresses, the index of the next one, and their number.
    pub(crate) const fn parts(&mut self) -> (&mut [u64; Self::DEPTH], usize, usize) {
        (&mut self.addresses, self.top, self.len)
    }

    /// Sets the index of the next address, and the number of addresses.
    pub(crate) const fn set_place(&mut self, top: usize, len: usize) {
        (self.top, self.len) = (top % Self::DEPTH, len);
    }

    /// Forgets all addresses, as processors do when they lose packets.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }
}

impl Default for ReturnStack {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_the_last_sixty_four_in_reverse() {
        for pushes in [0_u64, 1, 2, 63, 64, 65, 127, 128, 200] {
            let mut stack = ReturnStack::new();
            for address in 0..pushes {
                stack.push(address);
            }
            for address in (pushes.saturating_sub(64)..pushes).rev() {
                assert_eq!(stack.pop(), Some(address), "{pushes} pushes");
            }
            assert_eq!(stack.pop(), None, "{pushes} pushes");
        }
    }

    #[test]
    fn forgets_everything_when_cleared() {
        let mut stack = ReturnStack::new();
        stack.push(1);
        stack.clear();
        assert_eq!(stack.pop(), None);
        stack.push(2);
        assert_eq!(stack.pop(), Some(2));
    }
}
