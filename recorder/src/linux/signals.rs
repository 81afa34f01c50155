//! Signals to the recording process: they end the recording instead of the process, and are passed to the program.

use std::{
    ffi::{c_int, c_void},
    io,
    mem::MaybeUninit,
    sync::atomic::{AtomicBool, AtomicI32, Ordering},
};

/// The signals that by default end a process and that people send for this purpose.
const ENDING: [c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// `si_code` of a signal that the kernel sends, for example for a key at the terminal.
const SI_KERNEL: c_int = 0x80;

/// The last signal that was not taken yet; 0 if there is none.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

/// The program gets the signals of this process's terminal, too.
static SHARES_TERMINAL: AtomicBool = AtomicBool::new(true);

/// As long as this exists, signals to the process are noted instead of ending it.
#[derive(Debug)]
pub(super) struct Signals {
    before: Vec<(c_int, libc::sigaction)>,
}

impl Signals {
    /// Begins to note signals. A program that was started here shares the terminal with this process.
    pub(super) fn new(shares_terminal: bool) -> io::Result<Self> {
        RECEIVED.store(0, Ordering::Relaxed);
        SHARES_TERMINAL.store(shares_terminal, Ordering::Relaxed);
        let mut signals = Self { before: vec![] };
        for signal in ENDING {
            // A signal that is ignored, for example because of nohup, stays ignored.
            if signals.set(signal, note)?.sa_sigaction == libc::SIG_IGN {
                signals.restore_last();
            }
        }
        signals.set(libc::SIGALRM, remind)?;
        // A file that may not grow is an error like a disk that is full. The program has the action from before.
        signals.set(libc::SIGXFSZ, pass_over)?;
        Ok(signals)
    }

    /// Starts a program by `start`, with the signal actions from before, and begins to note signals. Those that come
    /// while it starts are noted, too: they wait. `start` gives the program the mask from before.
    pub(super) fn from_start<T>(start: impl FnOnce(Mask) -> T) -> io::Result<(T, Self)> {
        let blocked = Blocked::new()?;
        let started = start(blocked.before);
        Ok((started, Self::new(true)?))
    }

    /// Takes the signal that has come since the last call.
    pub(super) fn take(&self) -> Option<c_int> {
        if RECEIVED.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // SAFETY: it takes a number.
        unsafe { libc::alarm(0) };
        Some(RECEIVED.swap(0, Ordering::Relaxed)).filter(|signal| *signal != 0)
    }

    fn set(&mut self, signal: c_int, handler: Handler) -> io::Result<libc::sigaction> {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: zeros are an action: no flags, an empty mask.
        let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
        // Without SA_RESTART, so that the signal ends a wait.
        (action.sa_sigaction, action.sa_flags) = (handler as usize, libc::SA_SIGINFO);
        // SAFETY: both are actions, and the handler does only what a handler may: atomics and `alarm`.
        if unsafe { libc::sigaction(signal, &raw const action, before.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has filled it in.
        let before = unsafe { before.assume_init() };
        self.before.push((signal, before));
        Ok(before)
    }

    fn restore_last(&mut self) {
        if let Some((signal, before)) = self.before.pop() {
            // SAFETY: it is the action that was there before.
            unsafe { libc::sigaction(signal, &raw const before, std::ptr::null_mut()) };
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        while !self.before.is_empty() {
            self.restore_last();
        }
    }
}

/// A thread's blocked signals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mask(libc::sigset_t);

impl Mask {
    /// Sets the calling thread's mask. May be called between fork and exec.
    pub(super) fn set(&self) -> io::Result<()> {
        // SAFETY: it is a set.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// As long as this exists, the signals that end a process wait, if they would be delivered to this thread.
struct Blocked {
    before: Mask,
}

impl Blocked {
    fn new() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: it fills in the set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        for signal in ENDING {
            // SAFETY: the set is filled in, and the signal exists.
            unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        }
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the first is a set, and the second is filled in.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr()) } {
            // SAFETY: it was filled in.
            0 => Ok(Self { before: Mask(unsafe { before.assume_init() }) }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // It fails for no set.
        let _ = self.before.set();
    }
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

extern "C" fn note(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid pointer.
    let code = unsafe { (*info).si_code };
    // A key at the terminal sends the signal to the program as well, and how the program reacts is part of the
    // recording.
    let from_key = code == SI_KERNEL && matches!(signal, libc::SIGINT | libc::SIGQUIT);
    if from_key && SHARES_TERMINAL.load(Ordering::Relaxed) {
        return;
    }
    RECEIVED.store(signal, Ordering::Relaxed);
    // SAFETY: it takes a number.
    unsafe { libc::alarm(1) };
}

/// Does nothing, but ends a wait. A signal that comes after the check for signals and before the wait does not end the
/// wait, so this repeats it.
extern "C" fn pass_over(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {}

extern "C" fn remind(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    if RECEIVED.load(Ordering::Relaxed) != 0 {
        // SAFETY: it takes a number.
        unsafe { libc::alarm(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// The signal that was received is the whole process's.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    #[test]
    fn a_key_at_the_terminal_has_reached_the_program_already() {
        const SI_USER: c_int = 0;
        let _one = ONE_AT_A_TIME.lock();
        let signals = Signals { before: vec![] };
        for (signal, code, expected) in [
            (libc::SIGINT, SI_KERNEL, None),
            (libc::SIGQUIT, SI_KERNEL, None),
            (libc::SIGINT, SI_USER, Some(libc::SIGINT)),
            (libc::SIGQUIT, SI_USER, Some(libc::SIGQUIT)),
            (libc::SIGTERM, SI_USER, Some(libc::SIGTERM)),
            // A terminal that closes signals only the shell.
            (libc::SIGHUP, SI_KERNEL, Some(libc::SIGHUP)),
        ] {
            // SAFETY: zeros are valid, because all fields are numbers.
            let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
            info.si_code = code;
            note(signal, &raw mut info, std::ptr::null_mut());
            assert_eq!(signals.take(), expected, "signal {signal}, code {code:#x}");
            assert_eq!(signals.take(), None);
        }
        drop(signals);
        // A signal that came before is not one of this recording.
        RECEIVED.store(libc::SIGTERM, Ordering::Relaxed);
        let signals = Signals::new(false).expect("handlers are set");
        assert_eq!(signals.take(), None);
        // A process that ran before has a terminal of its own.
        // SAFETY: zeros are valid, because all fields are numbers.
        let mut info: libc::siginfo_t = unsafe { MaybeUninit::zeroed().assume_init() };
        info.si_code = SI_KERNEL;
        note(libc::SIGINT, &raw mut info, std::ptr::null_mut());
        assert_eq!(signals.take(), Some(libc::SIGINT));
    }

    #[test]
    fn a_signal_that_comes_while_the_program_starts_is_noted() {
        let _one = ONE_AT_A_TIME.lock();
        // SAFETY: it goes to this thread alone, which has blocked it.
        let ((), signals) = Signals::from_start(|_| assert_eq!(unsafe { libc::raise(libc::SIGTERM) }, 0))
            .expect("handlers are set");
        assert_eq!(signals.take(), Some(libc::SIGTERM));
    }
}
