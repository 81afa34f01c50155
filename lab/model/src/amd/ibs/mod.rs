//! Instruction-Based Sampling (IBS): one fetch or one op in each period is tagged, and registers report its execution.
//!
//! Each of the two units owns its control and data registers. The effects and faults of a write to them are in
//! `fetch.rs` and `op.rs`. A unit reports that it has a sample, and the processor sends the interrupt through the entry
//! of the local APIC that IBS_CTL names.
//!
//! Source: APM vol. 2, Debug and Performance Resources, "Instruction-Based Sampling"; BKDG for AMD Family 10h
//! Processors, "IBS Fetch Control Register" and following; PPR for AMD Family 17h Model 31h and for AMD Family 19h
//! Model 11h, the same. For the second control registers no manual was available: they follow Linux,
//! `arch/x86/events/amd/ibs.c` and `arch/x86/include/asm/perf_event.h`.

mod fetch;
mod op;

pub(super) use fetch::FetchSampling;
pub(super) use op::OpSampling;

use crate::GeneralProtection;

/// The result of a fetch or an instruction for sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SamplingOutcome {
    /// Nothing was tagged, or a filter rejected the sample.
    Nothing,
    /// There is a sample, and an interrupt is raised.
    Interrupt,
}

/// Checks a write to a register that holds a linear address: only canonical addresses are accepted.
const fn canonical(value: u64) -> Result<u64, GeneralProtection> {
    const UNUSED: u32 = 16;
    if ((value as i64) << UNUSED >> UNUSED) as u64 == value { Ok(value) } else { Err(GeneralProtection) }
}

/// Checks a write to a register that has only these bits: the others must be zero.
const fn without_reserved(value: u64, bits: u64) -> Result<u64, GeneralProtection> {
    if value & !bits == 0 { Ok(value) } else { Err(GeneralProtection) }
}

/// The bits that a physical address can have.
const PHYSICAL: u64 = (1 << 52) - 1;
