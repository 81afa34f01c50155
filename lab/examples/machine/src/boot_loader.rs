//! The information of the boot loader, which enters by PVH. Source: Xen, "x86/HVM direct boot ABI".

use crate::{PHYSICAL_MEMORY_OFFSET, frames, symbols};

/// The used part of `hvm_start_info`.
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
}

/// `hvm_modlist_entry`
#[repr(C)]
struct Module {
    start: u64,
    size: u64,
    command_line: u64,
    reserved: u64,
}

/// `hvm_memmap_table_entry`
#[repr(C)]
struct MemoryRegion {
    start: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

/// `XEN_HVM_MEMMAP_TYPE_RAM`
const RAM: u32 = 1;

/// Gives the free memory to the frame allocator, and the first module, which is this kernel's file, to the symbols.
///
/// # Safety
///
/// `information` is the address that the boot loader left in EBX, and this is called once.
pub(crate) unsafe fn read(information: u32) {
    let mapped = |physical: u64| PHYSICAL_MEMORY_OFFSET + physical;
    // SAFETY: the boot loader has put the structure there, and all memory is mapped.
    let info = unsafe { &*(mapped(information.into()) as *const StartInfo) };
    assert!(info.magic == 0x336e_c578 && info.version >= 1, "no boot information");
    let entries = mapped(info.memory_map) as *const MemoryRegion;
    // SAFETY: as above.
    let regions = unsafe { core::slice::from_raw_parts(entries, info.memory_map_entries as usize) };
    assert!(info.modules > 0, "the kernel's file is missing");
    // SAFETY: as above.
    let module = unsafe { &*(mapped(info.module_list) as *const Module) };
    // SAFETY: as above. The frame allocator leaves the module out.
    let file =
        unsafe { core::slice::from_raw_parts(mapped(module.start) as *const u8, module.size as usize) };
    symbols::init(file);
    for region in regions.iter().filter(|region| region.kind == RAM) {
        // The module is at the end of a region.
        let end = region.start + region.size;
        let end = if (region.start..end).contains(&module.start) { module.start } else { end };
        frames::add(region.start, end);
    }
}
