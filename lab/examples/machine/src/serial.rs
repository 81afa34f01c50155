//! The first serial port.

use core::fmt::{self, Write};
use spin::Mutex;
use x86_64::instructions::port::Port;

static PORT: Mutex<Serial> = Mutex::new(Serial);

struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: the line status register of COM1; reading it has no relevant side effect.
            while unsafe { Port::<u8>::new(0x3fd).read() } & 0x20 == 0 {}
            // SAFETY: the data register of COM1, which is ready.
            unsafe { Port::<u8>::new(0x3f8).write(byte) };
        }
        Ok(())
    }
}

/// Prints a line to the first serial port. Not for interrupt handlers: it takes a lock.
#[macro_export]
macro_rules! println {
    ($($arguments:tt)*) => { $crate::serial::print(format_args!("{}\n", format_args!($($arguments)*))) };
}

/// Prints text.
pub fn print(text: fmt::Arguments<'_>) {
    // Writing to the port does not fail.
    let _ = PORT.lock().write_fmt(text);
}
