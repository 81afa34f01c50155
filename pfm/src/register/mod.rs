//! The control registers of counters and IBS units, as types. IBS is AMD's Instruction Based Sampling.

mod ibs;
mod select;

pub use ibs::{IbsFetchCtl, IbsOpCtl};
pub use select::PerfEvtSel;

/// The width of a counter in bits.
pub const COUNTER_BITS: u32 = 48;
