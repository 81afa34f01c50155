//! The memory access of an op sample.

use super::op::{bit, field};
use super::{CacheState, Caps, DataSource, IbsErrata, OpSample, PageSize};

/// The memory access of a sampled op: IbsOpData2, IbsOpData3 and the addresses.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a>(&'a OpSample);

/// The result of the lookup of an access in the data TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtlb {
    /// In the first level of the data TLB.
    L1,
    /// In the second level of the data TLB.
    L2,
    /// In neither level: a page walk.
    Miss,
}

impl<'a> Access<'a> {
    pub(super) const fn new(sample: &'a OpSample) -> Self {
        Self(sample)
    }

    /// Returns IbsLdOp: the op loads.
    #[must_use]
    pub const fn is_load(&self) -> bool {
        self.bit(0)
    }

    /// Returns IbsStOp: the op stores.
    #[must_use]
    pub const fn is_store(&self) -> bool {
        self.bit(1)
    }

    /// Returns IbsSwPf: a software prefetch. Since family 17h.
    #[must_use]
    pub const fn software_prefetch(&self) -> Option<bool> {
        self.bit_if(21, self.is_zen())
    }

    /// Returns the TLB level with the translation, from IbsDcL1tlbMiss and IbsDcL2TlbMiss. Only if the linear address
    /// is valid; with [`Caps::OP_DTLB_PAGE_SIZE`], only if the physical address is valid too.
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

    /// Returns the size of the data's page. Only if [`Access::dtlb`] is valid. Without [`Caps::OP_DTLB_PAGE_SIZE`], the
    /// TLB level that has the translation reports it, so a miss has none.
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

    /// Returns IbsDcMiss: the access missed the data cache. Not for an uncacheable access.
    #[must_use]
    pub const fn dc_miss(&self) -> Option<bool> {
        self.bit_if(7, !self.uncacheable())
    }

    /// Returns IbsL2Miss: the access missed the L2 too. Only for an access that missed the data cache, since family
    /// 17h, and not if erratum 1293 made the bit invalid.
    #[must_use]
    pub const fn l2_miss(&self) -> Option<bool> {
        self.bit_if(20, self.is_zen() && self.missed() && !self.data2_is_invalid())
    }

    /// Returns IbsDcMisAcc: the access was misaligned.
    #[must_use]
    pub const fn misaligned(&self) -> bool {
        self.bit(8)
    }

    /// Returns IbsDcLdBnkCon: a load that had a bank conflict with another load. Families 10h to 15h.
    #[must_use]
    pub const fn load_bank_conflict(&self) -> Option<bool> {
        self.bit_if(9, self.is_load() && self.is_up_to_15h())
    }

    /// Returns IbsDcStBnkCon: a load that had a bank conflict with a store. Families 10h to 15h.
    #[must_use]
    pub const fn store_bank_conflict(&self) -> Option<bool> {
        self.bit_if(10, self.is_load() && self.is_up_to_15h())
    }

    /// Returns IbsDcStToLdFwd: a load whose data was forwarded from a store. Families 10h to 15h.
    #[must_use]
    pub const fn store_to_load_forwarded(&self) -> Option<bool> {
        self.bit_if(11, self.is_load() && self.is_up_to_15h())
    }

    /// Returns IbsDcStToLdCan: a load for which forwarding from a store was cancelled. Families 10h to 15h.
    #[must_use]
    pub const fn store_to_load_cancelled(&self) -> Option<bool> {
        self.bit_if(12, self.is_load() && self.is_up_to_15h())
    }

    /// Returns IbsDcWcMemAcc: the access was to write-combining memory.
    #[must_use]
    pub const fn write_combining(&self) -> bool {
        self.bit(13)
    }

    /// Returns IbsDcUcMemAcc: the access was to uncacheable memory.
    #[must_use]
    pub const fn uncacheable(&self) -> bool {
        self.bit(14)
    }

    /// Returns IbsDcLockedOp: the op was locked.
    #[must_use]
    pub const fn locked(&self) -> bool {
        self.bit(15)
    }

    /// Returns IbsDcMabHit: a miss whose line had already been requested, by an entry of the miss address buffer (MAB).
    /// Before family 17h, and only for a miss (erratum 717).
    #[must_use]
    pub const fn mab_hit(&self) -> Option<bool> {
        self.bit_if(16, !self.is_zen() && self.missed())
    }

    /// Returns IbsDcMissNoMabAlloc: a miss that allocated no entry of the miss address buffer. Since family 17h.
    #[must_use]
    pub const fn miss_without_mab(&self) -> Option<bool> {
        self.bit_if(16, self.is_zen())
    }

