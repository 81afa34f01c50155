//! Instruction Based Sampling (IBS) on one logical processor: precise samples of instruction fetches and of ops (the
//! micro-operations of instructions).
//!
//! ```
//! use pugmark_decoder_core::ibs::{Caps, Part};
//! use pugmark_kernel::amd::ibs::{IbsConfig, IbsRefusal};
//!
//! // One op in 100 000, whatever the privilege level, and one fetch in 50 000.
//! let config = IbsConfig::new().op(100_000).op_counts_dispatched().fetch(50_000).fetch_random();
//! let part = Part::by_caps(Caps(0x3ff));
//! assert!(config.check(&part).is_ok());
//! assert_eq!(config.check(&Part::by_caps(Caps(0x7))), Err(IbsRefusal::Missing(Caps::OP_CNT)));
//! let refusal = IbsRefusal::Period { period: 100, least: 0x90, most: 0x7ff_fff0 };
//! assert_eq!(IbsConfig::new().op(100).check(&part), Err(refusal));
//! ```
//!
//! A unit counts, tags a fetch or an op, and requests an interrupt when its sample is complete. It takes no further
//! sample until a handler writes its control register.
//!
//! Source: APM vol. 2, Debug and Performance Resources, "Instruction-Based Sampling"; BKDG 31116; PPR 56176.

mod config;
mod running;
mod session;
#[cfg(test)]
mod tests;
mod unit;
mod unlock;

pub use config::{IbsConfig, IbsRefusal};
pub use running::{IbsRunning, IbsStopped};
pub use session::{IbsCounts, IbsSession, SampleSink};
pub use unit::IbsUnit;
pub use unlock::{AwakeCore, UnlockError, unlock};
