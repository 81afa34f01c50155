//! A sample of an instruction fetch.

use super::{Caps, IbsErrata, Part};

/// The registers of the fetch unit, as they were when it had a sample. Registers that the processor lacks are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FetchRegisters {
    /// IbsFetchCtl (`C001_1030`).
    pub ctl: u64,
    /// IbsFetchLinAd (`C001_1031`).
    pub linear: u64,
    /// IbsFetchPhysAd (`C001_1032`).
    pub physical: u64,
    /// IC_IBS_EXTD_CTL (`C001_103C`), with [`Caps::FETCH_CTL_EXTD`].
    pub extended: u64,
}

/// A sampled instruction fetch. A field that the processor reports as invalid reads as `None`.
///
/// Source: BKDG 31116, "IBS Fetch Control Register"; PPR 56176, "IBS Fetch Control".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FetchSample {
    part: Part,
    registers: FetchRegisters,
}

/// The size of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageSize {
    /// 4 KiB.
    K4,
    /// 16 KiB: four adjacent 4 KiB pages in one TLB entry.
    K16,
    /// 2 MiB.
    M2,
    /// 1 GiB.
    G1,
}

impl FetchSample {
    /// Creates the sample in these registers; `None` if IbsFetchVal is clear: then there is no sample.
    #[must_use]
    pub const fn new(part: Part, registers: FetchRegisters) -> Option<Self> {
        match registers.ctl >> 49 & 1 {
            0 => None,
            _ => Some(Self { part, registers }),
        }
    }

    /// Returns the registers.
    #[must_use]
    pub const fn registers(&self) -> &FetchRegisters {
        &self.registers
    }

    /// Returns the processor.
    #[must_use]
    pub const fn part(&self) -> &Part {
        &self.part
    }

    /// Returns the period, in completed fetches.
    #[must_use]
    pub const fn max_count(&self) -> u32 {
        (self.field(0, 16) << 4) as u32
    }

    /// Returns IbsFetchLat: clocks from the start of the fetch to its data, or to its end without data.
    #[must_use]
    pub const fn latency(&self) -> u16 {
        self.field(32, 16) as u16
    }

    /// Returns IbsFetchComp: the bytes went to the decoder; otherwise the fetch was aborted.
    #[must_use]
    pub const fn completed(&self) -> bool {
        self.bit(50)
    }

    /// Returns IbsIcMiss: the fetch missed the instruction cache. Not on processors with erratum 1238.
    #[must_use]
    pub const fn ic_miss(&self) -> Option<bool> {
        self.bit_if(51, !self.part.errata().has(IbsErrata::IC_MISS_INVALID))
    }

    /// Returns IbsL1TlbPgSz: the size of the page. Only if the physical address is valid.
    #[must_use]
    pub const fn page_size(&self) -> Option<PageSize> {
        if !self.bit(52) {
            return None;
        }
        match (self.field(53, 2), self.part.errata().has(IbsErrata::L1_TLB_PAGE_SIZES)) {
            (0, _) => Some(PageSize::K4),
            (1, true) => Some(PageSize::K16),
            (1, false) | (2, true) => Some(PageSize::M2),
            (2, false) | (3, true) => Some(PageSize::G1),
            _ => None,
        }
    }

    /// Returns IbsL1TlbMiss: the fetch missed the first level of the instruction TLB.
    #[must_use]
    pub const fn l1_tlb_miss(&self) -> bool {
        self.bit(55)
    }

    /// Returns IbsL2TlbMiss: the fetch missed the second level of the TLB too. Only if it missed the first.
    #[must_use]
    pub const fn l2_tlb_miss(&self) -> Option<bool> {
        self.bit_if(56, self.l1_tlb_miss())
    }

    /// Returns IbsFetchL2Miss: the fetch missed the L2. Only for a completed fetch, since family 17h.
    #[must_use]
    pub const fn l2_miss(&self) -> Option<bool> {
        self.bit_if(58, self.completed() && self.part.is_zen())
    }

    /// Returns IbsFetchOcMiss: the fetch missed the op cache. Only for a completed fetch, since Zen 4.
    #[must_use]
    pub const fn oc_miss(&self) -> Option<bool> {
        self.bit_if(60, self.completed() && self.part.caps.has(Caps::ZEN4))
    }

    /// Returns IbsFetchL3Miss: the fetch missed the L3. Only for a completed fetch that missed the L2, since Zen 4.
    #[must_use]
    pub const fn l3_miss(&self) -> Option<bool> {
        self.bit_if(61, matches!(self.l2_miss(), Some(true)) && self.part.caps.has(Caps::ZEN4))
    }

    /// Returns IbsFetchLinAd: the linear address. Not if erratum 1197 made it 0.
    #[must_use]
    pub const fn linear_address(&self) -> Option<u64> {
        match self.registers.linear {
            0 if self.part.errata().has(IbsErrata::FETCH_ADDRESS_ZERO) => None,
            address => Some(address),
        }
    }

    /// Returns IbsFetchPhysAd: the physical address. Only if IbsPhyAddrValid is set.
    #[must_use]
    pub const fn physical_address(&self) -> Option<u64> {
        match self.bit(52) {
            true => Some(self.registers.physical),
            false => None,
        }
    }

    /// Returns IbsItlbRefillLat: clocks that the fetch waited for the TLB; 0 if it did not.
    #[must_use]
    pub const fn itlb_refill_latency(&self) -> Option<u16> {
        match self.part.caps.has(Caps::FETCH_CTL_EXTD) {
            true => Some(self.registers.extended as u16),
            false => None,
        }
    }

    const fn field(&self, at: u32, bits: u32) -> u64 {
        self.registers.ctl >> at & ((1 << bits) - 1)
    }

    const fn bit(&self, at: u32) -> bool {
        self.field(at, 1) == 1
    }

    const fn bit_if(&self, at: u32, valid: bool) -> Option<bool> {
        match valid {
            true => Some(self.bit(at)),
            false => None,
        }
    }
}
