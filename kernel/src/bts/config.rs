//! What is to be recorded, checked before anything is written.

use super::Control;
use crate::ds::{BufferMode, DsCapabilities};
use core::fmt;

/// Which branches go into the buffer, and how its interrupt comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BtsConfig {
    os: bool,
    user: bool,
    gate: Option<Gate>,
}

impl BtsConfig {
    /// Branches at all levels.
    #[must_use]
    pub const fn new() -> Self {
        Self { os: true, user: true, gate: None }
    }

    /// Whether branches at CPL 0 are stored. Excluding them needs `CPUID.1:ECX[4]`. A branch between levels may still
    /// come with an address of the kernel's: records are for privileged eyes only.
    #[must_use]
    pub const fn os(self, os: bool) -> Self {
        Self { os, ..self }
    }

    /// Whether branches above CPL 0 are stored. Excluding them needs `CPUID.1:ECX[4]`. With neither, messages are sent
    /// and nothing is stored.
    #[must_use]
    pub const fn user(self, user: bool) -> Self {
        Self { user, ..self }
    }

    /// The IDT's gate that PMIs go through: the one of LVT PC's vector, or vector 2 for NMIs. Needed where the buffer
    /// asks for PMIs.
    #[must_use]
    pub const fn gate(self, gate: Gate) -> Self {
        Self { gate: Some(gate), ..self }
    }

    /// The bits of the control register for a buffer of this mode.
    ///
    /// # Errors
    ///
    /// This processor cannot do it, or the gate is not right.
    pub fn check(&self, capabilities: &DsCapabilities, mode: BufferMode) -> Result<Control, BtsRefusal> {
        if !capabilities.bts {
            return Err(BtsRefusal::Unavailable);
        }
        let mut control = Control::TR.union(Control::BTS);
        if !self.os {
            control |= Control::BTS_OFF_OS;
        }
        if !self.user {
            control |= Control::BTS_OFF_USR;
        }
        let all_levels = self.os && self.user;
        if !all_levels && !capabilities.cpl_qualified {
            return Err(BtsRefusal::CplQualified);
        }
        if let BufferMode::Interrupt { .. } = mode {
            let gate = self.gate.ok_or(BtsRefusal::NoGate)?;
            if !gate.is_interrupt_gate() {
                return Err(BtsRefusal::NotAnInterruptGate(gate));
            }
            control |= Control::BTINT;
        }
        Ok(control)
    }
}

impl Default for BtsConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// A gate of the IDT: the low eight bytes of its descriptor.
///
/// Source: SDM vol. 3, Interrupt and Exception Handling, "IDT Descriptors", "64-Bit Mode IDT".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate(pub u64);

impl Gate {
    /// Whether it is present and clears RFLAGS.IF: with a trap gate the handler could be interrupted while it works on
    /// the area.
    #[must_use]
    pub const fn is_interrupt_gate(self) -> bool {
        // P, S = 0, type 1110B.
        self.0 >> 40 & 0b1001_1111 == 0b1000_1110
    }
}

/// Why branches cannot be recorded so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BtsRefusal {
    /// `IA32_MISC_ENABLE[11]` is 1.
    Unavailable,
    /// `CPUID.1:ECX[4]` (CPL-qualified debug store) is not there.
    CplQualified,
    /// The buffer asks for PMIs, and nobody says through which gate they come.
    NoGate,
    /// The gate is a trap gate, or not present.
    NotAnInterruptGate(Gate),
}

impl fmt::Display for BtsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable => f.write_str("IA32_MISC_ENABLE[11] (branch trace storage unavailable) is 1"),
            Self::CplQualified => f.write_str("CPUID.1:ECX[4] (CPL-qualified debug store) is not there"),
            Self::NoGate => {
                f.write_str("the buffer asks for PMIs, and the configuration names no gate for them")
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

impl core::error::Error for BtsRefusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bts::ControlRegister;
    use crate::ds::DsLayout;

    const INTERRUPT_GATE: Gate = Gate(0x0000_8e00_0008_0000);
    const TRAP_GATE: Gate = Gate(0x0000_8f00_0008_0000);

    fn capabilities() -> DsCapabilities {
        DsCapabilities {
            control: ControlRegister::DebugCtl,
            layout: DsLayout::Bits64,
            cpl_qualified: true,
            bts: true,
            pebs: false,
            processor_trace: false,
            global_status: true,
            linear_address_bits: 48,
        }
    }

    #[test]
    fn the_flags_are_the_manuals_table() {
        let all = BtsConfig::new();
        let gate = all.gate(INTERRUPT_GATE);
        // (configuration, mode, IA32_DEBUGCTL)
        let table = [
            (all, BufferMode::Circular, 0xc0),
            (gate, BufferMode::INTERRUPT, 0x1c0),
            (all.user(false), BufferMode::Circular, 0x4c0),
            (gate.user(false), BufferMode::INTERRUPT, 0x5c0),
            (all.os(false), BufferMode::Circular, 0x2c0),
            (gate.os(false), BufferMode::INTERRUPT, 0x3c0),
            (all.os(false).user(false), BufferMode::Circular, 0x6c0),
        ];
        for (config, mode, bits) in table {
            let control = config.check(&capabilities(), mode).unwrap();
            assert_eq!(ControlRegister::DebugCtl.bits(control), bits, "{config:?} {mode:?}");
        }
    }

    #[test]
    fn refuses_what_is_not_there() {
        let all = BtsConfig::new();
        let plain = DsCapabilities { cpl_qualified: false, ..capabilities() };
        let absent = DsCapabilities { bts: false, ..capabilities() };
        let not_present = Gate(INTERRUPT_GATE.0 & !(1 << 47));
        let table = [
            (all, absent, BufferMode::Circular, BtsRefusal::Unavailable),
            (all.os(false), plain, BufferMode::Circular, BtsRefusal::CplQualified),
            (all.user(false), plain, BufferMode::Circular, BtsRefusal::CplQualified),
            (all, plain, BufferMode::INTERRUPT, BtsRefusal::NoGate),
            (all.gate(TRAP_GATE), plain, BufferMode::INTERRUPT, BtsRefusal::NotAnInterruptGate(TRAP_GATE)),
            (
                all.gate(not_present),
                plain,
                BufferMode::INTERRUPT,
                BtsRefusal::NotAnInterruptGate(not_present),
            ),
        ];
        for (config, capabilities, mode, refusal) in table {
            assert_eq!(config.check(&capabilities, mode), Err(refusal));
        }
    }
}
