//! The register that turns branch trace messages on, by family.

use bitflags::bitflags;

bitflags! {
    /// What the register controls, whichever bits that are on this family.
    ///
    /// Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel Resource Director Technology Features,
    /// "IA32_DEBUGCTL MSR", "MSR_DEBUGCTLA MSR", "MSR_DEBUGCTLB MSR".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Control: u16 {
        /// LBR: last branches are recorded in the LBR stack.
        const LBR = 1 << 0;
        /// BTF: TF steps from branch to branch.
        const BTF = 1 << 1;
        /// TR: branch trace messages are sent.
        const TR = 1 << 2;
        /// BTS: branch trace messages go into the BTS buffer.
        const BTS = 1 << 3;
        /// BTINT: an interrupt at the threshold; clear, the buffer is circular.
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

/// Which register it is. All have the address `0x1d9`; the bits differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRegister {
    /// IA32_DEBUGCTL: Core Solo and Duo and all of family 06H since.
    DebugCtl,
    /// MSR_DEBUGCTLA: family 0FH (NetBurst).
    DebugCtlA,
    /// MSR_DEBUGCTLB: Pentium M.
    DebugCtlB,
}

impl ControlRegister {
    /// The register's address.
    pub const ADDRESS: u32 = 0x1d9;

    /// The one of a processor with this family and model, as CPUID.1 shows them with the extended fields added;
    /// `None` where there are no branch trace messages into memory.
    #[must_use]
    pub const fn of(family: u8, model: u8) -> Option<Self> {
        match (family, model) {
            (0x0f, _) => Some(Self::DebugCtlA),
            (0x06, 0x09 | 0x0d) => Some(Self::DebugCtlB),
            // Before Pentium M: the P6 family, which has messages on the bus only.
            (0x06, 0x00..=0x0b) => None,
            // Families above 0FH that Intel has announced are programmed as 06H.
            (0x06 | 0x10.., _) => Some(Self::DebugCtl),
            _ => None,
        }
    }

    /// What of it this register has, whatever CPUID says of BTS_OFF_OS and BTS_OFF_USR.
    #[must_use]
    pub fn has(self, control: Control) -> bool {
        self.table().iter().fold(Control::empty(), |all, (flag, _)| all.union(*flag)).contains(control)
    }

    /// The bits of the register that stand for `control`; what it does not have is left out.
    #[must_use]
    pub fn bits(self, control: Control) -> u64 {
        self.table()
            .iter()
            .filter(|(flag, _)| control.contains(*flag))
            .fold(0, |bits, (_, bit)| bits | 1 << bit)
    }

    /// What the bits of the register mean; those without a name here are left out.
    #[must_use]
    pub fn control(self, bits: u64) -> Control {
        let set = self.table().iter().filter(|(_, bit)| bits >> bit & 1 == 1);
        set.fold(Control::empty(), |all, (flag, _)| all.union(*flag))
    }

    const fn table(self) -> &'static [(Control, u8)] {
        match self {
            Self::DebugCtl => &[
                (Control::LBR, 0),
                (Control::BTF, 1),
                (Control::TR, 6),
                (Control::BTS, 7),
                (Control::BTINT, 8),
                (Control::BTS_OFF_OS, 9),
                (Control::BTS_OFF_USR, 10),
                (Control::FREEZE_LBRS_ON_PMI, 11),
                (Control::FREEZE_PERFMON_ON_PMI, 12),
                (Control::FREEZE_WHILE_SMM, 14),
            ],
            Self::DebugCtlA => &[
                (Control::LBR, 0),
                (Control::BTF, 1),
                (Control::TR, 2),
                (Control::BTS, 3),
                (Control::BTINT, 4),
                (Control::BTS_OFF_OS, 5),
                (Control::BTS_OFF_USR, 6),
            ],
            // Bits 5:2 are the PB pins' and not ours.
            Self::DebugCtlB => &[
                (Control::LBR, 0),
                (Control::BTF, 1),
                (Control::TR, 6),
                (Control::BTS, 7),
                (Control::BTINT, 8),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_has_its_register() {
        let table = [
            (0x0f, 0x04, Some(ControlRegister::DebugCtlA)),
            (0x0f, 0x06, Some(ControlRegister::DebugCtlA)),
            (0x06, 0x08, None),
            (0x06, 0x09, Some(ControlRegister::DebugCtlB)),
            (0x06, 0x0d, Some(ControlRegister::DebugCtlB)),
            (0x06, 0x0e, Some(ControlRegister::DebugCtl)),
            (0x06, 0x0f, Some(ControlRegister::DebugCtl)),
            (0x06, 0x5e, Some(ControlRegister::DebugCtl)),
            (0x05, 0x04, None),
        ];
        for (family, model, register) in table {
            assert_eq!(ControlRegister::of(family, model), register, "{family:x} {model:x}");
        }
    }

    #[test]
    fn bits_are_where_the_manual_has_them() {
        // (register, TR, BTS, BTINT, BTS_OFF_OS, BTS_OFF_USR)
        let table = [
            (ControlRegister::DebugCtl, 0x40, 0x80, 0x100, 0x200, 0x400),
            (ControlRegister::DebugCtlA, 0x4, 0x8, 0x10, 0x20, 0x40),
            (ControlRegister::DebugCtlB, 0x40, 0x80, 0x100, 0, 0),
        ];
        for (register, tr, bts, btint, off_os, off_usr) in table {
            assert_eq!(register.bits(Control::TR), tr);
            assert_eq!(register.bits(Control::BTS), bts);
            assert_eq!(register.bits(Control::BTINT), btint);
            assert_eq!(register.bits(Control::BTS_OFF_OS), off_os);
            assert_eq!(register.bits(Control::BTS_OFF_USR), off_usr);
            for flag in Control::all().iter().filter(|flag| register.has(*flag)) {
                assert_eq!(register.control(register.bits(flag)), flag);
            }
        }
        assert_eq!(ControlRegister::DebugCtl.bits(Control::all()), 0x5fc3);
        assert_eq!(ControlRegister::DebugCtlB.control(0x3c), Control::empty());
    }
}
