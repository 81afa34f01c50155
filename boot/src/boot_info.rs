//! What a boot loader passes to the kernel: memory, the command line, the first module.

use core::ops::Range;

use crate::regions::Regions;

mod multiboot2;
mod pvh;

pub use multiboot2::MAGIC as MULTIBOOT2_MAGIC;

/// Physical memory that can be read while the boot loader's structures are there.
pub trait Physical {
    /// `size` bytes at `address`; `None` if that is not readable memory.
    fn bytes(&self, address: u64, size: usize) -> Option<&[u8]>;
}

/// The information from a boot loader.
#[derive(Clone, Debug)]
pub struct BootInfo {
    /// All usable memory, including what is in use already.
    pub memory: Regions,
    /// The address range of the command line, without the zero at its end.
    pub command_line: Range<u64>,
    /// The first module: this kernel's own ELF file.
    pub module: Option<Range<u64>>,
}

impl BootInfo {
    /// Reads what the boot loader left; `eax` and `ebx` are the registers at the entry point.
    ///
    /// Returns `None` if they do not point to a known structure.
    pub fn read(memory: &impl Physical, eax: u32, ebx: u32) -> Option<Self> {
        if eax == MULTIBOOT2_MAGIC {
            multiboot2::read(memory, ebx.into())
        } else {
            pvh::read(memory, ebx.into())
        }
    }
}

/// The longest command line that is read.
const COMMAND_LINE_LIMIT: u64 = 4096;

/// The range from `address` up to a zero byte.
fn text(memory: &impl Physical, address: u64) -> Range<u64> {
    let at = |n: u64| address.checked_add(n).and_then(|at| memory.bytes(at, 1)).map(|byte| byte[0]);
    let len =
        (0..COMMAND_LINE_LIMIT).find(|&n| matches!(at(n), None | Some(0))).unwrap_or(COMMAND_LINE_LIMIT);
    address..address + len
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(offset..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    /// Memory that begins at 1000H.
    pub(super) struct Fake(pub(super) Vec<u8>);

    impl Fake {
        pub(super) fn new() -> Self {
            Self(vec![0; 0x1000])
        }

        pub(super) fn put(&mut self, address: usize, bytes: &[u8]) {
            self.0[address - 0x1000..][..bytes.len()].copy_from_slice(bytes);
        }

        pub(super) fn words(&mut self, address: usize, words: &[u32]) {
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
