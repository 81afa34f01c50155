//! The DS save area, which branch records and samples go into: detection, memory, rules.

mod area;
mod detect;
mod layout;
mod memory;
mod plan;
mod rules;
#[cfg(test)]
mod tests;

pub use area::{AreaError, BadIndex, DsArea};
pub use detect::{DsAbsent, DsCapabilities};
pub use layout::DsLayout;
pub use memory::{LinearMemory, LinearPage, LinearRequest, MemoryType};
pub use plan::{BufferMode, BufferPlan, PlanError};
pub use rules::{Place, Rule, Strictness, Warning, Warnings};
