//! The reasons for which the driver cannot use a unit: the processor lacks it, another owner uses it, or its registers
//! do not work.

use super::{InUse, NotBacked};
use crate::msr::{GeneralProtection, MiscEnable};
use core::fmt;

/// The reason why the driver cannot use a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The processor does not have the unit, or has one that this driver does not know.
    Missing(Missing),
    /// There is a debug store, but neither of its two users: `IA32_MISC_ENABLE[11]` says that BTS is unavailable, and
    /// there is no PEBS.
    NothingToStore {
        /// IA32_MISC_ENABLE as read.
        misc_enable: MiscEnable,
        /// The reason why there is no PEBS.
        pebs: Missing,
    },
    /// Another owner uses the unit.
    InUse(InUse),
    /// The processor announces the unit, but a register does not keep the value written to it.
    NotBacked(NotBacked),
    /// The processor announces the unit, but access to one of its registers raises #GP.
    Fault(GeneralProtection),
}

impl Absent {
    /// Returns whether the processor simply lacks a unit that this driver knows. False if another owner uses the unit,
    /// or if its registers do not work.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::Missing(_) | Self::NothingToStore { .. })
    }
}

impl From<Missing> for Absent {
    fn from(missing: Missing) -> Self {
        Self::Missing(missing)
    }
}

impl From<InUse> for Absent {
    fn from(in_use: InUse) -> Self {
        Self::InUse(in_use)
    }
}

impl From<NotBacked> for Absent {
    fn from(not_backed: NotBacked) -> Self {
        Self::NotBacked(not_backed)
    }
}

impl From<GeneralProtection> for Absent {
    fn from(fault: GeneralProtection) -> Self {
        Self::Fault(fault)
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(missing) => write!(f, "absent: {missing}"),
            Self::NothingToStore { misc_enable, pebs } => {
                let bits = misc_enable.bits();
                write!(f, "absent: IA32_MISC_ENABLE is {bits:#x}: BTS is not available; and no PEBS: {pebs}")
            }
            Self::InUse(in_use) => in_use.fmt(f),
            Self::NotBacked(not_backed) => write!(f, "announced, but {not_backed}"),
            Self::Fault(fault) => write!(f, "announced, but {fault}"),
        }
    }
}

impl core::error::Error for Absent {}

