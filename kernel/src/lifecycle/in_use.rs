//! Other owners of a unit, and other units that exclude it.

use crate::msr::amd::{IbsFetchCtl, IbsOpCtl};
use crate::msr::{Counter, RtitCtl};
use core::fmt;

/// Another owner uses the unit, or a unit that excludes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InUse {
    /// Intel PT traces. On some models it excludes the recorders of branches.
    ProcessorTrace {
        /// IA32_RTIT_CTL.
        ctl: RtitCtl,
    },
    /// Branches are recorded: as last branch records, as BTS records in memory, or as branch trace messages. On some
    /// models this excludes Intel PT.
    BranchRecorder {
        /// The register that turns the recording on.
        address: u32,
        /// The value of that register.
        control: u64,
    },
    /// There is a DS save area.
    DebugStore {
        /// IA32_DS_AREA.
        area: u64,
    },
    /// Counters sample.
    Sampler {
        /// IA32_PEBS_ENABLE.
        pebs_enable: u64,
    },
    /// A counter is used.
    Counter {
        /// The counter.
        counter: Counter,
        /// IA32_PERFEVTSELx, IA32_FIXED_CTR_CTRL, or IA32_PERF_GLOBAL_INUSE if no register of the counter shows it.
        control: u64,
    },
    /// All of AMD's performance counters are used.
    AllCounters,
    /// IBS samples.
    Ibs {
        /// IbsFetchCtl.
        fetch: IbsFetchCtl,
        /// IbsOpCtl.
        op: IbsOpCtl,
    },
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProcessorTrace { ctl } => {
                write!(f, "somebody else uses Intel PT: IA32_RTIT_CTL is {:#x}", ctl.bits())
            }
            Self::BranchRecorder { address, control } => {
                write!(f, "somebody else records branches: MSR {address:#x} is {control:#x}")
            }
            Self::DebugStore { area } => {
                write!(f, "somebody else uses the debug store: IA32_DS_AREA is {area:#x}")
            }
            Self::Sampler { pebs_enable } => {
                write!(f, "somebody else samples: IA32_PEBS_ENABLE is {pebs_enable:#x}")
            }
            Self::Counter { counter, control } => {
                write!(f, "somebody else uses {counter}: its control register is {control:#x}")
            }
            Self::AllCounters => f.write_str("somebody else uses all performance counters"),
            Self::Ibs { fetch, op } => {
                let (fetch, op) = (fetch.bits(), op.bits());
                write!(f, "somebody else samples: IbsFetchCtl is {fetch:#x}, IbsOpCtl {op:#x}")
            }
        }
    }
}

impl core::error::Error for InUse {}
