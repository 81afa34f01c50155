//! Reads the structures that a boot loader left in physical memory.

use core::ops::Range;

/// Physical memory that can be read while the boot loader's structures are there.
pub trait Physical {
    /// Returns `size` bytes at `address`; `None` if that is not readable memory.
    fn bytes(&self, address: u64, size: usize) -> Option<&[u8]>;
}

/// Maximum length of a command line.
const COMMAND_LINE_LIMIT: u64 = 4096;

/// Returns the range from `address` to the next zero byte.
pub(super) fn text(memory: &impl Physical, address: u64) -> Range<u64> {
    let at = |n: u64| address.checked_add(n).and_then(|at| memory.bytes(at, 1)).map(|byte| byte[0]);
    let len =
        (0..COMMAND_LINE_LIMIT).find(|&n| matches!(at(n), None | Some(0))).unwrap_or(COMMAND_LINE_LIMIT);
    address..address + len
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

pub(super) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    /// Memory that begins at 1000H.
    pub(in crate::boot_info) struct Fake(Vec<u8>);

    impl Fake {
        pub(in crate::boot_info) fn new() -> Self {
            Self(vec![0; 0x1000])
        }

        pub(in crate::boot_info) fn put(&mut self, address: usize, bytes: &[u8]) {
            self.0[address - 0x1000..][..bytes.len()].copy_from_slice(bytes);
        }

        pub(in crate::boot_info) fn words(&mut self, address: usize, words: &[u32]) {
            for (index, word) in words.iter().enumerate() {
                self.put(address + 4 * index, &word.to_le_bytes());
            }
        }
    }

    impl Physical for Fake {
        fn bytes(&self, address: u64, size: usize) -> Option<&[u8]> {
            let start = usize::try_from(address).ok()?.checked_sub(0x1000)?;
            self.0.get(start..start.checked_add(size)?)
        }
    }

    #[test]
    fn text_ends_at_a_zero_or_where_memory_ends() {
        let mut memory = Fake::new();
        memory.put(0x1100, b"dump\0x");
        memory.put(0x1ffe, b"ab");
        for (address, expected) in
            [(0x1100, 0x1100..0x1104), (0x1104, 0x1104..0x1104), (0x1ffe, 0x1ffe..0x2000), (0, 0..0)]
        {
            assert_eq!(text(&memory, address), expected);
        }
    }
}
