//! The registers of the debug store.

use bitflags::bitflags;

/// IA32_DS_AREA (`0x600`): the linear address of the DS buffer management area; canonical, or #GP(0).
///
/// Scope: logical processor. Source: SDM vol. 4, "IA-32 Architectural MSRs".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DsAreaBase(pub u64);

bitflags! {
    /// IA32_MISC_ENABLE (`0x1a0`): the bits that concern the debug store. Only read here.
    ///
    /// Source: SDM vol. 4, "IA-32 Architectural MSRs".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MiscEnable: u64 {
        /// Bit 7, Performance Monitoring Available.
        const PERFORMANCE_MONITORING = 1 << 7;
        /// Bit 11, Branch Trace Storage Unavailable.
        const BTS_UNAVAILABLE = 1 << 11;
        /// Bit 12, Processor Event Based Sampling Unavailable.
        const PEBS_UNAVAILABLE = 1 << 12;
    }
}

bitflags! {
    /// IA32_APIC_BASE (`0x1b`). Only read here.
    ///
    /// Source: SDM vol. 3, Advanced Programmable Interrupt Controller, "Local APIC Status and Location".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ApicBase: u64 {
        /// Bit 11, APIC global enable.
        const ENABLE = 1 << 11;
    }
}

flags! {
    MiscEnable = 0x1a0,
    ApicBase = 0x1b,
}

values! {
    DsAreaBase = 0x600,
}
