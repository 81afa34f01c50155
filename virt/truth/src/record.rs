//! One retired instruction.

/// An instruction that retired, and where the processor stood before it.
///
/// 24 bytes in memory, little-endian: RIP, CR3 (8 each), session, flags, processor, zero (2 each).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Linear address of the instruction.
    pub rip: u64,
    /// CR3 before the instruction, whole.
    pub cr3: u64,
    /// The trace session the guest had announced; 0: none.
    pub session: u16,
    /// Level and kind.
    pub flags: Flags,
    /// Index of the logical processor, from 0.
    pub cpu: u16,
}

impl Record {
    /// Bytes in memory.
    pub const BYTES: usize = 24;

    /// The three words it is written as.
    #[must_use]
    pub const fn to_words(self) -> [u64; 3] {
        [self.rip, self.cr3, self.session as u64 | (self.flags.0 as u64) << 16 | (self.cpu as u64) << 32]
    }

    /// The record three words stand for.
    #[must_use]
    pub const fn from_words([rip, cr3, rest]: [u64; 3]) -> Self {
        Self { rip, cr3, session: rest as u16, flags: Flags((rest >> 16) as u16), cpu: (rest >> 32) as u16 }
    }
}

/// Level and kind of a retired instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flags(u16);

impl Flags {
    const CPL: u16 = 0b11;
    const SOFTWARE_INTERRUPT: u16 = 1 << 2;
    const BY_HAND: u16 = 1 << 3;

    /// An ordinary instruction executed at this privilege level, 0 to 3.
    #[must_use]
    pub const fn new(cpl: u8) -> Self {
        Self(cpl as u16 & Self::CPL)
    }

    /// The same, of an instruction that is INT n, INT3, INTO or INT1.
    ///
    /// It retired; but a trace names it in a FUP as the source of an event, so a decoder does not count it as executed.
    #[must_use]
    pub const fn software_interrupt(self) -> Self {
        Self(self.0 | Self::SOFTWARE_INTERRUPT)
    }

    /// The same, of an instruction that the monitor executed without the processor below having begun it (STI, MOV SS and
    /// a few more): a log kept by that processor, QEMU's, does not have it.
    #[must_use]
    pub const fn by_hand(self) -> Self {
        Self(self.0 | Self::BY_HAND)
    }

    /// Privilege level the instruction executed at.
    #[must_use]
    pub const fn cpl(self) -> u8 {
        (self.0 & Self::CPL) as u8
    }

    /// Whether the instruction is INT n, INT3, INTO or INT1.
    #[must_use]
    pub const fn is_software_interrupt(self) -> bool {
        self.0 & Self::SOFTWARE_INTERRUPT != 0
    }

    /// Whether the processor below never began the instruction.
    #[must_use]
    pub const fn is_by_hand(self) -> bool {
        self.0 & Self::BY_HAND != 0
    }

    /// The bits as written: level 1:0, software interrupt 2, by hand 3.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }
}
