//! What is kept of the instructions that were traced, so that what is decoded can be compared with it.

use pugmark_decoder_core::hash::AddressHash;

/// Keeps the number and the hash of traced instructions.
pub(super) trait Truth {
    /// An instruction was traced.
    fn add(&mut self, address: u64);

    /// How many were traced.
    fn count(&self) -> u64;

    /// Returns what is kept, and begins anew.
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
