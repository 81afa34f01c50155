//! Programs that exist only as bytes, and the true walk through them.
//!
//! A [`Program`] is random x86 code: kernel, user, library and 32-bit functions that call each other, with loops,
//! recursion deeper than any return stack, jump tables, system calls and handlers. A [`Walk`] executes it without a
//! processor: each instruction's effect on the control flow is known from its generation, and whatever data would
//! decide is drawn from a seed. The [`Step`]s of a walk are the input of a tracing unit. They are also the truth that a
//! decoder must recover from the trace and the bytes alone. The same seed gives the same program and the same walk.
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
