//! Guest-physical memory, and the addresses where the guest has none.

/// The RAM that the guest sees, by guest-physical address.
pub trait GuestMemory {
    /// Fills `out` from `address` on. Returns false if any byte of the range is not RAM; the content of `out` is then
    /// unspecified.
    #[must_use]
    fn read(&self, address: u64, out: &mut [u8]) -> bool;

    /// Returns whether all of `bytes` are in RAM from `address` on.
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

    /// Fills `out` from `address` on, as the processor itself reads: where nothing answers, all bits are ones.
    fn load(&self, address: u64, out: &mut [u8]) {
        if !self.read(address, out) {
            out.fill(0xff);
            self.note_missing(address);
        }
    }

    /// Writes `bytes` at `address`, as the processor itself writes: where nothing answers, they are lost.
    fn store(&mut self, address: u64, bytes: &[u8]) {
        if !self.write(address, bytes) {
            self.note_missing(address);
        }
    }

    /// Notes that the processor has accessed `address`, where nothing answers.
    fn note_missing(&self, address: u64) {
        let _ = address;
    }

    /// Writes `new` at `address` if the byte there is still `old`, and returns whether it was. Returns `None` if
    /// `address` is not RAM. If the guest has several processors, no other processor's write can come in between.
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
