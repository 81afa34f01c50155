//! IA32_DEBUGCTL, as far as it excludes the trace.

use super::Register;
use bitflags::bitflags;

bitflags! {
    /// IA32_DEBUGCTL (`0x1d9`): the bits of other branch recorders.
    ///
    /// Scope: logical processor. Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel Resource Director
    /// Technology Features, "IA32_DEBUGCTL MSR".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DebugCtl: u64 {
        /// LBR: last branches are recorded.
        const LBR = 1 << 0;
        /// TR: branch trace messages are sent.
        const TR = 1 << 6;
        /// BTS: branch trace messages go to the DS area.
        const BTS = 1 << 7;
    }
}

impl Register for DebugCtl {
    const ADDRESS: u32 = 0x1d9;

    fn from_bits(bits: u64) -> Self {
        Self::from_bits_retain(bits)
    }

    fn to_bits(self) -> u64 {
        self.bits()
    }
}
