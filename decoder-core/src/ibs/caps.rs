//! The capabilities of the IBS units, from CPUID.

use super::IbsErrata;

/// CPUID `8000_001B` EAX: the capabilities of the units. perf puts it before each raw sample.
///
/// Source: APM vol. 3, "CPUID Fn8000_001B_EAX Instruction-Based Sampling Capabilities"; the bits above 11 are from
/// Linux, `arch/x86/include/asm/perf_event.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caps(pub u32);

impl Caps {
    /// IBSFFV: the other bits are valid.
    pub const VALID: Self = Self(1 << 0);
    /// FetchSam: fetches are sampled.
    pub const FETCH_SAM: Self = Self(1 << 1);
    /// OpSam: ops are sampled.
    pub const OP_SAM: Self = Self(1 << 2);
    /// RdWrOpCnt: IbsOpCurCnt can be read and written.
    pub const RD_WR_OP_CNT: Self = Self(1 << 3);
    /// OpCnt: ops can be counted instead of cycles.
    pub const OP_CNT: Self = Self(1 << 4);
    /// BrnTrgt: IbsBrTarget exists.
    pub const BRN_TRGT: Self = Self(1 << 5);
    /// OpCntExt: the op counter and its period have 27 bits.
    pub const OP_CNT_EXT: Self = Self(1 << 6);
    /// RipInvalidChk: IbsRipInvalid is valid.
    pub const RIP_INVALID_CHK: Self = Self(1 << 7);
    /// OpBrnFuse: IbsOpBrnFuse is valid.
    pub const OP_BRN_FUSE: Self = Self(1 << 8);
    /// IbsFetchCtlExtd: IC_IBS_EXTD_CTL exists.
    pub const FETCH_CTL_EXTD: Self = Self(1 << 9);
    /// IbsOpData4: IbsOpData4 exists.
    pub const OP_DATA4: Self = Self(1 << 10);
    /// IbsL3MissFiltering and the richer data source of Zen 4.
    pub const ZEN4: Self = Self(1 << 11);
    /// Loads below a latency threshold can be filtered out.
    pub const LD_LAT: Self = Self(1 << 12);
    /// IbsOpCtl2 and IbsFetchCtl2 exist, with their Dis bits.
    pub const DIS: Self = Self(1 << 13);
    /// Fetches below a latency threshold can be filtered out.
    pub const FETCH_LAT: Self = Self(1 << 14);
    /// Samples can be filtered by bit 63 of their address.
    pub const BIT63: Self = Self(1 << 15);
    /// Streaming stores and the remote socket are reported.
    pub const STRM_ST_RMT_SOCKET: Self = Self(1 << 16);
    /// IbsOpData3 has the size of the data's page, and its TLB fields are valid only if the physical address is.
    pub const OP_DTLB_PAGE_SIZE: Self = Self(1 << 19);

    /// The capabilities to assume for a processor without this leaf or with [`Caps::VALID`] clear: early ones of
    /// family 10h.
    pub const WITHOUT_LEAF: Self = Self(0b111);

    /// Returns the capabilities in EAX; [`Caps::WITHOUT_LEAF`] if [`Caps::VALID`] is clear.
    #[must_use]
    pub const fn from_eax(eax: u32) -> Self {
        match eax & Self::VALID.0 {
            0 => Self::WITHOUT_LEAF,
            _ => Self(eax),
        }
    }

    /// Returns true if all capabilities in `wanted` are set.
    #[must_use]
    pub const fn has(self, wanted: Self) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

/// The processor that took a sample, which determines the meaning of its registers' bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Family, as displayed: the extended family is added.
    pub family: u8,
    /// Model, as displayed: with the extended model above the base model.
    pub model: u8,
    /// The capabilities of its units.
    pub caps: Caps,
}

impl Part {
    /// Returns the first processor that had these capabilities, for samples that come without family and model.
    #[must_use]
    pub const fn by_caps(caps: Caps) -> Self {
        let (family, model) = if caps.has(Caps::OP_DTLB_PAGE_SIZE) {
            (0x1a, 0x02)
        } else if caps.has(Caps::ZEN4) {
            (0x19, 0x10)
        } else if caps.has(Caps::FETCH_CTL_EXTD) {
            (0x17, 0x01)
        } else if caps.has(Caps::OP_CNT_EXT) {
            (0x15, 0x01)
        } else {
            (0x10, 0x02)
        };
        Self { family, model, caps }
    }

    /// Returns the processor's errata.
    #[must_use]
    pub const fn errata(&self) -> IbsErrata {
        IbsErrata::of(self.family, self.model)
    }

    pub(super) const fn is_zen(&self) -> bool {
        self.family >= 0x17
    }

    /// Returns true if IbsOpData2 has the state of a line; Zen 3 has only the source and its node.
    ///
    /// Source: Linux, AMD IBS driver, `perf_ibs_cache_hit_st_valid`.
    pub(super) const fn has_cache_state(&self) -> bool {
        !(self.family == 0x19 && matches!(self.model, 0x00..=0x0f | 0x20..=0x5f))
    }
}
