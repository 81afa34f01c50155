//! The registers of the performance counters and of processor event-based sampling (PEBS).
//!
//! Source for all of them: SDM vol. 3, Performance Monitoring, "Architectural Performance Monitoring"; vol. 4, "IA-32
//! Architectural MSRs". Scope: logical processor.

use super::RegisterAt;
use bitflags::bitflags;
use core::fmt;

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// IA32_PMCx.
    General(u8),
    /// IA32_FIXED_CTRx.
    Fixed(u8),
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::General(n) => write!(f, "general-purpose counter {n}"),
            Self::Fixed(n) => write!(f, "fixed-function counter {n}"),
        }
    }
}

bitflags! {
    /// IA32_PERF_CAPABILITIES (`0x345`): exists with `CPUID.1:ECX[15]` (PDCM). Read only.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct PerfCapabilities: u64 {
        /// LBR_FMT: the format of the addresses in the LBR stack.
        const LBR_FMT = 0x3f;
        /// PEBS_TRAP: the record is written after the instruction.
        const PEBS_TRAP = 1 << 6;
        /// PEBS_ARCH_REG: the record contains registers.
        const PEBS_ARCH_REG = 1 << 7;
        /// PEBS_REC_FMT: the format of the record.
        const PEBS_REC_FMT = 0xf << 8;
        /// SMM_FREEZE: IA32_DEBUGCTL has FREEZE_WHILE_SMM.
        const SMM_FREEZE = 1 << 12;
        /// FW_WRITE: all bits of the counters can be written, at `0x4c1` and the following addresses.
        const FW_WRITE = 1 << 13;
        /// PEBS_BASELINE: all counters that CPUID enumerates sample, in the adaptive format.
        const PEBS_BASELINE = 1 << 14;
        /// PEBS_OUTPUT_PT_AVAIL: records can go to Intel PT. Source: Linux, `union perf_capabilities`.
        const PEBS_OUTPUT_PT_AVAIL = 1 << 16;
    }
}

impl PerfCapabilities {
    /// Returns LBR_FMT.
    pub(crate) const fn lbr_format(self) -> u8 {
        (self.bits() & Self::LBR_FMT.bits()) as u8
    }

    /// Returns PEBS_REC_FMT.
    pub(crate) const fn pebs_format(self) -> u8 {
        ((self.bits() & Self::PEBS_REC_FMT.bits()) >> 8) as u8
    }
}

/// IA32_PERF_GLOBAL_CTRL (`0x38f`): bit n enables general-purpose counter n, bit 32 + n fixed-function counter n. A bit
/// of a counter that does not exist is #GP(0). The register exists from version 2 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GlobalCtrl(pub u64);

/// IA32_PERF_GLOBAL_INUSE (`0x392`): bit n, general-purpose counter n is in use; bit 32 + n, fixed-function counter n.
/// Read only. The register exists from version 4 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GlobalInUse(pub u64);

/// IA32_BIOS_SIGN_ID (`0x8b`): the microcode, as of the last CPUID.1.
///
/// Scope: core. Source: SDM vol. 3, Processor Management and Initialization, "Microcode Update Facilities".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BiosSignId(pub u64);

impl BiosSignId {
    /// Returns the revision: bits 63:32; 0 if no update is loaded.
    pub(crate) const fn revision(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

bitflags! {
    /// IA32_TSX_FORCE_ABORT (`0x10f`): exists with `CPUID.07H.0:EDX[13]`. Only read here.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct TsxForceAbort: u64 {
        /// RTM_FORCE_ABORT: each transaction aborts, and general-purpose counter 3 can be used.
        const RTM_FORCE_ABORT = 1 << 0;
    }
}

/// IA32_FIXED_CTR_CTRL (`0x38d`): four bits for each fixed-function counter, and bit 32 + 4n for adaptive records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedCtrCtrl(pub u64);

impl FixedCtrCtrl {
    /// The number of counters for which the register has all fields: bit 32 + 4n exists for the first eight.
    pub(crate) const COUNTERS: u8 = 8;

    /// Returns the fields of counter `n` with the values that make it count; `n` is below [`FixedCtrCtrl::COUNTERS`].
    pub(crate) const fn counting(n: u8, os: bool, user: bool, adaptive: bool) -> u64 {
        (os as u64 | (user as u64) << 1) << (4 * n) | (adaptive as u64) << (32 + 4 * n)
    }

    /// Returns the bit RDPMC_USR_DISABLE of counter `n`, as [`Ia32PerfEvtSel::RDPMC_USR_DISABLE`] for it.
    pub(crate) const fn rdpmc_usr_disable(n: u8) -> u64 {
        1 << (33 + 4 * n)
    }

