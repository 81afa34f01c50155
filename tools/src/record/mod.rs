//! `pugmark record`: a PT trace of any program on any processor.
//!
//! The program runs step by step under ptrace, and each step is told to the model of the tracing hardware
//! (`pugmark-model`). What comes out is what a processor with Intel PT would have written: a trace, the code that was
//! executed, and the truth, which is not computed from the trace: how many instructions were traced, and their hash.
//!
//! ```no_run
//! use pugmark_tools::record::{Options, record};
//!
//! let options = Options { out: "hello".into(), ..Options::new(["echo", "hello"]) };
//! let recording = record(&options, &mut |_| {})?;
//! println!("{} instructions", recording.parts[0].truth.count());
//! # Ok::<(), pugmark_tools::record::Error>(())
//! ```
//!
//! # What is traced
//! User mode. Each thread of the program and of the processes that it starts is a task with a processor of its own, and
//! so with a trace of its own; the processors' TSC is one. The recording ends with the last of them. The tasks' steps
//! are mixed as the system likes: a program with several may do something else each time.
//! - A system call is its SYSCALL instruction, at which the trace pauses (TIP.PGD), and the instruction it comes back to
//!   (TIP.PGE). Signals are interrupts and exceptions: FUP, TIP.PGD, and TIP.PGE at the handler.
//! - A string instruction with a REP prefix is one instruction.
//! - Time is no real time, because stepping would show in it: a tick of the TSC for each instruction and a thousand for
//!   each visit to the kernel. So one program makes one trace, as far as it does the same itself; addresses are not
//!   randomised unless that is asked for.
//!
//! # Parts
//! A trace and an image explain each other as long as no code that was executed changes. Where it does (another program
//! is executed in the process, a library or a just-in-time compiler's code takes the place of other), tracing ends and
//! begins again, and what follows is a recording of its own.
//!
//! # Files
//! In the directory, for the main thread's first part; in subdirectories `2`, `3` and so on for those behind it. Other
//! tasks have the same in subdirectories `task-2`, `task-3` and so on:
//! - `trace.pt`, the trace;
//! - `image.json`, sections of `code.bin`: `{"sections":[{"file","offset","len","vaddr"}]}`;
//! - `truth.json`: `count` and `hash` of the instructions traced, and what a decoder may need to know of the processor.
//!
//! Beside the first part's is `recording.json`: which part is whose (thread, process, name, program, time), how the
//! program ended, and why the recording did.
//!
//! # What is not right
//! A step is seen by the program in few places, and these differ from a run without it: RDTSC and clocks; restartable
//! sequences, which stepping aborts; transactions, likewise; SIGTRAP sent by a process. Job control does not stop a
//! program that is recorded. The program with all it starts shares one CPU.

mod code;
pub mod command;
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
mod task;
mod tracee;
mod who;

pub use filter::{BadRange, Range};
pub use options::Options;
pub use part::Part;
pub use tracee::Ending;
pub use who::Who;

use std::{fmt, io, path::PathBuf};

/// What was recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Those of each task one after the other; without any, the functions to trace were never mapped.
    pub parts: Vec<Part>,
    /// How the program ended.
    pub ending: Ending,
    /// Why the recording did.
    pub cause: Cause,
}

/// Why a part of a recording ended, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The task was over; of a recording: all were.
    Over,
    /// Another program was executed.
    Exec,
    /// Code that was executed was about to change.
    Changed,
    /// So many instructions were traced as were asked for; the program went on.
    Limit,
    /// This signal came to who recorded; the program went on, if the signal let it.
    Signal(i32),
}

impl fmt::Display for Cause {
    /// `over`, `exec`, `changed`, `limit` or `signal N`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Over => f.write_str("over"),
            Self::Exec => f.write_str("exec"),
            Self::Changed => f.write_str("changed"),
            Self::Limit => f.write_str("limit"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Steps made so far.
    pub steps: u64,
    /// Bytes of trace, in the parts that are being recorded.
    pub bytes: u64,
    /// Threads that are being stepped.
    pub tasks: usize,
}

/// Runs the program and records it. The calling thread must have started no process that it still waits for: it would
/// be waited for here.
///
/// # Errors
/// When the program cannot be run or stepped, the files cannot be written, or the processor of the profile cannot do
/// what is asked for.
pub fn record(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Recording, Error> {
    recorder::Recorder::start(options)?.run(progress)
}

/// Why there is no recording.
#[derive(Debug)]
pub enum Error {
    /// This process cannot do what recording takes.
    Prepare(io::Error),
    /// The program cannot be started.
    Start {
        /// Its name.
        program: String,
        /// Why.
        error: io::Error,
    },
    /// The program cannot be stepped.
    Step {
        /// Where it is.
        ip: u64,
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
    /// The processor has not so many address ranges.
    Ranges {
        /// How many there are.
        most: u32,
        /// How many were asked for.
        wanted: usize,
    },
    /// The trace cannot be written.
    Write(io::Error),
    /// A file or directory cannot be written.
    File {
        /// It.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl Error {
    /// It is that there is nothing to step any more: that it is over is told next.
    fn is_of_the_killed(&self) -> bool {
        matches!(self, Self::Step { error, .. } if error.raw_os_error() == Some(libc::ESRCH))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // What the system says to it is the source.
            Self::Prepare(_) => f.write_str("the recording cannot be prepared"),
            Self::Start { program, .. } => write!(f, "{program} cannot be started"),
            Self::Step { ip, .. } => write!(f, "the program cannot be stepped at {ip:#x}"),
            Self::NoCode { ip } => write!(f, "the code executed at {ip:#x} cannot be read"),
            Self::Refused { msr, value } => write!(
                f,
                "the processor refuses {value:#x} for MSR {msr:#x}: choose a profile that has what is asked for, \
                 or leave options away"
            ),
            Self::Ranges { most, wanted } => {
                write!(
                    f,
                    "{wanted} filters, but the processor has {most} address ranges: choose another profile"
                )
            }
            Self::Write(_) => f.write_str("the trace cannot be written"),
            Self::File { path, .. } => write!(f, "{} cannot be written", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Start { error, .. } | Self::Step { error, .. } | Self::File { error, .. } => Some(error),
            Self::Prepare(error) | Self::Write(error) => Some(error),
            Self::NoCode { .. } | Self::Refused { .. } | Self::Ranges { .. } => None,
        }
    }
}
