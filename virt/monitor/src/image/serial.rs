//! The monitor's own lines on the first serial port, which it shares with the guest.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use x86_64::instructions::port::Port;

const DATA: u16 = 0x3f8;
const LINE_STATUS: u16 = DATA + 5;
/// Transmitter holding register empty.
const THRE: u8 = 1 << 5;

/// The first serial port, in the state that the guest left it in.
#[derive(Debug)]
pub(crate) struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        s.bytes().for_each(put);
        Ok(())
    }
}

fn put(byte: u8) {
    let mut status = Port::<u8>::new(LINE_STATUS);
    // A guest may have left the port in loopback or without its FIFO, so do not wait forever.
    for _ in 0..100_000 {
        // SAFETY: reading the line status register of a 16550 changes nothing but its error bits.
        if unsafe { status.read() } & THRE != 0 {
            break;
        }
    }
    let mut data = Port::<u8>::new(DATA);
    // SAFETY: writing this port sends a byte and touches no memory.
    unsafe { data.write(byte) };
}

/// Whether a processor is printing a line.
static PRINTING: AtomicBool = AtomicBool::new(false);

/// Prints `line` with a newline. The lines of several processors do not mix.
pub(crate) fn print(line: fmt::Arguments<'_>) {
    // A processor that faults while it prints must not wait for itself forever.
    for _ in 0..100_000_000 {
        if !PRINTING.swap(true, Ordering::Acquire) {
            break;
        }
        core::hint::spin_loop();
    }
    // Writing to the port cannot fail.
    let _ = fmt::write(&mut Serial, format_args!("{line}\n"));
    PRINTING.store(false, Ordering::Release);
}

/// Prints one line that begins with `monitor: `.
macro_rules! report {
    ($($arg:tt)*) => {
        $crate::image::serial::print(format_args!("monitor: {}", format_args!($($arg)*)))
    };
}
pub(crate) use report;
