//! IBS errata: deviations of the units of some processors from the manual.

/// A set of errata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IbsErrata(u16);

impl IbsErrata {
    /// 420, family 10h: a tagged op may raise its interrupt after IbsOpEn was cleared. A driver writes a period of 0
    /// first, and then clears the enable bit.
    ///
    /// Source: Revision Guide for AMD Family 10h Processors, 420.
    pub const LATE_OP_INTERRUPT: Self = Self(1 << 0);
    /// 717, family 15h models 00h-0Fh: IbsDcMabHit may be set without IbsDcMiss, and IbsBrTarget may be wrong.
    ///
    /// Source: Revision Guide for AMD Family 15h Models 00h-0Fh Processors, 717.
    pub const INACCURATE_MAB_AND_TARGET: Self = Self(1 << 1);
    /// 718, family 15h models 00h-1Fh: IbsDcL2TlbMiss, IbsDcL2tlbHit2M and IbsDcL2tlbHit1G stay set. A driver writes
    /// 0 to IbsOpData3 before it lets the unit continue.
    ///
    /// Source: Revision Guides for AMD Family 15h Models 00h-0Fh and 10h-1Fh Processors, 718.
    pub const STICKY_DATA3: Self = Self(1 << 2);
    /// 719, family 15h models 10h-1Fh: the fetch counter does not restart by itself. A driver writes 0 to IbsFetchCtl
    /// before it enables it.
    ///
    /// Source: Revision Guide for AMD Family 15h Models 10h-1Fh Processors, 719.
    pub const FETCH_COUNT_QUIRK: Self = Self(1 << 3);
    /// Families 16h to 18h: IbsFetchCnt restarts only at a rising edge of IbsFetchEn, so a driver must clear
    /// IbsFetchEn before each write that sets it.
    ///
    /// Source: Linux, AMD IBS driver, `fetch_count_reset_broken`; no guide is known to name it.
    pub const FETCH_COUNT_RESET: Self = Self(1 << 4);
    /// Family 17h models 00h-1Fh: IBS may be locked by the firmware's settings, and then neither unit counts.
    ///
    /// Source: AMD Research Instruction Based Sampling Toolkit, its driver's workaround; no guide is known to name it.
    pub const LOCKED: Self = Self(1 << 5);
    /// 1197, family 19h models 00h-0Fh: IbsFetchLinAd may be 0.
    ///
    /// Source: Revision Guide for AMD Family 19h Models 00h-0Fh Processors, 1197.
    pub const FETCH_ADDRESS_ZERO: Self = Self(1 << 6);
    /// 1238, family 19h models 00h-0Fh: IbsIcMiss is invalid.
    ///
    /// Source: as 1197.
    pub const IC_MISS_INVALID: Self = Self(1 << 7);
    /// 1293, family 19h models 00h-0Fh: for a software prefetch, and for a miss without a miss address buffer,
    /// IbsOpData2, IbsL2Miss and IbsOpDcMissOpenMemReqs are invalid.
    ///
    /// Source: as 1197.
    pub const DATA2_INVALID: Self = Self(1 << 8);
    /// 1347, family 19h models 00h-0Fh: IbsL1TlbPgSz is 0 for 4 KiB, 1 for 16 KiB, 2 for 2 MiB, 3 for 1 GiB.
    ///
    /// Source: as 1197.
    pub const L1_TLB_PAGE_SIZES: Self = Self(1 << 9);
    /// 1606, Zen 5: the load latency filter lets other samples through unless the L3 miss filter is enabled too. A
    /// driver sets IbsOpL3MissOnly with it.
    ///
    /// Source: Revision Guide for AMD Family 1Ah Models 00h-0Fh Processors, 1606; for the other models of Zen 5: Linux,
    /// AMD IBS driver, `perf_ibs_init`.
    pub const LATENCY_NEEDS_L3_MISS: Self = Self(1 << 10);

    const ZEN3: Self = Self(
        Self::FETCH_ADDRESS_ZERO.0
            | Self::IC_MISS_INVALID.0
            | Self::DATA2_INVALID.0
            | Self::L1_TLB_PAGE_SIZES.0,
    );

    /// Returns the errata of a displayed family and model.
    #[must_use]
    pub const fn of(family: u8, model: u8) -> Self {
        match (family, model) {
            (0x10, _) => Self::LATE_OP_INTERRUPT,
            (0x15, 0x00..=0x0f) => Self::INACCURATE_MAB_AND_TARGET.and(Self::STICKY_DATA3),
            (0x15, 0x10..=0x1f) => Self::STICKY_DATA3.and(Self::FETCH_COUNT_QUIRK),
            (0x17, 0x00..=0x1f) => Self::FETCH_COUNT_RESET.and(Self::LOCKED),
            (0x16..=0x18, _) => Self::FETCH_COUNT_RESET,
            (0x19, 0x00..=0x0f) => Self::ZEN3,
            (0x1a, 0x00..=0x2f | 0x40..=0x4f | 0x60..=0x7f) => Self::LATENCY_NEEDS_L3_MISS,
            _ => Self(0),
        }
    }

    /// Returns true if at least one of `errata` is in the set.
    #[must_use]
    pub const fn has(self, errata: Self) -> bool {
        self.0 & errata.0 != 0
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
