//! The guest of these tests: an extension of the BIOS.

use std::arch::global_asm;

// In real-address mode it calls its own interrupt handler and the BIOS, and waits for its timer; in protected mode it
// calls a function; in 64-bit mode it faults in the middle and at the end of blocks, changes CR3 and its own code, and
// returns and repeats while the timer interrupts; at level 3 it makes system calls. It ends by port F4H.
global_asm!(
    r#"
    .section .rodata.machine_guest, "a", @progbits
    .global machine_guest
    .code16
machine_guest:
    .byte 0x55, 0xaa, 9
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
    mov cx, 9 * 512
    rep movsb
    mov ds, ax
    .byte 0xea
    .word 0x7c00 + (1f - machine_guest), 0
1:  push ds
    pop ds
    # an interrupt handler of ours in real-address mode, called by INT and by the PIC
    .byte 0xb8
    .word 0x7c00 + (real_handler - machine_guest)
    mov [0x60 * 4], ax
    mov word ptr [0x60 * 4 + 2], 0
    mov cx, 20
2:  int 0x60
    loop 2b
    # the BIOS's functions
    mov ah, 0x88
    int 0x15
    # the BIOS's timer interrupt wakes HLT
    sti
    hlt
    hlt
    cli
    jmp second
real_handler:
    push ax
    pop ax
    iret
    .org machine_guest + 512
second:
    .code16
    # page tables: 0x10000 PML4, 0x11000 PDPT, 0x12000 PD with 2 MiB pages, all user
    push es
    mov ax, 0x1000
    mov es, ax
    xor di, di
    xor eax, eax
    mov cx, 0x1400
    rep stosd
    mov dword ptr es:[0x0000], 0x11007
    mov dword ptr es:[0x1000], 0x12007
    mov dword ptr es:[0x2000], 0x000087
    mov dword ptr es:[0x2008], 0x200087
    # a second PML4 that shares the rest
    mov dword ptr es:[0x4000], 0x11007
    pop es
    .byte 0xbb
    .word 0x7e00 + (gdtr - second)
    lgdt [bx]
    mov eax, cr0
    or al, 1
    mov cr0, eax
    .byte 0x66, 0xea
    .long 0x7e00 + (protected - second)
    .word 0x08
    .code32
protected:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov esp, 0x7000
    mov ecx, 30
3:  call nothing
    dec ecx
    jnz 3b
    mov eax, cr4
    or eax, 0x20
    mov cr4, eax
    mov eax, 0x10000
    mov cr3, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x101
    wrmsr
    mov eax, cr0
    or eax, 0x80000000
    mov cr0, eax
    .byte 0xea
    .long 0x7e00 + (long_mode - second)
    .word 0x18
nothing:
    nop
    ret
    .code64
long_mode:
    mov ax, 0x10
    mov ds, ax
    mov es, ax
    mov ss, ax
    mov rsp, 0x7000
    # IDT at 0x18000: all vectors to handler_plain but 6, 14, 32
    mov rdi, 0x18000
    mov rcx, 256
4:  lea rax, [rip + plain_handler]
    call set_gate
    dec rcx
    jnz 4b
    mov rdi, 0x18000 + 6 * 16
    lea rax, [rip + undefined_handler]
    call set_gate
    mov rdi, 0x18000 + 14 * 16
    lea rax, [rip + fault_handler]
    call set_gate
    mov rdi, 0x18000 + 32 * 16
    lea rax, [rip + timer_handler]
    call set_gate
    mov byte ptr [0x18000 + 0x80 * 16 + 5], 0xee
    lidt [rip + idtr]
    # TSS with RSP0
    lea rax, [rip + tss]
    mov qword ptr [rax + 4], 0x6800
    mov [rip + tss_low], ax
    shr rax, 16
    mov [rip + tss_mid], al
    mov ax, 0x38
    ltr ax
    # SYSCALL
    mov ecx, 0xc0000081
    xor eax, eax
    mov edx, 0x00200018
    wrmsr
    mov ecx, 0xc0000082
    lea rax, [rip + system_call]
    xor edx, edx
    wrmsr
    mov ecx, 0xc0000084
    mov eax, 0x200
    xor edx, edx
    wrmsr
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
    # faults in the middle and at the end of blocks
    mov r15, 40
5:  mov rax, 0x40000000
    nop
    mov rbx, [rax]
    nop
    mov rbx, 0x40000000
    call [rbx]
    ud2
    int 0x40
    dec r15
    jnz 5b
    # CR3 changes
    mov rax, 0x14000
    mov cr3, rax
    mov rax, 0x10000
    mov cr3, rax
    # code that changes
    mov r15, 10
6:  lea rax, [rip + changing]
    xor byte ptr [rax + 1], 1
    call changing
    dec r15
    jnz 6b
    # returns and indirect calls while the timer interrupts
    sti
    mov r15, 60000
7:  lea rax, [rip + nothing_64]
    call rax
    call nothing_64
    mov rdi, 0x20000
    mov rsi, 0x21000
    mov rcx, 40
    rep movsb
    dec r15
    jnz 7b
    hlt
    hlt
    # user mode: SYSCALL, faults, interrupts
    push 0x2b
    push 0x6000
    push 0x202
    push 0x33
    lea rax, [rip + user_code]
    push rax
    iretq
user_code:
    mov r15, 20000
8:  mov eax, 1
    syscall
    call nothing_64
    test r15, 63
    jne 9f
    int 0x80
    mov rax, 0x40000000
    mov rbx, [rax]
9:  dec r15
    jnz 8b
    mov eax, 0
    syscall
1:  jmp 1b
changing:
    mov al, 0
    ret
nothing_64:
    nop
    ret
set_gate:
    mov [rdi], ax
    mov word ptr [rdi + 2], 0x18
    mov word ptr [rdi + 4], 0x8e00
    shr rax, 16
    mov [rdi + 6], ax
    mov qword ptr [rdi + 8], 0
    add rdi, 16
    ret
plain_handler:
    iretq
undefined_handler:
    add qword ptr [rsp], 2
    iretq
fault_handler:
    push rax
    mov rax, [rsp + 16]
    cmp byte ptr [rax], 0xff
    je 1f
    add qword ptr [rsp + 16], 1
1:  add qword ptr [rsp + 16], 2
    pop rax
    add rsp, 8
    iretq
timer_handler:
    push rax
    mov al, 0x20
    out 0x20, al
    pop rax
    iretq
system_call:
    test eax, eax
    jz 1f
    sysretq
1:  mov al, 17
    out 0xf4, al
    cli
    hlt
    .balign 8
gdt:
    .quad 0
    .quad 0x00cf9b000000ffff
    .quad 0x00cf93000000ffff
    .quad 0x00af9b000000ffff
    .quad 0x00cf93000000ffff
    .quad 0x00cff3000000ffff
    .quad 0x00affb000000ffff
    .word 0x67
tss_low:
    .word 0
tss_mid:
    .byte 0, 0x89, 0, 0
    .quad 0
gdtr:
    .word 0x47
    .long 0x7e00 + (gdt - second)
idtr:
    .word 0xfff
    .quad 0x18000
tss:
    .zero 104
    .org machine_guest + 9 * 512
    .code64
    .text
    "#
);

/// The size of the guest's code.
const BYTES: usize = 9 * 512;
/// The status with which QEMU ends when the guest writes 17 to its exit device.
pub(crate) const STATUS: i32 = 17 << 1 | 1;

unsafe extern "C" {
    static machine_guest: [u8; BYTES];
}

/// Returns the contents of the guest's option ROM, whose bytes have the sum 0.
pub(crate) fn rom() -> Vec<u8> {
    // SAFETY: the assembly above has that many bytes, which nobody changes.
    let mut rom = unsafe { machine_guest };
    rom[BYTES - 1] = rom.iter().fold(0, |sum: u8, byte| sum.wrapping_sub(*byte));
    rom.into()
}
