//! Guest-physical memory, and addresses without guest memory.

/// The RAM that the guest sees, by guest-physical address.
pub trait GuestMemory {
    /// Reads from `address` on into `out`. Returns false if any byte of the range is not RAM; the content of `out` is
    /// then unspecified.
    #[must_use]
    fn read(&self, address: u64, out: &mut [u8]) -> bool;

    /// Returns whether RAM from `address` on equals `bytes`.
    #[must_use]
    fn holds(&self, address: u64, bytes: &[u8]) -> bool {
        let mut found = [0; 16];
        bytes.chunks(found.len()).zip((address..).step_by(found.len())).all(|(bytes, address)| {
            let found = &mut found[..bytes.len()];
            self.read(address, found) && found == bytes
        })
    }

    /// Writes `bytes` at `address`. Returns false, and writes nothing, if any byte of the range is not RAM.
    #[must_use]
    fn write(&mut self, address: u64, bytes: &[u8]) -> bool;

    /// Reads from `address` on into `out` as the processor itself does: addresses without a device read as all ones.
    fn load(&self, address: u64, out: &mut [u8]) {
        if !self.read(address, out) {
            out.fill(0xff);
            self.note_missing(address);
        }
    }

    /// Writes `bytes` at `address` as the processor itself does: writes to addresses without a device are lost.
    fn store(&mut self, address: u64, bytes: &[u8]) {
        if !self.write(address, bytes) {
            self.note_missing(address);
        }
    }

    /// Notes that the processor has accessed `address`, which has no device.
    fn note_missing(&self, address: u64) {
        let _ = address;
    }

    /// Writes `new` at `address` if the byte there is still `old`, and returns whether it was. Returns `None` if
    /// `address` is not RAM. If the guest has several processors, the operation is atomic.
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
