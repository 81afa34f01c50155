//! What processors are known to do otherwise than the manual says, as far as a driver must care.

use bitflags::bitflags;

bitflags! {
    /// Errata of one processor model.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Errata: u32 {
        /// BDM106 (Broadwell): IA32_RTIT_CTL with TraceEn and without BranchEn raises #GP.
        const BRANCH_EN_MUST_BE_SET = 1 << 0;
        /// TGL052, ADL037, RPL017: single-range output of more than 4 KiB may hold wrong data.
        const SINGLE_RANGE_ABOVE_4K = 1 << 1;
    }
}

impl Errata {
    /// Those of a display family and model.
    ///
    /// Source: Intel's specification updates of the processors named at each flag.
    #[must_use]
    pub const fn of(family: u8, model: u8) -> Self {
        match (family, model) {
            (6, 0x3d | 0x47 | 0x4f | 0x56) => Self::BRANCH_EN_MUST_BE_SET,
            (6, 0x8c | 0x8d | 0x97 | 0x9a | 0xb7 | 0xba | 0xbf) => Self::SINGLE_RANGE_ABOVE_4K,
            _ => Self::empty(),
        }
    }
}
