//! Last branch records (LBR): registers that hold the newest branches. They cost less than the branch trace store, and
//! show a handler how execution reached it.
//!
//! ```
//! use pugmark_kernel::cpuid::this_processor;
//! use pugmark_kernel::intel::lbr::{Classes, LbrCapabilities, LbrConfig};
//! use pugmark_kernel::{lifecycle::Absent, msr::Msr};
//!
//! /// The kernel's calls and returns, if the records can be filtered.
//! fn config(msr: &mut impl Msr) -> Result<LbrConfig, Absent> {
//!     let capabilities = LbrCapabilities::detect(this_processor, msr)?;
//!     let all = LbrConfig::new().user(false);
//!     let calls = all.classes(Classes::NEAR_REL_CALL | Classes::NEAR_IND_CALL | Classes::NEAR_RET);
//!     Ok(if calls.check(&capabilities).is_ok() { calls } else { all })
//! }
//! ```
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel Resource Director Technology Features, "Last Branch,
//! Interrupt, and Exception Recording" of each microarchitecture; Last Branch Records.

mod branch;
mod capabilities;
mod config;
mod running;
mod stack;
#[cfg(test)]
mod tests;
mod unit;

use branch::LbrFormat;
pub use branch::{Branch, BranchType};
pub(crate) use capabilities::Architectural;
pub use capabilities::LbrCapabilities;
pub use config::{Classes, LbrConfig, LbrRefusal};
pub use running::{LbrRunning, LbrSession};
use stack::Stack;
pub use unit::LbrUnit;