/// The capability that a processor lacks, or has in a form that this driver does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// `CPUID.0` does not say GenuineIntel.
    Intel,
    /// `CPUID.0` names neither AMD nor Hygon, whose processors have AMD's design.
    Amd,
    /// CPUID has no leaf 14H.
    ProcessorTraceLeaf {
        /// The highest basic leaf: `CPUID.0:EAX`.
        highest: u32,
    },
    /// `CPUID.07H.0:EBX[25]` is 0: no Intel PT.
    ProcessorTrace,
    /// Intel PT cannot write to memory: `CPUID.14H.0:ECX[0]` and `[2]` are 0.
    TraceOutput,
    /// `CPUID.1:EDX[21]` is 0: no debug store.
    DebugStore,
    /// The registers of the branch trace store are not known on this model.
    BranchStoreModel {
        /// The family, with the extended field added.
        family: u8,
        /// The model, with the extended field added.
        model: u8,
    },
    /// `IA32_MISC_ENABLE[12]` is 1: no PEBS.
    Pebs,
    /// `IA32_MISC_ENABLE[7]` is 0: no counters.
    PerformanceMonitoring,
    /// The processor has the PEBS of family 0FH (NetBurst), whose counters and event tagging differ.
    NetBurstPebs,
    /// `CPUID.1:ECX[15]` (PDCM) is 0: the format of PEBS records is unknown.
    PerfCapabilities,
    /// The fields of the DS area and of PEBS records have 4 bytes: there is no DTES64, and IA-32e mode is not active.
    WideRecords,
    /// There is no IA32_PERF_GLOBAL_CTRL: `CPUID.0AH:EAX[7:0]` is below 2.
    GlobalCtrl {
        /// The version that CPUID reports.
        version: u8,
    },
    /// `CPUID.23H.0:EAX[5:4]` are not both 1, or the version of performance monitoring is below 6: no architectural
    /// PEBS.
    ArchitecturalPebs,
    /// `IA32_PERF_CAPABILITIES[11:8]` names a format of PEBS records that is not known.
    PebsFormat {
        /// The format's number.
        number: u8,
    },
    /// PEBS does not work on this model, because of errata: Core 2 of 65 nm.
    PebsErrata {
        /// The family, with the extended field added.
        family: u8,
        /// The model, with the extended field added.
        model: u8,
    },
    /// PEBS does not work with this revision of the microcode (IA32_BIOS_SIGN_ID): Sandy Bridge.
    PebsMicrocode {
        /// The revision.
        revision: u32,
        /// The first revision with which PEBS works; [`u32::MAX`] if none is known.
        needed: u32,
    },
    /// `IA32_PERF_CAPABILITIES[16]` is 0: PEBS records cannot go into a trace.
    PebsTraceOutput,
    /// `CPUID.0AH:EAX[15:8]` is 0: no counter that samples.
    SamplingCounter,
    /// The registers of last branch records are not known on this model.
    LastBranchModel {
        /// The family, with the extended field added.
        family: u8,
        /// The model, with the extended field added.
        model: u8,
    },
    /// `IA32_PERF_CAPABILITIES[5:0]` names a format of last branch records that is not known.
    LastBranchFormat {
        /// The format's number.
        number: u8,
    },
    /// `CPUID.1CH:EAX[7:0]` names no depth of last branch records.
    LastBranchDepth,
    /// `CPUID.8000_0001H:ECX[10]` is 0: no Instruction Based Sampling.
    Ibs,
    /// The family has no performance counters, or CPUID reports zero of them.
    Counters,
    /// CPUID announces neither LBR version 2, nor branch sampling on a family for which this driver knows it.
    BranchRecorder,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Intel => "not a processor of Intel's",
            Self::Amd => "CPUID.0 names another vendor than AMD",
            Self::ProcessorTraceLeaf { highest } => {
                return write!(f, "CPUID.14H is not there: CPUID.0:EAX is {highest:#x}");
            }
            Self::ProcessorTrace => "CPUID.07H.0:EBX[25] (Intel Processor Trace) is not there",
            Self::TraceOutput => {
                "neither CPUID.14H.0:ECX[0] (ToPA output) nor CPUID.14H.0:ECX[2] (single-range output) is there"
            }
            Self::DebugStore => "CPUID.1:EDX[21] (debug store) is 0",
            Self::BranchStoreModel { family, model } => {
                return write!(f, "no branch trace store is known on family {family:#x}, model {model:#x}");
            }
            Self::Pebs => "IA32_MISC_ENABLE[12] (PEBS unavailable) is 1",
            Self::PerformanceMonitoring => "IA32_MISC_ENABLE[7] (performance monitoring available) is 0",
            Self::NetBurstPebs => "the counters of family 0FH are not known to this driver",
            Self::PerfCapabilities => "CPUID.1:ECX[15] (IA32_PERF_CAPABILITIES) is not there",
            Self::WideRecords => "the DS area has 32-bit fields: CPUID.1:ECX[2] is 0, and IA-32e mode is off",
            Self::GlobalCtrl { version } => {
                return write!(f, "CPUID.0AH:EAX[7:0] is {version}: IA32_PERF_GLOBAL_CTRL is not there");
            }
            Self::ArchitecturalPebs => {
                "CPUID.23H.0:EAX[5:4], or the version of counters: no architectural PEBS"
            }
            Self::PebsFormat { number } => {
                return write!(
                    f,
                    "IA32_PERF_CAPABILITIES[11:8] names the unknown PEBS record format {number}"
                );
            }
            Self::PebsErrata { family, model } => {
                return write!(f, "errata make PEBS useless on family {family:#x}, model {model:#x}");
            }
            Self::PebsMicrocode { revision, needed } => {
                return write!(f, "microcode {revision:#x} makes PEBS useless, which needs {needed:#x}");
            }
            Self::PebsTraceOutput => "IA32_PERF_CAPABILITIES[16] (PEBS output to Intel PT) is 0",
            Self::SamplingCounter => "CPUID.0AH:EAX[15:8] is 0: there is no counter",
            Self::LastBranchModel { family, model } => {
                return write!(f, "no last branch records are known on family {family:#x}, model {model:#x}");
            }
            Self::LastBranchFormat { number } => {
                return write!(f, "IA32_PERF_CAPABILITIES[5:0] names the unknown LBR format {number}");
            }
            Self::LastBranchDepth => "CPUID.1CH:EAX[7:0] names no depth",
            Self::Ibs => "CPUID.8000_0001H:ECX[10] (Instruction Based Sampling) is not there",
            Self::Counters => "this processor has no performance counters",
            Self::BranchRecorder => "CPUID announces neither LBR version 2 nor branch sampling",
        };
        f.write_str(text)
    }
}

impl core::error::Error for Missing {}
