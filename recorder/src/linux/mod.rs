//! The recorder: what both engines share, and how a recording begins and fails.

mod block;
mod code;
mod emulator;
mod filter;
mod folder;
mod index;
mod instruction;
mod maps;
mod options;
mod part;
mod pt_unit;
mod runtime;
mod signals;
mod stepping;
mod switch;
mod thread_info;
mod trigger;
mod truth;

pub use emulator::{Counted, CountedThread, NoEmulator};
pub use filter::{BadRange, Range};
pub use options::{Engine, RecordOptions};
pub use part::{Fault, Part};
pub use switch::{Missing, Unreached};
pub use thread_info::ThreadInfo;
pub use trigger::{BadTrigger, Trigger};

use std::{fmt, io, path::PathBuf};

/// A finished recording.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The parts, ordered by task. There are none if the functions to trace were never mapped, or if tracing never
    /// started.
    pub parts: Vec<Part>,
    /// The end of the program.
    pub ending: Ending,
    /// Why the recording ended.
    pub cause: Cause,
    /// The programs that were executed but not recorded.
    pub not_followed: Vec<NotFollowed>,
    /// The number of threads and processes that were started and are not recorded, because the emulator did not report
    /// them before they ended, or could not.
    pub unreported: u32,
    /// The triggers to start or stop tracing that were not reached.
    pub unreached: Vec<Unreached>,
    /// The processes that have asked for a seccomp filter and got none, because the emulator has none.
    pub unfiltered: Vec<i32>,
}

/// A program that was executed outside of the emulator, with all that it has started: one with 32 bits, one that has
/// rights of its own, or one that finds nothing of the recorder, as in a `chroot` without `/proc`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NotFollowed {
    /// The process.
    pub pid: i32,
    /// The path by which it has executed the program.
    pub program: String,
}

/// The end of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By `exit`, with this status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// It has not: the recording of a process that ran before ended first.
    GoesOn,
}

/// Why a part of a recording, or all of it, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The task ended; for a recording, all tasks ended.
    Over,
    /// Another program was executed.
    Exec,
    /// Executed code was about to change.
    Changed,
    /// The limit of traced instructions was reached; the program continued.
    Limit,
    /// The trigger that stops tracing was reached, and nothing starts it again; the program continued.
    Stop,
    /// The recording process received this signal; the program continued if the signal allowed it.
    Signal(i32),
}

