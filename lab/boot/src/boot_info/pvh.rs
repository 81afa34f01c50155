//! Reads PVH's boot information, the structure `hvm_start_info`. Source: Xen, "x86/HVM direct boot ABI".

use super::info::BootInfo;
use super::physical::{Physical, text, u32_at, u64_at};
use crate::regions::Regions;

const MAGIC: u32 = 0x336e_c578;
/// `XEN_HVM_MEMMAP_TYPE_RAM`
const RAM: u32 = 1;

/// Reads the start info at `address`; `None` if there is none or it has no memory map.
pub(super) fn read(memory: &impl Physical, address: u64) -> Option<BootInfo> {
    let info = memory.bytes(address, 56)?;
    if u32_at(info, 0)? != MAGIC || u32_at(info, 4)? < 1 {
        return None;
    }
    let mut regions = Regions::new();
    let map = u64_at(info, 40)?;
    for index in 0..u64::from(u32_at(info, 48)?) {
        let entry = memory.bytes(map.checked_add(24 * index)?, 24)?;
        let start = u64_at(entry, 0)?;
        if u32_at(entry, 16)? == RAM {
            regions.add(start..start.checked_add(u64_at(entry, 8)?)?);
        }
    }
    let module = (u32_at(info, 12)? > 0).then(|| {
        let entry = memory.bytes(u64_at(info, 16)?, 32)?;
        let start = u64_at(entry, 0)?;
        Some(start..start.checked_add(u64_at(entry, 8)?)?)
    });
    let command_line = match u64_at(info, 24)? {
        0 => 0..0,
        address => text(memory, address),
    };
    Some(BootInfo { memory: regions, command_line, module: module.flatten() })
}

#[cfg(test)]
mod tests {
    use super::super::physical::tests::Fake;
    use super::*;
    use alloc::vec::Vec;

    fn start_info() -> Fake {
        let mut memory = Fake::new();
        // Magic, version, flags, modules; module list, command line, RSDP, memory map; entries, reserved.
        memory.words(0x1000, &[MAGIC, 1, 0, 1, 0x1100, 0, 0x1200, 0, 0, 0, 0x1300, 0, 3, 0]);
        memory.words(0x1100, &[0x0f00_0000, 0, 0x1234, 0, 0, 0, 0, 0]);
        memory.put(0x1200, b"only=sort dump\0");
        memory.words(0x1300, &[0, 0, 0x9_fc00, 0, RAM, 0]);
        memory.words(0x1318, &[0x9_fc00, 0, 0x400, 0, 2, 0]);
        memory.words(0x1330, &[0x10_0000, 0, 0x0ff0_0000, 0, RAM, 0]);
        memory
    }

    #[test]
    fn reads_memory_command_line_and_module() {
        let info = read(&start_info(), 0x1000).unwrap();
        assert_eq!(info.memory.iter().collect::<Vec<_>>(), [0..0x9_fc00, 0x10_0000..0x1000_0000]);
        assert_eq!(info.command_line, 0x1200..0x120e);
        assert_eq!(info.module, Some(0x0f00_0000..0x0f00_1234));
    }

    #[test]
    fn refuses_what_is_no_start_info() {
        for (address, words) in [
            // Another magic, version 0 (no memory map), a map that is not in memory.
            (0x1000, &[MAGIC + 1][..]),
            (0x1004, &[0]),
            (0x1028, &[0x9000]),
            (0x1028, &[u32::MAX, u32::MAX]),
        ] {
            let mut memory = start_info();
            memory.words(address, words);
            assert!(read(&memory, 0x1000).is_none(), "{address:#x} {words:x?}");
        }
        assert!(read(&start_info(), 0x10).is_none());
    }

    #[test]
    fn does_without_modules_and_command_line() {
        let mut memory = start_info();
        memory.words(0x100c, &[0, 0, 0, 0, 0]);
        let info = read(&memory, 0x1000).unwrap();
        assert_eq!((info.command_line, info.module), (0..0, None));
    }
}
