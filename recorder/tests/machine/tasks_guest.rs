//! A guest of these tests that leaves protected mode by a task in virtual-8086 mode: an extension of the BIOS.

use std::arch::global_asm;

// In virtual-8086 mode it calls functions, near and far, and its kernel by INT n, faults at HLT, and is interrupted
// by the timer. It ends by port F4H.
global_asm!(
    r#"
    .section .rodata.tasks_guest, "a", @progbits
    .global tasks_guest
    .code16
tasks_guest:
    .byte 0x55, 0xaa, 3
    cli
    cld
    xor ax, ax
    mov es, ax
    mov ss, ax
    mov sp, 0x7000
    push cs
    pop ds
    xor si, si
    mov di, 0x7c00
    mov cx, 3 * 512
    rep movsb
    mov ds, ax
    .byte 0xea
    .word 0x7c00 + (1f - tasks_guest), 0
1:  .byte 0xbb
    .word 0x7c00 + (tasks_gdtr - tasks_guest)
    lgdt [bx]
    mov eax, cr0
    or al, 1
    mov cr0, eax
    .byte 0x66, 0xea
    .long 0x7c00 + (tasks_protected - tasks_guest)
    .word 0x08
    .code32
tasks_protected:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov esp, 0x7000
    # IDT at 0x18000: all vectors to tasks_plain but 13, 32, 0x41; level 3 may call 0x40 and 0x41
    mov edi, 0x18000
    mov ecx, 256
2:  .byte 0xb8
    .long 0x7c00 + (tasks_plain - tasks_guest)
    call tasks_gate
    dec ecx
    jnz 2b
    mov edi, 0x18000 + 13 * 8
    .byte 0xb8
    .long 0x7c00 + (tasks_protection - tasks_guest)
    call tasks_gate
    mov edi, 0x18000 + 32 * 8
    .byte 0xb8
    .long 0x7c00 + (tasks_timer - tasks_guest)
    call tasks_gate
    mov edi, 0x18000 + 0x41 * 8
    .byte 0xb8
    .long 0x7c00 + (tasks_leave - tasks_guest)
    call tasks_gate
    mov byte ptr [0x18000 + 0x40 * 8 + 5], 0xee
    mov byte ptr [0x18000 + 0x41 * 8 + 5], 0xee
    .byte 0xbb
    .long 0x7c00 + (tasks_idtr - tasks_guest)
    lidt [ebx]
    # a TSS at 0x19000 with ESP0 and SS0
    mov edi, 0x19000
    xor eax, eax
    mov ecx, 0x40
    rep stosd
    mov dword ptr [0x19004], 0x6800
    mov dword ptr [0x19008], 0x10
    mov ax, 0x18
    ltr ax
    # the PIC to vectors 32, only IRQ 0, the PIT at about 10 kHz
    mov al, 0x11
    out 0x20, al
    mov al, 32
    out 0x21, al
    mov al, 4
    out 0x21, al
    mov al, 1
    out 0x21, al
    mov al, 0xfe
    out 0x21, al
    mov al, 0xff
    out 0xa1, al
    mov al, 0x34
    out 0x43, al
    mov al, 100
    out 0x40, al
    xor al, al
    out 0x40, al
    # GS, FS, DS, ES, SS, ESP, EFLAGS with VM, IOPL 3 and IF, CS, EIP
    xor eax, eax
    push eax
    push eax
    push eax
    push eax
    push eax
    push 0x6000
    push 0x23202
    push 0x7c0
    .byte 0xb8
    .long tasks_virtual - tasks_guest
    push eax
    iretd
    .code16
tasks_virtual:
    mov cx, 10000
3:  .byte 0xe8
    .word tasks_near - . - 2
    push cs
    .byte 0xe8
    .word tasks_far - . - 2
    int 0x40
    hlt
    loop 3b
    int 0x41
tasks_near:
    nop
    .byte 0xc3
tasks_far:
    nop
    .byte 0xcb
    .code32
tasks_plain:
    iretd
tasks_protection:
    inc dword ptr [esp + 4]
    add esp, 4
    iretd
tasks_timer:
    push eax
    mov al, 0x20
    out 0x20, al
    pop eax
    iretd
tasks_leave:
    mov al, 17
    out 0xf4, al
    cli
    hlt
tasks_gate:
    mov [edi], ax
    mov word ptr [edi + 2], 8
    mov word ptr [edi + 4], 0x8e00
    shr eax, 16
    mov [edi + 6], ax
    add edi, 8
    ret
    .balign 8
tasks_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff
    .quad 0x00cf93000000ffff
    .quad 0x0000890190000067
tasks_gdtr:
    .word 0x1f
    .long 0x7c00 + (tasks_gdt - tasks_guest)
tasks_idtr:
    .word 0x7ff
    .long 0x18000
    .org tasks_guest + 3 * 512
    .code64
    .text
    "#
);

/// The size of the guest's code.
const BYTES: usize = 3 * 512;

unsafe extern "C" {
    static tasks_guest: [u8; BYTES];
}

/// Returns the contents of the guest's option ROM, whose bytes have the sum 0.
pub(crate) fn rom() -> Vec<u8> {
    // SAFETY: the assembly above has that many bytes, which nobody changes.
    let mut rom = unsafe { tasks_guest };
    rom[BYTES - 1] = rom.iter().fold(0, |sum: u8, byte| sum.wrapping_sub(*byte));
    rom.into()
}
