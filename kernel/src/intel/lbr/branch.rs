//! A last branch record as a value.

/// A branch, an interrupt or an exception.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Branch {
    /// The source address.
    pub from: u64,
    /// The target address.
    pub to: u64,
    /// True if the target or direction was mispredicted, if the processor reports that.
    pub mispredicted: Option<bool>,
    /// True if the branch was within a transaction.
    pub in_tsx: bool,
    /// True if the branch was the abort of a transaction.
    pub tsx_abort: bool,
    /// The number of core cycles since the previous record, at most `0xffff`, if the processor reports that.
    pub cycles: Option<u16>,
    /// The kind of branch, if the processor reports that.
    pub kind: Option<BranchType>,
    /// The number of events that general-purpose counters 0 to 3 counted since the previous record, 3 for 3 and more,
    /// if the processor reports that ([`LbrCapabilities::event_counters`]). It is 0 for a counter whose event is not
    /// counted in the records.
    ///
    /// Source: Linux, `arch/x86/include/asm/msr-index.h`, LBR_INFO_BR_CNTR_OFFSET and those after it.
    ///
    /// [`LbrCapabilities::event_counters`]: super::LbrCapabilities::event_counters
    pub events: Option<[u8; 4]>,
}

impl Branch {
    /// Returns whether the source or the target is in the upper half of the address space, where most kernels are.
    pub(crate) const fn is_in_upper_half(&self) -> bool {
        (self.from | self.to) >> 63 == 1
    }
}

/// IA32_LBR_x_INFO.BR_TYPE: the kind of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchType {
    /// COND: a conditional jump.
    Conditional,
    /// NEAR_IND_JMP.
    NearIndirectJump,
    /// NEAR_REL_JMP.
    NearRelativeJump,
    /// NEAR_IND_CALL.
    NearIndirectCall,
    /// NEAR_REL_CALL.
    NearRelativeCall,
    /// NEAR_RET.
    NearReturn,
    /// OTHER: far branches, interrupts, exceptions.
    Other,
    /// A value that this driver does not know.
    Unknown(u8),
}

/// The kind of addresses in a record, and the places of the other information: `IA32_PERF_CAPABILITIES[5:0]`.
///
/// Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel Resource Director Technology Features, "LBR Stack and
/// Intel 64 Processors".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LbrFormat {
    /// 0: 32 bits, offsets in the code segment.
    Bits32,
    /// 1: linear addresses.
    Lip,
    /// 2: offsets in the code segment.
    Eip,
    /// 3: offsets; the misprediction in the source's bit 63. Format 4 is decoded so, too, on processors without TSX,
    /// whose bits 62:61 need not equal the address's sign.
    EipFlags,
    /// 4: offsets; misprediction and transaction in the source's bits 63:61.
    EipFlagsTsx,
    /// 5: offsets; all other information in MSR_LBR_INFO_x.
    EipInfo,
    /// 6: linear addresses; the misprediction in the source's bit 63, the cycles in the target's bits 63:48.
    LipFlagsCycles,
    /// 7: linear addresses; all other information in MSR_LBR_INFO_x.
    LipInfo,
    /// The architectural LBRs.
    Architectural {
        /// True if addresses are linear, not offsets.
        linear: bool,
        /// IA32_LBR_x_INFO.MISPRED.
        mispredicted: bool,
        /// IA32_LBR_x_INFO.CYC_CNT.
        cycles: bool,
        /// IA32_LBR_x_INFO.BR_TYPE.
        kind: bool,
        /// IA32_LBR_x_INFO bits 39:32: the events of four counters.
        events: bool,
    },
}

