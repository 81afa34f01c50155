//! The monitor's own lines, on a channel of its own: a debug console at a port that the guest cannot reach.
//!
//! An empty line on the channel means that the guest is about to end a line on the first serial port. From these, a
//! reader of both streams can order the lines of the monitor and the guest.
//!
//! On a machine without that debug console the lines go to the first serial port, mixed with the guest's output.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};

use x86_64::instructions::port::Port;

/// Port of the monitor's debug console.
pub(crate) const CHANNEL_PORT: u16 = 0xe8;
/// The value that QEMU's debug console returns for reads.
const READ_BACK: u8 = 0xe9;

/// The first serial port: its data register.
pub(crate) const COM1: u16 = 0x3f8;
const LINE_CONTROL: u16 = COM1 + 3;
const MODEM_CONTROL: u16 = COM1 + 4;
const LINE_STATUS: u16 = COM1 + 5;
/// Line control: the data register accesses the divisor.
const DLAB: u8 = 1 << 7;
/// Modem control: sent bytes are received back and do not leave the port.
const LOOPBACK: u8 = 1 << 4;
/// Line status: the transmitter holding register is empty.
const THRE: u8 = 1 << 5;

/// Returns whether the machine has the monitor's own channel.
pub(crate) fn is_there() -> bool {
    read(CHANNEL_PORT) == READ_BACK
}

/// Tells on the channel that the guest ends a line on the first serial port, which has not received the newline yet.
pub(crate) fn end_guest_line() {
    if read(LINE_CONTROL) & DLAB == 0 && read(MODEM_CONTROL) & LOOPBACK == 0 {
        print(format_args!(""));
    }
}

/// One of the two outputs for lines.
struct Output {
    own: bool,
}

impl fmt::Write for Output {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let put = if self.own { |byte| write(CHANNEL_PORT, byte) } else { put_serial };
        s.bytes().for_each(put);
        Ok(())
    }
}

/// Sends a byte to the first serial port, in the state in which the guest left the port.
fn put_serial(byte: u8) {
    // A guest may have left the port in loopback or without its FIFO, so the wait is limited.
    for _ in 0..100_000 {
        if read(LINE_STATUS) & THRE != 0 {
            break;
        }
    }
    write(COM1, byte);
}

fn read(port: u16) -> u8 {
    // SAFETY: reading the status of a 16550, its control registers, or a debug console changes nothing but error bits.
    unsafe { Port::new(port).read() }
}

fn write(port: u16, byte: u8) {
    // SAFETY: both ports that are passed here send the byte, and touch no memory.
    unsafe { Port::new(port).write(byte) }
}

/// True if a processor is printing a line.
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
    let _ = fmt::write(&mut Output { own: is_there() }, format_args!("{line}\n"));
    PRINTING.store(false, Ordering::Release);
}

/// Prints one line that begins with `monitor: `.
macro_rules! report {
    ($($arg:tt)*) => {
        $crate::image::channel::print(format_args!("monitor: {}", format_args!($($arg)*)))
    };
}
pub(crate) use report;
