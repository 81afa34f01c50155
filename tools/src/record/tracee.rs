//! A program that is stepped: the few system calls that do it.

use std::{
    ffi::{OsString, c_int, c_long, c_void},
    fs::{self, File},
    io,
    mem::{MaybeUninit, offset_of},
    os::unix::{fs::FileExt, process::CommandExt},
    process::Command,
    ptr::null_mut,
};

/// The registers of the program as Linux keeps them.
pub(super) type Registers = libc::user_regs_struct;

/// The program's main thread, stopped.
#[derive(Debug)]
pub(super) struct Tracee {
    pid: libc::pid_t,
    memory: File,
    over: bool,
}

/// Why the program stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// By SIGTRAP: after a step, or by a signal of that name.
    Trap,
    /// A signal is about to be delivered.
    Signal(c_int),
    /// Another program was put in its place.
    Exec,
    /// It is over.
    Over(Ending),
}

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By `exit`, with this status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

impl Tracee {
    /// Starts a program and stops it before its first instruction. `aslr`: with addresses that differ from run to run.
    pub(super) fn start(program: &[OsString], aslr: bool) -> io::Result<Self> {
        let (name, arguments) = program.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(name);
        command.args(arguments);
        let before_exec = move || {
            if !aslr {
                // SAFETY: it takes a number and changes nothing but the own process.
                check(c_long::from(unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as _) }))?;
            }
            // SAFETY: PTRACE_TRACEME looks at no other argument.
            check(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) }).map(drop)
        };
        // SAFETY: between fork and exec it only makes two system calls, which are safe there.
        unsafe { command.pre_exec(before_exec) };
        // The child is waited for by its id.
        let pid = command.spawn()?.id() as libc::pid_t;
        let mut tracee = Self { pid, memory: File::open(format!("/proc/{pid}/mem"))?, over: false };
        if let Stop::Over(_) = tracee.wait()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        tracee.reopen_memory()?;
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACEEXEC;
        tracee.request(libc::PTRACE_SETOPTIONS, null_mut(), options as usize as *mut c_void)?;
        Ok(tracee)
    }

    /// Delivers `signal`, unless it is 0, and lets the program run up to its next stop: one instruction, if nothing
    /// comes between.
    pub(super) fn step(&mut self, signal: c_int) -> io::Result<Stop> {
        match self.request(libc::PTRACE_SINGLESTEP, null_mut(), signal as usize as *mut c_void) {
            // Killed meanwhile: the wait says by what.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            other => {
                other?;
            }
        }
        self.wait()
    }

    /// Lets it run to its end without looking.
    pub(super) fn release(&mut self, signal: c_int) -> io::Result<Ending> {
        self.request(libc::PTRACE_DETACH, null_mut(), signal as usize as *mut c_void)?;
        loop {
            if let Stop::Over(ending) = self.wait()? {
                return Ok(ending);
            }
        }
    }

    /// RIP.
    pub(super) fn ip(&self) -> io::Result<u64> {
        let offset = offset_of!(libc::user, regs) + offset_of!(Registers, rip);
        // -1 is an error here: the kernel's last address is no place of a program.
        self.request(libc::PTRACE_PEEKUSER, offset as *mut c_void, null_mut()).map(|ip| ip as u64)
    }

    /// All general registers.
    pub(super) fn registers(&self) -> io::Result<Registers> {
        let mut registers = MaybeUninit::<Registers>::zeroed();
        self.request(libc::PTRACE_GETREGS, null_mut(), registers.as_mut_ptr().cast())?;
        // SAFETY: numbers all of them; the kernel has filled them in.
        Ok(unsafe { registers.assume_init() })
    }

    /// Changes them.
    pub(super) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        let registers = (&raw const *registers).cast_mut().cast();
        self.request(libc::PTRACE_SETREGS, null_mut(), registers).map(drop)
    }

    /// `si_code` of the signal that it stopped with; `None` when it stopped without one.
    pub(super) fn signal_code(&self) -> io::Result<Option<c_int>> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        match self.request(libc::PTRACE_GETSIGINFO, null_mut(), info.as_mut_ptr().cast()) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            Err(error) => Err(error),
            // SAFETY: numbers all of it; the kernel has filled it in.
            Ok(_) => Ok(Some(unsafe { info.assume_init() }.si_code)),
        }
    }

    /// Reads memory, and how much of `out` there is.
    pub(super) fn read(&self, address: u64, out: &mut [u8]) -> usize {
        // Addresses above the middle are no offsets of files, and no addresses of programs.
        if address > i64::MAX as u64 {
            return 0;
        }
        let mut done = 0;
        while done < out.len() {
            match self.memory.read_at(&mut out[done..], address + done as u64) {
                Ok(0) | Err(_) => break,
                Ok(count) => done += count,
            }
        }
        done
    }

    /// Writes memory.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let path = format!("/proc/{}/mem", self.pid);
        fs::OpenOptions::new().write(true).open(path)?.write_all_at(bytes, address)
    }

    /// `/proc/PID/maps`.
    pub(super) fn maps(&self) -> io::Result<String> {
        fs::read_to_string(format!("/proc/{}/maps", self.pid))
    }

    /// The program's file.
    pub(super) fn executable(&self) -> io::Result<String> {
        Ok(fs::read_link(format!("/proc/{}/exe", self.pid))?.to_string_lossy().into_owned())
    }

    /// After [`Stop::Exec`]: from now on the new program's memory is read.
    pub(super) fn reopen_memory(&mut self) -> io::Result<()> {
        self.memory = File::open(format!("/proc/{}/mem", self.pid))?;
        Ok(())
    }

    fn wait(&mut self) -> io::Result<Stop> {
        let mut status = 0;
        loop {
            // SAFETY: the status is written to a variable of its type.
            let waited = unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) };
            match check(c_long::from(waited)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => {
                    other?;
                    break;
                }
            }
        }
        if libc::WIFEXITED(status) {
            self.over = true;
            return Ok(Stop::Over(Ending::Exit(libc::WEXITSTATUS(status))));
        }
        if libc::WIFSIGNALED(status) {
            self.over = true;
            return Ok(Stop::Over(Ending::Signal(libc::WTERMSIG(status))));
        }
        Ok(match (libc::WSTOPSIG(status), status >> 16) {
            (libc::SIGTRAP, libc::PTRACE_EVENT_EXEC) => Stop::Exec,
            (libc::SIGTRAP, _) => Stop::Trap,
            (signal, _) => Stop::Signal(signal),
        })
    }

    fn request(&self, request: libc::c_uint, address: *mut c_void, data: *mut c_void) -> io::Result<c_long> {
        // SAFETY: the requests that read or write the own memory are made with a pointer to what they read or write.
        check(unsafe { libc::ptrace(request, self.pid, address, data) })
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if !self.over {
            // SAFETY: it takes numbers; the process was not waited for, so the id is still its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
            while matches!(self.wait(), Ok(stop) if !matches!(stop, Stop::Over(_))) {}
        }
    }
}

