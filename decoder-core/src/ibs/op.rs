//! A sample of an op (micro-operation).

use super::{Access, Caps, IbsErrata, Part};

/// The registers of the op unit, as they were when it had a sample. Registers that the processor lacks are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpRegisters {
    /// IbsOpCtl (`C001_1033`).
    pub ctl: u64,
    /// IbsOpRip (`C001_1034`).
    pub rip: u64,
    /// IbsOpData (`C001_1035`).
    pub data: u64,
    /// IbsOpData2 (`C001_1036`).
    pub data2: u64,
    /// IbsOpData3 (`C001_1037`).
    pub data3: u64,
    /// IbsDcLinAd (`C001_1038`).
    pub dc_linear: u64,
    /// IbsDcPhysAd (`C001_1039`).
    pub dc_physical: u64,
    /// IbsBrTarget (`C001_103B`), with [`Caps::BRN_TRGT`].
    pub br_target: u64,
    /// IbsOpData4 (`C001_103D`), with [`Caps::OP_DATA4`].
    pub data4: u64,
}

/// A sampled op. A field that the processor reports as invalid reads as `None`.
///
/// Source: BKDG 31116, "IBS Execution Control Register" to "IBS DC Physical Address Register"; PPR 56176, "IBS
/// Execution Control" to "IBS Branch Target Address".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpSample {
    part: Part,
    registers: OpRegisters,
}

/// The unit of the period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpCount {
    /// Clocks.
    Cycles,
    /// Dispatched ops.
    Dispatched,
}

/// A retired branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RetiredBranch {
    /// IbsOpBrnTaken: the branch was taken.
    pub taken: bool,
    /// IbsOpBrnMisp: the branch was mispredicted.
    pub mispredicted: bool,
    /// IbsOpReturn: the branch was a return.
    pub is_return: bool,
    /// IbsOpBrnFuse: the op is a branch fused with another instruction. Only with [`Caps::OP_BRN_FUSE`].
    pub fused: Option<bool>,
    /// IbsBrTarget: the branch target. Only with [`Caps::BRN_TRGT`], if it is not 0, and not with erratum 717.
    pub target: Option<u64>,
}

impl OpSample {
    /// Creates the sample in these registers; `None` if IbsOpVal is clear: then there is no sample.
    #[must_use]
    pub const fn new(part: Part, registers: OpRegisters) -> Option<Self> {
        match registers.ctl >> 18 & 1 {
            0 => None,
            _ => Some(Self { part, registers }),
        }
    }

    /// Returns the registers.
    #[must_use]
    pub const fn registers(&self) -> &OpRegisters {
        &self.registers
    }

    /// Returns the processor.
    #[must_use]
    pub const fn part(&self) -> &Part {
        &self.part
    }

    /// Returns the unit of the period.
    #[must_use]
    pub const fn counts(&self) -> OpCount {
        match self.part.caps.has(Caps::OP_CNT) && bit(self.registers.ctl, 19) {
            true => OpCount::Dispatched,
            false => OpCount::Cycles,
        }
    }

    /// Returns the period: 20 bits, or 27 with [`Caps::OP_CNT_EXT`].
    #[must_use]
    pub const fn max_count(&self) -> u32 {
        let low = field(self.registers.ctl, 0, 16) << 4;
        let high =
            if self.part.caps.has(Caps::OP_CNT_EXT) { field(self.registers.ctl, 20, 7) << 20 } else { 0 };
        (low | high) as u32
    }

    /// Returns IbsOpCurCnt: the counter's value since the tagging of the op. Only with [`Caps::RD_WR_OP_CNT`].
    #[must_use]
    pub const fn current_count(&self) -> Option<u32> {
        let bits = if self.part.caps.has(Caps::OP_CNT_EXT) { 27 } else { 20 };
        match self.part.caps.has(Caps::RD_WR_OP_CNT) {
            true => Some(field(self.registers.ctl, 32, bits) as u32),
            false => None,
        }
    }

    /// Returns IbsOpRip: the instruction's linear address. Not if IbsRipInvalid is set.
    #[must_use]
    pub const fn rip(&self) -> Option<u64> {
        match self.part.caps.has(Caps::RIP_INVALID_CHK) && bit(self.registers.data, 38) {
            true => None,
            false => Some(self.registers.rip),
        }
    }

    /// Returns IbsCompToRetCtr: clocks from completion to retirement.
    #[must_use]
    pub const fn completion_to_retire(&self) -> u16 {
        self.registers.data as u16
    }

    /// Returns IbsTagToRetCtr: clocks from tagging to retirement.
    #[must_use]
    pub const fn tag_to_retire(&self) -> u16 {
        (self.registers.data >> 16) as u16
    }

    /// Returns IbsOpMicrocode: the op came from microcode. Since family 17h.
    #[must_use]
    pub const fn microcode(&self) -> Option<bool> {
        self.data_if(40, self.part.is_zen())
    }

    /// Returns IbsOpBrnResync: the op made the processor restart the fetch. Up to family 15h.
    #[must_use]
    pub const fn resync(&self) -> Option<bool> {
        self.data_if(32, self.part.family <= 0x15)
    }

    /// Returns IbsOpMispReturn: a mispredicted return. Up to family 15h, and only for a branch.
    #[must_use]
    pub const fn mispredicted_return(&self) -> Option<bool> {
        self.data_if(33, self.part.family <= 0x15 && self.is_branch())
    }

    /// Returns the branch, if the op is a branch that retired (IbsOpBrnRet).
    #[must_use]
    pub const fn branch(&self) -> Option<RetiredBranch> {
        if !self.is_branch() {
            return None;
        }
        let Self { part, registers } = self;
        let data = registers.data;
        let inaccurate = part.errata().has(IbsErrata::INACCURATE_MAB_AND_TARGET);
        let target = match registers.br_target {
            0 => None,
            target if part.caps.has(Caps::BRN_TRGT) && !inaccurate => Some(target),
            _ => None,
        };
        Some(RetiredBranch {
            taken: bit(data, 35),
            mispredicted: bit(data, 36),
            is_return: bit(data, 34),
            fused: self.data_if(39, part.caps.has(Caps::OP_BRN_FUSE)),
            target,
        })
    }

    /// Returns the memory access, if the op is a load, a store, or both.
    #[must_use]
    pub const fn access(&self) -> Option<Access<'_>> {
        match self.registers.data3 & 0b11 {
            0 => None,
            _ => Some(Access::new(self)),
        }
    }

    /// Returns IbsOpData4, with [`Caps::OP_DATA4`]. The meaning of its bits depends on the processor.
    #[must_use]
    pub const fn data4(&self) -> Option<u64> {
        match self.part.caps.has(Caps::OP_DATA4) {
            true => Some(self.registers.data4),
            false => None,
        }
    }

    const fn is_branch(&self) -> bool {
        bit(self.registers.data, 37)
    }

    const fn data_if(&self, at: u32, valid: bool) -> Option<bool> {
        match valid {
            true => Some(bit(self.registers.data, at)),
            false => None,
        }
    }
}

pub(super) const fn field(register: u64, at: u32, bits: u32) -> u64 {
    register >> at & ((1 << bits) - 1)
}

pub(super) const fn bit(register: u64, at: u32) -> bool {
    field(register, at, 1) == 1
}
