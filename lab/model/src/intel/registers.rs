//! Numbers and fields of Intel's MSRs. Source: SDM vol. 3, Intel Processor Trace, "Enabling and Configuration MSRs",
//! and Performance Monitoring; vol. 4, Model-Specific Registers.

/// MSR numbers.
pub(crate) mod msr {
    pub(crate) const PLATFORM_INFO: u32 = 0x0ce;
    pub(crate) const IA32_PMC0: u32 = 0x0c1;
    pub(crate) const IA32_PERFEVTSEL0: u32 = 0x186;
    pub(crate) const IA32_MISC_ENABLE: u32 = 0x1a0;
    pub(crate) const MSR_LBR_SELECT: u32 = 0x1c8;
    pub(crate) const IA32_DEBUGCTL: u32 = 0x1d9;
    pub(crate) const IA32_FIXED_CTR0: u32 = 0x309;
    pub(crate) const IA32_PERF_CAPABILITIES: u32 = 0x345;
    pub(crate) const IA32_FIXED_CTR_CTRL: u32 = 0x38d;
    pub(crate) const IA32_PERF_GLOBAL_STATUS: u32 = 0x38e;
    pub(crate) const IA32_PERF_GLOBAL_CTRL: u32 = 0x38f;
    pub(crate) const IA32_PERF_GLOBAL_STATUS_RESET: u32 = 0x390;
    pub(crate) const IA32_PERF_GLOBAL_STATUS_SET: u32 = 0x391;
    pub(crate) const IA32_PERF_GLOBAL_INUSE: u32 = 0x392;
    pub(crate) const IA32_PEBS_ENABLE: u32 = 0x3f1;
    pub(crate) const MSR_PEBS_DATA_CFG: u32 = 0x3f2;
    pub(crate) const IA32_A_PMC0: u32 = 0x4c1;
    pub(crate) const IA32_RTIT_OUTPUT_BASE: u32 = 0x560;
    pub(crate) const IA32_RTIT_OUTPUT_MASK_PTRS: u32 = 0x561;
    pub(crate) const IA32_RTIT_CTL: u32 = 0x570;
    pub(crate) const IA32_RTIT_STATUS: u32 = 0x571;
    pub(crate) const IA32_RTIT_CR3_MATCH: u32 = 0x572;
    pub(crate) const IA32_RTIT_ADDR0_A: u32 = 0x580;
    pub(crate) const IA32_RTIT_ADDR3_B: u32 = 0x587;
    pub(crate) const IA32_DS_AREA: u32 = 0x600;
    pub(crate) const MSR_RELOAD_FIXED_CTR0: u32 = 0x1309;
    pub(crate) const MSR_RELOAD_PMC0: u32 = 0x14c1;
}

/// The registers of the counters from version 6 of architectural performance monitoring on: those of a counter are
/// adjacent. Source: Linux, `arch/x86/include/asm/msr-index.h` and `perf_event.h`.
pub(crate) mod v6 {
    pub(crate) const IA32_PMC_GP0_CTR: u32 = 0x1900;
    pub(crate) const IA32_PMC_FX0_CTR: u32 = 0x1980;
    /// Distance between the registers of two counters.
    pub(crate) const STEP: u32 = 4;
    /// The registers of a counter.
    pub(crate) const CTR: u32 = 0;
    pub(crate) const CFG_A: u32 = 1;
    pub(crate) const CFG_B: u32 = 2;
    pub(crate) const CFG_C: u32 = 3;
    /// CPUID.23H.0:EBX: IA32_PERFEVTSELx has UnitMask2.
    pub(crate) const UNIT_MASK2: u32 = 1 << 0;
    /// CPUID.23H.0:EBX: IA32_PERFEVTSELx has EQ.
    pub(crate) const EQ: u32 = 1 << 1;
}

/// IA32_RTIT_CTL.
pub(crate) mod ctl {
    pub(crate) const TRACE_EN: u64 = 1 << 0;
    pub(crate) const CYC_EN: u64 = 1 << 1;
    pub(crate) const OS: u64 = 1 << 2;
    pub(crate) const USER: u64 = 1 << 3;
    pub(crate) const PWR_EVT_EN: u64 = 1 << 4;
    pub(crate) const FUP_ON_PTW: u64 = 1 << 5;
    pub(crate) const FABRIC_EN: u64 = 1 << 6;
    pub(crate) const CR3_FILTER: u64 = 1 << 7;
    pub(crate) const TOPA: u64 = 1 << 8;
    pub(crate) const MTC_EN: u64 = 1 << 9;
    pub(crate) const TSC_EN: u64 = 1 << 10;
    pub(crate) const DIS_RETC: u64 = 1 << 11;
    pub(crate) const PTW_EN: u64 = 1 << 12;
    pub(crate) const BRANCH_EN: u64 = 1 << 13;
    pub(crate) const EVENT_EN: u64 = 1 << 31;
    pub(crate) const DIS_TNT: u64 = 1 << 55;
    pub(crate) const INJECT_PSB_PMI_ON_ENABLE: u64 = 1 << 56;

    /// Returns bits 17:14.
    pub(crate) const fn mtc_freq(ctl: u64) -> u32 {
        (ctl >> 14) as u32 & 0xf
    }

