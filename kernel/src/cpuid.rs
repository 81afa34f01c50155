//! Reads CPUID. Each unit's module interprets its own leaves.
//!
//! ```
//! use pugmark_kernel::cpuid::this_processor;
//!
//! // CPUID.0: the highest leaf, and the vendor's name.
//! let leaf = this_processor(0, 0);
//! let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat();
//! println!("{}, leaves up to {:x}H", String::from_utf8_lossy(&name), leaf.eax);
//! ```

pub use raw_cpuid::{CpuIdReader, CpuIdResult};

/// Executes CPUID on this processor. The function is a [`CpuIdReader`].
#[must_use]
pub fn this_processor(leaf: u32, subleaf: u32) -> CpuIdResult {
    raw_cpuid::native_cpuid::cpuid_count(leaf, subleaf)
}
