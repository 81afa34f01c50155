//! The system calls that step a program.

use super::super::{Ending, Fault};
use libc::pid_t;
use std::{
    ffi::{OsString, c_int, c_long, c_ulong, c_void},
    fs::{self, File},
    io,
    mem::{MaybeUninit, offset_of},
    os::unix::{fs::FileExt, process::CommandExt},
    process::Command,
    ptr::null_mut,
};

/// The program's registers in Linux's layout.
pub(super) type Registers = libc::user_regs_struct;

/// A thread that is being stepped.
#[derive(Debug)]
pub(super) struct Tracee {
    /// Its number.
    pub(super) pid: pid_t,
    memory: File,
}

/// Why the program stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// SIGTRAP: after a step, or because the signal was sent.
    Trap,
    /// A signal is about to be delivered.
    Signal(c_int),
    /// The thread has executed another program.
    Exec,
    /// The thread has started another thread or process.
    Started {
        /// The number of the new one.
        task: pid_t,
        /// True if the new one sees the same memory.
        shares_memory: bool,
    },
    /// It was told to stop, or a signal has stopped its whole process.
    Paused,
    /// The thread has ended.
    Ended(Ending),
}

impl Tracee {
    /// Starts a program and stops it before its first instruction. With `aslr`, addresses differ from run to run. With
    /// `follow`, what the program starts is stepped as well.
    pub(super) fn start(program: &[OsString], aslr: bool, follow: bool) -> io::Result<Self> {
        let (name, arguments) = program.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(name);
        command.args(arguments);
        let before_exec = move || {
            if !aslr {
                // SAFETY: it takes a number and only changes this process.
                check(c_long::from(unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as _) }))?;
            }
            // SAFETY: PTRACE_TRACEME ignores the other arguments.
            check(unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) }).map(drop)
        };
        // SAFETY: between fork and exec it only makes two system calls, which are allowed there.
        unsafe { command.pre_exec(before_exec) };
        // The child is waited for by its number.
        let pid = command.spawn()?.id() as pid_t;
        let ready = || {
            let mut tracee = Self::of_traced_thread(pid)?;
            if let Stop::Ended(_) = tracee.wait()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            tracee.reopen_memory()?;
            let options = libc::PTRACE_O_EXITKILL | events(follow);
            tracee.request(libc::PTRACE_SETOPTIONS, null_mut(), options as usize as *mut c_void)?;
            Ok(tracee)
        };
        ready().inspect_err(|_| {
            // SAFETY: it takes numbers. If the process was already waited for to its end, its number is unused, because
            // nothing was started since.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            while wait(pid).is_ok_and(|(_, stop)| !matches!(stop, Stop::Ended(_))) {}
        })
    }

    /// Begins to trace a thread that runs, and tells it to stop. With `follow`, what it starts is stepped as well.
    pub(super) fn attach(thread: pid_t, follow: bool) -> io::Result<Self> {
        let tracee = Self::of_traced_thread(thread)?;
        tracee.request(libc::PTRACE_SEIZE, null_mut(), events(follow) as usize as *mut c_void)?;
        tracee.interrupt()?;
        Ok(tracee)
    }

    /// Tells a thread to stop that this process has attached to.
    pub(super) fn interrupt(&self) -> io::Result<()> {
        self.resume(libc::PTRACE_INTERRUPT, 0)
    }

    /// Returns the thread with this number, which is already traced and will stop.
    pub(super) fn of_traced_thread(pid: pid_t) -> io::Result<Self> {
        Ok(Self { pid, memory: File::open(format!("/proc/{pid}/mem"))? })
    }

    /// Delivers `signal`, unless it is 0, and lets the thread run to its next stop: after one instruction, unless
    /// something else stops it before.
    pub(super) fn step(&self, signal: c_int) -> io::Result<()> {
        self.resume(libc::PTRACE_SINGLESTEP, signal)
    }

    /// Delivers `signal`, unless it is 0, and lets the thread run, at the processor's speed: to its next stop, which
    /// may be at the breakpoint.
    pub(super) fn run(&self, signal: c_int) -> io::Result<()> {
        self.resume(libc::PTRACE_CONT, signal)
    }

    /// Sets the breakpoint before the instruction at an address, or removes it. Source: SDM vol. 3, "Debug Registers".
    pub(super) fn set_breakpoint(&self, address: Option<u64>) -> io::Result<()> {
        /// DR7: the breakpoint of DR0 is on; it is for instructions, as all its other bits are zero.
        const ON: u64 = 1;
        let set = |register: usize, value: u64| {
            let offset = offset_of!(libc::user, u_debugreg) + register * size_of::<u64>();
            self.request(libc::PTRACE_POKEUSER, offset as *mut c_void, value as *mut c_void).map(drop)
        };
        set(7, 0)?;
        match address {
            Some(address) => set(0, address).and_then(|()| set(7, ON)),
            None => Ok(()),
        }
    }

    /// Delivers `signal`, unless it is 0, and lets the thread run without tracing it any more.
    pub(super) fn detach(&self, signal: c_int) -> io::Result<()> {
        self.resume(libc::PTRACE_DETACH, signal)
    }

    /// Delivers `signal`, unless it is 0, and lets the thread go if it has stopped; says whether it has.
    pub(super) fn try_detach(&self, signal: c_int) -> bool {
        self.request(libc::PTRACE_DETACH, null_mut(), signal as usize as *mut c_void).is_ok()
    }

    fn resume(&self, how: Request, signal: c_int) -> io::Result<()> {
        match self.request(how, null_mut(), signal as usize as *mut c_void) {
            // It was killed in the meantime; the next wait reports its end.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Waits for the thread's next stop.
    pub(super) fn wait(&self) -> io::Result<Stop> {
        wait(self.pid).map(|(_, stop)| stop)
    }

    /// Returns the number that the thread had before [`Stop::Exec`].
    pub(super) fn event_message(&self) -> io::Result<pid_t> {
        event_message(self.pid)
    }

    /// Returns RIP.
    pub(super) fn ip(&self) -> io::Result<u64> {
        let offset = offset_of!(libc::user, regs) + offset_of!(Registers, rip);
        // A result of -1 always means an error, because no program executes at the kernel's last address.
        self.request(libc::PTRACE_PEEKUSER, offset as *mut c_void, null_mut()).map(|ip| ip as u64)
    }

    /// Returns all general registers.
    pub(super) fn registers(&self) -> io::Result<Registers> {
        let mut registers = MaybeUninit::<Registers>::zeroed();
        self.request(libc::PTRACE_GETREGS, null_mut(), registers.as_mut_ptr().cast())?;
        // SAFETY: all fields are numbers, and the kernel has filled them in.
        Ok(unsafe { registers.assume_init() })
    }

    /// Sets all general registers.
    pub(super) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        let registers = (&raw const *registers).cast_mut().cast();
        self.request(libc::PTRACE_SETREGS, null_mut(), registers).map(drop)
    }

    /// Returns `si_code` of the signal that the thread stopped with; `None` if it stopped without a signal.
    pub(super) fn signal_code(&self) -> io::Result<Option<c_int>> {
        Ok(self.signal_info()?.map(|info| info.si_code))
    }

    /// Returns the access for which the system has sent the signal that stopped the thread.
    pub(super) fn fault(&self) -> io::Result<Option<Fault>> {
        const SI_KERNEL: c_int = 0x80;
        let is_fault = |info: &libc::siginfo_t| {
            matches!(info.si_signo, libc::SIGSEGV | libc::SIGBUS) && info.si_code > 0
        };
        Ok(self.signal_info()?.filter(is_fault).map(|info| {
            // SAFETY: signals of accesses have one.
            let address = unsafe { info.si_addr() }.addr() as u64;
            Fault { signal: info.si_signo, address: (info.si_code != SI_KERNEL).then_some(address) }
        }))
    }

    fn signal_info(&self) -> io::Result<Option<libc::siginfo_t>> {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        match self.request(libc::PTRACE_GETSIGINFO, null_mut(), info.as_mut_ptr().cast()) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            Err(error) => Err(error),
            // SAFETY: all fields are numbers, and the kernel has filled them in.
            Ok(_) => Ok(Some(unsafe { info.assume_init() })),
        }
    }

    /// Reads memory and returns how many bytes of `out` could be read.
    pub(super) fn read(&self, address: u64, out: &mut [u8]) -> usize {
        // Addresses of 2^63 and above are no file offsets and no addresses of programs.
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

    /// Reads `/proc/PID/maps`.
    pub(super) fn maps(&self) -> io::Result<String> {
        fs::read_to_string(format!("/proc/{}/maps", self.pid))
    }

    /// Returns the path of the program's file.
    pub(super) fn executable(&self) -> io::Result<String> {
        Ok(fs::read_link(format!("/proc/{}/exe", self.pid))?.to_string_lossy().into_owned())
    }

    /// Makes [`read`](Self::read) read the new program's memory after [`Stop::Exec`].
    pub(super) fn reopen_memory(&mut self) -> io::Result<()> {
        self.memory = File::open(format!("/proc/{}/mem", self.pid))?;
        Ok(())
    }

    fn request(&self, how: Request, address: *mut c_void, data: *mut c_void) -> io::Result<c_long> {
        request(self.pid, how, address, data)
    }
}

