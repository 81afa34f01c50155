//! The image as a driver of UEFI firmware: from the firmware's call to the entry by PVH, and back as the guest.

use core::arch::global_asm;
use core::mem::offset_of;

use pugmark_monitor::guest_map::MONITOR;
use pugmark_monitor::uefi::SavedState;

use crate::image::channel::CHANNEL_PORT;
use crate::image::clock::TimerRegisters;
use crate::image::exit::{DEBUG_EXIT_PORT, FAILED};
use crate::image::vcpu::Vcpu;
use crate::image::vmrun::Sse;

// Whoever makes the driver finds by the note: the address of its entry, and that of a page, into which it writes the
// number of pages to allocate from `MONITOR` on and, 16 bytes after it, the start info. All addresses are those of the
// image where it is linked; the firmware loads the driver anywhere.
global_asm!(
    r#"
    .section .note.pvh, "a", @note
    .balign 4
    .long 8                       // size of the name
    .long 8                       // size of the value
    .long 1
    .asciz "Pugmark"
    .long uefi_entry
    .long uefi_page

    .section .data.uefi, "aw", @progbits
    .balign 4096
uefi_page:
    .skip 4096

    .section .bss.uefi, "aw", @nobits
    .balign 16
    .global uefi_state
uefi_state:
    .skip {state_bytes}

    .section .rodata.uefi, "a", @progbits
uefi_message:
    .asciz "monitor: the firmware does not give the memory from 256 MiB on: give the guest more memory, or less\n"
    .balign 8
uefi_gdt:
    .quad 0
    .quad 0x00cf9b000000ffff      // 32-bit code
    .quad 0x00cf93000000ffff      // data
uefi_gdt_pointer:
    .word . - uefi_gdt - 1
    .quad uefi_gdt

    .section .text.boot, "ax", @progbits
    .code64
uefi_entry:
    // RCX: the driver's handle, RDX: the system table. RSP is 8 bytes off a multiple of 16.
    push rbp
    push rbx
    push rsi
    push rdi
    push r12
    push r13
    push r14
    push r15
    pushfq
    mov r12, rdx
    // AllocatePages(AllocateAddress, EfiReservedMemoryType, pages, &address)
    sub rsp, 48
    mov qword ptr [rsp + 32], {monitor}
    mov ecx, 2
    xor edx, edx
    mov r8, [rip + uefi_page]
    lea r9, [rsp + 32]
    mov rax, [r12 + 0x60]
    call [rax + 0x28]
    add rsp, 48
    test rax, rax
    jnz 4f

    cli
    cld
    lea rsi, [rip + image_start]
    mov edi, {monitor}
    mov ecx, offset data_end
    sub ecx, edi
    rep movsb
    // The rest of the image, and the log, are zero as memory after power-on.
    xor eax, eax
    mov ecx, offset image_end
    sub ecx, edi
    rep stosb
    mov edi, {monitor_end}
    mov rcx, [rip + uefi_page]
    shl rcx, 12
    add rcx, {monitor}
    sub rcx, rdi
    shr rcx, 3
    rep stosq

    mov ebx, offset uefi_state
    movups [rbx], xmm0
    movups [rbx + 0x10], xmm1
    movups [rbx + 0x20], xmm2
    movups [rbx + 0x30], xmm3
    movups [rbx + 0x40], xmm4
    movups [rbx + 0x50], xmm5
    movups [rbx + 0x60], xmm6
    movups [rbx + 0x70], xmm7
    movups [rbx + 0x80], xmm8
    movups [rbx + 0x90], xmm9
    movups [rbx + 0xa0], xmm10
    movups [rbx + 0xb0], xmm11
    movups [rbx + 0xc0], xmm12
    movups [rbx + 0xd0], xmm13
    movups [rbx + 0xe0], xmm14
    movups [rbx + 0xf0], xmm15
    mov rax, cr0
    mov [rbx + {cr0}], rax
    mov rax, cr3
    mov [rbx + {cr3}], rax
    mov rax, cr4
    mov [rbx + {cr4}], rax
    mov ecx, 0xc0000080           // EFER
    rdmsr
    mov [rbx + {efer}], eax
    mov [rbx + {rsp}], rsp
    lea rax, [rip + 3f]
    mov [rbx + {rip}], rax
    mov [rbx + {selectors}], cs
    mov [rbx + {selectors} + 8], ds
    mov [rbx + {selectors} + 16], es
    mov [rbx + {selectors} + 24], fs
    mov [rbx + {selectors} + 32], gs
    mov [rbx + {selectors} + 40], ss
    mov [rbx + {system_table}], r12
    sgdt [rbx + {gdtr}]
    sidt [rbx + {idtr}]

    // Through 32-bit code in the copy to the entry by PVH.
    mov esp, offset boot_stack_top
    mov eax, offset uefi_gdt_pointer
    lgdt [rax]
    push 0x08
    mov eax, offset uefi_leave
    push rax
    retfq

    // The guest begins here, with the interrupts as they were. EFI_UNSUPPORTED: the firmware unloads the driver.
3:  popfq
    pop r15
    pop r14
    pop r13
    pop r12
    pop rdi
    pop rsi
    pop rbx
    pop rbp
    mov rax, 0x8000000000000003
    ret

4:  lea rsi, [rip + uefi_message]
    mov edx, {channel}
5:  lodsb
    test al, al
    jz 6f
    out dx, al
    jmp 5b
6:  mov edx, {exit}
    mov eax, {failed}
    out dx, eax
    cli
7:  hlt
    jmp 7b

    .code32
uefi_leave:
    mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov eax, cr0
    and eax, 0x7fffffff           // without PG
    mov cr0, eax
    mov ecx, 0xc0000080           // EFER
    rdmsr
    and eax, 0xfffffeff           // without LME
    wrmsr
    xor eax, eax
    mov cr4, eax
    mov ebx, offset uefi_page + 16
    jmp pvh_entry
    .code64
    "#,
    monitor = const MONITOR.start,
    monitor_end = const MONITOR.end,
    state_bytes = const size_of::<SavedState>(),
    cr0 = const offset_of!(SavedState, cr0),
    cr3 = const offset_of!(SavedState, cr3),
    cr4 = const offset_of!(SavedState, cr4),
    efer = const offset_of!(SavedState, efer),
    rsp = const offset_of!(SavedState, rsp),
    rip = const offset_of!(SavedState, rip),
    selectors = const offset_of!(SavedState, selectors),
    system_table = const offset_of!(SavedState, system_table),
    gdtr = const offset_of!(SavedState, gdtr),
    idtr = const offset_of!(SavedState, idtr),
    channel = const CHANNEL_PORT,
    exit = const DEBUG_EXIT_PORT,
    failed = const FAILED,
);

unsafe extern "C" {
    static uefi_state: SavedState;
}

/// Returns the state of the firmware that has called the driver; `None` if the monitor has been started otherwise.
pub(crate) fn saved() -> Option<&'static SavedState> {
    // SAFETY: the assembly above has reserved the space, and only its code writes there, before any Rust code runs.
    let saved = unsafe { &uefi_state };
    (saved.cr0 != 0).then_some(saved)
}

impl Vcpu {
    /// Takes over the state of the firmware that is not in the control block.
    pub(crate) fn take_over(&mut self, saved: &SavedState, timer: TimerRegisters) {
        self.clock.take_over(timer);
        self.sse = Sse::of(saved.xmm);
        let first = saved.cpu();
        // TR, LDTR and the MSRs are still the firmware's; FS and GS are not.
        self.vmsave();
        (self.cpu.fs, self.cpu.gs) = (first.fs, first.gs);
        self.vmload();
    }
}
