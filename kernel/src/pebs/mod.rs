//! Processor event-based sampling: a counter that overflows stores the registers' state in the DS save area.
//!
//! Source for all of it: SDM vol. 3, Performance Monitoring, "Processor Event Based Sampling (PEBS)" of each
//! microarchitecture, "Adaptive PEBS", "Extended PEBS".

mod capabilities;
mod config;
mod groups;
mod precise;
mod program;
mod samples;

pub use capabilities::{PebsAbsent, PebsCapabilities};
pub use config::{Counter, Event, PebsConfig, PebsRefusal};
pub use groups::Groups;
pub use precise::PreciseEvents;
pub use samples::{Item, Samples};

pub(crate) use program::{Claim, Program};

/// General-purpose counters that have a counter reset value; those of fixed-function counters come behind.
pub(crate) const GENERAL: u8 = 8;
/// Fixed-function counters that have one.
pub(crate) const FIXED: u8 = 16;