impl LbrFormat {
    /// Returns the format with this number, if it is known.
    pub(super) const fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Bits32,
            1 => Self::Lip,
            2 => Self::Eip,
            3 => Self::EipFlags,
            4 => Self::EipFlagsTsx,
            5 => Self::EipInfo,
            6 => Self::LipFlagsCycles,
            7 => Self::LipInfo,
            _ => return None,
        })
    }

    /// Returns whether the format needs MSR_LBR_INFO_x.
    pub(super) const fn has_info(self) -> bool {
        matches!(self, Self::EipInfo | Self::LipInfo | Self::Architectural { .. })
    }

    /// Decodes a record from its registers; `None` for a record that was never written.
    pub(super) fn branch(self, from: u64, to: u64, info: u64) -> Option<Branch> {
        if from == 0 && to == 0 {
            return None;
        }
        let plain = Branch { from, to, ..Branch::default() };
        let flag = |bits: u64, bit: u32| bits >> bit & 1 == 1;
        Some(match self {
            Self::Bits32 => Branch { from: u64::from(from as u32), to: u64::from(to as u32), ..plain },
            Self::Lip | Self::Eip => plain,
            Self::EipFlags => Branch { from: extend(from, 61), mispredicted: Some(flag(from, 63)), ..plain },
            Self::EipFlagsTsx => Branch {
                from: extend(from, 61),
                mispredicted: Some(flag(from, 63)),
                in_tsx: flag(from, 62),
                tsx_abort: flag(from, 61),
                ..plain
            },
            Self::LipFlagsCycles => Branch {
                from: extend(from, 63),
                to: extend(to, 48),
                mispredicted: Some(flag(from, 63)),
                cycles: Some((to >> 48) as u16),
                ..plain
            },
            Self::EipInfo | Self::LipInfo => Branch {
                mispredicted: Some(flag(info, 63)),
                in_tsx: flag(info, 62),
                tsx_abort: flag(info, 61),
                cycles: Some(info as u16),
                ..plain
            },
            Self::Architectural { mispredicted, cycles, kind, events, .. } => Branch {
                mispredicted: mispredicted.then_some(flag(info, 63)),
                in_tsx: flag(info, 62),
                tsx_abort: flag(info, 61),
                cycles: (cycles && flag(info, 60)).then_some(info as u16),
                kind: kind.then_some(BranchType::of((info >> 56) as u8 & 0xf)),
                events: events.then_some([32, 34, 36, 38].map(|low| (info >> low) as u8 & 0b11)),
                ..plain
            },
        })
    }
}

impl BranchType {
    const fn of(bits: u8) -> Self {
        match bits {
            0 => Self::Conditional,
            1 => Self::NearIndirectJump,
            2 => Self::NearRelativeJump,
            3 => Self::NearIndirectCall,
            4 => Self::NearRelativeCall,
            5 => Self::NearReturn,
            // Bits 2:0 have no meaning.
            8..=15 => Self::Other,
            _ => Self::Unknown(bits),
        }
    }
}

