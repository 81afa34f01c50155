//! The instructions that can be executed by hand.

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
    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Word => 2,
            Self::Dword => 4,
            Self::Qword => 8,
        }
    }
}

/// An instruction that [`execute`](crate::guest::execute) can execute by hand.
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
}
