//! Reads multiboot2's boot information. Source: "Multiboot2 Specification", "Boot information format".

use super::info::BootInfo;
use super::physical::{Physical, text, u32_at, u64_at};
use crate::regions::Regions;

/// The value of EAX at the entry point.
pub const MAGIC: u32 = 0x36d7_6289;

const END: u32 = 0;
const COMMAND_LINE: u32 = 1;
const MODULE: u32 = 3;
const MEMORY_MAP: u32 = 6;
/// The memory map's type for usable memory.
const AVAILABLE: u32 = 1;

/// Reads the boot information at `address`; `None` if it is cut short or has no memory map.
pub(super) fn read(memory: &impl Physical, address: u64) -> Option<BootInfo> {
    let total = u32_at(memory.bytes(address, 8)?, 0)?;
    let info = memory.bytes(address, usize::try_from(total).ok()?)?;
    let (mut regions, mut command_line, mut module) = (None, 0..0, None);
    let mut offset = 8;
    loop {
        let (kind, size) = (u32_at(info, offset)?, usize::try_from(u32_at(info, offset + 4)?).ok()?);
        let tag = info.get(offset..offset.checked_add(size)?)?;
        match kind {
            END => break,
            COMMAND_LINE => command_line = text(memory, address + offset as u64 + 8),
            MODULE if module.is_none() => {
                module = Some(u64::from(u32_at(tag, 8)?)..u64::from(u32_at(tag, 12)?));
            }
            MEMORY_MAP => regions = Some(memory_map(tag)?),
            _ => {}
        }
        // A tag has at least its own header, and the next tag begins at a multiple of 8.
        offset = offset.checked_add(size.max(8))?.checked_next_multiple_of(8)?;
    }
    Some(BootInfo { memory: regions?, command_line, module })
}

fn memory_map(tag: &[u8]) -> Option<Regions> {
    let mut regions = Regions::new();
    let entry_size = usize::try_from(u32_at(tag, 8)?).ok()?.max(24);
    for entry in tag.get(16..)?.chunks_exact(entry_size) {
        let start = u64_at(entry, 0)?;
        if u32_at(entry, 16)? == AVAILABLE {
            regions.add(start..start.checked_add(u64_at(entry, 8)?)?);
        }
    }
    Some(regions)
}

#[cfg(test)]
mod tests {
    use super::super::physical::tests::Fake;
    use super::*;

    fn information() -> Fake {
        let mut memory = Fake::new();
        memory.words(0x1000, &[0xb0, 0]);
        memory.words(0x1008, &[COMMAND_LINE, 13]);
        memory.put(0x1010, b"dump\0");
        memory.words(0x1018, &[MODULE, 18, 0x20_0000, 0x20_1234]);
        memory.words(0x1030, &[MODULE, 17, 0x30_0000, 0x30_1234]);
        memory.words(0x1048, &[MEMORY_MAP, 88, 24, 0]);
        memory.words(0x1058, &[0, 0, 0x9_fc00, 0, AVAILABLE, 0]);
        memory.words(0x1070, &[0x10_0000, 0, 0x70_0000, 0, 2, 0]);
        memory.words(0x1088, &[0x20_0000, 0, 0x70_0000, 0, AVAILABLE, 0]);
        memory.words(0x10a0, &[END, 8]);
        memory
    }

    #[test]
    fn reads_memory_command_line_and_the_first_module() {
        let info = read(&information(), 0x1000).unwrap();
        assert!(info.memory.iter().eq([0..0x9_fc00, 0x20_0000..0x90_0000]));
        assert_eq!(info.command_line, 0x1010..0x1014);
        assert_eq!(info.module, Some(0x20_0000..0x20_1234));
    }

    #[test]
    fn refuses_what_is_cut_short() {
        for (address, words) in [
            // The end tag outside the information, a tag larger than everything, no memory map, a total size beyond
            // memory.
            (0x1000, &[0xa0][..]),
            (0x101c, &[0x1000]),
            (0x1048, &[77]),
            (0x1000, &[0x2000]),
        ] {
            let mut memory = information();
            memory.words(address, words);
            assert!(read(&memory, 0x1000).is_none(), "{address:#x} {words:x?}");
        }
    }
}