/// Keeps the calling thread and the processes that it starts on one CPU, as long as it lives: a step changes between
/// the two, which takes twice as long across CPUs.
#[derive(Debug)]
pub(super) struct OneCpu {
    before: libc::cpu_set_t,
}

impl OneCpu {
    pub(super) fn new() -> io::Result<Self> {
        let size = size_of::<libc::cpu_set_t>();
        let mut before = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: there is room for a set of that size.
        check(c_long::from(unsafe { libc::sched_getaffinity(0, size, before.as_mut_ptr()) }))?;
        // SAFETY: numbers all of it.
        let before = unsafe { before.assume_init() };
        // SAFETY: it takes nothing.
        let cpu = check(c_long::from(unsafe { libc::sched_getcpu() }))?;
        let mut one = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: zeros are a set.
        let one = unsafe { one.assume_init_mut() };
        // SAFETY: the kernel's numbers of CPUs are in the set.
        unsafe { libc::CPU_SET(cpu as usize, one) };
        // SAFETY: the set has the size that is said.
        check(c_long::from(unsafe { libc::sched_setaffinity(0, size, &raw const *one) }))?;
        Ok(Self { before })
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        // SAFETY: the set has the size that is said. When it fails the thread stays where it is.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.before) };
    }
}

/// Lets the keyboard's interrupt reach the program and not who records it, as long as it lives.
#[derive(Debug)]
pub(super) struct IgnoredInterrupts {
    before: libc::sighandler_t,
}

impl IgnoredInterrupts {
    pub(super) fn new() -> Self {
        // SAFETY: to ignore a signal takes no code of this program.
        Self { before: unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) } }
    }
}

impl Drop for IgnoredInterrupts {
    fn drop(&mut self) {
        // SAFETY: it is the handler that was there before.
        unsafe { libc::signal(libc::SIGINT, self.before) };
    }
}

fn check(result: c_long) -> io::Result<c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
