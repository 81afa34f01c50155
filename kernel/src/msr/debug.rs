//! The register that turns last branch records and branch trace messages on. All processors have it at the same
//! address, but its bits differ by family.

use bitflags::bitflags;

bitflags! {
    /// The functions that the register controls, independent of the positions of their bits on a family.
    ///
    /// Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel Resource Director Technology Features,
    /// "IA32_DEBUGCTL MSR", "MSR_DEBUGCTLA MSR", "MSR_DEBUGCTLB MSR".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct DebugFlags: u16 {
        /// LBR: last branches are recorded in the LBR stack.
        const LBR = 1 << 0;
        /// BTF: TF steps from branch to branch.
        const BTF = 1 << 1;
        /// TR: branch trace messages are sent.
        const TR = 1 << 2;
        /// BTS: branch trace messages go into the BTS buffer.
        const BTS = 1 << 3;
        /// BTINT: an interrupt when the index reaches the threshold; if clear, the buffer is circular.
        const BTINT = 1 << 4;
        /// BTS_OFF_OS: nothing is stored at CPL 0.
        const BTS_OFF_OS = 1 << 5;
        /// BTS_OFF_USR: nothing is stored above CPL 0.
        const BTS_OFF_USR = 1 << 6;
        /// FREEZE_LBRS_ON_PMI.
        const FREEZE_LBRS_ON_PMI = 1 << 7;
        /// FREEZE_PERFMON_ON_PMI.
        const FREEZE_PERFMON_ON_PMI = 1 << 8;
        /// FREEZE_WHILE_SMM.
        const FREEZE_WHILE_SMM = 1 << 9;
    }
}

/// IA32_DEBUGCTL, MSR_DEBUGCTLA, MSR_DEBUGCTLB; DebugCtl on AMD (`0x1d9`).
///
/// Scope: logical processor. [`DebugCtlLayout`] gives the meaning of its bits on Intel's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DebugCtl(pub u64);

impl DebugFlags {
    /// The functions that record branches: no other owner may use them while this driver does.
    pub(crate) const RECORDERS: Self = Self::LBR.union(Self::TR).union(Self::BTS);
}

/// The variants of the register, which differ in the positions of their bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DebugCtlLayout {
    /// IA32_DEBUGCTL: Core Solo and Duo and all of family 06H since.
    Ia32,
    /// MSR_DEBUGCTLA: family 0FH (NetBurst).
    NetBurst,
    /// MSR_DEBUGCTLB: Pentium M.
    PentiumM,
}

impl DebugCtlLayout {
    /// Returns the variant of a processor with this family and model, as CPUID.1 reports them, with the extended fields
    /// added. `None` if the processor has no branch trace messages into memory.
    pub(crate) const fn of(family: u8, model: u8) -> Option<Self> {
        match (family, model) {
            (0x0f, _) => Some(Self::NetBurst),
            (0x06, 0x09 | 0x0d) => Some(Self::PentiumM),
            // Before Pentium M: the P6 family, which has messages on the bus only.
            (0x06, 0x00..=0x0b) => None,
            // Intel has announced that families above 0FH are programmed like 06H.
            (0x06 | 0x10.., _) => Some(Self::Ia32),
            _ => None,
        }
    }

    /// Returns whether this variant has all of these functions, whatever CPUID says about BTS_OFF_OS and BTS_OFF_USR.
    pub(crate) fn has(self, control: DebugFlags) -> bool {
        self.table().iter().fold(DebugFlags::empty(), |all, (flag, _)| all.union(*flag)).contains(control)
    }

    /// Returns the bits of the register for these functions; those that this variant lacks are left out.
    pub(crate) fn bits(self, control: DebugFlags) -> u64 {
        self.table()
            .iter()
            .filter(|(flag, _)| control.contains(*flag))
            .fold(0, |bits, (_, bit)| bits | 1 << bit)
    }

