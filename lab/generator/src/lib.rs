//! Programs that exist only as bytes, and their true execution.
//!
//! A [`Program`] is random x86 code: kernel, user, library and 32-bit functions that call each other, with loops,
//! recursion deeper than any return stack, jump tables, system calls and handlers. An [`Execution`] executes it without
//! a processor: the generator knows each instruction's effect on control flow, and every data-dependent decision is
//! drawn from a seed. Its [`ExecutionStep`]s are the input of a tracing unit. They are also the truth that a decoder
//! must recover from the trace and the bytes alone. The same seed gives the same program and execution.
//!
//! ```
//! use pugmark_generator::{EventRates, Execution, ExecutionStep, Program, ProgramShape};
//!
//! let program = Program::generate(7, &ProgramShape::default());
//! let retired = Execution::new(&program, 7, EventRates::default())
//!     .take(1000)
//!     .filter(|step| matches!(step, ExecutionStep::Retired(_)))
//!     .count();
//! assert!(retired > 500);
//! ```

mod encode;
mod execution;
mod filter;
mod generate;
mod layout;
mod program;
pub mod trace;

pub use execution::{EventRates, Execution, ExecutionStep};
pub use filter::Filter;
pub use generate::ProgramShape;
pub use program::{CodeLevel, Function, Instruction, Program, Section, TracingSwitch};
