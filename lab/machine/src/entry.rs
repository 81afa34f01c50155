//! The way from the boot loader's 32-bit protected mode to Rust in long mode.
//!
//! PVH (the ELF note) and multiboot2 (the header) both enter at `entry_pvh` with paging off and flat segments; EAX
//! tells them apart, and EBX is the address of the boot information. Sources: Xen, "x86/HVM direct boot ABI";
//! "Multiboot2 Specification", "Boot information format" and "I386 machine state".

use core::arch::global_asm;

/// Offset of the second mapping of the first 4 GiB of physical memory. The first one is one to one.
pub const PHYSICAL_MEMORY_OFFSET: u64 = 0xffff_8000_0000_0000;

/// Returns the address of the page below the stack on which the kernel is entered.
pub fn guard() -> u64 {
    unsafe extern "C" {
        static boot_stack_guard: u8;
    }
    &raw const boot_stack_guard as u64
}

global_asm!(include_str!("entry.s"));
