//! The performance counters of one logical processor.
//!
//! ```
//! use pugmark_kernel::amd::counters::CountedEvent;
//! use pugmark_kernel::msr::amd::PerfEvtSel;
//!
//! // Retired instructions of user code, and one interrupt in each 100 000 retired branches.
//! let instructions = CountedEvent::new(0xc0, 0).os(false);
//! let branches = CountedEvent::new(0xc2, 0).every(100_000);
//! // The crate `pugmark-pfm` makes this value of libpfm's name `amd64_fam10h_barcelona::RETIRED_INSTRUCTIONS:u`.
//! assert_eq!(CountedEvent::of(PerfEvtSel::from_bits_retain(0x51_00c0)), instructions);
//! # let _ = branches;
//! ```
//!
//! Counters that another owner uses are left alone. An event goes to a counter that can count it: on family 15h, only a
//! few counters can count some events, and since family 17h some events need two counters. The events of a northbridge,
//! E0h and above, count for the whole node on families 0Fh and 10h: only one processor of the node should count them.
//!
//! Source: APM vol. 2, Debug and Performance Resources, "Performance Monitoring Counters" and "Performance Monitoring
//! Counter Version 2".

mod assign;
mod constraints;
mod event;
mod overflow;
mod rdpmc;
mod registers;
mod running;
mod session;
#[cfg(test)]
mod tests;
mod unit;

pub use event::{CountedEvent, CountersRefusal};
pub use overflow::{Overflow, OverflowCounts, OverflowSink};
pub use rdpmc::Rdpmc;
pub use running::{CounterRunning, CounterStopped};
pub use session::CounterSession;
pub use unit::CounterUnit;

/// The maximum number of counters of a processor: the number is a field of four bits.
pub(crate) const MAX_COUNTERS: usize = 15;

/// The width of a counter in bits.
const WIDTH: u32 = 48;
const MASK: u64 = (1 << WIDTH) - 1;
/// The longest period: up to this length, bit 47 shows whether a counter has overflowed.
const LONGEST: u64 = 1 << (WIDTH - 1);
