//! The terminal and the signals while QEMU uses the terminal, and the time limit.

use super::BY_SIGNAL;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// The exit status after `--timeout`, as of the program `timeout`.
pub(super) const TIMED_OUT: u8 = 124;

/// The signals that end a machine: each is noted, and the machine's end is waited for.
const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The first of the signals that came; 0 if none came.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    let _ = SIGNAL.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed);
}

/// The reasons to stop a machine: a signal, or a time limit.
pub(super) struct StopReason {
    terminal: Terminal,
    started: Instant,
    limit: Option<Duration>,
}

impl StopReason {
    /// Notes signals from now on, and the time. `limit` is in seconds.
    pub(super) fn new(limit: Option<u64>) -> Self {
        Self { terminal: Terminal::begin(), started: Instant::now(), limit: limit.map(Duration::from_secs) }
    }

    /// Returns true if the machine is to be stopped.
    pub(super) fn is_due(&self) -> bool {
        self.status().is_some()
    }

    /// Returns the exit status that says why, if the machine is to be stopped.
    pub(super) fn status(&self) -> Option<u8> {
        let by_signal = self.terminal.signal().map(|signal| (BY_SIGNAL + signal) as u8);
        by_signal.or_else(|| self.limit.filter(|limit| self.started.elapsed() > *limit).map(|_| TIMED_OUT))
    }
}

/// The state of the terminal before QEMU. Dropping this restores it: QEMU does not if it is killed.
struct Terminal {
    /// `None` if standard input is no terminal.
    mode: Option<libc::termios>,
}

impl Terminal {
    /// Notes signals from now on, and keeps the terminal's mode.
    fn begin() -> Self {
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
    fn signal(&self) -> Option<i32> {
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
