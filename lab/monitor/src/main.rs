//! The monitor's image: it boots by PVH, loads the guest kernel that came as a module, and runs it.
#![no_std]
#![no_main]

extern crate alloc;

mod image;

use image::{exit::fatal, heap, idt, setup};

/// Runs the monitor from its entry into 64-bit mode on.
extern "C" fn main(start_info: u64) -> ! {
    idt::fill();
    idt::load();
    heap::initialize();
    match setup::set_up_machine(start_info) {
        Ok(mut first) => first.run(),
        Err(error) => fatal!("{error}"),
    }
}
