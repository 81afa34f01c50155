//! What was sampled of a memory access.

use super::op::{bit, field};
use super::{CacheState, Caps, DataSource, Errata, OpSample, PageSize};

/// The memory access of a sampled op: IbsOpData2, IbsOpData3 and the addresses.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a>(&'a OpSample);

/// How an access found its translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtlb {
    /// In the first level.
    L1,
    /// In the second level.
    L2,
    /// It had to be walked for.
    Miss,
}

impl<'a> Access<'a> {
    pub(super) const fn new(sample: &'a OpSample) -> Self {
        Self(sample)
    }

    /// IbsLdOp.
    #[must_use]
    pub const fn is_load(&self) -> bool {
        self.bit(0)
    }

    /// IbsStOp.
    #[must_use]
    pub const fn is_store(&self) -> bool {
        self.bit(1)
    }

    /// IbsSwPf: a software prefetch. Since family 17h.
    #[must_use]
    pub const fn software_prefetch(&self) -> Option<bool> {
        self.bit_if(21, self.is_zen())
    }

    /// IbsDcL1tlbMiss and IbsDcL2TlbMiss: where the translation was. Only where the linear address is valid, and with
    /// [`Caps::OP_DTLB_PAGE_SIZE`] the physical address too.
    ///
    /// Source: BKDG 31116, "IBS Op Data 3 Register"; with the capability Linux, `perf_ibs_get_tlb_lvl`.
    #[must_use]
    pub const fn dtlb(&self) -> Option<Dtlb> {
        if !self.bit(17) || self.tells_page_size() && !self.bit(18) {
            return None;
        }
        Some(match (self.bit(2), self.bit(3)) {
            (false, _) => Dtlb::L1,
            (true, false) => Dtlb::L2,
            (true, true) => Dtlb::Miss,
        })
    }

    /// The size of the data's page. Only where [`Access::dtlb`] is valid; without [`Caps::OP_DTLB_PAGE_SIZE`] the level that
    /// has the translation tells it, so that a miss has none.
    ///
    /// Source: as [`Access::dtlb`]; with the capability Linux, `tools/perf/util/amd-sample-raw.c`.
    #[must_use]
    pub const fn page_size(&self) -> Option<PageSize> {
        match (self.dtlb(), self.tells_page_size()) {
            (None, _) | (Some(Dtlb::Miss), false) => None,
            (Some(_), true) => match field(self.0.registers().data3, 4, 2) {
                0 => Some(PageSize::K4),
                1 => Some(PageSize::M2),
                2 => Some(PageSize::G1),
                _ => None,
            },
            (Some(Dtlb::L1), false) => Some(self.page(4, 5)),
            (Some(Dtlb::L2), false) => Some(self.page(6, 19)),
        }
    }

    /// IbsDcMiss: it missed the data cache. Not for an uncacheable access.
    #[must_use]
    pub const fn dc_miss(&self) -> Option<bool> {
        self.bit_if(7, !self.uncacheable())
    }

    /// IbsL2Miss: it missed the L2 too. Only for one that missed the data cache, since family 17h, and not where
    /// erratum 1293 made it invalid.
    #[must_use]
    pub const fn l2_miss(&self) -> Option<bool> {
        self.bit_if(20, self.is_zen() && self.missed() && !self.data2_is_invalid())
    }

    /// IbsDcMisAcc: it was misaligned.
    #[must_use]
    pub const fn misaligned(&self) -> bool {
        self.bit(8)
    }

    /// IbsDcLdBnkCon: a load in conflict with another over a bank. Families 10h to 15h.
    #[must_use]
    pub const fn load_bank_conflict(&self) -> Option<bool> {
        self.bit_if(9, self.is_load() && self.is_up_to_15h())
    }

    /// IbsDcStBnkCon: a load in conflict with a store over a bank. Families 10h to 15h.
    #[must_use]
    pub const fn store_bank_conflict(&self) -> Option<bool> {
        self.bit_if(10, self.is_load() && self.is_up_to_15h())
    }

    /// IbsDcStToLdFwd: a load that was answered by a store. Families 10h to 15h.
    #[must_use]
    pub const fn store_to_load_forwarded(&self) -> Option<bool> {
        self.bit_if(11, self.is_load() && self.is_up_to_15h())
    }

    /// IbsDcStToLdCan: a load that a store should have answered, and could not. Families 10h to 15h.
    #[must_use]
    pub const fn store_to_load_cancelled(&self) -> Option<bool> {
        self.bit_if(12, self.is_load() && self.is_up_to_15h())
    }

    /// IbsDcWcMemAcc: to write-combining memory.
    #[must_use]
    pub const fn write_combining(&self) -> bool {
        self.bit(13)
    }

    /// IbsDcUcMemAcc: to uncacheable memory.
    #[must_use]
    pub const fn uncacheable(&self) -> bool {
        self.bit(14)
    }

    /// IbsDcLockedOp: locked.
    #[must_use]
    pub const fn locked(&self) -> bool {
        self.bit(15)
    }

    /// IbsDcMabHit: a miss that found its line on the way already. Before family 17h, and only for a miss (erratum
    /// 717).
    #[must_use]
    pub const fn mab_hit(&self) -> Option<bool> {
        self.bit_if(16, !self.is_zen() && self.missed())
    }

    /// IbsDcMissNoMabAlloc: a miss that found no free miss address buffer, or took none. Since family 17h.
    #[must_use]
    pub const fn miss_without_mab(&self) -> Option<bool> {
        self.bit_if(16, self.is_zen())
    }