    /// Returns IbsOpMemWidth: the width of the access in bytes. Since family 17h.
    #[must_use]
    pub const fn bytes(&self) -> Option<u32> {
        match (self.is_zen(), field(self.0.registers().data3, 22, 4)) {
            (false, _) | (_, 0) => None,
            (true, n) => Some(1 << (n - 1)),
        }
    }

    /// Returns IbsOpDcMissOpenMemReqs: the number of outstanding lines when this one was requested. Only for loads that
    /// missed, since family 17h, and not if erratum 1293 made the field invalid.
    #[must_use]
    pub const fn open_requests(&self) -> Option<u8> {
        match self.is_zen() && self.is_load() && self.missed() && !self.data2_is_invalid() {
            true => Some(field(self.0.registers().data3, 26, 6) as u8),
            false => None,
        }
    }

    /// Returns IbsDcMissLat: clocks from the miss to the data. Only for loads that missed and are not prefetches.
    #[must_use]
    pub const fn miss_latency(&self) -> Option<u16> {
        match self.is_load() && self.missed() && !matches!(self.software_prefetch(), Some(true)) {
            true => Some(field(self.0.registers().data3, 32, 16) as u16),
            false => None,
        }
    }

    /// Returns IbsTlbRefillLat: clocks from the miss in the first level of the TLB to the translation. Only for
    /// accesses that missed that level, since family 17h.
    #[must_use]
    pub const fn tlb_refill_latency(&self) -> Option<u16> {
        match self.is_zen() && matches!(self.dtlb(), Some(Dtlb::L2 | Dtlb::Miss)) {
            true => Some(field(self.0.registers().data3, 48, 16) as u16),
            false => None,
        }
    }

    /// Returns IbsDcLinAd: the linear address of the data. Only if IbsDcLinAddrValid is set.
    #[must_use]
    pub const fn linear_address(&self) -> Option<u64> {
        match self.bit(17) {
            true => Some(self.0.registers().dc_linear),
            false => None,
        }
    }

    /// Returns IbsDcPhysAd: the physical address of the data. Only if IbsDcPhyAddrValid is set.
    #[must_use]
    pub const fn physical_address(&self) -> Option<u64> {
        match self.bit(18) {
            true => Some(self.0.registers().dc_physical),
            false => None,
        }
    }

    /// Returns the source of the data. Only for loads that missed L1 and L2, and not if erratum 1293 made the field
    /// invalid. For an uncacheable load, only [`DataSource::Io`] is reported.
    ///
    /// Source: BKDG 31116, "IBS Op Data 2 Register"; for uncacheable loads Linux, `perf_ibs_get_mem_lvl`.
    #[must_use]
    pub const fn source(&self) -> Option<DataSource> {
        if !self.is_load() || self.data2_is_invalid() {
            return None;
        }
        // Before family 17h, the only sign of an L2 miss is that there is a source.
        let asked = self.missed() && !matches!(self.l2_miss(), Some(false));
        match DataSource::of(self.0.part(), self.0.registers().data2) {
            Some(DataSource::Io) if self.uncacheable() => Some(DataSource::Io),
            source if asked => source,
            _ => None,
        }
    }

    /// Returns RmtNode: the source is in another node. Only if there is a source.
    #[must_use]
    pub const fn remote_node(&self) -> Option<bool> {
        match self.source() {
            Some(_) => Some(bit(self.0.registers().data2, 4)),
            None => None,
        }
    }

    /// Returns CacheHitSt: the state of the line. Only if the source was a cache of another core.
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

    /// Returns true for a streaming store. For stores, with [`Caps::STRM_ST_RMT_SOCKET`].
    #[must_use]
    pub const fn streaming_store(&self) -> Option<bool> {
        match self.is_store() && self.0.part().caps.has(Caps::STRM_ST_RMT_SOCKET) {
            true => Some(bit(self.0.registers().data2, 8)),
            false => None,
        }
    }

    /// Returns true if the source is in another socket. Only if there is a source, with [`Caps::STRM_ST_RMT_SOCKET`].
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

    /// Returns true if a valid [`Access::dc_miss`] reports a miss.
    const fn missed(&self) -> bool {
        matches!(self.dc_miss(), Some(true))
    }

    const fn data2_is_invalid(&self) -> bool {
        self.0.part().errata().has(IbsErrata::DATA2_INVALID) && (self.bit(16) || self.bit(21))
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
