//! From the boot loader to Rust: the loader enters by PVH in 32-bit protected mode with paging off and flat segments;
//! EBX holds the address of its information. Source: Xen, "x86/HVM direct boot ABI".

use crate::{PHYSICAL_MEMORY_OFFSET, frames, symbols};
use core::arch::global_asm;

global_asm!(
    r#"
    // XEN_ELFNOTE_PHYS32_ENTRY
    .section .boot.note, "a", @note
    .align 4
    .long 4
    .long 8
    .long 18
    .asciz "Xen"
    .quad entry_pvh

    .section .bss.boot, "aw", @nobits
    .align 4096
    .global boot_pml4
boot_pml4:
    .skip 4096
boot_pdpt:
    .skip 4096
boot_pd:
    .skip 4 * 4096
    // Unmapped when the kernel starts.
    .global boot_stack_guard
boot_stack_guard:
    .skip 4096
    .skip 256 * 1024
boot_stack_top:

    .section .rodata.boot, "a"
    .align 8
    .global boot_gdt
boot_gdt:
    .quad 0
    .quad 0x00af9a000000ffff
    .quad 0x00cf92000000ffff
boot_gdt_pointer:
    .short 23
    .long boot_gdt

    .section .text.entry, "ax"
    .code32
    .global entry_pvh
    .type entry_pvh, @function
entry_pvh:
    cli
    cld
    mov esp, offset boot_stack_top

    // The first 4 GiB at their own addresses, and once more at PHYSICAL_MEMORY_OFFSET.
    mov eax, offset boot_pdpt
    or eax, 3
    mov dword ptr [boot_pml4], eax
    mov dword ptr [boot_pml4 + 256 * 8], eax
    mov eax, offset boot_pd
    or eax, 3
    xor ecx, ecx
2:  mov dword ptr [boot_pdpt + ecx * 8], eax
    add eax, 4096
    inc ecx
    cmp ecx, 4
    jne 2b
    mov eax, 0x83
    xor ecx, ecx
3:  mov dword ptr [boot_pd + ecx * 8], eax
    add eax, 0x200000
    inc ecx
    cmp ecx, 2048
    jne 3b

    mov eax, offset boot_pml4
    mov cr3, eax
    // PAE, OSFXSR, OSXMMEXCPT
    mov eax, cr4
    or eax, 0x620
    mov cr4, eax
    // EFER.LME
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x100
    wrmsr
    // CR0: PG, WP, NE, MP, PE; EM and TS off.
    mov eax, cr0
    and eax, 0xfffffff3
    or eax, 0x80010023
    mov cr0, eax
    lgdt [boot_gdt_pointer]
    mov eax, offset entry_long
    push 8
    push eax
    retf

    .code64
    .type entry_long, @function
entry_long:
    mov eax, 0x10
    mov ss, eax
    mov ds, eax
    mov es, eax
    xor eax, eax
    mov fs, eax
    mov gs, eax
    mov rsp, offset boot_stack_top
    mov edi, ebx
    xor ebp, ebp
    call {start}
    ud2
    "#,
    start = sym crate::start,
);

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
