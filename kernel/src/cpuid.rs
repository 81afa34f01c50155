//! CPUID: how the driver reads it. What it says is read in the room of each unit.

pub use raw_cpuid::{CpuIdReader, CpuIdResult};

/// CPUID of the processor that this runs on: for whatever wants a [`CpuIdReader`].
#[must_use]
pub fn this_processor(leaf: u32, subleaf: u32) -> CpuIdResult {
    let core::arch::x86_64::CpuidResult { eax, ebx, ecx, edx } =
        core::arch::x86_64::__cpuid_count(leaf, subleaf);
    CpuIdResult { eax, ebx, ecx, edx }
}
