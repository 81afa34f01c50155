//! AMD's registers of counters, Instruction Based Sampling (IBS) and last branches.
//!
//! ```
//! use pugmark_kernel::msr::amd::PerfEvtSel;
//!
//! // Retired instructions (C0H) of user code: USR and EN.
//! let select = PerfEvtSel::from_bits_retain(0x41_00c0);
//! assert!(select.contains(PerfEvtSel::USR | PerfEvtSel::EN) && !select.contains(PerfEvtSel::OS));
//! ```

mod ibs;
mod select;

use super::RegisterAt;
use bitflags::bitflags;

pub use ibs::{IbsFetchCtl, IbsOpCtl};
pub use select::PerfEvtSel;

/// The registers of a sample. `decoder-core` interprets their bits.
///
/// Source: APM vol. 2, Model-Specific Registers (MSRs), "Instruction-Based Sampling MSRs".
macro_rules! sample_registers {
    ($($name:ident = $address:expr, $of:literal;)*) => {$(
        #[doc = concat!($of, ".")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub u64);

        values! { $name = $address }
    )*};
}

sample_registers! {
    IbsFetchLinAd = 0xc001_1031, "The linear address of a sampled fetch";
    IbsFetchPhysAd = 0xc001_1032, "The physical address of a sampled fetch";
    IbsOpRip = 0xc001_1034, "The address of a sampled op's instruction";
    IbsOpData = 0xc001_1035, "How a sampled op went through the core";
    IbsOpData2 = 0xc001_1036, "Where a sampled load's data came from";
    IbsOpData3 = 0xc001_1037, "What a sampled load or store met in the caches";
    IbsDcLinAd = 0xc001_1038, "The linear address that a sampled op accessed";
    IbsDcPhysAd = 0xc001_1039, "The physical address that a sampled op accessed";
    IbsBrTarget = 0xc001_103b, "The target of a sampled branch";
    IcIbsExtdCtl = 0xc001_103c, "More of a sampled fetch: IC_IBS_EXTD_CTL";
    IbsOpData4 = 0xc001_103d, "More of a sampled load";
}

/// IBS_CTL (`C001_103A`): the extended entry of the local vector table that IBS uses. Read only since family 15h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IbsCtl(pub u64);

impl IbsCtl {
    /// Returns LvtOffset, if LvtOffsetVal marks it as valid.
    pub(crate) const fn lvt_offset(self) -> Option<u8> {
        match self.0 >> 8 & 1 {
            0 => None,
            _ => Some((self.0 & 0xf) as u8),
        }
    }
}

bitflags! {
    /// IbsOpCtl2 (`C001_103E`), if CPUID announces it. Source: PPR of family 1Ah.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct IbsOpCtl2: u64 {
        /// The unit is off, whatever IbsOpCtl says.
        const DIS = 1 << 0;
        /// Ops whose address has bit 63 clear are left out.
        const EXCLUDE_BIT63_0 = 1 << 1;
        /// Ops whose address has bit 63 set are left out.
        const EXCLUDE_BIT63_1 = 1 << 2;
        /// Only streaming stores.
        const STRM_ST_FILTER = 1 << 3;
    }
}

bitflags! {
    /// IbsFetchCtl2 (`C001_103F`), if CPUID announces it. Source: PPR of family 1Ah.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct IbsFetchCtl2: u64 {
        /// The unit is off, whatever IbsFetchCtl says.
        const DIS = 1 << 0;
        /// The minimum duration of a sampled fetch, in the processor's encoding.
        const LAT_FILTER = 0xf << 1;
        /// Fetches whose address has bit 63 set are left out.
        const EXCLUDE_BIT63_1 = 1 << 5;
        /// Fetches whose address has bit 63 clear are left out.
        const EXCLUDE_BIT63_0 = 1 << 6;
    }
}

/// PerfCntrGlobalStatus (`C000_0300`): bit n: counter n has overflowed; bit 58: the last branches are frozen. Read
/// only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerfCntrGlobalStatus(pub u64);

