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
        // A file that may not grow is an error like a disk that is full.
        signals.set(libc::SIGXFSZ, pass_over)?;
        Ok(signals)
    }

    /// Begins to note signals, and then starts a program by `start`, which restores [`Before`] in the program's
    /// process. So no signal is lost: this process notes it, in any thread, and that process treats it as the program
    /// would.
    pub(super) fn from_start<T>(start: impl FnOnce(Before) -> T) -> io::Result<(T, Self)> {
        let blocked = Blocked::new()?;
        let signals = Self::new(true)?;
        let started = start(Before { actions: signals.before.clone(), mask: blocked.before });
        Ok((started, signals))
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

/// The signal actions and the blocked signals that were in force before.
pub(super) struct Before {
    actions: Vec<(c_int, libc::sigaction)>,
    mask: libc::sigset_t,
}

impl Before {
    /// Restores them in a process that was forked, before it executes a program.
    pub(super) fn restore(&self) -> io::Result<()> {
        for (signal, action) in &self.actions {
            // SAFETY: it is the action that was there before.
            if unsafe { libc::sigaction(*signal, action, std::ptr::null_mut()) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        set_mask(libc::SIG_SETMASK, &self.mask).map(drop)
    }
}

/// As long as this exists, this thread, and a process that it forks, get none of the signals that end a process.
struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    fn new() -> io::Result<Self> {
        // SAFETY: zeros are the empty set.
        let mut set = unsafe { MaybeUninit::<libc::sigset_t>::zeroed().assume_init() };
        for signal in ENDING {
            // SAFETY: it is a set, and the signal exists.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        Ok(Self { before: set_mask(libc::SIG_BLOCK, &set)? })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // It fails for no set.
        let _ = set_mask(libc::SIG_SETMASK, &self.before);
    }
}

/// Changes the calling thread's mask, and returns the one from before.
fn set_mask(how: c_int, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = MaybeUninit::zeroed();
    // SAFETY: the first is a set, and the second is filled in.
    match unsafe { libc::pthread_sigmask(how, set, before.as_mut_ptr()) } {
        // SAFETY: it was filled in.
        0 => Ok(unsafe { before.assume_init() }),
        error => Err(io::Error::from_raw_os_error(error)),
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
    use std::{os::unix::process::CommandExt, process::Command, sync::Mutex, time::Duration};

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
    fn a_signal_that_comes_while_the_program_starts_is_noted_in_any_thread() {
        let _one = ONE_AT_A_TIME.lock();
        let process = std::process::id() as i32;
        let send = |_| {
            // A process that is forked now has this mask until it restores its own.
            // SAFETY: zeros are the empty set.
            let none = unsafe { MaybeUninit::<libc::sigset_t>::zeroed().assume_init() };
            let mask = set_mask(libc::SIG_BLOCK, &none).expect("a mask");
            for signal in ENDING {
                // SAFETY: it is a set, and the signal exists.
                assert_eq!(unsafe { libc::sigismember(&raw const mask, signal) }, 1);
            }
            // SAFETY: the process has a handler.
            assert_eq!(unsafe { libc::kill(process, libc::SIGTERM) }, 0);
        };
        let ((), signals) = Signals::from_start(send).expect("handlers are set");
        // It may be delivered to another thread of the test program.
        let noted = (0..10_000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            signals.take()
        });
        assert_eq!(noted, Some(libc::SIGTERM));
    }

    #[test]
    fn a_program_starts_with_the_actions_and_the_mask_from_before() {
        let _one = ONE_AT_A_TIME.lock();
        // SAFETY: it sets no handler.
        let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let signals_of = |restore: Option<Before>| {
            let mut command = Command::new("grep");
            command.args(["^Sig[BI]", "/proc/self/status"]);
            // SAFETY: it makes system calls that are allowed between fork and exec.
            unsafe { command.pre_exec(move || restore.as_ref().map_or(Ok(()), Before::restore)) };
            String::from_utf8(command.output().expect("grep runs").stdout).expect("text")
        };
        let alone = signals_of(None);
        let (recorded, signals) = Signals::from_start(|before| signals_of(Some(before))).expect("handlers");
        drop(signals);
        assert_eq!(recorded, alone);
        let ignored =
            alone.trim_end().rsplit('\t').next().and_then(|mask| u64::from_str_radix(mask, 16).ok());
        assert_ne!(ignored.expect("a mask") & 1 << (libc::SIGXFSZ - 1), 0, "{alone}");
        // SAFETY: it is the action from before.
        unsafe { libc::signal(libc::SIGXFSZ, before) };
    }
}
