//! Guest-physical memory.

/// The RAM the guest sees, by guest-physical address.
pub trait GuestMemory {
    /// Fills `out` from `address` on; false when any byte of it is not RAM (`out` is then unspecified).
    #[must_use]
    fn read(&self, address: u64, out: &mut [u8]) -> bool;

    /// Writes `bytes` at `address`; false, and nothing written, when any byte of it is not RAM.
    #[must_use]
    fn write(&mut self, address: u64, bytes: &[u8]) -> bool;
}
