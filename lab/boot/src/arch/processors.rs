//! The other processors: each is started by INIT and start-up interrupts, and waits in HLT for work.

use core::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use pugmark_machine::processors::this;
use pugmark_machine::processors::{PAGE, give_stack, name, prepare};
use spin::Mutex;
use x86_64::instructions::interrupts;
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::structures::paging::PhysFrame;

use super::stack::{self, Stack};
use super::{apic, segments, traps};

/// Maximum number of processors that are used.
pub(crate) const MOST: usize = 8;

/// A value for each processor: its number, to which its GS base points.
static NUMBERS: [usize; MOST] = [0, 1, 2, 3, 4, 5, 6, 7];
static STACKS: [Stack<{ 256 * 1024 }>; MOST] = [const { Stack::new() }; MOST];

/// Number of processors that have started. Only the first one changes this.
static COME: AtomicUsize = AtomicUsize::new(1);
/// The kernel's page tables, for all processors.
static ROOT: Mutex<Option<PhysFrame>> = Mutex::new(None);

/// The work of all processors, the number of such rounds so far, and the number of processors that have not finished.
static WORK: Mutex<Option<&'static (dyn Fn(usize) + Sync)>> = Mutex::new(None);
static GENERATION: AtomicUsize = AtomicUsize::new(0);
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of processors.
pub(crate) fn count() -> usize {
    COME.load(Ordering::Acquire)
}

/// Sets up this module on the first processor.
pub(super) fn init() {
    name(&NUMBERS[0]);
    STACKS.iter().for_each(|stack| stack::note_guard(stack.guard()));
}

/// Starts the other processors, up to a total of `processors`. Must be called once, after [`super::init`].
pub(crate) fn start(processors: usize) {
    let processors = processors.min(MOST);
    if processors < 2 {
        return;
    }
    *ROOT.lock() = Some(Cr3::read().0);
    // SAFETY: physical memory is mapped one to one, and nothing else uses the page.
    unsafe { prepare(0) };
    give_stack(STACKS[1].top());
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
#[unsafe(no_mangle)]
extern "C" fn kernel_processor() -> ! {
    let number = count();
    let root = ROOT.lock().expect("`start` has set it");
    // SAFETY: the kernel's page tables map this code and its stack.
    unsafe { Cr3::write(root, Cr3Flags::empty()) };
    segments::init_further();
    name(&NUMBERS[number]);
    traps::init();
    apic::init();
    let mut done = GENERATION.load(Ordering::Acquire);
    COME.store(number + 1, Ordering::Release);
    // Whoever takes the next stack reads its number then.
    if let Some(stack) = STACKS.get(number + 1) {
        give_stack(stack.top());
    }
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
