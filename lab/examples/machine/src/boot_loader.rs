//! The information of the boot loader, which enters by PVH or by multiboot2, as GRUB does.
//!
//! Sources: Xen, "x86/HVM direct boot ABI"; "Multiboot2 Specification", as the crate `multiboot2` reads it.

use crate::{PHYSICAL_MEMORY_OFFSET, frames, symbols};
use core::ops::Range;
use multiboot2::{BootInformation, BootInformationHeader, MAGIC, MemoryAreaType};

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
/// `magic` and `information` are what the boot loader left in EAX and EBX, and this is called once.
pub(crate) unsafe fn read(magic: u32, information: u32) {
    match magic {
        // SAFETY: the caller promises it.
        MAGIC => unsafe { read_multiboot2(information) },
        // SAFETY: the caller promises it.
        _ => unsafe { read_pvh(information) },
    }
}

/// Returns the address at which physical memory is mapped.
const fn mapped(physical: u64) -> u64 {
    PHYSICAL_MEMORY_OFFSET + physical
}

/// Does it with PVH.
unsafe fn read_pvh(information: u32) {
    // SAFETY: the boot loader has put the structure there, and all memory is mapped.
    let info = unsafe { &*(mapped(information.into()) as *const StartInfo) };
    assert!(info.magic == 0x336e_c578 && info.version >= 1, "no boot information");
    let entries = mapped(info.memory_map) as *const MemoryRegion;
    // SAFETY: as above.
    let regions = unsafe { core::slice::from_raw_parts(entries, info.memory_map_entries as usize) };
    assert!(info.modules > 0, "the kernel's file is missing");
    // SAFETY: as above.
    let module = unsafe { &*(mapped(info.module_list) as *const Module) };
    let file = module.start..module.start + module.size;
    // SAFETY: as above.
    unsafe { take_file(&file) };
    for region in regions.iter().filter(|region| region.kind == RAM) {
        add_around(region.start..region.start + region.size, [file.clone(), 0..0]);
    }
}

/// Does it with multiboot2.
unsafe fn read_multiboot2(information: u32) {
    let header = mapped(information.into()) as *const BootInformationHeader;
    // SAFETY: the boot loader has put the structure there, and all memory is mapped.
    let info = unsafe { BootInformation::load(header) }.expect("boot information");
    let module = info.module_tags().next().expect("the kernel's file is missing");
    let file = module.start_address().into()..module.end_address().into();
    // SAFETY: as above.
    unsafe { take_file(&file) };
    let own = information.into()..u64::from(information) + info.total_size() as u64;
    let areas = info.memory_map_tag().expect("a map of the memory").memory_areas();
    for area in areas.iter().filter(|area| area.typ() == MemoryAreaType::Available) {
        add_around(area.start_address()..area.end_address(), [file.clone(), own.clone()]);
    }
}

/// Gives the kernel's file to the symbols.
///
/// # Safety
///
/// The file is there, and the frame allocator leaves it out.
unsafe fn take_file(file: &Range<u64>) {
    let size = (file.end - file.start) as usize;
    // SAFETY: the caller promises it, and all memory is mapped.
    symbols::add(unsafe { core::slice::from_raw_parts(mapped(file.start) as *const u8, size) });
}

/// Adds the memory of a region that is not in use.
fn add_around(region: Range<u64>, mut in_use: [Range<u64>; 2]) {
    in_use.sort_unstable_by_key(|used| used.start);
    let mut start = region.start;
    for used in in_use {
        frames::add(start, used.start.min(region.end));
        start = start.max(used.end);
    }
    frames::add(start, region.end);
}
