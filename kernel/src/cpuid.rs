//! CPUID: how the driver reads it. Each unit's module interprets the leaves that concern it.

pub use raw_cpuid::{CpuIdReader, CpuIdResult};

/// Executes CPUID on this processor. The function is a [`CpuIdReader`].
#[must_use]
pub fn this_processor(leaf: u32, subleaf: u32) -> CpuIdResult {
    let core::arch::x86_64::CpuidResult { eax, ebx, ecx, edx } =
        core::arch::x86_64::__cpuid_count(leaf, subleaf);
    CpuIdResult { eax, ebx, ecx, edx }
}