    /// Returns all bits of counter `n`, which is below [`FixedCtrCtrl::COUNTERS`].
    pub(crate) const fn mask(n: u8) -> u64 {
        0xf << (4 * n) | 1 << (32 + 4 * n) | Self::rdpmc_usr_disable(n)
    }
}

/// IA32_PEBS_ENABLE (`0x3f1`): bit n lets general-purpose counter n sample; on processors with PEBS_BASELINE, bit 32 +
/// n lets fixed-function counter n sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PebsEnable(pub u64);

/// Source: Linux, `arch/x86/events/perf_event.h`, PEBS_PMI_AFTER_EACH_RECORD, PEBS_OUTPUT_OFFSET and PEBS_OUTPUT_PT.
impl PebsEnable {
    /// PMI_AFTER_EACH_RECORD, with [`PebsEnable::OUTPUT_PT`].
    pub(crate) const PMI_AFTER_EACH_RECORD: u64 = 1 << 60;
    /// LL_EN_PMCx: the load-latency facility for general-purpose counter x, before version 5. Source: SDM vol. 3,
    /// Performance Monitoring, "Layout of IA32_PEBS_ENABLE MSR"; Linux, `intel_pmu_pebs_enable`.
    pub(crate) const fn load_latency(n: u8) -> u64 {
        1 << (32 + n)
    }

    /// PEBS_OUTPUT, bits 62:61, is 01: records go to Intel PT. 00: to the DS area.
    pub(crate) const OUTPUT_PT: u64 = 0b01 << 61;
}

bitflags! {
    /// MSR_PEBS_DATA_CFG (`0x3f2`): the groups of fields in an adaptive record.
    ///
    /// Source: SDM vol. 3, Performance Monitoring, "Adaptive PEBS".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct PebsDataCfg: u64 {
        /// Memory Info.
        const MEMORY = 1 << 0;
        /// GPRs: the general-purpose registers.
        const GPRS = 1 << 1;
        /// XMMs: the XMM registers.
        const XMMS = 1 << 2;
        /// LBRs: last branch records.
        const LBRS = 1 << 3;
        /// Counters: the values of those in bits 47:32, general-purpose ones, and 55:48, fixed-function ones. Format 6.
        /// Source: Linux, PEBS_DATACFG_CNTR.
        const CNTR = 1 << 4;
        /// PERF_METRICS. Format 6. Source: Linux, PEBS_DATACFG_METRICS.
        const METRICS = 1 << 5;
        /// LBR Entries: the number of last branch records, minus one.
        const LBR_ENTRIES = 0xff << 24;
    }
}

bitflags! {
    /// IA32_PERFEVTSELx (`0x186` + x): the event that general-purpose counter x counts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Ia32PerfEvtSel: u64 {
        /// Event select.
        const EVENT = 0xff;
        /// Unit mask.
        const UMASK = 0xff << 8;
        /// USR: counts above CPL 0.
        const USR = 1 << 16;
        /// OS: counts at CPL 0.
        const OS = 1 << 17;
        /// E: counts edges. Not for a counter that samples.
        const E = 1 << 18;
        /// INT: an overflow requests a PMI.
        const INT = 1 << 20;
        /// ANY: counts both threads. Not for a counter that samples.
        const ANY = 1 << 21;
        /// EN: the counter counts.
        const EN = 1 << 22;
        /// INV: inverts the comparison of CMASK. Not for a counter that samples.
        const INV = 1 << 23;
        /// CMASK: counts cycles with at least this many events. Not for a counter that samples.
        const CMASK = 0xff << 24;
        /// Adaptive_Record: the counter's records have the groups of [`PebsDataCfg`].
        const ADAPTIVE_RECORD = 1 << 34;
        /// EN_LBR_LOG: last branch records count the event. Exists for the counters of `CPUID.1CH:ECX[19:16]`.
        const EN_LBR_LOG = 1 << 35;
        /// EQ: the comparison of CMASK is for equality. Exists with `CPUID.23H.0:EBX[1]`.
        const EQ = 1 << 36;
        /// RDPMC_USR_DISABLE: RDPMC above CPL 0 reads 0. Exists with `CPUID.23H.0:EBX[2]`.
        const RDPMC_USR_DISABLE = 1 << 37;
        /// UnitMask2: a second unit mask. Exists with `CPUID.23H.0:EBX[0]`.
        const UMASK2 = 0xff << 40;
    }
}

impl Ia32PerfEvtSel {
    /// Returns the address of IA32_PERFEVTSELx.
    pub(crate) const fn at(counter: u8) -> RegisterAt<Self> {
        RegisterAt::new(0x186 + counter as u32)
    }

    /// Returns the value that selects this event.
    pub(crate) const fn event(event: u8, umask: u8) -> Self {
        Self::from_bits_retain(event as u64 | (umask as u64) << 8)
    }
}

/// MSR_PEBS_LD_LAT_THRESHOLD (`0x3f6`): loads with a latency above this number of core cycles are sampled; bits 15:0, 3
/// at least.
///
/// Source: SDM vol. 3, Performance Monitoring, "Load Latency Performance Monitoring Facility".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PebsLdLatThreshold(pub u64);

