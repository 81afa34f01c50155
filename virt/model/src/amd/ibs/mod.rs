//! Instruction-Based Sampling: of the fetches, or of the ops, every so many is tagged, and registers tell what came
//! of it.
//!
//! Each of the two units owns its control and data registers. What a write of them does, or why it faults, is in
//! `fetch.rs` and `op.rs`. The unit says that a sample is there, and the processor sends the interrupt through the
//! local APIC's entry that IBS_CTL names.
//!
//! Source: APM vol. 2, Debug and Performance Resources, "Instruction-Based Sampling"; BKDG for AMD Family 10h
//! Processors, "IBS Fetch Control Register" and following; PPR for AMD Family 17h Model 31h and for AMD Family 19h
//! Model 11h, the same. The second control registers, of which no manual was at hand, as Linux tells of them in
//! `arch/x86/events/amd/ibs.c` and `arch/x86/include/asm/perf_event.h`.

mod fetch;
mod op;

pub(super) use fetch::FetchUnit;
pub(super) use op::OpUnit;

use crate::GeneralProtection;

/// What became of something tagged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing was tagged, or it was left out.
    Nothing,
    /// An interrupt is raised.
    Interrupt,
}

/// A register that holds a linear address takes only canonical ones.
const fn canonical(value: u64) -> Result<u64, GeneralProtection> {
    const UNUSED: u32 = 16;
    if ((value as i64) << UNUSED >> UNUSED) as u64 == value { Ok(value) } else { Err(GeneralProtection) }
}

/// A register with only these bits, others must be zero.
const fn within(value: u64, bits: u64) -> Result<u64, GeneralProtection> {
    if value & !bits == 0 { Ok(value) } else { Err(GeneralProtection) }
}

/// The bits of a physical address.
const PHYSICAL: u64 = (1 << 52) - 1;
