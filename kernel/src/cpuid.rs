//! Reads CPUID. Each unit's module interprets its own leaves.

pub use raw_cpuid::{CpuIdReader, CpuIdResult};

/// Executes CPUID on this processor. The function is a [`CpuIdReader`].
#[must_use]
pub fn this_processor(leaf: u32, subleaf: u32) -> CpuIdResult {
    raw_cpuid::native_cpuid::cpuid_count(leaf, subleaf)
}
