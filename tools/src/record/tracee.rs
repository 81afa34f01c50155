//! A program that is stepped: the few system calls that do it.

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

/// The registers of the program as Linux keeps them.
pub(super) type Registers = libc::user_regs_struct;

/// A thread that is stepped.
#[derive(Debug)]
pub(super) struct Tracee {
    /// Its number.
    pub(super) pid: pid_t,
    memory: File,
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
    /// It has started another thread or process.
    Begun {
        /// Its number.
        task: pid_t,
        /// It sees the same memory.
        shares_memory: bool,
    },
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
    /// `follow`: what it starts is stepped as well.
    pub(super) fn start(program: &[OsString], aslr: bool, follow: bool) -> io::Result<Self> {
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
        let pid = command.spawn()?.id() as pid_t;
        let ready = || {
            let mut tracee = Self::begun(pid)?;
            if let Stop::Over(_) = tracee.wait()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            tracee.reopen_memory()?;
            let mut options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACEEXEC;
            if follow {
                options |= libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
            }
            tracee.request(libc::PTRACE_SETOPTIONS, null_mut(), options as usize as *mut c_void)?;
            Ok(tracee)
        };
        ready().inspect_err(|_| {
            // SAFETY: it takes numbers; a process that was waited for to its end has none any more, and nothing has
            // been started since.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            while wait(pid).is_ok_and(|(_, stop)| !matches!(stop, Stop::Over(_))) {}
        })
    }

    /// The thread with this number, which is stepped already and is going to stop.
    pub(super) fn begun(pid: pid_t) -> io::Result<Self> {
        Ok(Self { pid, memory: File::open(format!("/proc/{pid}/mem"))? })
    }

    /// Delivers `signal`, unless it is 0, and lets the thread run up to its next stop: one instruction, if nothing
    /// comes between.
    pub(super) fn step(&self, signal: c_int) -> io::Result<()> {
        self.go(libc::PTRACE_SINGLESTEP, signal)
    }

    /// Delivers `signal`, unless it is 0, and lets the thread run without looking any more.
    pub(super) fn detach(&self, signal: c_int) -> io::Result<()> {
        self.go(libc::PTRACE_DETACH, signal)
    }

    fn go(&self, how: libc::c_uint, signal: c_int) -> io::Result<()> {
        match self.request(how, null_mut(), signal as usize as *mut c_void) {
            // Killed meanwhile: the wait says by what.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Waits for its next stop.
    pub(super) fn wait(&self) -> io::Result<Stop> {
        wait(self.pid).map(|(_, stop)| stop)
    }

    /// After [`Stop::Exec`]: the number that the thread had before.
    pub(super) fn event_message(&self) -> io::Result<pid_t> {
        event_message(self.pid)
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

    fn request(&self, how: libc::c_uint, address: *mut c_void, data: *mut c_void) -> io::Result<c_long> {
        request(self.pid, how, address, data)
    }
}

/// Waits for the next stop of whatever the calling thread steps or has started, and says whose it is; `None` where a
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
    // Who another thread of this process has started is none of ours.
    let options = libc::__WALL | libc::__WNOTHREAD;
    // SAFETY: the status is written to a variable of its type.
    let pid = unsafe { libc::waitpid(pid, &raw mut status, options) };
    check(c_long::from(pid))?;
    if libc::WIFEXITED(status) {
        return Ok((pid, Stop::Over(Ending::Exit(libc::WEXITSTATUS(status)))));
    }
    if libc::WIFSIGNALED(status) {
        return Ok((pid, Stop::Over(Ending::Signal(libc::WTERMSIG(status)))));
    }
    let begun = |shares_memory| event_message(pid).map(|task| Stop::Begun { task, shares_memory });
    let stop = match (libc::WSTOPSIG(status), status >> 16) {
        (libc::SIGTRAP, libc::PTRACE_EVENT_EXEC) => Stop::Exec,
        (libc::SIGTRAP, libc::PTRACE_EVENT_FORK) => begun(false)?,
        (libc::SIGTRAP, libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_VFORK) => begun(true)?,
        (libc::SIGTRAP, _) => Stop::Trap,
        (signal, _) => Stop::Signal(signal),
    };
    Ok((pid, stop))
}

/// What the stop of the thread is about: the number of another.
fn event_message(pid: pid_t) -> io::Result<pid_t> {
    let mut message: c_ulong = 0;
    request(pid, libc::PTRACE_GETEVENTMSG, null_mut(), (&raw mut message).cast())?;
    Ok(message as pid_t)
}

fn request(pid: pid_t, how: libc::c_uint, address: *mut c_void, data: *mut c_void) -> io::Result<c_long> {
    // SAFETY: the requests that read or write the own memory are made with a pointer to what they read or write.
    check(unsafe { libc::ptrace(how, pid, address, data) })
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

fn check(result: c_long) -> io::Result<c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// The CPUs on which the calling thread may run.
    fn cpus() -> usize {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: there is room for a set of that size.
        let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) };
        assert_eq!(result, 0);
        // SAFETY: numbers all of it; the kernel has filled it in.
        let set = unsafe { set.assume_init() };
        // SAFETY: it only counts.
        unsafe { libc::CPU_COUNT(&set) as usize }
    }

    #[test]
    fn one_cpu_is_for_as_long_as_it_is_wanted() {
        // A thread of its own: it is the thread that is kept there.
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
        let own = Tracee::begun(std::process::id().cast_signed()).unwrap();
        let error = |error: io::Error| error.raw_os_error();
        assert_eq!(own.signal_code().map_err(error), Err(Some(libc::ESRCH)));
        assert_eq!(own.ip().map_err(error), Err(Some(libc::ESRCH)));
        assert_eq!(own.registers().map_err(error).map(drop), Err(Some(libc::ESRCH)));
        // Killed meanwhile, as far as a step can tell.
        assert!(own.step(0).is_ok() && own.detach(0).is_ok());
        assert_eq!(own.event_message().map_err(error), Err(Some(libc::ESRCH)));
    }

    #[test]
    fn memory_is_read_as_far_as_there_is_some() {
        let own = Tracee::begun(std::process::id().cast_signed()).unwrap();
        let bytes = *b"some bytes";
        let at = bytes.as_ptr() as u64;
        let mut read = [0; 10];
        assert_eq!((own.read(at, &mut read), read), (10, bytes));
        // Behind the stack is nothing.
        let maps = crate::record::maps::Mapping::parse(&own.maps().unwrap());
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
        // There is no child that is still to be waited for.
        assert_eq!(wait_any().unwrap_err().raw_os_error(), Some(libc::ECHILD));
    }
}
