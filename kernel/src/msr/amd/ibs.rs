//! The control registers of Instruction Based Sampling.

use bitflags::bitflags;

bitflags! {
    /// IbsFetchCtl (`C001_1030`): sampling of instruction fetches.
    ///
    /// Reset: 0. Scope: logical processor. Source: APM vol. 2, Debug and Performance Resources, "Instruction-Based
    /// Sampling"; BKDG 31116, "IBS Fetch Control Register".
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct IbsFetchCtl: u64 {
        /// IbsFetchMaxCnt: bits 19:4 of the period, in completed fetches.
        const MAX_CNT = 0xffff;
        /// IbsFetchCnt: bits 19:4 of the count.
        const CNT = 0xffff << 16;
        /// IbsFetchLat: clocks from the start of the fetch to its end.
        const LAT = 0xffff << 32;
        /// IbsFetchEn: the unit samples.
        const EN = 1 << 48;
        /// IbsFetchVal: a sample is present.
        const VAL = 1 << 49;
        /// IbsFetchComp: the fetch delivered its bytes to the decoder.
        const COMP = 1 << 50;
        /// IbsIcMiss: the fetch missed the instruction cache.
        const IC_MISS = 1 << 51;
        /// IbsPhyAddrValid: the physical address is valid.
        const PHY_ADDR_VALID = 1 << 52;
        /// IbsL1TlbPgSz: the page size in the first level TLB.
        const L1_TLB_PG_SZ = 0b11 << 53;
        /// IbsL1TlbMiss: the fetch missed the first level TLB.
        const L1_TLB_MISS = 1 << 55;
        /// IbsL2TlbMiss: the fetch missed the second level TLB.
        const L2_TLB_MISS = 1 << 56;
        /// IbsRandEn: the low bits of the period are random.
        const RAND_EN = 1 << 57;
        /// IbsFetchL3MissOnly: only fetches that missed the L3 are sampled, since Zen 4.
        const L3_MISS_ONLY = 1 << 59;
    }
}

impl IbsFetchCtl {
    /// Returns the period, in completed fetches.
    #[must_use]
    pub const fn max_count(self) -> u32 {
        (self.bits() as u32 & 0xffff) << 4
    }

    /// Sets the period to bits 19:4 of `count`. Its low four bits are always zero in the unit.
    pub(crate) const fn with_max_count(self, count: u32) -> Self {
        Self::from_bits_retain(self.difference(Self::MAX_CNT).bits() | (count >> 4 & 0xffff) as u64)
    }
}

bitflags! {
    /// IbsOpCtl (`C001_1033`): sampling of ops.
    ///
    /// Reset: 0. Scope: logical processor. Source: APM vol. 2, Debug and Performance Resources,
    /// "Instruction-Based Sampling"; BKDG 31116, "IBS Execution Control Register".
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct IbsOpCtl: u64 {
        /// IbsOpMaxCnt: bits 19:4 of the period.
        const MAX_CNT = 0xffff;
        /// IbsOpL3MissOnly: only ops that missed the L3 are sampled, since Zen 4.
        const L3_MISS_ONLY = 1 << 16;
        /// IbsOpEn: the unit samples.
        const EN = 1 << 17;
        /// IbsOpVal: a sample is present.
        const VAL = 1 << 18;
        /// IbsOpCntCtl: the period is in dispatched ops instead of clocks, since revision C of family 10h.
        const CNT_CTL = 1 << 19;
        /// IbsOpMaxCnt, bits 26:20 of the period, where CPUID announces OpCntExt.
        const MAX_CNT_EXT = 0x7f << 20;
        /// IbsOpCurCnt: the count; 20 bits without OpCntExt.
        const CUR_CNT = 0x7ff_ffff << 32;
        /// LdLatThrsh: the shortest latency of a sampled load, in the processor's encoding, since Zen 5.
        const LD_LAT_THRSH = 0xf << 59;
        /// LdLatEn: loads below that latency are not sampled.
        const LD_LAT_EN = 1 << 63;
    }
}

impl IbsOpCtl {
    /// Returns the period, in clocks or dispatched ops.
    #[must_use]
    pub const fn max_count(self) -> u32 {
        (self.bits() as u32 & 0xffff) << 4
    }

    /// Sets the period to bits 19:4 of `count`. Its low four bits are always zero in the unit.
    pub(crate) const fn with_max_count(self, count: u32) -> Self {
        Self::from_bits_retain(self.difference(Self::MAX_CNT).bits() | (count >> 4 & 0xffff) as u64)
    }

    /// Returns all 27 bits of the period. On a processor without OpCntExt bits 26:20 are 0.
    pub(crate) const fn extended_max_count(self) -> u32 {
        self.max_count() | (self.bits() as u32 & 0x7f << 20)
    }

    /// Sets the period to bits 26:4 of `count`, for a processor with OpCntExt.
    pub(crate) const fn with_extended_max_count(self, count: u32) -> Self {
        let rest = self.difference(Self::MAX_CNT_EXT).with_max_count(count);
        Self::from_bits_retain(rest.bits() | (count & 0x7f << 20) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_those_of_the_manual() {
        assert_eq!(IbsFetchCtl::all().bits(), 0x0bff_ffff_ffff_ffff);
        assert_eq!(IbsOpCtl::all().bits(), 0xffff_ffff_07ff_ffff);
    }

    #[test]
    fn a_period_loses_its_low_four_bits_and_what_is_above_20() {
        for (count, kept) in [(0, 0), (0xf, 0), (0x10, 0x10), (0xfffff, 0xffff0), (0x10_0010, 0x10)] {
            let fetch = IbsFetchCtl::all().with_max_count(count);
            assert_eq!(fetch.max_count(), kept);
            assert_eq!(fetch | IbsFetchCtl::MAX_CNT, IbsFetchCtl::all());
            let op = IbsOpCtl::all().with_max_count(count);
            assert_eq!(op.max_count(), kept);
            assert_eq!(op | IbsOpCtl::MAX_CNT, IbsOpCtl::all());
        }
    }

    #[test]
    fn a_long_period_loses_its_low_four_bits_and_what_is_above_27() {
        for (count, kept) in [(0xf, 0), (0x10_0010, 0x10_0010), (0x7ff_ffff, 0x7ff_fff0), (0x800_0010, 0x10)]
        {
            let op = IbsOpCtl::all().with_extended_max_count(count);
            assert_eq!(op.extended_max_count(), kept);
            assert_eq!(op | IbsOpCtl::MAX_CNT | IbsOpCtl::MAX_CNT_EXT, IbsOpCtl::all());
        }
    }
}
