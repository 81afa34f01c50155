//! `pugmark record`: makes an Intel PT trace of any program on any processor.
//!
//! The program runs step by step under ptrace, or in QEMU's user-mode emulator ([`Engine`]), and each instruction is
//! reported to the model of the tracing hardware (`pugmark-model`). The result is what a processor with Intel PT would
//! have written: a trace, the code that was executed, and the truth, which is the number and the hash of the traced
//! instructions. The truth does not come from the trace.
//!
//! ```no_run
//! use pugmark_tools::pugmark::record::{RecordOptions, record};
//!
//! let options = RecordOptions { out: "hello".into(), ..RecordOptions::new(["echo", "hello"]) };
//! let recording = record(&options, &mut |_| {})?;
//! println!("{} instructions", recording.parts[0].truth.count());
//! # Ok::<(), pugmark_tools::pugmark::record::RecordError>(())
//! ```
//!
//! # What is traced
//! Only user mode is traced. Each thread of the program and of the processes that it starts is a task with its own
//! processor and so its own trace. All processors have the same TSC. The recording ends with the last task. The system
//! decides in which order the tasks' steps alternate, so a program with several tasks may differ from run to run.
//! - A system call is its SYSCALL instruction, at which the trace pauses (TIP.PGD, packet generation disabled), and the
//!   instruction that it returns to (TIP.PGE, packet generation enabled). Signals are interrupts and exceptions: FUP
//!   with the address of the interrupted instruction, TIP.PGD, and TIP.PGE at the handler.
//! - A string instruction with a REP prefix is one instruction.
//! - Time is not real time, because that would include the stepping: it advances by a tick of the TSC for each
//!   instruction and by a thousand for each visit to the kernel. So a program that does the same in each run makes the
//!   same trace. Addresses are not randomised unless the options say so.
//! - Where the options start and stop tracing ([`Trigger`]), an interrupt takes the program to the kernel, which turns
//!   packet generation on or off; the program takes no notice, and the interrupt takes no time. Each task has a switch
//!   of its own; a task that it starts begins as it is. A task that is never traced has no part.
//!
//! # Parts
//! A trace and an image fit together as long as no executed code changes. If it changes (the process executes another
//! program, or a library or just-in-time compiled code replaces other code), tracing ends and restarts, and what
//! follows is another part with its own files.
//!
//! # Files
//! The files of the main thread's first part are in the directory itself, and those of its later parts in
//! subdirectories `2`, `3` and so on. Other tasks have the same files in subdirectories `task-2`, `task-3` and so on:
//! - `trace.pt`, the trace;
//! - `image.json`, the sections of `code.bin`: `{"sections":[{"file","offset","len","vaddr"}]}`;
//! - `truth.json`: `count` and `hash` of the traced instructions, and what a decoder may need to know of the processor.
//!
//! Beside the files of the first part is `recording.json`: whose each part is (thread, process, name, program, time),
//! how the program ended (`null` for a process that was let go on), and why the recording ended.
//!
//! # Engines
//! Stepping makes some 30 000 instructions a second, the emulator some 10 million; before tracing starts, stepping
//! lets the program run at the processor's speed, to a breakpoint or a signal, and time stands still meanwhile. What a
//! deterministic program executes is the same with both, and so is its trace, as long as the program does not ask
//! which processor it is on: the emulator shows another one than this machine's (`-cpu max`). Addresses of stack and
//! libraries differ. In the emulator threads run at the same time; the TSC of each is put forward at system calls to
//! that of the thread that is farthest on.
//!
//! # What is not right
//! If it is stepped, the program notices that in few places. It differs from a run without stepping in RDTSC and
//! clocks, in restartable sequences and transactions, both of which stepping aborts, and if a process sends SIGTRAP.
//! Job control does not stop a program that is recorded. The program and all that it starts share one CPU. A process
//! that ran before keeps its CPUs; its threads that wait in the kernel are woken when it is attached to and when it is
//! let go. While a thread runs to where its tracing starts, what other threads replace of its code is not seen in
//! theirs.

mod block;
mod code;
pub mod command;
mod emulator;
mod filter;
mod flags;
mod hardware;
mod index;
mod instruction;
mod maps;
mod options;
mod part;
mod recorder;
mod signals;
mod switch;
mod system_call;
mod task;
mod thread_info;
mod tracee;
mod trigger;
mod truth;

pub use filter::{BadRange, Range};
pub use options::{Engine, RecordOptions};
pub use part::Part;
pub use switch::{Missing, Unreached};
pub use thread_info::ThreadInfo;
pub use tracee::Ending;
pub use trigger::{BadTrigger, Trigger};

use std::{fmt, io, path::PathBuf};

/// What was recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The parts, ordered by task. There are none if the functions to trace were never mapped, or if tracing never
    /// started.
    pub parts: Vec<Part>,
    /// How the program ended.
    pub ending: Ending,
    /// Why the recording ended.
    pub cause: Cause,
    /// The programs that were executed but not recorded, because the emulator cannot execute them: those with 32 bits.
    pub not_followed: Vec<String>,
    /// How many processes were forked that are not recorded, because the emulator did not report them before they
    /// ended.
    pub unreported: u32,
    /// The triggers to start or stop tracing that were not reached.
    pub unreached: Vec<Unreached>,
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
    /// What was to stop tracing was reached, and nothing starts it again; the program continued.
    Stop,
    /// The recording process received this signal; the program continued if the signal allowed it.
    Signal(i32),
}

impl fmt::Display for Cause {
    /// `over`, `exec`, `changed`, `limit`, `stop` or `signal N`.
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

/// Whether a version of QEMU's user-mode emulator is installed with which [`Engine::Emulator`] works.
#[must_use]
pub fn emulator_is_installed() -> bool {
    emulator::is_installed()
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
    match options.engine {
        Engine::Emulator => emulator::record(options, progress),
        Engine::Auto if emulator::can_execute(options) => emulator::record(options, progress),
        Engine::Auto | Engine::Stepping => recorder::Recorder::start(options)?.run(progress),
    }
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
    /// The emulator cannot do what the options ask for.
    Emulator(&'static str),
    /// The trace cannot be written.
    Write(io::Error),
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
            Self::Emulator(why) => write!(f, "not in the emulator: {why}; use --engine stepping"),
            Self::Write(_) => f.write_str("the trace cannot be written"),
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
            Self::Prepare(error) | Self::Write(error) => Some(error),
            Self::NoCode { .. } | Self::Refused { .. } | Self::Ranges { .. } | Self::Emulator(_) => None,
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
            (RecordError::Write(error()), "the trace cannot be written", true),
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
