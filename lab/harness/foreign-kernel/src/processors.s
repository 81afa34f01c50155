// The way of a further processor from the start-up interrupt to Rust. This code is copied to the page that the
// interrupt names.

    .section .text.processors, "ax", @progbits
    .code16
    .global further_page
further_page:
    cli
    mov esi, edx
    mov ebx, cr0
    mov ax, cs
    mov ds, ax
    // LGDT with a 32-bit operand, at an offset in the page.
    .byte 0x66, 0x0f, 0x01, 0x16
    .word further_gdt_pointer - further_page
    mov eax, 0x620
    mov cr4, eax
    mov eax, offset level4
    mov cr3, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x100
    wrmsr
    mov eax, 0x80000013
    mov cr0, eax
    .byte 0x66, 0xea
    .long further64
    .word 8
    .balign 4
further_gdt_pointer:
    .word 23
    .long gdt
    .global further_page_end
further_page_end:

    .code64
further64:
    mov eax, 16
    mov ss, eax
    mov ds, eax
    mov es, eax
    lidt [rip + idt_pointer]
    mov edi, 1
    lock xadd [rip + starts], edi
    inc edi
    lea rsp, [rip + further_stacks]
    mov eax, edi
    shl eax, 12
    add rsp, rax
    // EDI: the number of this start, from 1; ESI: EDX at the start; EDX: CR0 at the start.
    mov edx, ebx
    call further_main
    ud2

    .section .bss.processors, "aw", @nobits
    .balign 16
starts: .skip 16
further_stacks: .skip 8 * 4096
