//! Makes an Intel PT trace of any program on any x86-64 Linux machine: the engines of `pugmark record`.
//!
//! The program runs step by step under ptrace, or in QEMU's user-mode emulator ([`Engine`]), and each instruction is
//! reported to the model of the tracing hardware (`pugmark-model`). The result is what a processor with Intel PT would
//! have written: a trace, the code that was executed, and the truth, which is the number and the hash of the traced
//! instructions. The truth does not come from the trace.
//!
//! ```no_run
//! use pugmark_recorder::{RecordOptions, record};
//!
//! let options = RecordOptions { out: "hello".into(), ..RecordOptions::new(["echo", "hello"]) };
//! let recording = record(&options, &mut |_| {})?;
//! println!("{} instructions", recording.parts[0].truth.count());
//! # Ok::<(), pugmark_recorder::RecordError>(())
//! ```
//!
//! # What is traced
//! Of a program, only user mode is traced. Each thread of the program and of the processes that it starts is a task
//! with its own processor and so its own trace. All processors have the same TSC. The recording ends with the last
//! task. The system decides in which order the tasks' steps alternate, so a program with several tasks may differ from
//! run to run.
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
//! - `image.json`, the sections of `code.bin`: `{"sections":[{"file","offset","len","vaddr"}]}`, and in `"mapped"` the
//!   files that the program had mapped, with the same fields;
//! - `truth.json`: `count` and `hash` of the traced instructions, and what a decoder may need to know of the processor.
//!
//! Beside the files of the first part is `recording.json`: whose each part is (thread, process, name, program, time),
//! how the program ended (`null` for a process that was let go on; with a signal where it was, if that is known), why
//! the recording ended, and where the emulator was no Linux for a process (`deviations`).
//!
//! Nobody else may read the files, and none is written through a link. A recording that is there already gets the name
//! with `.old`. The files are written as the program runs: if this process is killed or the disk is full, what is there
//! decodes up to a tenth of a second before that, and `recording.json` and `truth.json` say `"unfinished": true`. A
//! killed recorder leaves nothing else: a program in the emulator goes on unrecorded, one that is stepped ends.
//!
//! # Engines
//! Stepping makes some 30 000 instructions a second, the emulator some 10 million; before tracing starts, stepping
//! lets the program run at the processor's speed, to a breakpoint or a signal, and time stands still meanwhile. What a
//! deterministic program executes is the same with both, and so is its trace, as long as the program does not ask
//! which processor it is on: the emulator shows another one than this machine's (`-cpu max`). Addresses of stack and
//! libraries differ. In the emulator threads run at the same time; the TSC of each is put forward at system calls to
//! that of the thread that is farthest on.
//!
//! # Machines
//! With [`RecordOptions::machine`] the program is QEMU's system emulator, and what its machine executes is recorded:
//! each virtual processor is a task, and all levels are traced. The addresses of 16-bit and 32-bit code are offsets in
//! the code segment.
//!
//! # What is not right
//! If it is stepped, the program notices that in few places. It differs from a run without stepping in RDTSC and
//! clocks, in restartable sequences and transactions, both of which stepping aborts, and if a process sends SIGTRAP.
//! Job control does not stop a program that is recorded. The program and all that it starts share one CPU. A process
//! that ran before keeps its CPUs; its threads that wait in the kernel are woken when it is attached to and when it is
//! let go. While a thread runs to where its tracing starts, what other threads replace of its code is not seen in
//! theirs.
//!
//! In the emulator, a process that vfork or posix_spawn makes has memory of its own: posix_spawn does not return the
//! error of a program that cannot be executed. System calls that the emulator lacks fail with ENOSYS (clone3, ptrace,
//! before QEMU 8 execveat), and limits of memory (RLIMIT_AS) are not set. A set-user-ID program that the program
//! executes runs beside the emulator, and is named; one that is recorded itself has no rights of its own.

pub mod files;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod linux;
pub mod names;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub use linux::{
    BadRange, BadTrigger, Cause, Counted, CountedThread, Deviation, DeviationKind, Ending, Engine, Fault,
    Missing, NoEmulator, NotFollowed, Part, Range, RecordError, RecordOptions, RecordProgress, Recording,
    ThreadInfo, Trigger, Unreached, count, emulator_is_installed, record, why_stepping,
};

/// The number of executions of a block from which a [`Run`](pugmark_decoder_core::hash::Run) of its addresses pays:
/// making the run costs as much as hashing the block some fifty times.
pub const OFTEN: u16 = 64;
