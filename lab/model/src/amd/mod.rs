//! AMD's processors: core performance counters, Instruction-Based Sampling (IBS), and the last branches.
//!
//! [`AmdProcessor`] is one logical processor. A WRMSR goes to the unit that owns the MSR, and the rule for its faults
//! is in that unit: `counters.rs`, `ibs/fetch.rs`, `ibs/op.rs` or `branches.rs`. IBS_CTL and NB_CFG belong to no unit
//! and have their rules in `processor.rs`. The local APIC's registers are in `local_apic.rs`, the northbridge, which
//! processors share, in `northbridge.rs`. Each processor's set of these parts is data, in `profile/table.rs`.
//!
//! Written from AMD's manuals and not from the driver: the AMD64 Architecture Programmer's Manual (APM), the BIOS and
//! Kernel Developer's Guides (BKDG), the Processor Programming References (PPR), the Revision Guides.
//!
//! ```
//! use pugmark_model::amd::{Northbridge, AmdProcessor, AmdProfile, AmdSettings};
//! use pugmark_model::{Context, ExecMode, FlatMemory, Processor, Retired};
//!
//! let profile = AmdProfile::by_name("zen4").unwrap();
//! let northbridge = Northbridge::new(profile);
//! let mut processor = AmdProcessor::new(profile, AmdSettings::default(), &northbridge);
//! let mut memory = FlatMemory { base: 0, bytes: &mut [] };
//! let at = |ip| Context { ip, cs_base: 0, cr3: 0x5000, cpl: 0, mode: ExecMode::Bits64, iflag: true };
//! let step = |from, to, bytes| Retired { before: at(from), after: at(to), bytes, tsc: 0, operand: 0 };
//! // Retired instructions of the kernel, by counter 0.
//! let wrmsr = step(0x40_0000, 0x40_0002, &[0x0f, 0x30]);
//! processor.write_msr(0xc001_0200, 0x0042_00c0, &wrmsr, &mut memory).unwrap();
//! processor.retire(&step(0x40_0002, 0x40_0003, &[0x90]), &mut memory);
//! assert_eq!(processor.read_msr(0xc001_0201), Ok(1));
//! ```

mod access;
mod branches;
mod caches;
mod configuration;
mod counters;
mod cpuid;
mod events;
mod execution;
mod ibs;
mod local_apic;
mod northbridge;
mod processor;
mod profile;
mod random;
mod registers;
mod settings;
#[cfg(test)]
mod tests;

pub use access::DataRegisters;
pub use events::AmdEvent;
pub use northbridge::Northbridge;
pub use processor::AmdProcessor;
pub use profile::{AmdProfile, DataSources, Errata, Ibs, LastBranchKind};
pub use settings::{AmdSettings, AmdViolations};
