//! The registers of architectural PEBS.
//!
//! Source for all of them: Linux, `arch/x86/include/asm/msr-index.h`, "Arch PEBS", and `perf_event.h`,
//! `union arch_pebs_index`; KVM's masks of reserved bits. Scope: logical processor.

use bitflags::bitflags;

bitflags! {
    /// The groups of fields that a record of architectural PEBS has besides the basic one: bits of IA32_PMC_GPn_CFG_C
    /// and IA32_PMC_FXn_CFG_C, and 32 bits lower of `CPUID.23H.4:EBX`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ArchPebsGroups: u64 {
        /// The values of the session's general-purpose counters.
        const COUNTERS = 1 << 36;
        /// The values of the session's fixed-function counters.
        const FIXED_COUNTERS = 1 << 37;
        /// PERF_METRICS with its slots.
        const METRICS = 1 << 38;
        /// The last 8 branches. The kernel turns the LBRs on itself.
        const BRANCHES_8 = 0b01 << 40;
        /// The last 16 branches.
        const BRANCHES_16 = 0b10 << 40;
        /// All last branches.
        const BRANCHES = 0b11 << 40;
        /// XMM0 to XMM15.
        const XMM = 1 << 49;
        /// Bits 255:128 of YMM0 to YMM15.
        const YMM_HIGH = 1 << 50;
        /// The opmask registers.
        const OPMASK = 1 << 53;
        /// Bits 511:256 of ZMM0 to ZMM15.
        const ZMM_HIGH = 1 << 54;
        /// ZMM16 to ZMM31.
        const ZMM_16_31 = 1 << 55;
        /// The general-purpose registers, and SSP.
        const REGISTERS = 1 << 61;
        /// The auxiliary group: memory access, latencies, TX abort information.
        const AUXILIARY = 1 << 62;
    }
}

impl ArchPebsGroups {
    /// ALLOW_IN_RECORD: records of other counters may have the value of this one.
    pub(crate) const ALLOW_IN_RECORD: u64 = 1 << 35;
    /// PEBS_EN: the counter samples.
    pub(crate) const ENABLE: u64 = 1 << 63;
}

/// IA32_PEBS_BASE (`0x3f4`): the physical address of the buffer, a multiple of 4 KiB, and in bits 3:0 its size: 4 KiB
/// times this power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PebsBase(pub u64);

/// IA32_PEBS_INDEX (`0x3f5`): bits 26:4, the offset at which the next record is stored, in units of 16 bytes; bit 31,
/// the buffer is full; bit 32, records are stored; bits 58:36, the offset from which on a record requests a PMI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PebsIndex(pub u64);

impl PebsIndex {
    const OFFSET: u64 = 0x7f_ffff << 4;
    /// The buffer is full.
    pub(crate) const FULL: u64 = 1 << 31;
    /// Records are stored.
    pub(crate) const EN: u64 = 1 << 32;
    /// The bits that the processor does not change.
    pub(crate) const SETTINGS: u64 = Self::EN | 0x7f_ffff << 36;

    /// Returns the register that lets records be stored from an offset on, both in units of 16 bytes.
    pub(crate) const fn new(offset: u64, threshold: u64) -> Self {
        Self(offset << 4 & Self::OFFSET | Self::EN | threshold << 36 & Self::SETTINGS)
    }

    /// Returns the number of bytes before the offset.
    pub(crate) const fn bytes(self) -> u64 {
        self.0 & Self::OFFSET
    }
}

values! {
    PebsBase = 0x3f4,
    PebsIndex = 0x3f5,
}
