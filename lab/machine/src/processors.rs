//! The start-up of further processors: a page of real-mode code, and one stack after the other.
//!
//! Source: SDM vol. 3, Multiple-Processor Management, "MP Initialization Protocol Algorithm for MP Systems".

use core::arch::{asm, global_asm};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use x86_64::VirtAddr;
use x86_64::registers::model_specific::GsBase;

/// The physical address of the page, below 1 MiB, at which further processors start; no memory is allocated there.
pub const PAGE: u64 = 0x9000;

/// The top of the stack that the next processor takes; 0 once it is taken.
static STACK: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    static further_page: u8;
    static further_page_end: u8;
    /// Runs a further processor, in the kernel. It is called on the processor's own stack, with the page tables and the
    /// segments of the entry code.
    fn kernel_processor() -> !;
}

/// Copies the start-up code to [`PAGE`]. A start-up interrupt names it by `PAGE >> 12`.
///
/// # Safety
///
/// Physical memory is mapped at `offset`, and nothing else uses the page.
pub unsafe fn prepare(offset: u64) {
    let start = &raw const further_page;
    let bytes = &raw const further_page_end as usize - start as usize;
    // SAFETY: the code is between its labels, and the caller promises the rest.
    unsafe { ptr::copy_nonoverlapping(start, (offset + PAGE) as *mut u8, bytes) };
}

/// Provides the stack that lets one more processor start.
pub fn give_stack(top: u64) {
    STACK.store(top, Ordering::Release);
}

/// Returns the number of the executing processor, from 0.
#[inline]
pub fn this() -> usize {
    let number;
    // SAFETY: `name` has made GS point at the number.
    unsafe { asm!("mov {}, gs:[0]", out(reg) number, options(nostack, readonly, preserves_flags)) };
    number
}

/// Sets the number of the executing processor.
pub fn name(number: &'static usize) {
    GsBase::write(VirtAddr::from_ptr(number));
}

global_asm!(
    r#"
    .section .text.processors, "ax", @progbits
    // Copied to the page that the start-up interrupt names.
    .code16
    .global further_page
further_page:
    cli
    mov ax, cs
    mov ds, ax
    // LGDT with a 32-bit operand, at an offset in the page.
    .byte 0x66, 0x0f, 0x01, 0x16
    .word further_gdt_pointer - further_page
    mov eax, 0x620
    mov cr4, eax
    mov eax, offset boot_pml4
    mov cr3, eax
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x900
    wrmsr
    mov eax, 0x80010033
    mov cr0, eax
    .byte 0x66, 0xea
    .long further64
    .word 8
    .balign 4
further_gdt_pointer:
    .word 23
    .long boot_gdt
    .global further_page_end
further_page_end:

    .code64
    .type further64, @function
further64:
    mov eax, 0x10
    mov ss, eax
    xor eax, eax
    mov ds, eax
    mov es, eax
    mov fs, eax
    mov gs, eax
    // One after the other takes the stack that is there.
2:  pause
    xor eax, eax
    xchg rax, [rip + {stack}]
    test rax, rax
    jz 2b
    mov rsp, rax
    xor ebp, ebp
    call {kernel_processor}
    ud2
    "#,
    stack = sym STACK,
    kernel_processor = sym kernel_processor,
);
