//! The PVH start info: reads the one that QEMU passes to the monitor, and builds the one that the monitor passes to its
//! guest.
//!
//! Source: Xen public headers, `arch-x86/hvm/start_info.h`.

use alloc::vec::Vec;

use crate::boot_info::{BootInfo, BootModule, MemoryKind, MemoryRange, Module};
use crate::guest::GuestMemory;

const MAGIC: u32 = 0x336e_c578;
/// Size in bytes of a start info of version 1.
const START_INFO: u64 = 56;
const MODULE: u64 = 32;
const RANGE: u64 = 24;

/// The fields of the start info that the monitor uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartInfo {
    /// Address of the zero-terminated command line; 0 if there is none.
    pub command_line: u64,
    /// Modules: the files that `-initrd` named.
    pub modules: Vec<Module>,
    /// The map of physical memory.
    pub memory: Vec<MemoryRange>,
    /// Address of ACPI's root pointer; 0 if unknown.
    pub rsdp: u64,
}

impl StartInfo {
    /// Reads the start info at `address`. Returns `None` if there is none of version 1 or later.
    pub fn read(address: u64, memory: &impl GuestMemory) -> Option<Self> {
        let header = words::<14>(memory, address)?;
        let (magic, version, modules) = (header[0], header[1], header[3]);
        if magic != MAGIC || version < 1 {
            return None;
        }
        let long = |index: usize| u64::from(header[index]) | u64::from(header[index + 1]) << 32;
        let (module_table, ranges) = (long(4), header[12]);
        let mut info = Self { command_line: long(6), rsdp: long(8), modules: Vec::new(), memory: Vec::new() };
        for index in 0..u64::from(modules) {
            let [start, bytes, ..] = longs::<4>(memory, module_table + index * MODULE)?;
            info.modules.push(Module { start, bytes });
        }
        for index in 0..u64::from(ranges) {
            let [start, bytes, kind] = longs::<3>(memory, long(10) + index * RANGE)?;
            info.memory.push(MemoryRange { start, bytes, kind: MemoryKind::from_e820(kind as u32) });
        }
        Some(info)
    }
}

/// Builds a start info with all data to which it refers, to be placed at `address`.
#[must_use]
pub fn build(address: u64, info: &BootInfo<'_>) -> Vec<u8> {
    let modules_at = address + START_INFO;
    let memory_at = modules_at + MODULE * info.modules.len() as u64;
    let command_line_at = memory_at + RANGE * info.memory.len() as u64;
    let mut words_at = command_line_at + info.command_line.len() as u64 + 1;
    let mut out = Vec::new();
    let mut put = |bytes: &[u8]| out.extend_from_slice(bytes);
    [MAGIC, 1, 0, info.modules.len() as u32].iter().for_each(|word| put(&word.to_le_bytes()));
    [modules_at, command_line_at, info.rsdp, memory_at].iter().for_each(|long| put(&long.to_le_bytes()));
    [info.memory.len() as u32, 0].iter().for_each(|word| put(&word.to_le_bytes()));
    for BootModule { place, words } in info.modules {
        [place.start, place.bytes, words_at, 0].iter().for_each(|long| put(&long.to_le_bytes()));
        words_at += words.len() as u64 + 1;
    }
    for range in info.memory {
        [range.start, range.bytes, u64::from(range.kind.to_e820())]
            .iter()
            .for_each(|long| put(&long.to_le_bytes()));
    }
    for text in [info.command_line].into_iter().chain(info.modules.iter().map(|module| module.words)) {
        put(text.as_bytes());
        put(&[0]);
    }
    out
}

fn words<const N: usize>(memory: &impl GuestMemory, address: u64) -> Option<[u32; N]> {
    let mut words = [0; N];
    for (index, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; 4];
        memory.read(address + 4 * index as u64, &mut bytes).then_some(())?;
        *word = u32::from_le_bytes(bytes);
    }
    Some(words)
}

fn longs<const N: usize>(memory: &impl GuestMemory, address: u64) -> Option<[u64; N]> {
    let mut longs = [0; N];
    for (index, long) in longs.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        memory.read(address + 8 * index as u64, &mut bytes).then_some(())?;
        *long = u64::from_le_bytes(bytes);
    }
    Some(longs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SliceMemory;

    const INFO: BootInfo<'static> = BootInfo {
        command_line: "only=sort",
        modules: &[BootModule { place: Module { start: 0xff0_0000, bytes: 0x1234 }, words: "a b" }],
        memory: &[
            MemoryRange { start: 0, bytes: 0x9_fc00, kind: MemoryKind::Ram },
            MemoryRange { start: 0x10_0000, bytes: 0xff0_0000, kind: MemoryKind::Reserved },
        ],
        rsdp: 0xf_5a00,
    };

    #[test]
    fn bytes_lie_where_the_header_says() {
        let bytes = build(0x8000, &INFO);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let rows =
            [(0, 0x336e_c578), (4, 1), (12, 1), (16, 0x8038), (32, 0xf_5a00), (48, 2), (56, 0xff0_0000)];
        for (at, value) in rows {
            assert_eq!(word(at), value, "at {at}");
        }
        assert_eq!(word(40), 0x8038 + 32, "memory map");
        assert_eq!((word(88 + 16), word(88 + 24 + 16)), (1, 2), "kinds");
        assert_eq!(&bytes[word(24) as usize - 0x8000..], b"only=sort\0a b\0");
        assert_eq!(&bytes[word(56 + 16) as usize - 0x8000..], b"a b\0");
    }

    #[test]
    fn what_is_built_is_read() {
        let mut ram = [0; 0x1000];
        let mut memory = SliceMemory { base: 0x8000, bytes: &mut ram };
        assert!(memory.write(0x8000, &build(0x8000, &INFO)));
        let info = StartInfo::read(0x8000, &memory).unwrap();
        assert_eq!((&info.modules[..], &info.memory[..]), (&[INFO.modules[0].place][..], INFO.memory));
        assert_eq!(info.rsdp, INFO.rsdp);
    }

    #[test]
    fn refuses_what_is_no_start_info() {
        let mut ram = build(0x8000, &INFO);
        ram[0] ^= 1;
        assert_eq!(StartInfo::read(0x8000, &SliceMemory { base: 0x8000, bytes: &mut ram }), None);
        let mut ram = build(0x8000, &INFO);
        ram[4] = 0;
        assert_eq!(StartInfo::read(0x8000, &SliceMemory { base: 0x8000, bytes: &mut ram }), None);
        ram.truncate(80);
        ram[4] = 1;
        assert_eq!(
            StartInfo::read(0x8000, &SliceMemory { base: 0x8000, bytes: &mut ram }),
            None,
            "cut short"
        );
    }
}
