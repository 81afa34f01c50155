//! Intel's processors: Processor Trace (PT), the debug store with branch records (BTS) and samples (PEBS), last branch
//! records (LBR), counters.
//!
//! [`IntelProcessor`] is one logical processor. It has five tracing units, each a `TracingUnit` (`unit.rs`): `pt`,
//! `lbr`, the counters with their samples (`perfmon::counters`, `pebs`), the fixed-function counters
//! (`perfmon::fixed`), and `bts` with `ds`. A WRMSR goes to the unit that owns the MSR, and the rule for its faults is
//! in `write_msr` of that unit's folder; for Intel PT it is in `pt/msr_rules.rs`. MSRs that belong to no unit have
//! their rules in `perfmon`, `misc_enable.rs` and, if read-only, `processor.rs`; the debug control register has its
//! rules in `debugctl.rs`, and XSAVES and XRSTORS have theirs in `processor/extended_state.rs`. The MSRs and features
//! of each processor are data, in `profile/table.rs`.
//!
//! Written from the SDM and not from the driver.

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
mod taken_branch;
#[cfg(test)]
mod tests;
mod transaction;
mod unit;
mod violations;

pub use processor::{IntelProcessor, NearBranch, NearBranches, VmxTransition};
pub use profile::{
    AutoReloadProfile, CountedEvent, CounterProfile, DebugCtlLayout, DebugStoreProfile, ExtendedCounters,
    IntelEvent, IntelProfile, LbrProfile, PebsProfile,
};
pub use pt::OperationalError;
pub use pugmark_decoder_core::pebs::Registers;
pub use settings::{BranchLevel, IntelSettings, Overflow, ReturnElsewhere};
pub use transaction::{TransactionChange, TransactionStep};
pub use violations::IntelViolations;