    /// Returns the functions that are on in the register; bits without a name here are left out.
    pub(crate) fn flags(self, register: DebugCtl) -> DebugFlags {
        let set = self.table().iter().filter(|(_, bit)| register.0 >> bit & 1 == 1);
        set.fold(DebugFlags::empty(), |all, (flag, _)| all.union(*flag))
    }

    const fn table(self) -> &'static [(DebugFlags, u8)] {
        match self {
            Self::Ia32 => &[
                (DebugFlags::LBR, 0),
                (DebugFlags::BTF, 1),
                (DebugFlags::TR, 6),
                (DebugFlags::BTS, 7),
                (DebugFlags::BTINT, 8),
                (DebugFlags::BTS_OFF_OS, 9),
                (DebugFlags::BTS_OFF_USR, 10),
                (DebugFlags::FREEZE_LBRS_ON_PMI, 11),
                (DebugFlags::FREEZE_PERFMON_ON_PMI, 12),
                (DebugFlags::FREEZE_WHILE_SMM, 14),
            ],
            Self::NetBurst => &[
                (DebugFlags::LBR, 0),
                (DebugFlags::BTF, 1),
                (DebugFlags::TR, 2),
                (DebugFlags::BTS, 3),
                (DebugFlags::BTINT, 4),
                (DebugFlags::BTS_OFF_OS, 5),
                (DebugFlags::BTS_OFF_USR, 6),
            ],
            // Bits 5:2 control the PB pins and are not used here.
            Self::PentiumM => &[
                (DebugFlags::LBR, 0),
                (DebugFlags::BTF, 1),
                (DebugFlags::TR, 6),
                (DebugFlags::BTS, 7),
                (DebugFlags::BTINT, 8),
            ],
        }
    }
}

values! {
    DebugCtl = 0x1d9,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_has_its_register() {
        let table = [
            (0x0f, 0x04, Some(DebugCtlLayout::NetBurst)),
            (0x0f, 0x06, Some(DebugCtlLayout::NetBurst)),
            (0x06, 0x08, None),
            (0x06, 0x09, Some(DebugCtlLayout::PentiumM)),
            (0x06, 0x0d, Some(DebugCtlLayout::PentiumM)),
            (0x06, 0x0e, Some(DebugCtlLayout::Ia32)),
            (0x06, 0x0f, Some(DebugCtlLayout::Ia32)),
            (0x06, 0x5e, Some(DebugCtlLayout::Ia32)),
            (0x05, 0x04, None),
        ];
        for (family, model, register) in table {
            assert_eq!(DebugCtlLayout::of(family, model), register, "{family:x} {model:x}");
        }
    }

    #[test]
    fn bits_are_where_the_manual_has_them() {
        // (register, TR, BTS, BTINT, BTS_OFF_OS, BTS_OFF_USR)
        let table = [
            (DebugCtlLayout::Ia32, 0x40, 0x80, 0x100, 0x200, 0x400),
            (DebugCtlLayout::NetBurst, 0x4, 0x8, 0x10, 0x20, 0x40),
            (DebugCtlLayout::PentiumM, 0x40, 0x80, 0x100, 0, 0),
        ];
        for (register, tr, bts, btint, off_os, off_usr) in table {
            assert_eq!(register.bits(DebugFlags::TR), tr);
            assert_eq!(register.bits(DebugFlags::BTS), bts);
            assert_eq!(register.bits(DebugFlags::BTINT), btint);
            assert_eq!(register.bits(DebugFlags::BTS_OFF_OS), off_os);
            assert_eq!(register.bits(DebugFlags::BTS_OFF_USR), off_usr);
            for flag in DebugFlags::all().iter().filter(|flag| register.has(*flag)) {
                assert_eq!(register.flags(DebugCtl(register.bits(flag))), flag);
            }
        }
        assert_eq!(DebugCtlLayout::Ia32.bits(DebugFlags::all()), 0x5fc3);
        assert_eq!(DebugCtlLayout::PentiumM.flags(DebugCtl(0x3c)), DebugFlags::empty());
    }
}
