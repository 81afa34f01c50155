//! The instructions that the monitor can emulate.

use crate::vmcb::exit_code;

/// Maximum length of an instruction.
pub(super) const MAX_LEN: usize = 15;

/// An operand size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 16 bits.
    Word,
    /// 32 bits.
    Dword,
    /// 64 bits.
    Qword,
}

impl Size {
    /// Returns the size in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Word => 2,
            Self::Dword => 4,
            Self::Qword => 8,
        }
    }
}

/// An instruction that [`execute`](crate::guest::execute) can emulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emulation {
    /// PUSHF, PUSHFD, PUSHFQ.
    Pushf(Size),
    /// POPF, POPFD, POPFQ.
    Popf(Size),
    /// IRET, IRETD, IRETQ.
    Iret(Size),
    /// INT n.
    Int(u8),
    /// INT3.
    Int3,
    /// INT1.
    Int1,
    /// INTO.
    Into,
    /// SYSCALL.
    Syscall,
    /// SYSRET; the 64-bit form returns to 64-bit mode.
    Sysret(Size),
    /// SYSENTER.
    Sysenter,
    /// SYSEXIT; the 64-bit form returns to 64-bit mode.
    Sysexit(Size),
    /// STI.
    Sti,
    /// CLI.
    Cli,
    /// MOV to SS.
    MovSs,
    /// POP SS.
    PopSs(Size),
    /// LSS: TCG (seen in QEMU 7.2) wrongly opens an interrupt shadow after it.
    Lss,
    /// MOV from DR6.
    MovFromDr6,
    /// MOV to DR6.
    MovToDr6,
    /// PAUSE: TCG (seen in QEMU 7.2) loses the single-step trap after it.
    Pause,
    /// HLT.
    Hlt,
}

impl Emulation {
    /// Returns whether the processor must not execute the instruction while the guest is stepped, because it would show
    /// or lose TF, or swallow a step.
    pub const fn when_stepping(self) -> bool {
        !matches!(self, Self::Cli | Self::Hlt)
    }

    /// Returns whether the processor below exits with this code at the instruction.
    ///
    /// INT3 and INTO exit like INT n in TCG (seen in QEMU 7.2).
    pub const fn exits_with(self, code: u64) -> bool {
        matches!(
            (self, code),
            (Self::Pushf(_), exit_code::PUSHF)
                | (Self::Popf(_), exit_code::POPF)
                | (Self::Iret(_), exit_code::IRET)
                | (Self::Int(_) | Self::Int3 | Self::Into, exit_code::SWINT)
                | (Self::Int1, exit_code::ICEBP)
                | (Self::Hlt, exit_code::HLT)
        )
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::vec::Vec;

    #[test]
    fn each_instruction_that_exits_has_one_exit_code() {
        use Emulation::{Cli, Hlt, Int, Int1, Int3, Into, Iret, Popf, Pushf, Sti, Syscall};
        // AMD64 Architecture Programmer's Manual vol. 2, "SVM Intercept Exit Codes".
        for (emulation, expected) in [
            (Pushf(Size::Word), Some(0x70)),
            (Popf(Size::Qword), Some(0x71)),
            (Iret(Size::Qword), Some(0x74)),
            (Int(0x80), Some(0x75)),
            (Int3, Some(0x75)),
            (Into, Some(0x75)),
            (Hlt, Some(0x78)),
            (Int1, Some(0x88)),
            (Cli, None),
            (Sti, None),
            (Syscall, None),
        ] {
            let codes: Vec<u64> = (0..0x100).filter(|code| emulation.exits_with(*code)).collect();
            assert_eq!(codes, Vec::from_iter(expected), "{emulation:?}");
        }
    }
}
