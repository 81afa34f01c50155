//! The first serial port, which carries the protocol.

use core::fmt::{self, Write};
use pugmark_boot::panic_print;
use pugmark_protocol::Line;
use spin::Mutex;
use uart_16550::backend::PioBackend;
use uart_16550::{Config, Uart16550};

const COM1: u16 = 0x3f8;

static SERIAL: Mutex<Option<Serial>> = Mutex::new(None);

struct Serial(Uart16550<PioBackend>);

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.send_bytes_exact(text.as_bytes());
        Ok(())
    }
}

/// Sets the port up. If there is no port, everything that is printed is dropped.
pub(crate) fn init() {
    // SAFETY: 3F8H to 3FFH belong to COM1 on a PC, and this is the only driver of it.
    let port = unsafe { Uart16550::new_port(COM1) };
    let ready = port.ok().and_then(|mut uart| uart.init(Config::default()).is_ok().then_some(uart));
    *SERIAL.lock() = ready.map(Serial);
}

/// Prints text that is not a line of the protocol. Not for interrupt handlers: it takes a lock.
pub(crate) fn print(arguments: fmt::Arguments<'_>) {
    if let Some(serial) = SERIAL.lock().as_mut() {
        // Writing to the port never fails.
        let _ = serial.write_fmt(arguments);
    }
}

/// Prints from code that never returns, even if another driver holds the port.
pub(crate) fn print_panic(arguments: fmt::Arguments<'_>) {
    // SAFETY: as above. If another processor prints at the same time, the texts mix.
    let anew = || unsafe { Uart16550::new_port(COM1) }.ok().map(Serial);
    panic_print::write(&SERIAL, anew, arguments);
}

/// Prints one line of the protocol. Not for interrupt handlers: it takes a lock.
pub(crate) fn say(line: Line<'_, &dyn fmt::Display>) {
    print(format_args!("{line}\n"));
}
