//! Processor event-based sampling: a counter that overflows stores the registers' state in the DS save area.
//!
//! Source for all of it: SDM vol. 3, Performance Monitoring, "Processor PreciseEvent Based Sampling (PEBS)" of each
//! microarchitecture, "Adaptive PEBS", "Extended PEBS".

mod capabilities;
mod config;
mod groups;
mod precise;
mod program;
mod samples;

pub use capabilities::PebsCapabilities;
pub use config::{Counter, PebsConfig, PebsRefusal, PreciseEvent};
pub use groups::Groups;
pub use precise::PreciseEvents;
pub use samples::{Item, Samples};

pub(crate) use program::Program;

/// General-purpose counters that sample.
pub(crate) const GENERAL: u8 = 8;
/// Fixed-function counters that have a counter reset value.
pub(crate) const FIXED: u8 = 16;
/// General-purpose counters that have one, at the most; those of fixed-function counters come after them.
pub(crate) const GENERAL_RESETS: u8 = 32;