    /// Returns bits 22:19.
    pub(crate) const fn cyc_thresh(ctl: u64) -> u32 {
        (ctl >> 19) as u32 & 0xf
    }

    /// Returns bits 27:24.
    pub(crate) const fn psb_freq(ctl: u64) -> u32 {
        (ctl >> 24) as u32 & 0xf
    }

    /// Returns ADDRn_CFG: bits 35:32 for n = 0, and so on.
    pub(crate) const fn addr_cfg(ctl: u64, n: u32) -> u32 {
        (ctl >> (32 + 4 * n)) as u32 & 0xf
    }
}

/// IA32_RTIT_STATUS.
pub(crate) mod status {
    pub(crate) const FILTER_EN: u64 = 1 << 0;
    pub(crate) const CONTEXT_EN: u64 = 1 << 1;
    pub(crate) const TRIGGER_EN: u64 = 1 << 2;
    pub(crate) const ERROR: u64 = 1 << 4;
    pub(crate) const STOPPED: u64 = 1 << 5;
    pub(crate) const PEND_PSB: u64 = 1 << 6;
    pub(crate) const PEND_TOPA_PMI: u64 = 1 << 7;
    /// PacketByteCnt: bits 48:32.
    pub(crate) const PACKET_BYTE_CNT_SHIFT: u32 = 32;
    pub(crate) const PACKET_BYTE_CNT_MAX: u64 = 0x1_ffff;
}

/// CPUID.14H.0:EBX.
pub(crate) mod cap_ebx {
    pub(crate) const CR3_FILTERING: u32 = 1 << 0;
    pub(crate) const CONFIGURABLE_PSB: u32 = 1 << 1;
    pub(crate) const IP_FILTERING: u32 = 1 << 2;
    pub(crate) const MTC: u32 = 1 << 3;
    pub(crate) const PTWRITE: u32 = 1 << 4;
    pub(crate) const POWER_EVENT: u32 = 1 << 5;
    pub(crate) const PSB_PMI_PRESERVATION: u32 = 1 << 6;
    pub(crate) const EVENT_TRACE: u32 = 1 << 7;
    pub(crate) const TNT_DISABLE: u32 = 1 << 8;
}

/// CPUID.14H.0:ECX.
pub(crate) mod cap_ecx {
    pub(crate) const TOPA: u32 = 1 << 0;
    pub(crate) const TOPA_MULTIPLE_ENTRIES: u32 = 1 << 1;
    pub(crate) const SINGLE_RANGE: u32 = 1 << 2;
    pub(crate) const TRACE_TRANSPORT: u32 = 1 << 3;
}

/// IA32_PERF_GLOBAL_STATUS.Trace_ToPA_PMI.
pub(crate) const TRACE_TOPA_PMI: u64 = 1 << 55;
/// IA32_PERF_GLOBAL_STATUS.LBR_Frz.
pub(crate) const LBR_FRZ: u64 = 1 << 58;
/// IA32_PERF_GLOBAL_STATUS.CTR_Frz.
pub(crate) const CTR_FRZ: u64 = 1 << 59;
/// IA32_PERF_GLOBAL_STATUS.OvfDSBuffer.
pub(crate) const OVF_DS_BUFFER: u64 = 1 << 62;

/// IA32_FIXED_CTR_CTRL, the four bits of a counter. Source: SDM vol. 4, the table "IA-32 Architectural MSRs".
pub(crate) mod fixed {
    /// Number of bits of each counter.
    pub(crate) const BITS: u32 = 4;
    pub(crate) const OS: u64 = 1 << 0;
    pub(crate) const USR: u64 = 1 << 1;
    pub(crate) const ANY_THREAD: u64 = 1 << 2;
    pub(crate) const PMI: u64 = 1 << 3;
    /// The bit of the first counter in the IA32_PERF_GLOBAL registers and in IA32_PEBS_ENABLE.
    pub(crate) const FIRST_STATUS_BIT: u32 = 32;
    /// The first counter's records are adaptive; exists only with PEBS_BASELINE.
    pub(crate) const ADAPTIVE_RECORD: u64 = 1 << 32;
}

/// IA32_PERFEVTSELx. Source: SDM vol. 3, Performance Monitoring, the figures "Layout of IA32_PERFEVTSELx MSRs".
pub(crate) mod evtsel {
    pub(crate) const EVENT: u64 = 0xff;
    pub(crate) const USR: u64 = 1 << 16;
    pub(crate) const OS: u64 = 1 << 17;
    pub(crate) const EDGE: u64 = 1 << 18;
    pub(crate) const INT: u64 = 1 << 20;
    pub(crate) const ANY_THREAD: u64 = 1 << 21;
    pub(crate) const EN: u64 = 1 << 22;
    pub(crate) const INV: u64 = 1 << 23;
    pub(crate) const CMASK: u64 = 0xff << 24;
    /// Exists only with PEBS_BASELINE.
    pub(crate) const ADAPTIVE_RECORD: u64 = 1 << 34;
    /// Exists from version 6 on, if enumerated: the threshold is compared for equality.
    pub(crate) const EQ: u64 = 1 << 36;
    /// Exists from version 6 on, if enumerated.
    pub(crate) const UMASK2: u64 = 0xff << 40;
    /// Bits 63:32.
    pub(crate) const RESERVED: u64 = !0 << 32;
}
