//! The monitor's own interrupt descriptor table.
//!
//! A fault of the monitor is reported and ends the machine. Interrupts reach the monitor only in the windows of
//! [`crate::image::interrupts`]. The stub of an interrupt puts the vector into EAX of the interrupted code and returns
//! with IF clear, so that one window takes one interrupt. The stub of an NMI sets EDX.
//!
//! An interrupt can have the vector of an exception: a PC's BIOS lets the first PIC raise 8 to 15. The interrupted
//! address tells the two apart, since the instructions of the windows raise no exceptions.

use core::arch::global_asm;
use core::cell::UnsafeCell;

use crate::image::exit::fatal;

/// Selector of the 64-bit code segment.
const CODE: u16 = 0x08;
/// Present, 64-bit interrupt gate.
const INTERRUPT_GATE: u16 = 0x8e00;

global_asm!(
    r#"
    .section .text.vectors, "ax", @progbits
    .balign 16
monitor_vectors:
    .set vector, 0
    .rept 256
    .balign 16
    .if vector == 2
        jmp monitor_nmi
    .elseif vector >= 32
        mov eax, vector
        jmp monitor_interrupt
    .else
        push vector
        jmp monitor_exception_or_interrupt
    .endif
    .set vector, vector + 1
    .endr

monitor_nmi:
    mov edx, 1
    // Before a HLT that waits for it: past that.
    cmp qword ptr [rsp], offset wait_begins
    jb 1f
    cmp qword ptr [rsp], offset wait_ends
    jae 1f
    mov qword ptr [rsp], offset wait_ends
1:  cmp qword ptr [rsp], offset nmi_wait_begins
    jne 2f
    mov qword ptr [rsp], offset nmi_wait_ends
2:  iretq

monitor_exception_or_interrupt:
    // Above the vector is RIP, or an exception's error code, which is less than the address of any code.
    cmp qword ptr [rsp + 8], offset wait_ends
    je 3f
    cmp qword ptr [rsp + 8], offset take_begins
    jb monitor_fault
    cmp qword ptr [rsp + 8], offset take_ends
    ja monitor_fault
3:  pop rax

monitor_interrupt:
    and dword ptr [rsp + 16], ~0x200
    iretq

monitor_fault:
    mov rdi, rsp
    and rsp, -16
    call {fault}
    ud2
    "#,
    fault = sym fault,
);

unsafe extern "C" {
    static monitor_vectors: [[u8; 16]; 256];
}

#[repr(C, align(16))]
struct Idt(UnsafeCell<[[u16; 8]; 256]>);

// SAFETY: only `fill` writes it, on the first processor, before any other runs.
unsafe impl Sync for Idt {}

static IDT: Idt = Idt(UnsafeCell::new([[0; 8]; 256]));

#[repr(C, packed)]
struct IdtPointer {
    limit: u16,
    base: u64,
}

/// Fills the table. Must be called once, on the first processor.
pub(crate) fn fill() {
    // SAFETY: nothing else has a reference to the table: this runs once, with interrupts off.
    let table = unsafe { &mut *IDT.0.get() };
    // SAFETY: the assembly above defines 256 stubs of 16 bytes each.
    let stubs = unsafe { &monitor_vectors };
    for (gate, stub) in table.iter_mut().zip(stubs) {
        let [a, b, c, d] = [0, 16, 32, 48].map(|shift| (stub.as_ptr() as u64 >> shift) as u16);
        *gate = [a, CODE, INTERRUPT_GATE, b, c, d, 0, 0];
    }
}

/// Loads the table on this processor.
pub(crate) fn load() {
    let pointer = IdtPointer { limit: (size_of::<Idt>() - 1) as u16, base: IDT.0.get() as u64 };
    // SAFETY: the table is filled and lives forever.
    unsafe { core::arch::asm!("lidt [{}]", in(reg) &raw const pointer, options(nostack, readonly)) };
}

/// The exceptions with an error code, one bit for each vector: 8, 10 to 14, 17, 21, 29, 30.
const WITH_ERROR_CODE: u64 = 0x6022_7d00;

/// Reports an exception of the monitor. The stack at `frame` has the vector, the error code if there is one, RIP, CS,
/// and RFLAGS.
extern "C" fn fault(frame: *const u64) -> ! {
    let word = |index: usize| {
        // SAFETY: the stub passes the address of five words on the stack, or more.
        unsafe { frame.wrapping_add(index).read() }
    };
    let vector = word(0);
    let has_code = (WITH_ERROR_CODE >> (vector & 63)) & 1;
    let error_code = if has_code == 1 { word(1) } else { 0 };
    let [rip, cs, rflags] = [1, 2, 3].map(|index: usize| word(index + has_code as usize));
    fatal!(
        "exception {vector} in the monitor: error code {error_code:#x}, rip {rip:#x}, cs {cs:#x}, rflags {rflags:#x}, \
         cr2 {:#x}",
        x86_64::registers::control::Cr2::read_raw(),
    )
}