/// Returns an address whose bits from `flags` on hold other information: the bit below them is sign-extended.
const fn extend(address: u64, flags: u32) -> u64 {
    let shift = 64 - flags;
    ((address << shift) as i64 >> shift) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: u64 = 0xffff_ffff_8123_4567;
    const ALL: LbrFormat = LbrFormat::Architectural {
        linear: true,
        mispredicted: true,
        cycles: true,
        kind: true,
        events: false,
    };

    #[test]
    fn each_format_has_its_flags_where_the_manual_has_them() {
        let plain = Branch { from: KERNEL, to: 0x40_1000, ..Branch::default() };
        let hit = Branch { mispredicted: Some(false), ..plain };
        let missed = Branch { mispredicted: Some(true), ..plain };
        let info = 1 << 63 | 1 << 62 | 1 << 61 | 1 << 60 | 5 << 56 | 0x1234;
        let full = Branch { in_tsx: true, tsx_abort: true, cycles: Some(0x1234), ..missed };
        // (format, from, to, info, branch)
        let table = [
            (0, 0x1_0000_1000, 0x2000, 0, Branch { from: 0x1000, to: 0x2000, ..Branch::default() }),
            (1, KERNEL, 0x40_1000, !0, plain),
            (2, KERNEL, 0x40_1000, !0, plain),
            (3, KERNEL, 0x40_1000, 0, missed),
            (3, KERNEL & !(1 << 63), 0x40_1000, 0, hit),
            // As format 4 without TSX has it.
            (3, KERNEL & !(7 << 61), 0x40_1000, 0, hit),
            (3, KERNEL & !(3 << 61), 0x40_1000, 0, missed),
            (4, KERNEL & !(7 << 61), 0x40_1000, 0, hit),
            (4, KERNEL & !(5 << 61), 0x40_1000, 0, Branch { in_tsx: true, ..hit }),
            (4, KERNEL & !(6 << 61), 0x40_1000, 0, Branch { tsx_abort: true, ..hit }),
            (4, KERNEL, 0x40_1000, 0, Branch { in_tsx: true, tsx_abort: true, ..missed }),
            (5, KERNEL, 0x40_1000, info, full),
            (6, KERNEL & !(1 << 63), 0x77 << 48 | 0x40_1000, 0, Branch { cycles: Some(0x77), ..hit }),
            (7, KERNEL, 0x40_1000, info, full),
        ];
        for (format, from, to, info, branch) in table {
            assert_eq!(
                LbrFormat::of(format).unwrap().branch(from, to, info),
                Some(branch),
                "format {format}"
            );
        }
        let kind = Some(BranchType::NearReturn);
        assert_eq!(ALL.branch(KERNEL, 0x40_1000, info), Some(Branch { kind, ..full }));
        // CYC_CNT means nothing without its valid bit.
        let untimed = Branch { cycles: None, kind, ..full };
        assert_eq!(ALL.branch(KERNEL, 0x40_1000, info & !(1 << 60)), Some(untimed));
        assert_eq!(LbrFormat::of(8), None);
    }

    #[test]
    fn a_record_counts_the_events_of_four_counters() {
        let format = LbrFormat::Architectural {
            linear: true,
            mispredicted: false,
            cycles: false,
            kind: false,
            events: true,
        };
        // Two bits for each counter, from bit 32 on.
        for (info, events) in [
            (0, [0; 4]),
            (0b11_10_01_00 << 32, [0, 1, 2, 3]),
            (1 << 32, [1, 0, 0, 0]),
            (1 << 39, [0, 0, 0, 2]),
            (!(0xff << 32), [0; 4]),
        ] {
            assert_eq!(format.branch(1, 2, info).unwrap().events, Some(events), "{info:#x}");
        }
        assert_eq!(ALL.branch(1, 2, !0).unwrap().events, None);
    }

    #[test]
    fn what_was_never_written_is_no_branch() {
        for format in (0..8).filter_map(LbrFormat::of).chain([ALL]) {
            assert_eq!(format.branch(0, 0, 0x1234), None);
            // One of the two addresses may be 0.
            let ends = |from, to| format.branch(from, to, 0).map(|branch| (branch.from, branch.to));
            assert_eq!(
                (ends(0x1000, 0), ends(0, 0x1000)),
                (Some((0x1000, 0)), Some((0, 0x1000))),
                "{format:?}"
            );
        }
    }

    #[test]
    fn branch_types_are_the_manuals() {
        let table = [
            (0, BranchType::Conditional),
            (1, BranchType::NearIndirectJump),
            (2, BranchType::NearRelativeJump),
            (3, BranchType::NearIndirectCall),
            (4, BranchType::NearRelativeCall),
            (5, BranchType::NearReturn),
            (6, BranchType::Unknown(6)),
            (8, BranchType::Other),
            (7, BranchType::Unknown(7)),
            (12, BranchType::Other),
            (15, BranchType::Other),
        ];
        for (bits, kind) in table {
            assert_eq!(ALL.branch(1, 2, bits << 56).unwrap().kind, Some(kind));
        }
    }
}
