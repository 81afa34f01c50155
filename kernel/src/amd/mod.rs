//! The units of AMD's processors: performance counters, Instruction Based Sampling (IBS), and the recorders of last
//! branches.
//!
//! ```
//! use pugmark_kernel::{amd::AmdCapabilities, cpuid::this_processor};
//!
//! match AmdCapabilities::read(this_processor) {
//!     Ok(amd) => println!("{} counters, IBS: {}", amd.counters, amd.ibs.is_some()),
//!     Err(missing) => println!("{missing}"),
//! }
//! ```

pub mod branches;
pub mod counters;
mod detect;
mod eilvt;
#[cfg(test)]
mod fake;
pub mod ibs;
mod northbridge;
#[cfg(test)]
mod tests;

pub use detect::AmdCapabilities;
pub use eilvt::{EilvtError, ExtendedLvt, LvtEntry};
pub use northbridge::{ConfigPorts, Northbridge};
