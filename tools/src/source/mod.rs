//! Where traces come from: what is in a file is read here, with its sizes checked against the file, and nothing is
//! decoded.
//!
//! A source gives traces, and what the system did while they were taken ([`SystemRecord`]); `timeline` makes of that
//! which code was where at each time.

pub mod foreign;
pub mod perf_data;
mod system;

pub use system::{Mapping, SystemChange, SystemRecord, SystemTask, TextPoke};
