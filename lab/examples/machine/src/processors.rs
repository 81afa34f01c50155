//! The other processors: each is started by INIT and start-up interrupts, and gets tables and stacks of its own.

use crate::stacks::Stack;
use crate::{PHYSICAL_MEMORY_OFFSET, frames, traps};
use core::hint::spin_loop;
use core::sync::atomic::{AtomicUsize, Ordering};
pub use pugmark_machine::processors::this;
use pugmark_machine::processors::{PAGE, name, prepare};
use spin::Once;

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

const STACK: u64 = 256 << 10;

static MAIN: Once<fn()> = Once::new();
/// Number of processors that have started, and of those that have finished their work.
static COME: AtomicUsize = AtomicUsize::new(1);
static DONE: AtomicUsize = AtomicUsize::new(1);

/// Sets up this processor under this number.
pub(crate) fn init(number: usize) {
    let place = (frames::allocate(8, 8).expect("memory") + PHYSICAL_MEMORY_OFFSET) as *mut usize;
    // SAFETY: the memory was just allocated.
    unsafe { place.write(number) };
    traps::init(number);
    // SAFETY: nothing else refers to the memory, which stays allocated.
    name(unsafe { &*place });
    // Software must enable the local APIC first: until then no LVT entry can be unmasked.
    write_local_apic(SPURIOUS, 0x1ff);
}

/// Calls `main` on all `processors` of the machine, including this one, and returns when all are done.
pub fn run_on_all(processors: usize, main: fn()) {
    MAIN.call_once(|| main);
    // SAFETY: all physical memory is mapped there, and the page is below the memory that is given out.
    unsafe { prepare(PHYSICAL_MEMORY_OFFSET) };
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
    pugmark_machine::processors::give_stack(Stack::new(STACK).top().as_u64());
}

/// Runs a further processor. The start-up code calls it on the stack that was given.
#[unsafe(no_mangle)]
extern "C" fn kernel_processor() -> ! {
    let number = COME.load(Ordering::Relaxed);
    init(number);
    COME.store(number + 1, Ordering::Release);
    // Whoever takes the next stack reads its number then.
    give_stack();
    if let Some(main) = MAIN.get() {
        main();
    }
    DONE.fetch_add(1, Ordering::Release);
    loop {
        x86_64::instructions::hlt();
    }
}

/// Writes to a register of this processor's local APIC.
pub(crate) fn write_local_apic(register: u64, value: u32) {
    let address = (PHYSICAL_MEMORY_OFFSET + LOCAL_APIC + register) as *mut u32;
    // SAFETY: the local APIC's page is mapped.
    unsafe { address.write_volatile(value) };
}
