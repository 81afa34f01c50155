//! The newest branches in registers, as LBR version 2 (since Zen 4) or branch sampling (Zen 3).
//!
//! LBR version 2 records all the time, and a PMI can freeze it. Branch sampling records the sixteen branches after a
//! counter's overflow, and delays the counter's interrupt until it has them. The counter is number 0 and counts retired
//! taken branches: [`CountedEvent::new(0xc4, 0).every(period).on(0)`](crate::amd::counters::CountedEvent). The
//! handler of its interrupt reads the branches.
//!
//! ```
//! use pugmark_kernel::amd::branches::{BranchConfig, Recorder};
//!
//! // Only branches of the kernel, and the records as they were when the PMI came.
//! let config = BranchConfig::new().user(false).freeze_on_pmi(true);
//! assert!(config.check(Recorder::LbrV2 { depth: 16, freezes: true }).is_ok());
//! assert!(config.check(Recorder::LbrV2 { depth: 16, freezes: false }).is_err());
//! ```
//!
//! Source: APM vol. 2, Debug and Performance Resources, "Last Branch Stack Registers"; for branch sampling PPR 55898
//! (family 19h models 00h-0Fh), "DBG_EXTN_CFG" and "SAMP_BR_FROM".

mod config;
mod recorded;
mod running;
#[cfg(test)]
mod tests;
mod unit;

pub use config::{BranchConfig, BranchRefusal};
pub use recorded::{Recorded, Speculation};
pub use running::{BranchRunning, BranchSession};
pub use unit::{BranchUnit, Recorder};
