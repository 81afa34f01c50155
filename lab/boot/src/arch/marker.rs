//! The session marker: tells a monitor below the kernel which trace the next instructions belong to.

use x86_64::instructions::port::Port;

/// The project's monitor intercepts this port; elsewhere it is unused.
const PORT: u16 = 0xe700;

/// Assigns the instructions from here on to trace session `session`; 0 means none.
pub(crate) fn set(session: u32) {
    // SAFETY: the port is unused, or the monitor's, which only records the number.
    unsafe { Port::<u32>::new(PORT).write(session) };
}
