//! The [short way](pugmark_kernel::short) for kernels in C: `pugmark.h` declares these functions and structures, and
//! says what each pointer must be.
//!
//! `cargo rustc --release -p pugmark-kernel-c --crate-type staticlib --features panic-handler` makes
//! `libpugmark_kernel_c.a`, with `--target x86_64-unknown-none` one that uses neither SSE registers nor a red zone.
//! `lab/examples/c` is a whole kernel.
//!
//! Pointers that are null or misaligned and sizes that overflow become an error. A panic, which would be a bug of this
//! library, goes to the kernel's `pugmark_panicked` and never back into the code that called.
#![no_std]

mod argument;
mod live;
mod memory;
mod outcome;
#[cfg(feature = "panic-handler")]
mod panic;
mod processor;
mod snapshot;
mod trace;

pub use live::{
    LIVE_BYTES, Live, PMI_FAULT, PMI_LATER, PMI_NOT_OURS, PMI_SERVED, PMI_STRAY, PMI_STUCK, PMI_UNKNOWN,
    pugmark_live_interrupt, pugmark_live_start, pugmark_live_stop,
};
pub use memory::Memory;
pub use outcome::{
    ERROR_ABSENT, ERROR_ARGUMENT, ERROR_BUFFER, ERROR_DECODE, ERROR_SCRATCH, ERROR_SLOT, ERROR_START,
    ERROR_STOP, OK, Outcome, pugmark_text,
};
pub use processor::{HANDLER_STACK, pugmark_general_protection, pugmark_use_local_apic};
pub use snapshot::pugmark_snapshot;
pub use trace::{
    STEP_CALL, STEP_INTERRUPT, STEP_INTERRUPT_RETURN, STEP_RETURN, STEP_TAIL_CALL, Step, StepFunction, Trace,
    WorkFunction,
};
