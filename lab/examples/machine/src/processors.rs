//! The other processors: each is started by INIT and start-up interrupts, and gets tables and stacks of its own.
//!
//! Source: SDM vol. 3, Multiple-Processor Management, "MP Initialization Protocol Algorithm for MP Systems".

use crate::stacks::Stack;
use crate::{PHYSICAL_MEMORY_OFFSET, frames, traps};
use core::arch::{asm, global_asm};
use core::hint::spin_loop;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use spin::Once;
use x86_64::VirtAddr;
use x86_64::registers::model_specific::GsBase;

/// The physical address of the local APIC's page, which is the same on each processor.
pub const LOCAL_APIC: u64 = 0xfee0_0000;

const SPURIOUS: u64 = 0xf0;
const COMMAND: u64 = 0x300;
const DESTINATION: u64 = 0x310;

/// INIT, the end of INIT, and a start-up interrupt with the number of the page, to all but the sender.
const INIT: u32 = 0xc_4500;
const INIT_END: u32 = 0xc_8500;
const START_UP: u32 = 0xc_4600;
/// An NMI to all but the sender.
const NMI: u32 = 0xc_4400;

/// The page below 1 MiB at which the other processors start.
const PAGE: u64 = 0x9000;
const STACK: u64 = 256 << 10;

static MAIN: Once<fn()> = Once::new();
/// Number of processors that have started, and of those that have finished their work.
static COME: AtomicUsize = AtomicUsize::new(1);
static DONE: AtomicUsize = AtomicUsize::new(1);

unsafe extern "C" {
    static further_page: u8;
    static further_page_end: u8;
    /// The top of the stack that the next processor takes; 0 if it has been taken.
    static further_stack: AtomicU64;
}

/// Returns the number of the executing processor, from 0.
#[inline]
pub fn this() -> usize {
    let number;
    // SAFETY: `init` has put the number there.
    unsafe { asm!("mov {}, gs:[0]", out(reg) number, options(nostack, readonly, preserves_flags)) };
    number
}

/// Sets up this processor under this number.
pub(crate) fn init(number: usize) {
    // The tables take less than a page.
    let place = frames::allocate(4096, 4096).expect("memory") + PHYSICAL_MEMORY_OFFSET;
    // SAFETY: the memory was just allocated.
    unsafe { (place as *mut usize).write(number) };
    traps::init(number);
    GsBase::write(VirtAddr::new(place));
    // Software must enable the local APIC first: until then no LVT entry can be unmasked.
    write_local_apic(SPURIOUS, 0x1ff);
}

/// Calls `main` on all `processors` of the machine, including this one, and returns when all are done.
pub fn run_on_all(processors: usize, main: fn()) {
    MAIN.call_once(|| main);
    let start = &raw const further_page;
    let bytes = &raw const further_page_end as usize - start as usize;
    // SAFETY: the page is below the memory that is given out, and the code is between its labels.
    unsafe { core::ptr::copy_nonoverlapping(start, (PHYSICAL_MEMORY_OFFSET + PAGE) as *mut u8, bytes) };
    give_stack();
    if processors > 1 {
        for command in [INIT, INIT_END, START_UP | (PAGE >> 12) as u32, START_UP | (PAGE >> 12) as u32] {
            write_local_apic(DESTINATION, 0);
            write_local_apic(COMMAND, command);
        }
    }
    // All start at the same time.
    while COME.load(Ordering::Acquire) < processors {
        spin_loop();
    }
    main();
    while DONE.load(Ordering::Acquire) < processors {
        spin_loop();
    }
}

/// Sends an NMI to all processors but this one. It arrives even where interrupts are disabled.
pub fn send_nmi_to_others() {
    write_local_apic(COMMAND, NMI);
}

/// Provides the stack that lets one more processor start.
fn give_stack() {
    let stack = Stack::new(STACK);
    // SAFETY: the start-up code has defined it.
    unsafe { further_stack.store(stack.top().as_u64(), Ordering::Release) };
}

extern "C" fn further() -> ! {
    let number = COME.load(Ordering::Relaxed);
    init(number);
    give_stack();
    COME.store(number + 1, Ordering::Release);
    if let Some(main) = MAIN.get() {
        main();
    }
    DONE.fetch_add(1, Ordering::Release);
    loop {
        x86_64::instructions::hlt();
    }
}

fn write_local_apic(register: u64, value: u32) {
    let address = (PHYSICAL_MEMORY_OFFSET + LOCAL_APIC + register) as *mut u32;
    // SAFETY: the local APIC's page is mapped.
    unsafe { address.write_volatile(value) };
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
    or eax, 0x100
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
further64:
    mov eax, 0x10
    mov ss, eax
    mov ds, eax
    mov es, eax
    // One after the other takes the stack that is there.
2:  pause
    xor eax, eax
    xchg rax, [rip + further_stack]
    test rax, rax
    jz 2b
    mov rsp, rax
    xor ebp, ebp
    call {further}
    ud2

    .section .data.processors, "aw", @progbits
    .balign 8
    .global further_stack
further_stack:
    .quad 0
    "#,
    further = sym further,
);
