//! The configuration of the debug store, checked before any register is written.

use super::{AreaError, BufferMode, DsArea, DsCapabilities, Half, LinearMemory};
use crate::intel::bts::{BtsCapabilities, BtsConfig, BtsRefusal};
use crate::intel::pebs::{PebsConfig, PebsRefusal, Program};
use crate::lifecycle::Missing;
use crate::msr::{ApicBase, DebugFlags};
use core::fmt;

/// The recordings of the two halves of the area, and the gate of their interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DsConfig {
    bts: Option<BtsConfig>,
    pebs: Option<PebsConfig>,
    gate: Option<Gate>,
}

impl DsConfig {
    /// Returns a configuration that records nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { bts: None, pebs: None, gate: None }
    }

    /// Adds the recording of branches.
    #[must_use]
    pub const fn bts(self, bts: BtsConfig) -> Self {
        Self { bts: Some(bts), ..self }
    }

    /// Adds sampling.
    #[must_use]
    pub const fn pebs(self, pebs: PebsConfig) -> Self {
        Self { pebs: Some(pebs), ..self }
    }

    /// Gives the IDT gate that PMIs go through: the one of the vector in LVT PC, or vector 2 for NMIs. Required if a
    /// buffer requests PMIs, which a buffer for samples always does.
    #[must_use]
    pub const fn gate(self, gate: Gate) -> Self {
        Self { gate: Some(gate), ..self }
    }

    /// Returns the checked configuration with the values to write.
    pub(super) fn check<L: LinearMemory>(
        &self,
        capabilities: &DsCapabilities,
        area: &DsArea<L>,
    ) -> Result<CheckedDs, DsRefusal> {
        let mode = |half| area.mode(half).ok_or(DsRefusal::NoBuffer(half));
        let mut interrupts = false;
        let mut recording = CheckedDs { control: None, program: None };
        if let Some(bts) = &self.bts {
            let mode = mode(Half::Bts)?;
            interrupts = mode != BufferMode::Circular;
            let &DsCapabilities { bts: available, cpl_qualified, .. } = capabilities;
            let able = BtsCapabilities { bts: available, cpl_qualified };
            recording.control = Some(bts.check(able, interrupts).map_err(DsRefusal::Bts)?);
        }
        if let Some(pebs) = &self.pebs {
            let capabilities = capabilities.pebs.map_err(DsRefusal::NoPebs)?;
            // A buffer for samples has no other mode.
            let spare = match mode(Half::Pebs)? {
                BufferMode::Interrupt { spare } => spare,
                BufferMode::Circular => 0,
            };
            interrupts = true;
            pebs.check(&capabilities, spare).map_err(DsRefusal::Pebs)?;
            recording.program = Some(Program::new(*pebs, capabilities, area.groups().data_cfg()));
        }
        if self.bts.is_none() && self.pebs.is_none() {
            return Err(DsRefusal::Nothing);
        }
        if interrupts {
            let gate = self.gate.ok_or(DsRefusal::NoGate)?;
            if !gate.is_interrupt_gate() {
                return Err(DsRefusal::NotAnInterruptGate(gate));
            }
        }
        Ok(recording)
    }
}

/// A configuration that has been checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedDs {
    pub(super) control: Option<DebugFlags>,
    pub(super) program: Option<Program>,
}

/// A gate of the IDT: the low eight bytes of its descriptor.
///
/// Source: SDM vol. 3, Interrupt and Exception Handling, "IDT Descriptors", "64-Bit Mode IDT".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate(pub u64);

impl Gate {
    /// Returns whether the gate is present and clears RFLAGS.IF. With a trap gate, the handler could be interrupted
    /// while it works on the area.
    pub(super) const fn is_interrupt_gate(self) -> bool {
        // P, S = 0, type 1110B.
        self.0 >> 40 & 0b1001_1111 == 0b1000_1110
    }
}

/// The reason why a configuration cannot be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DsRefusal {
    /// Neither branches nor samples were requested.
    Nothing,
    /// The area has no buffer for this half.
    NoBuffer(Half),
    /// The branches cannot be recorded as requested.
    Bts(BtsRefusal),
    /// The processor has no PEBS.
    NoPebs(Missing),
    /// The counters cannot sample as requested.
    Pebs(PebsRefusal),
    /// A buffer requests PMIs, and the configuration gives no gate for them.
    NoGate,
    /// The gate is a trap gate, or not present.
    NotAnInterruptGate(Gate),
    /// The area's memory is refused.
    Area(AreaError),
    /// The area was allocated for a processor with the other layout.
    OtherLayout,
    /// The buffer requests PMIs, and the local APIC is off.
    ApicOff(ApicBase),
}

impl fmt::Display for DsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("neither branches nor samples are to be recorded"),
            Self::NoBuffer(Half::Bts) => f.write_str("the DS save area has no BTS buffer"),
            Self::NoBuffer(Half::Pebs) => f.write_str("the DS save area has no PEBS buffer"),
            Self::Bts(refusal) => refusal.fmt(f),
            Self::NoPebs(absent) => absent.fmt(f),
            Self::Pebs(refusal) => refusal.fmt(f),
            Self::NoGate => {
                f.write_str("a buffer asks for PMIs, and the configuration names no gate for them")
            }
            Self::Area(error) => error.fmt(f),
            Self::OtherLayout => f.write_str("the DS save area was made for a processor with another layout"),
            Self::ApicOff(base) => {
                let bits = base.bits();
                write!(f, "the local APIC, which the PMI comes through, is off: IA32_APIC_BASE is {bits:#x}")
            }
            Self::NotAnInterruptGate(gate) => {
                write!(
                    f,
                    "the gate of the PMI must be an interrupt gate: its descriptor begins {:#x}",
                    gate.0
                )
            }
        }
    }
}

impl core::error::Error for DsRefusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_interrupt_gate_that_is_present_is_right() {
        let table = [
            (0x0000_8e00_0008_0000, true),
            // A higher DPL.
            (0x0000_ee00_0008_0000, true),
            // A trap gate; not present; a TSS.
            (0x0000_8f00_0008_0000, false),
            (0x0000_0e00_0008_0000, false),
            (0x0000_8900_0008_0000, false),
        ];
        for (gate, right) in table {
            assert_eq!(Gate(gate).is_interrupt_gate(), right, "{gate:#x}");
        }
    }
}
