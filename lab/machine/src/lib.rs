//! The assembly of a bootable kernel, for the kernel that traces itself and for the examples: entry by PVH and
//! multiboot2, start-up of further processors, trap stubs, the functions of the C library that compiled code calls, and
//! the ports of the project's machines.
//!
//! The kernel defines three functions by these names: `kernel_main`, `kernel_processor` and `kernel_trap`. Its linker
//! script keeps the sections `.boot.note` and, for multiboot2, `.boot.header`, and enters at `entry_pvh`.
#![no_std]

pub mod entry;
#[cfg(target_os = "linux")]
mod hosted;
pub mod processors;
pub mod traps;

use x86_64::instructions::port::Port;
use x86_64::instructions::{hlt, interrupts};

/// Assigns the instructions from here on to trace session `session`; 0 means none. The port is the monitor's, which
/// logs retired instructions; elsewhere it is unused.
pub fn mark_truth(session: u32) {
    // SAFETY: the port is unused, or the monitor's, which only records the number.
    unsafe { Port::<u32>::new(0xe700).write(session) };
}

/// Ends the machine through QEMU's `isa-debug-exit` device: QEMU exits with status 33 for success and 35 for failure.
/// Without such a device it halts.
pub fn exit(success: bool) -> ! {
    // SAFETY: the port is the debug-exit device's or unused; writing it touches no memory.
    unsafe { Port::<u32>::new(0xf4).write(if success { 0x10 } else { 0x11 }) };
    halt()
}

/// Halts this processor forever. NMIs are still served.
pub fn halt() -> ! {
    loop {
        interrupts::disable();
        hlt();
    }
}
