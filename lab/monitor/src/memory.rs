//! Physical memory in a slice.

use crate::guest::GuestMemory;

/// Physical memory that consists of one slice.
#[derive(Debug)]
pub struct SliceMemory<'a> {
    /// Physical address of the first byte.
    pub base: u64,
    /// The bytes.
    pub bytes: &'a mut [u8],
}

impl SliceMemory<'_> {
    fn range(&self, address: u64, bytes: usize) -> Option<core::ops::Range<usize>> {
        let start = usize::try_from(address.checked_sub(self.base)?).ok()?;
        let end = start.checked_add(bytes).filter(|&end| end <= self.bytes.len())?;
        Some(start..end)
    }
}

impl GuestMemory for SliceMemory<'_> {
    fn read(&self, address: u64, out: &mut [u8]) -> bool {
        self.range(address, out.len()).map(|range| out.copy_from_slice(&self.bytes[range])).is_some()
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> bool {
        self.range(address, bytes.len()).map(|range| self.bytes[range].copy_from_slice(bytes)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaches_exactly_its_own_bytes() {
        let rows: [(u64, usize, bool); 6] = [
            (0x10, 4, true),
            (0x10, 5, false),
            (0x13, 1, true),
            (0x14, 1, false),
            (0xf, 1, false),
            (!0, 2, false),
        ];
        for (address, length, there) in rows {
            let mut bytes = [1, 2, 3, 4];
            let mut memory = SliceMemory { base: 0x10, bytes: &mut bytes };
            let mut buffer = [7; 8];
            assert_eq!(
                GuestMemory::read(&memory, address, &mut buffer[..length]),
                there,
                "read {address:#x}"
            );
            assert_eq!(
                GuestMemory::write(&mut memory, address, &[9; 8][..length]),
                there,
                "write {address:#x}"
            );
            assert_eq!(bytes.contains(&9), there);
        }
    }
}
