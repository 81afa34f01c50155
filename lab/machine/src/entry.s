    // Calls kernel_main(eax, ebx), which does not return, with the values that the boot loader left. EAX is
    // multiboot2's magic number, or any other value with PVH; EBX is the physical address of the boot information.

    .section .boot.header, "a"
    .align 8
multiboot2_header:
    .long 0xe85250d6
    .long 0
    .long multiboot2_header_end - multiboot2_header
    .long 0x100000000 - (0xe85250d6 + (multiboot2_header_end - multiboot2_header))
    // The end tag: type, flags, size.
    .short 0
    .short 0
    .long 8
multiboot2_header_end:

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
    // Given up when the kernel's own page tables are made.
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
    mov ebp, eax

    // The first 4 GiB, mapped one to one and at PHYSICAL_MEMORY_OFFSET by pages of 2 MiB.
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
    // PAE, OSFXSR, OSXMMEXCPT: the precompiled core library uses SSE.
    mov eax, cr4
    or eax, 0x620
    mov cr4, eax
    // EFER: LME, NXE.
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x900
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
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    xor eax, eax
    mov fs, ax
    mov gs, ax
    mov rsp, offset boot_stack_top
    mov edi, ebp
    mov esi, ebx
    xor ebp, ebp
    call kernel_main
    ud2
