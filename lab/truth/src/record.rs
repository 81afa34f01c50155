//! A record: one retired instruction, one taken branch, or one time.

/// A retired instruction with the processor's state before it, or a [`Branch`], or a time.
///
/// 24 bytes in memory, little-endian: RIP, CR3 (8 bytes each), session, flags, processor, the log's number (2 bytes
/// each). A branch has its source and target addresses in the fields `rip` and `cr3`. A time has the time-stamp counter
/// in the field `rip`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Linear address of the instruction.
    pub rip: u64,
    /// The whole of CR3 before the instruction.
    pub cr3: u64,
    /// The trace session that the guest had announced; 0 if none.
    pub session: u16,
    /// Privilege level and kind of the record.
    pub flags: RecordFlags,
    /// Index of the logical processor, from 0.
    pub cpu: u16,
}

impl Record {
    /// Bytes in memory.
    pub const BYTES: usize = 24;

    /// Makes the record of a branch. It follows the record of the instruction that branched.
    #[must_use]
    pub const fn of_branch(branch: Branch, session: u16, cpu: u16) -> Self {
        let Branch { from, to, kind, from_cpl, to_cpl } = branch;
        let to_cpl = (to_cpl as u16) << RecordFlags::TO_CPL_SHIFT & RecordFlags::TO_CPL;
        let kind = (kind as u16) << RecordFlags::KIND_SHIFT;
        let flags = RecordFlags(RecordFlags::new(from_cpl).0 | RecordFlags::BRANCH | to_cpl | kind);
        Self { rip: from, cr3: to, session, flags, cpu }
    }

    /// Returns the branch if this is the record of a branch of a known kind.
    #[must_use]
    pub const fn branch(self) -> Option<Branch> {
        if self.flags.0 & RecordFlags::BRANCH == 0 {
            return None;
        }
        let to_cpl = ((self.flags.0 & RecordFlags::TO_CPL) >> RecordFlags::TO_CPL_SHIFT) as u8;
        let Some(kind) =
            BranchKind::from_number((self.flags.0 & RecordFlags::KIND) >> RecordFlags::KIND_SHIFT)
        else {
            return None;
        };
        Some(Branch { from: self.rip, to: self.cr3, kind, from_cpl: self.flags.cpl(), to_cpl })
    }

    /// Makes a record of the time: the time-stamp counter that was passed to the model of the tracing hardware with the
    /// instruction of this processor's last instruction record.
    #[must_use]
    pub const fn of_time(tsc: u64, session: u16, cpu: u16) -> Self {
        Self { rip: tsc, cr3: 0, session, flags: RecordFlags(RecordFlags::TIME), cpu }
    }

    /// Returns the time-stamp counter if this is the record of a time.
    #[must_use]
    pub const fn time(self) -> Option<u64> {
        if self.flags.0 & RecordFlags::TIME == 0 { None } else { Some(self.rip) }
    }

    /// Encodes the record as three words.
    #[must_use]
    pub const fn to_words(self) -> [u64; 3] {
        [self.rip, self.cr3, self.session as u64 | (self.flags.0 as u64) << 16 | (self.cpu as u64) << 32]
    }

    /// Decodes a record from three words.
    #[must_use]
    pub const fn from_words([rip, cr3, rest]: [u64; 3]) -> Self {
        Self {
            rip,
            cr3,
            session: rest as u16,
            flags: RecordFlags((rest >> 16) as u16),
            cpu: (rest >> 32) as u16,
        }
    }
}

/// A taken branch, an interrupt or an exception. While branches are recorded, all of them are logged, independent of
/// the guest's filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Branch {
    /// Linear address of the instruction that branched, was interrupted, or caused the exception. For a trap: the
    /// instruction before it.
    pub from: u64,
    /// Linear address of the target.
    pub to: u64,
    /// Kind of the branch.
    pub kind: BranchKind,
    /// Privilege level before the branch.
    pub from_cpl: u8,
    /// Privilege level after the branch.
    pub to_cpl: u8,
}

/// Kind of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BranchKind {
    /// A conditional jump that was taken: Jcc, J*CXZ, LOOP*.
    Conditional = 0,
    /// A near JMP, direct or indirect.
    Jump = 1,
    /// A near CALL, direct or indirect.
    Call = 2,
    /// A near RET.
    Return = 3,
    /// Any other instruction that transfers control: a far transfer, SYSCALL, SYSRET, SYSENTER, SYSEXIT, IRET.
    Far = 4,
    /// An interrupt or an exception, including INT n, INT3, INTO and INT1.
    Event = 5,
}

impl BranchKind {
    const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0 => Self::Conditional,
            1 => Self::Jump,
            2 => Self::Call,
            3 => Self::Return,
            4 => Self::Far,
            5 => Self::Event,
            _ => return None,
        })
    }
}

/// Privilege level and kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordFlags(u16);

impl RecordFlags {
    const CPL: u16 = 0b11;
    const SOFTWARE_INTERRUPT: u16 = 1 << 2;
    const EMULATED: u16 = 1 << 3;
    const BRANCH: u16 = 1 << 4;
    const TO_CPL: u16 = 0b11 << Self::TO_CPL_SHIFT;
    const TO_CPL_SHIFT: u16 = 5;
    const KIND: u16 = 0b111 << Self::KIND_SHIFT;
    const KIND_SHIFT: u16 = 7;
    const TIME: u16 = 1 << 10;
    const TRACED: u16 = 1 << 11;

    /// Returns the flags of an ordinary instruction executed at this privilege level, 0 to 3.
    #[must_use]
    pub const fn new(cpl: u8) -> Self {
        Self(cpl as u16 & Self::CPL)
    }

    /// Marks the instruction as INT n, INT3, INTO or INT1.
    ///
    /// The instruction retired. But a trace names it in a FUP packet (the source address of an event), so a decoder
    /// does not count it as executed.
    #[must_use]
    pub const fn software_interrupt(self) -> Self {
        Self(self.0 | Self::SOFTWARE_INTERRUPT)
    }

    /// Marks the instruction as executed by the monitor itself (STI, MOV SS and a few more). QEMU's processor below
    /// never began the instruction, so a log kept by QEMU does not have it.
    #[must_use]
    pub const fn emulated(self) -> Self {
        Self(self.0 | Self::EMULATED)
    }

    /// Marks the instruction as one that retired while Intel PT was on, with any filters. Others are logged for a
    /// counter or another unit.
    #[must_use]
    pub const fn traced(self) -> Self {
        Self(self.0 | Self::TRACED)
    }

    /// Returns the privilege level that the instruction executed at.
    #[must_use]
    pub const fn cpl(self) -> u8 {
        (self.0 & Self::CPL) as u8
    }

    /// Returns whether the instruction is INT n, INT3, INTO or INT1.
    #[must_use]
    pub const fn is_software_interrupt(self) -> bool {
        self.0 & Self::SOFTWARE_INTERRUPT != 0
    }

    /// Returns whether the monitor executed the instruction itself, so that the processor below never began it.
    #[must_use]
    pub const fn is_emulated(self) -> bool {
        self.0 & Self::EMULATED != 0
    }

    /// Returns whether Intel PT was on when the instruction retired.
    #[must_use]
    pub const fn is_traced(self) -> bool {
        self.0 & Self::TRACED != 0
    }

    /// Returns the bits as written: privilege level 1:0, software interrupt 2, emulated 3, branch 4, privilege level at
    /// the target 6:5, branch kind 9:7, time 10, traced 11.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
}
