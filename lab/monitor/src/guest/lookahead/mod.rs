//! Finds and classifies the next instruction of the guest before it executes.

mod classify;
mod effects;
mod emulation;
mod known_stretches;
mod next;
mod prediction;
mod stretch;
#[cfg(test)]
mod tests;

pub use emulation::{Emulation, Size};
pub use next::{Instruction, Lookahead};
pub use stretch::{Stretch, StretchLimits};