/// PerfCntrGlobalCtl (`C000_0301`): bit n enables counter n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerfCntrGlobalCtl(pub u64);

/// PerfCntrGlobalStatusClr (`C000_0302`): bits written as 1 clear those of [`PerfCntrGlobalStatus`]. Write only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerfCntrGlobalStatusClr(pub u64);

/// EFER (`C000_0080`); Intel calls it IA32_EFER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Efer(pub u64);

impl Efer {
    /// Returns LMA: true if IA-32e mode (long mode) is active.
    pub(crate) const fn lma(self) -> bool {
        self.0 >> 10 & 1 == 1
    }

    /// Returns SVME: true if SVM is on.
    pub(crate) const fn svm(self) -> bool {
        self.0 >> 12 & 1 == 1
    }
}

bitflags! {
    /// DBG_EXTN_CFG (`C000_010F`): the recorders of branches.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct DbgExtnCfg: u64 {
        /// BRSMEN: branch sampling records.
        const BRSMEN = 1 << 2;
        /// Reserved bits that must be set for branch sampling.
        const ONES = 0b11 << 3;
        /// VB: branch sampling has recorded a branch.
        const VB = 1 << 5;
        /// LBRV2EN: LBR version 2 records.
        const LBRV2EN = 1 << 6;
        /// MSROFF: the entry that branch sampling writes next; 0 if all are full.
        const MSROFF = 0xf << 16;
        /// PMC: the counter whose overflow starts branch sampling.
        const PMC = 0b111 << 24;
    }
}

impl DbgExtnCfg {
    /// Returns the number of entries that branch sampling has recorded; the last one is the newest.
    pub(crate) const fn recorded(self) -> u8 {
        match ((self.bits() >> 16 & 0xf) as u8, self.contains(Self::VB)) {
            (_, false) => 0,
            (0, true) => 16,
            (next, true) => next,
        }
    }
}

bitflags! {
    /// LBR_SELECT (`C000_010E`): the branches that LBR version 2 does not record.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct AmdLbrSelect: u64 {
        /// Branches that end at CPL 0.
        const CPL_EQ_0 = 1 << 0;
        /// Branches that end above CPL 0.
        const CPL_GT_0 = 1 << 1;
        /// Conditional jumps.
        const JCC = 1 << 2;
        /// Near relative calls.
        const NEAR_REL_CALL = 1 << 3;
        /// Near indirect calls.
        const NEAR_IND_CALL = 1 << 4;
        /// Near returns.
        const NEAR_RET = 1 << 5;
        /// Near indirect jumps.
        const NEAR_IND_JMP = 1 << 6;
        /// Near relative jumps.
        const NEAR_REL_JMP = 1 << 7;
        /// Far branches.
        const FAR_BRANCH = 1 << 8;
    }
}

/// Returns the address of SAMP_BR_FROM or LBR_FROM, entry `n`.
pub(crate) const fn branch_from(n: u8) -> RegisterAt {
    RegisterAt::new(0xc001_0300 + 2 * n as u32)
}

/// Returns the address of SAMP_BR_TO or LBR_TO, entry `n`.
pub(crate) const fn branch_to(n: u8) -> RegisterAt {
    RegisterAt::new(0xc001_0301 + 2 * n as u32)
}

flags! {
    PerfEvtSel,
    IbsFetchCtl = 0xc001_1030,
    IbsOpCtl = 0xc001_1033,
    IbsOpCtl2 = 0xc001_103e,
    IbsFetchCtl2 = 0xc001_103f,
    DbgExtnCfg = 0xc000_010f,
    AmdLbrSelect = 0xc000_010e,
}

values! {
    IbsCtl = 0xc001_103a,
    Efer = 0xc000_0080,
    PerfCntrGlobalStatus = 0xc000_0300,
    PerfCntrGlobalCtl = 0xc000_0301,
    PerfCntrGlobalStatusClr = 0xc000_0302,
}
