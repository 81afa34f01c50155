//! The session marker: tells whoever watches from below which trace the next instructions belong to.

use x86_64::instructions::port::Port;

/// Intercepted by the project's monitor; elsewhere nobody's.
const PORT: u16 = 0xe700;

/// The instructions from here on belong to trace session `session`; 0 is none.
pub(crate) fn set(session: u32) {
    // SAFETY: the port is nobody's, or the monitor's, which only takes a note.
    unsafe { Port::<u32>::new(PORT).write(session) };
}
