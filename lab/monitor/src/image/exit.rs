//! Ends the machine.

use x86_64::instructions::{hlt, interrupts, port::Port};

/// Port of QEMU's isa-debug-exit device.
pub(crate) const DEBUG_EXIT_PORT: u16 = 0xf4;

/// The exit value of a monitor that failed.
pub(crate) const FAILED: u32 = 0x7f;

/// Ends QEMU with status `value * 2 + 1`; halts forever if there is no such device.
pub(crate) fn exit(value: u32) -> ! {
    let mut port = Port::<u32>::new(DEBUG_EXIT_PORT);
    // SAFETY: the port belongs to the debug-exit device or to none; no memory is touched.
    unsafe { port.write(value) };
    loop {
        interrupts::disable();
        hlt();
    }
}

/// Prints the reason and ends the machine with [`FAILED`].
macro_rules! fatal {
    ($($arg:tt)*) => {{
        $crate::image::channel::report!($($arg)*);
        $crate::image::exit::exit($crate::image::exit::FAILED)
    }};
}
pub(crate) use fatal;
