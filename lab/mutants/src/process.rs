//! Runs a process with limits on time, memory and files.

use anyhow::{Context, Result, bail};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// The maximum memory of a process, in bytes. A mutant may allocate without end.
const MEMORY: u64 = 16 << 30;
/// The maximum size of a file, in bytes.
const FILE: u64 = 1 << 30;

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestEnd {
    Green,
    Red,
    TimedOut,
}

/// Runs a process, which may take `seconds` of processor time and `clock` of real time. Returns its end, and the
/// processor time of the process and the children it waited for.
///
/// Processor time is the main limit, because other work on the machine does not affect it. The limit of real time is
/// for a process that waits.
pub(crate) fn run(command: &mut Command, seconds: u64, clock: Duration) -> Result<(TestEnd, Duration)> {
    let limit = move || {
        for (resource, most) in
            [(libc::RLIMIT_CPU, seconds), (libc::RLIMIT_AS, MEMORY), (libc::RLIMIT_FSIZE, FILE)]
        {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            // SAFETY: the pointer is to a value of this function.
            if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes a system call and touches no memory but its own.
    unsafe { command.pre_exec(limit) };
    let child = command.process_group(0).spawn().context("cannot start a test")?;
    let process = libc::pid_t::try_from(child.id())?;
    let (begin, mut pause) = (Instant::now(), Duration::from_micros(500));
    loop {
        if let Some((status, took)) = ended(process)? {
            let end = match status {
                0 => TestEnd::Green,
                status if libc::WIFSIGNALED(status) && is_limit(libc::WTERMSIG(status)) => TestEnd::TimedOut,
                _ => TestEnd::Red,
            };
            if end != TestEnd::Green {
                // The process may have started others for which it did not wait.
                kill_group(process);
            }
            return Ok((end, took));
        }
        if begin.elapsed() > clock {
            kill_group(process);
        }
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(10));
    }
}

/// Returns true if a signal shows that a limit was exceeded.
const fn is_limit(signal: i32) -> bool {
    matches!(signal, libc::SIGXCPU | libc::SIGXFSZ | libc::SIGKILL)
}

fn kill_group(leader: libc::pid_t) {
    // SAFETY: the call takes numbers. If the group no longer exists, the error does not matter.
    let _ = unsafe { libc::kill(-leader, libc::SIGKILL) };
}

/// Returns the status of a child that has ended, and the processor time that it and the children it waited for took.
fn ended(child: libc::pid_t) -> Result<Option<(i32, Duration)>> {
    let mut status = 0;
    // SAFETY: all zeros are a valid value of this structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values of this function, and nothing else waits for this child.
    let waited = unsafe { libc::wait4(child, &raw mut status, libc::WNOHANG, &raw mut usage) };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    match waited {
        0 => Ok(None),
        waited if waited == child => Ok(Some((status, time(usage.ru_utime) + time(usage.ru_stime)))),
        _ => bail!("cannot wait for a test: {}", io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, seconds: u64, clock: Duration) -> TestEnd {
        run(Command::new("sh").args(["-c", script]), seconds, clock).unwrap().0
    }

    #[test]
    fn a_process_that_does_not_end_is_ended_and_not_taken_for_a_red_one() {
        let long = Duration::from_secs(600);
        assert_eq!(shell("exit 0", 60, long), TestEnd::Green);
        assert_eq!(shell("exit 101", 60, long), TestEnd::Red);
        assert_eq!(shell("kill -ABRT $$", 60, long), TestEnd::Red);
        // One process computes, and one waits.
        assert_eq!(shell("while :; do :; done", 1, long), TestEnd::TimedOut);
        let begin = Instant::now();
        assert_eq!(shell("sleep 600 & wait", 60, Duration::from_millis(20)), TestEnd::TimedOut);
        assert!(begin.elapsed() < long);
    }

    #[test]
    fn what_it_took_of_the_processor_is_measured() {
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
        let (end, took) = run(Command::new("sh").args(["-c", script]), 60, Duration::from_secs(60)).unwrap();
        assert!(end == TestEnd::Green && !took.is_zero(), "{took:?}");
    }
}
