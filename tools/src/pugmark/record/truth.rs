//! What is kept about the traced instructions, to compare what is decoded with it.

use pugmark_decoder_core::hash::AddressHash;

/// Keeps the number and the hash of traced instructions.
pub(super) trait Truth {
    /// Counts an instruction that was traced.
    fn add(&mut self, address: u64);

    /// How many were traced.
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
