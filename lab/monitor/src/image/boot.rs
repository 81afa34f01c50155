//! From the PVH entry point to Rust: page tables, long mode, SSE, a stack.
//!
//! The entry state is that of the PVH boot ABI ("x86/HVM direct boot ABI" of the Xen documentation): 32-bit protected
//! mode, paging off, EBX holds the physical address of the start info.

use core::arch::global_asm;

/// Size in bytes of the first processor's stack.
const STACK_BYTES: usize = 256 << 10;

global_asm!(
    r#"
    .section .note.pvh, "a", @note
    .balign 4
    .long 4                       // size of the name
    .long 4                       // size of the value
    .long 18                      // XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .long pvh_entry

    .section .text.boot, "ax", @progbits
    .code32
    .global pvh_entry
pvh_entry:
    cli
    cld
    mov esp, offset boot_stack_top

    // The first 4 GiB mapped to themselves, in pages of 1 GiB where the processor has them, else of 2 MiB.
    mov edi, ebx
    mov eax, 0x80000001
    cpuid
    mov ebx, edi
    mov eax, offset boot_pdpt
    or eax, 0x3
    mov [boot_pml4], eax
    mov edi, offset boot_pdpt
    test edx, 1 << 26             // Page1GB
    jz 1f
    mov eax, 0x83                 // present, writable, large
    mov ecx, 4
4:  mov [edi], eax
    add edi, 8
    add eax, 1 << 30
    loop 4b
    jmp 5f

1:  mov eax, offset boot_pd
    or eax, 0x3
    mov ecx, 4
2:  mov [edi], eax
    add edi, 8
    add eax, 4096
    loop 2b
    mov edi, offset boot_pd
    mov eax, 0x83
    mov ecx, 2048
3:  mov [edi], eax
    add edi, 8
    add eax, 0x200000
    loop 3b
5:
    // PAE, and SSE: compiled Rust uses it.
    mov eax, cr4
    or eax, 0x620                 // PAE | OSFXSR | OSXMMEXCPT
    mov cr4, eax
    mov eax, offset boot_pml4
    mov cr3, eax
    mov ecx, 0xc0000080           // EFER
    rdmsr
    or eax, 0x100                 // LME
    wrmsr
    mov eax, cr0
    and eax, 0x9ffffffb           // clear CD, NW, EM
    or eax, 0x80010023            // PG | WP | NE | MP | PE
    mov cr0, eax
    lgdt [boot_gdt_pointer]
    // A far jump to the 64-bit code segment.
    mov eax, 0x08
    push eax
    mov eax, offset long_mode
    push eax
    retf

    .code64
long_mode:
    mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    xor eax, eax
    mov fs, eax
    mov gs, eax
    mov rsp, offset boot_stack_top
    xor ebp, ebp
    mov edi, ebx
    call {main}
    ud2

    .section .rodata.boot, "a", @progbits
    .balign 8
    .global boot_gdt
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff      // 64-bit code
    .quad 0x00cf93000000ffff      // data
boot_gdt_pointer:
    .word . - boot_gdt - 1
    .quad boot_gdt

    .section .bss.boot, "aw", @nobits
    .balign 4096
    .global boot_pml4
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pd:   .skip 4096 * 4
boot_stack: .skip {stack}
boot_stack_top:
    "#,
    main = sym crate::main,
    stack = const STACK_BYTES,
);
