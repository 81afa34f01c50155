//! Memory that has other writers, too.

use core::ptr::NonNull;

/// Bytes that the processor's tracing hardware, or code on another processor, also accesses.
///
/// The driver keeps a pointer to this memory and no reference: a `&mut [u8]` would promise that nobody else accesses
/// the bytes, a `&[u8]` that nobody writes them. The pointer stays valid for all bytes of the allocation, also in a
/// value that stands for a part of them. [`SharedBytes::slice`] makes a reference for as long as its caller promises
/// that nobody writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedBytes {
    start: NonNull<u8>,
    len: usize,
}

impl SharedBytes {
    /// # Safety
    ///
    /// `len` bytes from `start` on are mapped as one allocation, are initialized, and stay so as long as the value or a
    /// copy of it is used.
    pub(crate) const unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }

    pub(crate) const fn len(self) -> usize {
        self.len
    }

    /// Returns the bytes from `offset` on.
    ///
    /// # Panics
    ///
    /// The offset is beyond the end.
    pub(crate) fn from(self, offset: usize) -> Self {
        assert!(offset <= self.len, "offset {offset:#x} of {:#x} bytes", self.len);
        // SAFETY: within the allocation, or at its end.
        let start = unsafe { self.start.add(offset) };
        Self { start, len: self.len - offset }
    }

    /// Copies bytes to the beginning.
    ///
    /// # Panics
    ///
    /// There are more bytes than the memory has.
    ///
    /// # Safety
    ///
    /// Nobody else accesses these bytes meanwhile, and no slice of them is in use.
    pub(crate) unsafe fn write(self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len, "{:#x} bytes of {:#x}", bytes.len(), self.len);
        // SAFETY: within the allocation. The caller promises that no reference to these bytes exists, so `bytes` does
        // not overlap with them.
        unsafe { self.start.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Moves `len` bytes from `offset` to the beginning.
    ///
    /// # Panics
    ///
    /// The memory has fewer bytes.
    ///
    /// # Safety
    ///
    /// As for [`SharedBytes::write`].
    pub(crate) unsafe fn move_to_start(self, offset: usize, len: usize) {
        let from = self.from(offset);
        assert!(len <= from.len, "{len:#x} bytes of {:#x}", from.len);
        // SAFETY: both within the allocation, and the caller promises that nobody else accesses it. They may overlap.
        unsafe { from.start.as_ptr().copy_to(self.start.as_ptr(), len) };
    }

    /// Returns the first byte, which the processor may have overwritten.
    ///
    /// # Panics
    ///
    /// There are no bytes.
    ///
    /// # Safety
    ///
    /// Nobody else writes the byte meanwhile.
    pub(crate) unsafe fn read(self) -> u8 {
        assert!(self.len > 0, "no byte");
        // SAFETY: within the allocation, initialized, and the caller promises that nobody writes.
        unsafe { self.start.read_volatile() }
    }

    /// Sets the first `len` bytes to `value`.
    ///
    /// # Panics
    ///
    /// The memory has fewer bytes.
    ///
    /// # Safety
    ///
    /// As for [`SharedBytes::write`].
    pub(crate) unsafe fn fill(self, value: u8, len: usize) {
        assert!(len <= self.len, "{len:#x} bytes of {:#x}", self.len);
        // SAFETY: within the allocation, and the caller promises that nobody else accesses it.
        unsafe { self.start.write_bytes(value, len) };
    }

    /// Returns the first `len` bytes.
    ///
    /// # Panics
    ///
    /// The memory has fewer bytes.
    ///
    /// # Safety
    ///
    /// Nobody writes these bytes as long as `'a` lasts.
    pub(crate) unsafe fn slice<'a>(self, len: usize) -> &'a [u8] {
        assert!(len <= self.len, "{len:#x} bytes of {:#x}", self.len);
        // SAFETY: within the allocation, initialized, and the caller promises that nobody writes.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_is_written_while_a_slice_of_another_lasts() {
        let mut memory = [1u8; 8];
        // SAFETY: the array outlives the value.
        let shared = unsafe { SharedBytes::new(NonNull::from(&mut memory).cast(), 8) };
        // SAFETY: the first four bytes are not written below.
        let first = unsafe { shared.slice(4) };
        // SAFETY: the last four bytes, of which there is no slice.
        unsafe { shared.from(4).write(&[2; 3]) };
        // SAFETY: the last byte.
        unsafe { shared.from(7).fill(3, 1) };
        assert_eq!(first, [1; 4]);
        assert_eq!(shared.from(8).len(), 0);
        assert_eq!(memory, [1, 1, 1, 1, 2, 2, 2, 3]);
    }

    #[test]
    fn no_access_goes_beyond_the_end() {
        // (access to four bytes, it is within them)
        type Access = fn(SharedBytes);
        let table: [(Access, bool); 10] = [
            (|four| _ = four.from(4), true),
            (|four| _ = four.from(5), false),
            // SAFETY: nothing else accesses the array; the test checks that an access too long panics.
            (|four| unsafe { four.from(1).write(&[0; 3]) }, true),
            // SAFETY: as above.
            (|four| unsafe { four.from(1).write(&[0; 4]) }, false),
            // SAFETY: as above.
            (|four| unsafe { four.move_to_start(1, 3) }, true),
            // SAFETY: as above.
            (|four| unsafe { four.move_to_start(1, 4) }, false),
            // SAFETY: as above.
            (|four| unsafe { four.from(1).fill(0, 3) }, true),
            // SAFETY: as above.
            (|four| unsafe { four.from(1).fill(0, 4) }, false),
            // SAFETY: as above.
            (|four| _ = unsafe { four.from(1).slice(3) }, true),
            // SAFETY: as above.
            (|four| _ = unsafe { four.from(1).slice(4) }, false),
        ];
        for (n, (access, within)) in table.into_iter().enumerate() {
            let mut memory = [0u8; 4];
            // SAFETY: the array outlives the value.
            let four = unsafe { SharedBytes::new(NonNull::from(&mut memory).cast(), 4) };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| access(four)));
            assert_eq!(outcome.is_ok(), within, "{n}");
        }
    }
}
