//! Intel's processors: Processor Trace, the debug store with branch records and samples, last branch records, counters.
//!
//! Written from the SDM and from nothing of the driver's.

mod bts;
mod cpuid;
mod debugctl;
mod ds;
mod lbr;
mod misc_enable;
mod pebs;
mod perfmon;
mod processor;
mod profile;
mod pt;
mod registers;
mod settings;
mod taken;
#[cfg(test)]
mod tests;
mod unit;
mod violations;

pub use processor::IntelProcessor;
pub use profile::{Counted, Counters, DebugControl, DebugStore, IntelEvent, IntelProfile, LbrStack, Pebs};
pub use pt::OperationalError;
pub use pugmark_decoder_core::pebs::Registers;
pub use settings::{BranchLevel, IntelSettings, Overflow, ReturnElsewhere};
pub use violations::IntelViolations;
