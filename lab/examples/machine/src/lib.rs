//! The parts of a PC that an example kernel needs before tracing: entry, memory, serial port, interrupts, symbols,
//! programs and their threads.
//!
//! A kernel has all of this already. Only the #GP handler (`traps`) is related to tracing: it repairs the driver's
//! guarded accesses, and a kernel adds this to its own handler.
#![no_std]

mod boot_loader;
pub mod frames;
pub mod processors;
pub mod programs;
pub mod serial;
mod stacks;
pub mod symbols;
pub mod threads;
pub mod timer;
pub mod traps;

use core::panic::PanicInfo;
use core::slice;
pub use pugmark_machine::entry::PHYSICAL_MEMORY_OFFSET;
pub use pugmark_machine::{exit, halt, mark_truth};
use spin::Once;

/// Names the kernel's main function, of type `fn()`; when it returns, the machine ends.
#[macro_export]
macro_rules! main {
    ($main:path) => {
        // SAFETY: the name is that of the function that the machine's entry calls, and there is no other.
        #[unsafe(no_mangle)]
        extern "Rust" fn example_main() {
            let main: fn() = $main;
            main()
        }
    };
}

unsafe extern "Rust" {
    safe fn example_main();
}

/// Runs the kernel. The entry code calls it with the values of EAX and EBX that the boot loader left.
#[unsafe(no_mangle)]
extern "C" fn kernel_main(magic: u32, information: u32) -> ! {
    // SAFETY: these are the values of EAX and EBX, and this is called once.
    unsafe { boot_loader::read(magic, information) };
    processors::init(0);
    stacks::guard_boot_stack();
    example_main();
    exit(true)
}

unsafe extern "C" {
    /// The first byte of the kernel's code, and the one after the last: symbols of the linker.
    pub static __text_start: u8;
    pub static __text_end: u8;
}

/// Returns the address of the kernel's code, and its bytes.
pub fn code() -> (u64, &'static [u8]) {
    let (start, end) = (&raw const __text_start, &raw const __text_end);
    // SAFETY: the linker puts the code between these symbols; it is always mapped, and nothing writes to it.
    (start as u64, unsafe { slice::from_raw_parts(start, end as usize - start as usize) })
}

static PANIC: Once<fn(&PanicInfo<'_>)> = Once::new();

/// Sets the panic hook. Without one, the message is printed and the machine ends.
pub fn on_panic(hook: fn(&PanicInfo<'_>)) {
    PANIC.call_once(|| hook);
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    match PANIC.get() {
        Some(hook) => hook(info),
        None => {
            println!("{info}");
            exit(false)
        }
    }
    exit(true)
}
