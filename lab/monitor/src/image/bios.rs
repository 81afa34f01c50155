//! The code of the resident part in a guest that begins in the BIOS.

use core::arch::global_asm;

use pugmark_monitor::bios::{
    self, ABOVE_16_MIB, BELOW_16_MIB, BiosError, EXTENDED, MAP, OLD_VECTOR, RANGE_BYTES, RANGES, ResidentCode,
};
use pugmark_monitor::boot_info::MemoryRange;
use pugmark_monitor::guest::Cpu;
use pugmark_monitor::guest_map::GuestRam;

use crate::image::physical::Physical;

// An assembler for 64-bit code gives some operands a size that 16-bit code cannot have, so those are bytes.
global_asm!(
    r#"
    .section .rodata.bios, "a", @progbits
    .code16
bios_resident:
    sti
    int 0x18                        // boot from the next device
1:  hlt
    jmp 1b

bios_int15:
    cmp ax, 0xe820
    je 3f
    cmp ax, 0xe801
    je 2f
    cmp ah, 0x88
    je 1f
    .byte 0x2e, 0xff, 0x2e          // jmp far cs:[OLD_VECTOR]
    .word {old_vector}

1:  .byte 0x2e, 0xa1                // mov ax, cs:[EXTENDED]
    .word {extended}
    jmp 5f

2:  .byte 0x2e, 0xa1                // mov ax, cs:[BELOW_16_MIB]
    .word {below_16_mib}
    .byte 0x2e, 0x8b, 0x1e          // mov bx, cs:[ABOVE_16_MIB]
    .word {above_16_mib}
    mov cx, ax
    mov dx, bx
    jmp 5f

    // EBX is the number of a range, ES:DI the address for it, ECX its size there, EDX the signature.
3:  cmp edx, 0x534d4150
    jne 6f
    cmp ecx, {range_bytes}
    jb 6f
    push si
    .byte 0x2e, 0x8b, 0x36          // mov si, cs:[RANGES]
    .word {ranges}
    movzx ecx, si
    pop si
    cmp ebx, ecx
    jae 6f
    push ds
    push si
    push di
    push cs
    pop ds
    imul si, bx, {range_bytes}
    add si, {map}
    push cx
    mov cx, {range_bytes} / 2
    cld
    rep movsw
    pop cx
    pop di
    pop si
    pop ds
    inc ebx
    cmp ebx, ecx
    jb 4f
    xor ebx, ebx
4:  mov ecx, {range_bytes}
    mov eax, edx

    // The caller's flags are above the return address and what is pushed here. CF tells failure.
5:  push bp
    mov bp, sp
    and byte ptr [bp + 6], 0xfe
    pop bp
    iret
6:  mov ah, 0x86
    push bp
    mov bp, sp
    or byte ptr [bp + 6], 1
    pop bp
    iret
bios_resident_end:
    .code64
    "#,
    old_vector = const OLD_VECTOR,
    extended = const EXTENDED,
    below_16_mib = const BELOW_16_MIB,
    above_16_mib = const ABOVE_16_MIB,
    ranges = const RANGES,
    range_bytes = const RANGE_BYTES,
    map = const MAP,
);

unsafe extern "C" {
    static bios_resident: u8;
    static bios_int15: u8;
    static bios_resident_end: u8;
}

/// Puts the resident part into the guest's memory, and returns the guest's first state.
pub(crate) fn install(
    firmware: &[MemoryRange],
    ram: GuestRam,
    memory: &mut Physical,
) -> Result<Cpu, BiosError> {
    let start = &raw const bios_resident;
    let offset = |label: *const u8| label as usize - start as usize;
    // SAFETY: the assembly above is between its two labels, and nothing writes there.
    let bytes = unsafe { core::slice::from_raw_parts(start, offset(&raw const bios_resident_end)) };
    let code = ResidentCode { bytes, int15: offset(&raw const bios_int15) as u16 };
    bios::install(code, firmware, ram, memory)
}
