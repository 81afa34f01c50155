//! The other processors: each is started by INIT and start-up interrupts, and waits in HLT for work.
//!
//! Source: SDM vol. 3, Multiple-Processor Management, "MP Initialization Protocol Algorithm for MP Systems".

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use spin::Mutex;
use x86_64::VirtAddr;
use x86_64::instructions::interrupts;
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::registers::model_specific::{Efer, EferFlags, GsBase};
use x86_64::structures::paging::PhysFrame;

use super::stack::{self, Stack};
use super::{apic, segments, traps};

/// Maximum number of processors that are used.
pub(crate) const MOST: usize = 8;

/// The page below 1 MiB at which the other processors start; no memory is allocated there.
const PAGE: u64 = 0x9000;

/// A value for each processor: its number, to which its GS base points.
static NUMBERS: [usize; MOST] = [0, 1, 2, 3, 4, 5, 6, 7];
static STACKS: [Stack<{ 256 * 1024 }>; MOST] = [const { Stack::new() }; MOST];

/// Number of processors that have started. Only the first one changes this.
static COME: AtomicUsize = AtomicUsize::new(1);
/// The next processor's stack; 0 once it is taken.
static STACK: AtomicU64 = AtomicU64::new(0);
/// The kernel's page tables, for all processors.
static ROOT: Mutex<Option<PhysFrame>> = Mutex::new(None);

/// The work of all processors, the number of such works so far, and the number of processors that have not finished.
static WORK: Mutex<Option<&'static (dyn Fn(usize) + Sync)>> = Mutex::new(None);
static GENERATION: AtomicUsize = AtomicUsize::new(0);
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of the executing processor, from 0.
pub(crate) fn this() -> usize {
    let number;
    // SAFETY: GS points at a number on each processor.
    unsafe { asm!("mov {}, gs:[0]", out(reg) number, options(nostack, readonly, preserves_flags)) };
    number
}

/// Returns the number of processors.
pub(crate) fn count() -> usize {
    COME.load(Ordering::Acquire)
}

/// Sets up this module on the first processor.
pub(super) fn init() {
    name(0);
    STACKS.iter().for_each(|stack| stack::note_guard(stack.guard()));
}

fn name(number: usize) {
    GsBase::write(VirtAddr::from_ptr(&raw const NUMBERS[number]));
}

/// Starts the other processors, up to a total of `processors`. Must be called once, after [`super::init`].
pub(crate) fn start(processors: usize) {
    unsafe extern "C" {
        static further_page: u8;
        static further_page_end: u8;
    }
    let processors = processors.min(MOST);
    if processors < 2 {
        return;
    }
    *ROOT.lock() = Some(Cr3::read().0);
    let start = &raw const further_page;
    let bytes = &raw const further_page_end as usize - start as usize;
    // SAFETY: nothing else uses the page, which is mapped, and the code is between its labels.
    unsafe { core::ptr::copy_nonoverlapping(start, PAGE as *mut u8, bytes) };
    STACK.store(STACKS[1].top(), Ordering::Release);
    apic::start_others((PAGE >> 12) as u8);
    while count() < processors {
        core::hint::spin_loop();
    }
}

/// Calls `work` on all processors with their numbers, and returns when all have returned.
pub(crate) fn together(work: &(dyn Fn(usize) + Sync)) {
    // SAFETY: no processor holds the reference when this function returns: it waits for them.
    let work =
        unsafe { core::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
    BUSY.store(count() - 1, Ordering::Relaxed);
    *WORK.lock() = Some(work);
    GENERATION.fetch_add(1, Ordering::Release);
    wake_others();
    work(0);
    wait_until(|| BUSY.load(Ordering::Acquire) == 0);
    *WORK.lock() = None;
}

/// Waits until `condition` is true. The code that makes it true calls [`wake_others`].
pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let were_on = interrupts::are_enabled();
    interrupts::disable();
    while !condition() {
        // STI admits an interrupt only after HLT has begun, so no wake-up is missed.
        interrupts::enable_and_hlt();
        interrupts::disable();
    }
    if were_on {
        interrupts::enable();
    }
}

/// Makes the other processors check their conditions again.
pub(crate) fn wake_others() {
    if count() > 1 {
        apic::wake_others();
    }
}

/// Starts a further processor. The start-up code calls it on that processor's stack.
extern "C" fn further() -> ! {
    let number = count();
    let root = ROOT.lock().expect("`start` has set it");
    // SAFETY: EFER.NXE, which the kernel's page tables need.
    unsafe { Efer::update(|efer| *efer |= EferFlags::NO_EXECUTE_ENABLE) };
    // SAFETY: the kernel's page tables map this code and its stack.
    unsafe { Cr3::write(root, Cr3Flags::empty()) };
    segments::init_further();
    name(number);
    traps::init();
    apic::init();
    let mut done = GENERATION.load(Ordering::Acquire);
    if let Some(stack) = STACKS.get(number + 1) {
        STACK.store(stack.top(), Ordering::Release);
    }
    COME.store(number + 1, Ordering::Release);
    loop {
        wait_until(|| GENERATION.load(Ordering::Acquire) != done);
        done = GENERATION.load(Ordering::Acquire);
        let work = *WORK.lock();
        if let Some(work) = work {
            work(number);
        }
        BUSY.fetch_sub(1, Ordering::Release);
        wake_others();
    }
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
    xchg rax, [{stack}]
    test rax, rax
    jz 2b
    mov rsp, rax
    xor ebp, ebp
    call {further}
    ud2
    "#,
    stack = sym STACK,
    further = sym further,
);
