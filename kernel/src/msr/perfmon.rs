//! The performance-monitoring registers that a PMI handler needs.

use super::{Register, RegisterValue};
use bitflags::bitflags;

bitflags! {
    /// IA32_PERF_GLOBAL_STATUS (`0x38e`): the units that requested a PMI. Read only.
    ///
    /// Scope: logical processor. Source: SDM vol. 3, Performance Monitoring, "Architectural Performance Monitoring
    /// Version 4"; vol. 4, "IA-32 Architectural MSRs".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct GlobalStatus: u64 {
        /// Ovf_PMCn: a general-purpose counter overflowed.
        const OVF_PMC = 0xffff_ffff;
        /// Ovf_FixedCtrn: a fixed-function counter overflowed.
        const OVF_FIXED_CTR = 0xffff << 32;
        /// Ovf_PERF_METRICS: the metrics register overflowed.
        const OVF_PERF_METRICS = 1 << 48;
        /// The buffer of architectural PEBS has reached its threshold. Source: Linux,
        /// GLOBAL_STATUS_ARCH_PEBS_THRESHOLD_BIT.
        const ARCH_PEBS_THRESHOLD = 1 << 54;
        /// Trace_ToPA_PMI: a ToPA region with INT filled.
        const TRACE_TOPA_PMI = 1 << 55;
        /// LBR_Frz: the LBRs are frozen.
        const LBR_FRZ = 1 << 58;
        /// CTR_Frz: the counters are frozen.
        const CTR_FRZ = 1 << 59;
        /// ASCI: counts include those of an enclave.
        const ASCI = 1 << 60;
        /// Ovf_Uncore: an uncore counter overflowed.
        const OVF_UNCORE = 1 << 61;
        /// OvfBuf: the DS save area is full.
        const OVF_BUF = 1 << 62;
        /// CondChgd: the state changed; the cause is unknown.
        const COND_CHGD = 1 << 63;
    }
}

/// IA32_PERF_GLOBAL_STATUS_RESET (`0x390`; before version 4 IA32_PERF_GLOBAL_OVF_CTRL): writing a bit as 1 clears this
/// bit in [`GlobalStatus`]; writing a reserved bit is #GP(0).
///
/// Scope: logical processor. Source: as [`GlobalStatus`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GlobalStatusReset(pub GlobalStatus);

impl RegisterValue for GlobalStatusReset {
    fn from_bits(bits: u64) -> Self {
        Self(GlobalStatus::from_bits_retain(bits))
    }

    fn to_bits(self) -> u64 {
        self.0.bits()
    }
}

impl Register for GlobalStatusReset {
    const ADDRESS: u32 = 0x390;
}

flags! {
    GlobalStatus = 0x38e,
}