    /// IbsOpMemWidth in bytes. Since family 17h.
    #[must_use]
    pub const fn bytes(&self) -> Option<u32> {
        match (self.is_zen(), field(self.0.registers().data3, 22, 4)) {
            (false, _) | (_, 0) => None,
            (true, n) => Some(1 << (n - 1)),
        }
    }

    /// IbsOpDcMissOpenMemReqs: lines on the way when this one was asked for. For loads that missed, since family 17h,
    /// and not where erratum 1293 made it invalid.
    #[must_use]
    pub const fn open_requests(&self) -> Option<u8> {
        match self.is_zen() && self.is_load() && self.missed() && !self.data2_is_invalid() {
            true => Some(field(self.0.registers().data3, 26, 6) as u8),
            false => None,
        }
    }

    /// IbsDcMissLat: clocks from the miss to the data. For loads that missed and are no prefetches.
    #[must_use]
    pub const fn miss_latency(&self) -> Option<u16> {
        match self.is_load() && self.missed() && !matches!(self.software_prefetch(), Some(true)) {
            true => Some(field(self.0.registers().data3, 32, 16) as u16),
            false => None,
        }
    }

    /// IbsTlbRefillLat: clocks from the miss of the first level to the translation. For accesses that missed it, since
    /// family 17h.
    #[must_use]
    pub const fn tlb_refill_latency(&self) -> Option<u16> {
        match self.is_zen() && matches!(self.dtlb(), Some(Dtlb::L2 | Dtlb::Miss)) {
            true => Some(field(self.0.registers().data3, 48, 16) as u16),
            false => None,
        }
    }

    /// IbsDcLinAd. Only where IbsDcLinAddrValid is set.
    #[must_use]
    pub const fn linear_address(&self) -> Option<u64> {
        match self.bit(17) {
            true => Some(self.0.registers().dc_linear),
            false => None,
        }
    }

    /// IbsDcPhysAd. Only where IbsDcPhyAddrValid is set.
    #[must_use]
    pub const fn physical_address(&self) -> Option<u64> {
        match self.bit(18) {
            true => Some(self.0.registers().dc_physical),
            false => None,
        }
    }

    /// What answered it. Only for loads that missed L1 and L2, and not where erratum 1293 made it invalid. Of an
    /// uncacheable load only [`DataSource::Io`] is told.
    ///
    /// Source: BKDG 31116, "IBS Op Data 2 Register"; of uncacheable loads Linux, `perf_ibs_get_mem_lvl`.
    #[must_use]
    pub const fn source(&self) -> Option<DataSource> {
        if !self.is_load() || self.data2_is_invalid() {
            return None;
        }
        // Before family 17h nothing tells the L2's miss but that there is a source.
        let asked = self.missed() && !matches!(self.l2_miss(), Some(false));
        match DataSource::of(self.0.part(), self.0.registers().data2) {
            Some(DataSource::Io) if self.uncacheable() => Some(DataSource::Io),
            source if asked => source,
            _ => None,
        }
    }

    /// RmtNode: the source is in another node. Only where there is a source.
    #[must_use]
    pub const fn remote_node(&self) -> Option<bool> {
        match self.source() {
            Some(_) => Some(bit(self.0.registers().data2, 4)),
            None => None,
        }
    }

    /// CacheHitSt: the state of the line. Only where a cache of another core was the source.
    #[must_use]
    pub const fn cache_state(&self) -> Option<CacheState> {
        match self.source() {
            Some(source) if source.has_state(self.0.part()) => Some(match bit(self.0.registers().data2, 5) {
                true => CacheState::Owned,
                false => CacheState::Modified,
            }),
            _ => None,
        }
    }

    /// A streaming store. For stores, with [`Caps::STRM_ST_RMT_SOCKET`].
    #[must_use]
    pub const fn streaming_store(&self) -> Option<bool> {
        match self.is_store() && self.0.part().caps.has(Caps::STRM_ST_RMT_SOCKET) {
            true => Some(bit(self.0.registers().data2, 8)),
            false => None,
        }
    }

    /// The source is in another socket. Only where there is a source, with [`Caps::STRM_ST_RMT_SOCKET`].
    #[must_use]
    pub const fn remote_socket(&self) -> Option<bool> {
        match self.source() {
            Some(_) if self.0.part().caps.has(Caps::STRM_ST_RMT_SOCKET) => {
                Some(bit(self.0.registers().data2, 9))
            }
            _ => None,
        }
    }

    const fn tells_page_size(&self) -> bool {
        self.0.part().caps.has(Caps::OP_DTLB_PAGE_SIZE)
    }

    const fn page(&self, m2: u32, g1: u32) -> PageSize {
        match (self.bit(m2), self.bit(g1)) {
            (_, true) => PageSize::G1,
            (true, false) => PageSize::M2,
            (false, false) => PageSize::K4,
        }
    }

    /// A miss of the data cache that is reported.
    const fn missed(&self) -> bool {
        matches!(self.dc_miss(), Some(true))
    }

    const fn data2_is_invalid(&self) -> bool {
        self.0.part().errata().has(Errata::DATA2_INVALID) && (self.bit(16) || self.bit(21))
    }

    const fn is_zen(&self) -> bool {
        self.0.part().is_zen()
    }

    const fn is_up_to_15h(&self) -> bool {
        self.0.part().family <= 0x15
    }

    const fn bit(&self, at: u32) -> bool {
        bit(self.0.registers().data3, at)
    }

    const fn bit_if(&self, at: u32, valid: bool) -> Option<bool> {
        match valid {
            true => Some(self.bit(at)),
            false => None,
        }
    }
}
