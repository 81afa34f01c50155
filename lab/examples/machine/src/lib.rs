//! The parts of a PC that an example kernel needs before tracing: entry, memory, serial port, interrupts, symbols.
//!
//! A kernel has all of this already. Only the #GP handler (`traps`) is related to tracing: it repairs the driver's
//! guarded accesses, and a kernel adds this to its own handler.
#![no_std]

mod entry;
pub mod frames;
#[cfg(target_os = "linux")]
mod hosted;
pub mod processors;
pub mod serial;
mod stacks;
pub mod symbols;
pub mod traps;

use core::panic::PanicInfo;
use core::slice;
use spin::Once;
use x86_64::instructions::port::Port;

/// Offset of the second mapping of all physical memory. The image itself is mapped at its physical address.
pub const PHYSICAL_MEMORY_OFFSET: u64 = 0xffff_8000_0000_0000;

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

/// Runs the kernel. The entry code calls it with the address of the boot loader's information.
extern "C" fn start(information: u32) -> ! {
    // SAFETY: the entry code passes what the boot loader left in EBX.
    unsafe { entry::read(information) };
    processors::init(0);
    stacks::guard_boot_stack();
    example_main();
    exit(true)
}

/// Returns the address of the kernel's code, and its bytes.
pub fn code() -> (u64, &'static [u8]) {
    unsafe extern "C" {
        static __text_start: u8;
        static __text_end: u8;
    }
    let (start, end) = (&raw const __text_start, &raw const __text_end);
    // SAFETY: the linker puts the code between these symbols; it is always mapped, and nothing writes to it.
    (start as u64, unsafe { slice::from_raw_parts(start, end as usize - start as usize) })
}

/// Tells the monitor below the kernel to log the instructions traced from here on under this number; 0 ends the log. On
/// other machines it has no effect.
pub fn mark_truth(session: u32) {
    // SAFETY: the port is the monitor's, or unused.
    unsafe { Port::<u32>::new(0xe700).write(session) };
}

/// Ends the machine by QEMU's `isa-debug-exit` device.
pub fn exit(success: bool) -> ! {
    // SAFETY: the port is the device's, or unused.
    unsafe { Port::<u32>::new(0xf4).write(if success { 0x10 } else { 0x11 }) };
    halt()
}

/// Halts this processor forever. NMIs are still served.
pub fn halt() -> ! {
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
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
