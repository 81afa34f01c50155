//! Intel's performance counters: they count events between a start and a stop, without samples and interrupts. Samples
//! are PEBS's ([`pebs`](crate::intel::pebs)).
//!
//! ```
//! use pugmark_kernel::cpuid::this_processor;
//! use pugmark_kernel::intel::counters::{IntelCounterUnit, IntelEvent};
//! use pugmark_kernel::msr::Msr;
//!
//! /// Returns the instructions and branches of the kernel that a function takes, or the reason why nobody knows.
//! fn cost(msr: impl Msr, work: fn()) -> Result<[u64; 2], String> {
//!     let unit = IntelCounterUnit::detect(this_processor, msr).map_err(|absent| absent.to_string())?;
//!     let events = [IntelEvent::INSTRUCTIONS, IntelEvent::BRANCHES].map(|event| event.user(false));
//!     let running = unit.start(&events).map_err(|not_started| not_started.error().to_string())?;
//!     work();
//!     let stopped = running.stop().map_err(|failed| failed.fault.to_string())?;
//!     match *stopped.totals() {
//!         [instructions, branches] if !stopped.turned_off => Ok([instructions, branches]),
//!         _ => Err("something else turned the counters off".into()),
//!     }
//! }
//! ```
//!
//! A counter that wraps is continued: the count has 64 bits if it is read at least once each time that the counter
//! wraps, after 2^40 events or more.
//!
//! From version 6 on, CPUID leaf 23H says which counters there are, which may be more than eight of general purpose,
//! and each counter's registers are together, at addresses of their own. An event may have a second unit mask there,
//! count cycles with exactly so many events, be hidden from RDPMC in user code, and begin anew whenever a counter
//! overflows:
//!
//! ```
//! use pugmark_kernel::intel::counters::IntelEvent;
//!
//! // The mispredicted branches among the last 1000 branches, and how many these are.
//! let branches = IntelEvent::BRANCHES.reloaded_by(0b01, 1000);
//! let mispredicted = IntelEvent::MISPREDICTED_BRANCHES.reloaded_by(0b01, 0);
//! let events = [branches, mispredicted].map(|event| event.rdpmc_user_disable(true));
//! # assert_ne!(events[0], events[1]);
//! ```
//!
//! Source: SDM vol. 3, Performance Monitoring, "Architectural Performance Monitoring"; vol. 2, CPUID, "Architectural
//! Performance Monitoring Leaf". Version 6 was written from Linux, whose files the items name: the sections
//! "Architectural Performance Monitoring Version 6" and "Auto Counter Reload" were not at hand.

mod capabilities;
mod event;
pub(crate) mod extended;
pub(crate) mod registers;
mod session;
#[cfg(test)]
mod tests;
mod unit;

pub use capabilities::IntelCounterCapabilities;
pub use event::{IntelCounterFeature, IntelCountersRefusal, IntelEvent};
pub use session::IntelCounterSession;
pub use unit::{IntelCounterRunning, IntelCounterStopped, IntelCounterUnit};
