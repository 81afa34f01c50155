//! Last branch records (LBR): registers that hold the newest branches. They cost less than the branch trace store, and
//! show a handler how execution reached it.
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
pub use capabilities::LbrCapabilities;
pub use config::{Classes, LbrConfig, LbrRefusal};
pub use running::{LbrRunning, LbrSession};
use stack::Stack;
pub use unit::LbrUnit;
