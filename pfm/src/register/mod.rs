//! The control registers of counters and IBS units, as types.

mod ibs;
mod select;

pub use ibs::{IbsFetchCtl, IbsOpCtl};
pub use select::PerfEvtSel;

/// How wide a counter is, in bits.
pub const COUNTER_BITS: u32 = 48;
