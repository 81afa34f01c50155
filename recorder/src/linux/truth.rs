//! The truth: the number and hash of the traced instructions, which decoded ones are compared with.

use pugmark_decoder_core::hash::AddressHash;

/// Keeps the number and the hash of traced instructions.
pub(super) trait Truth {
    /// Counts an instruction that was traced.
    fn add(&mut self, address: u64);

    /// Returns the number of traced instructions.
    fn count(&self) -> u64;

    /// Returns what is kept, and starts over.
    fn take(&mut self) -> AddressHash;
}

impl Truth for AddressHash {
    fn add(&mut self, address: u64) {
        Self::add(self, address);
    }

    fn count(&self) -> u64 {
        Self::count(self)
    }

    fn take(&mut self) -> AddressHash {
        std::mem::take(self)
    }
}
