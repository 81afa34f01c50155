//! Guest-physical memory.

/// The RAM the guest sees, by guest-physical address.
pub trait GuestMemory {
    /// Fills `out` from `address` on; false when any byte of it is not RAM (`out` is then unspecified).
    #[must_use]
    fn read(&self, address: u64, out: &mut [u8]) -> bool;

    /// Writes `bytes` at `address`; false, and nothing written, when any byte of it is not RAM.
    #[must_use]
    fn write(&mut self, address: u64, bytes: &[u8]) -> bool;

    /// Puts `new` at `address` if `old` is still there, and says whether it was; `None` when this is no RAM. Where the guest
    /// has several processors, no other one comes in between.
    #[must_use]
    fn replace(&mut self, address: u64, old: u8, new: u8) -> Option<bool> {
        let mut found = [0];
        if !self.read(address, &mut found) {
            return None;
        }
        if found != [old] {
            return Some(false);
        }
        self.write(address, &[new]).then_some(true)
    }
}