/// Returns the events at which a thread stops.
fn events(follow: bool) -> c_int {
    let started = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
    libc::PTRACE_O_TRACEEXEC | if follow { started } else { 0 }
}

/// Waits for the next stop of any child of the calling thread, and returns the child's number with it; `None` if a
/// signal to this process came first.
pub(super) fn wait_any() -> io::Result<Option<(pid_t, Stop)>> {
    match wait_once(-1) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        other => other.map(Some),
    }
}

fn wait(pid: pid_t) -> io::Result<(pid_t, Stop)> {
    loop {
        match wait_once(pid) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn wait_once(pid: pid_t) -> io::Result<(pid_t, Stop)> {
    let mut status = 0;
    // Do not wait for the children of other threads of this process.
    let options = libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: the status is written to a variable of its type.
    let pid = unsafe { libc::waitpid(pid, &raw mut status, options) };
    check(c_long::from(pid))?;
    if libc::WIFEXITED(status) {
        return Ok((pid, Stop::Ended(Ending::Exit(libc::WEXITSTATUS(status)))));
    }
    if libc::WIFSIGNALED(status) {
        return Ok((pid, Stop::Ended(Ending::Signal(libc::WTERMSIG(status)))));
    }
    let started = |shares_memory| event_message(pid).map(|task| Stop::Started { task, shares_memory });
    let stop = match (libc::WSTOPSIG(status), status >> 16) {
        (libc::SIGTRAP, libc::PTRACE_EVENT_EXEC) => Stop::Exec,
        (libc::SIGTRAP, libc::PTRACE_EVENT_FORK) => started(false)?,
        (libc::SIGTRAP, libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_VFORK) => started(true)?,
        (_, libc::PTRACE_EVENT_STOP) => Stop::Paused,
        (libc::SIGTRAP, _) => Stop::Trap,
        (signal, _) => Stop::Signal(signal),
    };
    Ok((pid, stop))
}

/// Returns the number that comes with the thread's stop: that of the task that has begun, or its own former one.
fn event_message(pid: pid_t) -> io::Result<pid_t> {
    let mut message: c_ulong = 0;
    request(pid, libc::PTRACE_GETEVENTMSG, null_mut(), (&raw mut message).cast())?;
    Ok(message as pid_t)
}

/// The type of `ptrace`'s first argument: the C libraries differ.
#[cfg(target_env = "musl")]
type Request = c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

fn request(pid: pid_t, how: Request, address: *mut c_void, data: *mut c_void) -> io::Result<c_long> {
    // SAFETY: requests that read or write this process's memory come with a pointer to what they read or write.
    check(unsafe { libc::ptrace(how, pid, address, data) })
}

/// Keeps the calling thread and the processes that it starts on one CPU as long as this exists. A step switches between
/// the two, and that takes twice as long across CPUs.
#[derive(Debug)]
pub(super) struct OneCpu {
    before: libc::cpu_set_t,
}

impl OneCpu {
    pub(super) fn new() -> io::Result<Self> {
        let size = size_of::<libc::cpu_set_t>();
        let mut before = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: the pointer is to a set of that size.
        check(c_long::from(unsafe { libc::sched_getaffinity(0, size, before.as_mut_ptr()) }))?;
        // SAFETY: zeros are valid, because all fields are numbers.
        let before = unsafe { before.assume_init() };
        // SAFETY: it takes no arguments.
        let cpu = check(c_long::from(unsafe { libc::sched_getcpu() }))?;
        let mut one = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: zeros are an empty set.
        let one = unsafe { one.assume_init_mut() };
        // SAFETY: the set has room for all of the kernel's CPU numbers.
        unsafe { libc::CPU_SET(cpu as usize, one) };
        // SAFETY: the set has the given size.
        check(c_long::from(unsafe { libc::sched_setaffinity(0, size, &raw const *one) }))?;
        Ok(Self { before })
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        // SAFETY: the set has the given size. If the call fails, the thread stays on its CPU.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.before) };
    }
}

fn check(result: c_long) -> io::Result<c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Returns the number of CPUs on which the calling thread may run.
    fn cpus() -> usize {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: the pointer is to a set of that size.
        let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) };
        assert_eq!(result, 0);
        // SAFETY: all fields are numbers, and the kernel has filled them in.
        let set = unsafe { set.assume_init() };
        // SAFETY: it only reads the set.
        unsafe { libc::CPU_COUNT(&set) as usize }
    }

    #[test]
    fn one_cpu_is_for_as_long_as_it_is_wanted() {
        // A separate thread, because `OneCpu` restricts the calling thread.
        let counts = thread::spawn(|| {
            let before = cpus();
            let one = OneCpu::new().unwrap();
            let during = cpus();
            drop(one);
            (before, during, cpus())
        });
        let (before, during, after) = counts.join().unwrap();
        assert_eq!((during, after), (1, before));
    }

    #[test]
    fn whoever_is_not_stepped_has_no_signal_and_no_registers() {
        let own = Tracee::of_traced_thread(std::process::id().cast_signed()).unwrap();
        let error = |error: io::Error| error.raw_os_error();
        assert_eq!(own.signal_code().map_err(error), Err(Some(libc::ESRCH)));
        assert_eq!(own.ip().map_err(error), Err(Some(libc::ESRCH)));
        assert_eq!(own.registers().map_err(error).map(drop), Err(Some(libc::ESRCH)));
        // A step treats this error as a thread that was killed in the meantime.
        assert!(own.step(0).is_ok() && own.detach(0).is_ok());
        assert_eq!(own.event_message().map_err(error), Err(Some(libc::ESRCH)));
    }

    #[test]
    fn memory_is_read_as_far_as_there_is_some() {
        let own = Tracee::of_traced_thread(std::process::id().cast_signed()).unwrap();
        let bytes = *b"some bytes";
        let at = bytes.as_ptr() as u64;
        let mut read = [0; 10];
        assert_eq!((own.read(at, &mut read), read), (10, bytes));
        // Nothing is mapped after the stack.
        let maps = crate::linux::maps::TaskMapping::parse(&own.maps().unwrap());
        let stack = maps.iter().find(|mapping| mapping.name == "[stack]").unwrap();
        assert!(maps.iter().all(|mapping| mapping.start != stack.end));
        assert_eq!(own.read(stack.end - 4, &mut read), 4);
        for address in [0, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX] {
            assert_eq!(own.read(address, &mut read), 0, "{address:#x}");
        }
    }

    #[test]
    fn what_cannot_be_stepped_is_left_by_nobody() {
        assert!(Tracee::start(&[], false, false).is_err());
        let error = Tracee::start(&["/no/such/program".into()], false, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        // There is no child left to wait for.
        assert_eq!(wait_any().unwrap_err().raw_os_error(), Some(libc::ECHILD));
    }
}