/// Returns the address of IA32_PMCx. A write sets bits 31:0 and sign-extends them.
pub(crate) const fn pmc(counter: u8) -> RegisterAt {
    RegisterAt::new(0xc1 + counter as u32)
}

/// Returns the address of IA32_A_PMCx, by which all bits of IA32_PMCx are written: exists with
/// [`PerfCapabilities::FW_WRITE`].
pub(crate) const fn full_width_pmc(counter: u8) -> RegisterAt {
    RegisterAt::new(0x4c1 + counter as u32)
}

/// Returns the address of IA32_FIXED_CTRx.
pub(crate) const fn fixed_counter(counter: u8) -> RegisterAt {
    RegisterAt::new(0x309 + counter as u32)
}

/// The addresses of the counters' registers.
///
/// Source: SDM vol. 3, Performance Monitoring, "Architectural Performance Monitoring Version 6"; Linux,
/// `arch/x86/include/asm/msr-index.h`, MSR_IA32_PMC_V6_GP0_CTR and those after it, and `arch/x86/events/intel/core.c`,
/// `intel_pmu_init`, which uses them from version 6 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CounterAddresses {
    /// The registers of a kind follow each other. Eight general-purpose counters have them.
    ByKind,
    /// The registers of a counter follow each other: its value, and its configurations A, B and C.
    ByCounter,
}

impl CounterAddresses {
    /// Returns the addresses for this version of architectural performance monitoring.
    pub(crate) const fn of_version(version: u8) -> Self {
        match version {
            6.. => Self::ByCounter,
            _ => Self::ByKind,
        }
    }

    /// Returns the address of a counter's value: IA32_PMC_GPn_CTR and IA32_PMC_FXn_CTR, through which all bits are
    /// written, or IA32_PMCx and IA32_FIXED_CTRx.
    pub(crate) const fn value(self, counter: Counter) -> RegisterAt {
        match (self, counter) {
            (Self::ByKind, Counter::General(n)) => pmc(n),
            (Self::ByKind, Counter::Fixed(n)) => fixed_counter(n),
            (Self::ByCounter, counter) => by_counter(counter),
        }
    }

    /// Returns the address of a general-purpose counter's event: IA32_PMC_GPn_CFG_A, or IA32_PERFEVTSELx.
    pub(crate) const fn select(self, n: u8) -> RegisterAt<Ia32PerfEvtSel> {
        match self {
            Self::ByKind => Ia32PerfEvtSel::at(n),
            Self::ByCounter => RegisterAt::new(by_counter(Counter::General(n)).address() + 1),
        }
    }
}

/// Returns the first address of a counter's registers from version 6 on.
const fn by_counter(counter: Counter) -> RegisterAt {
    let (first, n) = match counter {
        Counter::General(n) => (0x1900, n),
        Counter::Fixed(n) => (0x1980, n),
    };
    RegisterAt::new(first + 4 * n as u32)
}

/// Returns the address of IA32_PMC_GPn_CFG_B or IA32_PMC_FXn_CFG_B: the counters whose overflow reloads this one, a bit
/// for each as in [`GlobalCtrl`]. Exists for the counters of `CPUID.23H.2:EAX` and EBX. Source: as for
/// [`CounterAddresses`]; Linux, `intel_pmu_config_acr`.
pub(crate) const fn reload_causes(counter: Counter) -> RegisterAt {
    by_counter(counter).plus(2)
}

/// Returns the address of IA32_PMC_GPn_CFG_C or IA32_PMC_FXn_CFG_C, whose bits 31:0 are the value that a reload loads.
/// Source: as for [`reload_causes`].
pub(crate) const fn reload_value(counter: Counter) -> RegisterAt {
    by_counter(counter).plus(3)
}

/// Returns the address of MSR_RELOAD_PMCx: the value loaded into IA32_PMCx after a record that went to Intel PT. Exists
/// with [`PerfCapabilities::PEBS_OUTPUT_PT_AVAIL`]. Source: Linux, `arch/x86/include/asm/msr-index.h`.
pub(crate) const fn reload_pmc(counter: u8) -> RegisterAt {
    RegisterAt::new(0x14c1 + counter as u32)
}

/// Returns the address of MSR_RELOAD_FIXED_CTRx, as [`reload_pmc`] for IA32_FIXED_CTRx.
pub(crate) const fn reload_fixed_counter(counter: u8) -> RegisterAt {
    RegisterAt::new(0x1309 + counter as u32)
}

flags! {
    Ia32PerfEvtSel,
    PerfCapabilities = 0x345,
    PebsDataCfg = 0x3f2,
    TsxForceAbort = 0x10f,
}

values! {
    GlobalCtrl = 0x38f,
    GlobalInUse = 0x392,
    BiosSignId = 0x8b,
    FixedCtrCtrl = 0x38d,
    PebsEnable = 0x3f1,
    PebsLdLatThreshold = 0x3f6,
}
