//! Processor event-based sampling (PEBS): when a counter overflows, the processor stores a record with its registers in
//! the DS save area, or puts it into the trace of Intel PT ([`TracedPebsUnit`]).
//!
//! ```
//! use pugmark_kernel::intel::{ds::DsConfig, pebs::{PebsConfig, PreciseEvent}};
//!
//! // The registers of user code after each 100 000th taken branch, on counter 0.
//! let samples = PebsConfig::new().os(false).general(0, PreciseEvent::BR_INST_RETIRED, 100_000);
//! let config = DsConfig::new().pebs(samples);
//! # let _ = config;
//! ```
//!
//! Source for this whole module: SDM vol. 3, Performance Monitoring, "Processor Event Based Sampling (PEBS)" of each
//! microarchitecture, "Adaptive PEBS", "Extended PEBS".

pub mod architectural;
mod capabilities;
mod config;
mod groups;
mod latency;
mod periods;
mod precise;
mod program;
mod samples;
mod traced;

pub use crate::msr::counters::Counter;
pub use capabilities::PebsCapabilities;
pub use config::{PebsConfig, PebsRefusal, PreciseEvent};
pub use groups::Groups;
pub(crate) use groups::NoSuchRecord;
pub(crate) use latency::LoadLatency;
pub(crate) use periods::PeriodRules;
pub use periods::Periods;
pub(crate) use precise::PreciseEvents;
pub use samples::{Item, Samples};
pub use traced::{TracedPebsConfig, TracedPebsRefusal, TracedPebsRunning, TracedPebsSession, TracedPebsUnit};

pub(crate) use program::Program;

/// The maximum number of general-purpose counters that sample.
pub(crate) const GENERAL: u8 = 8;
/// The maximum number of fixed-function counters that have a counter reset value.
pub(crate) const FIXED: u8 = 16;
/// The maximum number of general-purpose counters that have a counter reset value; the values of fixed-function
/// counters come after theirs.
pub(crate) const GENERAL_RESETS: u8 = 32;
