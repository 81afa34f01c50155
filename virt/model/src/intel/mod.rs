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

pub use cpuid::CpuidResult;
pub use perfmon::Pmi;
pub use processor::{GeneralProtection, Processor};
pub use profile::{Counted, CountedEvent, Counters, DebugControl, DebugStore, LbrStack, Pebs, Profile};
pub use pt::OperationalError;
pub use pugmark_decoder_core::pebs::Registers;
pub use settings::{BranchLevel, Overflow, ReturnElsewhere, Settings};
pub use violations::Violations;
