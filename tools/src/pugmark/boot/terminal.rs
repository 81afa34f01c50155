//! The terminal and the signals while QEMU uses the terminal.

use std::sync::atomic::{AtomicI32, Ordering};

/// The signals that end a machine: each is noted, and the machine's end is waited for.
const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The first of the signals that came; 0 if none came.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    let _ = SIGNAL.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
}

/// The state of the terminal before QEMU. Dropping this restores it: QEMU does not if it is killed.
pub(super) struct Terminal {
    /// `None` if standard input is no terminal.
    mode: Option<libc::termios>,
}

impl Terminal {
    /// Notes signals from now on, and keeps the terminal's mode.
    pub(super) fn begin() -> Self {
        for signal in SIGNALS {
            let handler = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
            // SAFETY: the handler only writes an atomic number.
            unsafe { libc::signal(signal, handler) };
        }
        let mut mode = std::mem::MaybeUninit::uninit();
        // SAFETY: the structure is large enough for the mode.
        let has_terminal = unsafe { libc::tcgetattr(libc::STDIN_FILENO, mode.as_mut_ptr()) } == 0;
        // SAFETY: the call has filled it, if it returned 0.
        Self { mode: has_terminal.then(|| unsafe { mode.assume_init() }) }
    }

    /// Returns the signal that came.
    pub(super) fn signal(&self) -> Option<i32> {
        Some(SIGNAL.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(mode) = &self.mode {
            // SAFETY: the mode is the one that the terminal had.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, mode) };
        }
    }
}
