//! The start, halt, service in a PMI handler and stop of a unit: code that all units share.
//!
//! ```text
//!               start                          stop
//!   Unit, off ---------> Running ----------------------> what was recorded, with the Unit
//!       ^                  |  ^                   |
//!       | NotStarted::Off  |  | StopFailed        | dropped: halted first, and where that fails
//!       +------------------+  +-------------------+ the memory stays with the processor
//! ```
//!
//! A unit is a value that is off. Its session, a [`Recording`], is the unit together with the memory that it records
//! into. While the processor may write to that memory, the session is inside a [`Running`] and nothing else can access
//! it. `Halted` is the proof that the processor writes nothing: only halting creates one, and every function that
//! reads the memory, changes it or resumes the unit requires one.
//!
//! ```
//! use pugmark_kernel::intel::pt::{Buffer, PtConfig, PtUnit};
//! use pugmark_kernel::{memory::Frames, msr::Msr};
//!
//! /// Traces a function once. Returns the unit, which is off, or says why there is no trace.
//! fn traced<M: Msr, F: Frames>(unit: PtUnit<M>, buffer: Buffer<F>, work: fn()) -> Result<PtUnit<M>, String> {
//!     let running = unit.start(&PtConfig::new(), buffer).map_err(|not_started| not_started.error().to_string())?;
//!     work();
//!     let stopped = running.stop().map_err(|failed| failed.fault.to_string())?;
//!     Ok(stopped.unit)
//! }
//! ```

mod absent;
mod failed;
mod in_use;
mod late;
mod not_current;
mod probe;
mod running;
mod source;
#[cfg(test)]
mod tests;

pub use absent::{Absent, Missing};
pub use failed::{NotStarted, StartError, StopFailed};
pub use in_use::InUse;
pub use late::LateNmis;
pub use not_current::NotCurrent;
pub use probe::NotBacked;
pub(crate) use probe::probe;
pub(crate) use running::{Halted, Sealed};
pub use running::{Recording, Running};
pub(crate) use source::{Serve, Source};
