//! Programs that exist only as bytes, and the true walk through them.
//!
//! A [`Program`] is random x86 code: kernel, user, library and 32-bit functions that call each other, with
//! loops, recursion deeper than any return stack, jump tables, system calls, handlers. A [`Walk`] executes it without a
//! processor: each instruction's effect on the flow is known from how it was made, and what data would have
//! decided is drawn from a seed. Its [`Step`]s are what a tracing unit is fed with, and the truth that a decoder
//! has to find again from the trace and the bytes alone. The same seed gives the same program and the same walk.
//!
//! ```
//! use pugmark_program::{Program, Rates, Shape, Step, Walk};
//!
//! let program = Program::generate(7, &Shape::default());
//! let retired = Walk::new(&program, 7, Rates::default())
//!     .take(1000)
//!     .filter(|step| matches!(step, Step::Retired(_)))
//!     .count();
//! assert!(retired > 500);
//! ```

mod encode;
mod filter;
mod generate;
mod layout;
mod program;
pub mod trace;
mod walk;

pub use filter::Filter;
pub use generate::Shape;
pub use program::{Function, Instruction, Level, Program, Section, Switch};
pub use walk::{Rates, Step, Walk};