impl fmt::Display for Cause {
    /// Returns `over`, `exec`, `changed`, `limit`, `stop` or `signal N`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Over => f.write_str("over"),
            Self::Exec => f.write_str("exec"),
            Self::Changed => f.write_str("changed"),
            Self::Limit => f.write_str("limit"),
            Self::Stop => f.write_str("stop"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// The progress of a recording.
#[derive(Clone, Copy, Debug)]
pub struct RecordProgress {
    /// Steps made so far.
    pub steps: u64,
    /// The number of bytes of trace in the parts that are being recorded.
    pub bytes: u64,
    /// The number of threads that are being stepped.
    pub tasks: usize,
}

/// Returns true if a version of QEMU's user-mode emulator is installed with which [`Engine::Emulator`] works.
#[must_use]
pub fn emulator_is_installed() -> bool {
    emulator::is_installed()
}

/// Returns why [`Engine::Auto`] steps the program instead of letting the emulator execute it, which is some hundred
/// times as fast; `None` if it does not, or if the program cannot be started at all.
#[must_use]
pub fn why_stepping(options: &RecordOptions) -> Option<RecordError> {
    let may_step = options.engine == Engine::Auto && !options.machine;
    let why = may_step.then(|| emulator::prepare(options, false).err()).flatten()?;
    let is_missing =
        matches!(&why, RecordError::Start { error, .. } if error.kind() == io::ErrorKind::NotFound);
    (!is_missing).then_some(why)
}

/// Runs the program and records it. The calling thread must not wait for any other process that it has started, because
/// this function waits for all of the thread's children.
///
/// # Errors
/// If the program cannot be run or stepped, the files cannot be written, or the processor of the profile lacks
/// something that the options need.
pub fn record(
    options: &RecordOptions,
    progress: &mut dyn FnMut(RecordProgress),
) -> Result<Recording, RecordError> {
    let most = options.profile.address_ranges;
    if options.ranges.len() > most as usize {
        return Err(RecordError::Ranges { most, wanted: options.ranges.len() });
    }
    if options.machine {
        return emulator::machine::record(options, progress);
    }
    match options.engine {
        Engine::Emulator => return emulator::record(options, emulator::prepare(options, false)?, progress),
        Engine::Auto => {
            if let Ok(prepared) = emulator::prepare(options, false) {
                return emulator::record(options, prepared, progress);
            }
        }
        Engine::Stepping => {}
    }
    stepping::Recorder::start(options)?.run(progress)
}

/// Runs the program and counts what it and all that it starts execute; no file is written. The emulator executes it,
/// whatever the options say of that. Of the other options only the program, [`RecordOptions::follow`] and
/// [`RecordOptions::signals`] matter: signals to this process go to the program, which is counted to its end.
///
/// # Errors
/// If the emulator cannot execute the program.
pub fn count(options: &RecordOptions) -> Result<Counted, RecordError> {
    emulator::count(options, emulator::prepare(options, true)?)
}

/// Why recording failed.
#[derive(Debug)]
pub enum RecordError {
    /// This process cannot be prepared for recording.
    Prepare(io::Error),
    /// The program cannot be started.
    Start {
        /// Its name.
        program: String,
        /// Why.
        error: io::Error,
    },
    /// The process that is to be recorded cannot be attached to.
    Attach {
        /// Its number.
        pid: i32,
        /// Why.
        error: io::Error,
    },
    /// The program cannot be stepped.
    Step {
        /// Where the program is, if that is known.
        ip: Option<u64>,
        /// Why.
        error: io::Error,
    },
    /// An instruction was executed whose bytes cannot be read.
    NoCode {
        /// Its address.
        ip: u64,
    },
    /// The processor refuses a register's value.
    Refused {
        /// The MSR.
        msr: u32,
        /// The value.
        value: u64,
    },
    /// The processor does not have enough address ranges.
    Ranges {
        /// The number of ranges that the processor has.
        most: u32,
        /// The number of ranges that were given.
        wanted: usize,
    },
    /// A place to start or stop a machine's tracing at cannot be found.
    NoPlace {
        /// `--start` or `--stop`.
        option: &'static str,
        /// The trigger that was asked for.
        trigger: Box<Trigger>,
        /// The file with the names; `None` if there is none.
        file: Option<PathBuf>,
        /// Why.
        missing: Missing,
    },
    /// The emulator cannot do what the options ask for.
    Emulator(&'static str),
    /// There is no emulator that can be used.
    NoEmulator(NoEmulator),
    /// A file or directory cannot be written.
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl RecordError {
    /// Returns whether the task no longer exists because it was killed. The next wait then reports its end.
    fn is_of_a_killed_task(&self) -> bool {
        matches!(self, Self::Step { error, .. } if error.raw_os_error() == Some(libc::ESRCH))
    }
}

fn is_of_no_process(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The system's message is the error's source.
            Self::Prepare(_) => f.write_str("this process cannot prepare to record"),
            Self::Start { program, .. } => write!(f, "{program} cannot be started"),
            Self::Attach { pid, error } if error.kind() == io::ErrorKind::PermissionDenied => write!(
                f,
                "process {pid} cannot be attached to: it must be yours, and nobody else may trace it; \
                 /proc/sys/kernel/yama/ptrace_scope may allow it to root only"
            ),
            Self::Attach { pid, error }
                if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) =>
            {
                write!(f, "there is no process {pid}")
            }
            Self::Attach { pid, .. } => write!(f, "process {pid} cannot be attached to"),
            Self::Step { ip: Some(ip), .. } => write!(f, "the program cannot be stepped at {ip:#x}"),
            Self::Step { ip: None, .. } => f.write_str("the program cannot be stepped"),
            Self::NoCode { ip } => write!(f, "the code executed at {ip:#x} cannot be read"),
            Self::Refused { msr, value } => write!(
                f,
                "the profile's processor refuses the value {value:#x} for MSR {msr:#x}: choose a profile that has what \
                 the options ask for, or leave options out"
            ),
            Self::Ranges { most, wanted } => {
                write!(
                    f,
                    "{wanted} ranges to trace, but the profile's processor has {most}: give fewer, or choose another \
                     profile"
                )
            }
            Self::NoEmulator(why) => write!(f, "{why}"),
            Self::Emulator(why) => write!(f, "not in the emulator: {why}; use --engine stepping"),
            Self::NoPlace { option, trigger, file: None, .. } => write!(
                f,
                "{option} {trigger}: no file has the names of the machine's functions: give one, an ELF file or a text \
                 such as System.map, or write 0xADDRESS"
            ),
            Self::NoPlace { option, trigger, file: Some(file), .. } => {
                write!(f, "{option} {trigger}: {} has no such place", file.display())
            }
            Self::File { path, .. } => write!(f, "{} cannot be written", path.display()),
        }
    }
}

impl std::error::Error for RecordError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Attach { error, .. } if is_of_no_process(error) => None,
            Self::Start { error, .. }
            | Self::Attach { error, .. }
            | Self::Step { error, .. }
            | Self::File { error, .. } => Some(error),
            Self::Prepare(error) => Some(error),
            Self::NoCode { .. }
            | Self::Refused { .. }
            | Self::Ranges { .. }
            | Self::Emulator(_)
            | Self::NoPlace { .. }
            | Self::NoEmulator(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn an_error_says_what_where_and_what_to_do() {
        let error = || io::Error::other("it is gone");
        for (failed, text, source) in [
            (RecordError::Prepare(error()), "this process cannot prepare to record", true),
            (RecordError::Start { program: "ls".into(), error: error() }, "ls cannot be started", true),
            (
                RecordError::Step { ip: Some(0x1000), error: error() },
                "the program cannot be stepped at 0x1000",
                true,
            ),
            (RecordError::Attach { pid: 7, error: error() }, "process 7 cannot be attached to", true),
            (
                RecordError::Attach { pid: 7, error: io::Error::from_raw_os_error(libc::ESRCH) },
                "there is no process 7",
                false,
            ),
            (RecordError::Step { ip: None, error: error() }, "the program cannot be stepped", true),
            (RecordError::NoCode { ip: 0x1000 }, "the code executed at 0x1000 cannot be read", false),
            (
                RecordError::Refused { msr: 0x570, value: 0x20 },
                "the profile's processor refuses the value 0x20 for MSR 0x570: choose a profile that has what the \
                 options ask for, or leave options out",
                false,
            ),
            (
                RecordError::Ranges { most: 2, wanted: 3 },
                "3 ranges to trace, but the profile's processor has 2: give fewer, or choose another profile",
                false,
            ),
            (
                RecordError::Emulator("it is new"),
                "not in the emulator: it is new; use --engine stepping",
                false,
            ),
            (
                RecordError::File { path: "out/trace.pt".into(), error: error() },
                "out/trace.pt cannot be written",
                true,
            ),
        ] {
            assert_eq!((failed.to_string().as_str(), failed.source().is_some()), (text, source));
        }
    }
}
