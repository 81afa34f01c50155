//! The parts of a PC that a kernel for another target than those on `machine` needs: serial port, end, panic handler;
//! and a function to trace.
#![no_std]

use core::fmt::{self, Write};
use core::hint::black_box;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use uart_16550::{Config, Uart16550Tty};
use x86_64::instructions::{hlt, interrupts, port::Port};

/// Prints a line to the first serial port.
#[macro_export]
macro_rules! println {
    ($($arguments:tt)*) => { $crate::print(format_args!("{}\n", format_args!($($arguments)*))) };
}

/// Prints text.
pub fn print(text: fmt::Arguments<'_>) {
    // SAFETY: the first serial port, which nothing else uses.
    if let Ok(mut port) = unsafe { Uart16550Tty::new_port(0x3f8, Config::default()) } {
        // Writing to the port does not fail.
        let _ = port.write_fmt(text);
    }
}

/// Assigns the instructions from here on to trace session `session`; 0 means none. The port is the monitor's, which
/// logs retired instructions; elsewhere it is unused.
pub fn mark_truth(session: u32) {
    // SAFETY: the port is unused, or the monitor's, which only records the number.
    unsafe { Port::<u32>::new(0xe700).write(session) };
}

/// Ends the machine through QEMU's `isa-debug-exit` device; without it, halts.
pub fn exit(success: bool) -> ! {
    // SAFETY: the port is the debug-exit device's or unused; writing it touches no memory.
    unsafe { Port::<u32>::new(0xf4).write(if success { 0x10 } else { 0x11 }) };
    loop {
        interrupts::disable();
        hlt();
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    println!("{info}");
    exit(false)
}

/// The result of [`traced`].
pub static RESULT: AtomicU32 = AtomicU32::new(0);

/// The function to trace.
#[inline(never)]
pub fn traced() {
    RESULT.store(leaf(tower(4)) + leaf(1), Relaxed);
}

/// Calls itself twice for each height.
#[inline(never)]
fn tower(height: u32) -> u32 {
    match height {
        0 => 0,
        _ => tower(black_box(height - 1)) + tower(black_box(height / 2)) + 1,
    }
}

#[inline(never)]
fn leaf(value: u32) -> u32 {
    black_box(value) ^ 1
}
