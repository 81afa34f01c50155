//! A unit that is off, and the way to start it.

use super::config::CheckedDs;
use super::running::Running;
use super::session::Session;
use super::{AreaError, DsAbsent, DsArea, DsCapabilities, DsConfig, DsRefusal, LinearMemory};
use crate::bts::{Control, ControlRegister, MessageSession, Messages, RECORDERS};
use crate::cpuid::CpuIdReader;
use crate::lifecycle::NotStarted;
use crate::msr::{ApicBase, DsAreaBase, GeneralProtection, Msr, RtitCtl};
use crate::pebs::{Claim, Counter, Program};
use core::fmt;
use core::marker::PhantomData;

/// The debug store of one logical processor, off.
///
/// It cannot be sent to another thread of execution: it stands for the processor that it was found on, and so does
/// what comes of it.
#[derive(Debug)]
pub struct Unit<M: Msr> {
    pub(super) msr: M,
    capabilities: DsCapabilities,
    of_this_processor: PhantomData<*const ()>,
}

impl<M: Msr> Unit<M> {
    /// Finds the unit: CPUID first, then whether its registers answer, and whether it is free.
    ///
    /// # Errors
    ///
    /// It is not there, or somebody uses it. Where IA32_DS_AREA raised #GP when its value was put back it holds an
    /// address that nothing is written to.
    pub fn detect(cpuid: impl CpuIdReader, mut msr: M) -> Result<Self, DsAbsent> {
        let capabilities = DsCapabilities::detect(cpuid, &mut msr)?;
        Ok(Self { msr, capabilities, of_this_processor: PhantomData })
    }

    /// What it can do.
    #[must_use]
    pub const fn capabilities(&self) -> &DsCapabilities {
        &self.capabilities
    }

    /// Starts to record into `area`. The first branch may be missed: the processor begins somewhere behind the write
    /// that enables it.
    ///
    /// Order: the management area and the counters, IA32_DS_AREA, IA32_PEBS_ENABLE and IA32_PERF_GLOBAL_CTRL, then TR
    /// and BTS, with BTINT where the buffer asks for PMIs. The configuration and each page of the area are checked
    /// before any of it, and counters that somebody uses are left alone. The LVT entry is the
    /// [`Handler`](crate::pmi::Handler)'s.
    ///
    /// # Errors
    ///
    /// The configuration, the area or the processor says no. Unit and area come back, unless the unit cannot be stopped
    /// any more.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn start<L: LinearMemory>(
        self,
        config: &DsConfig,
        mut area: DsArea<L>,
    ) -> Result<Running<M, L>, NotStarted<Session<M, L>>> {
        let recording = match self.check(config, &mut area) {
            Ok(recording) => recording,
            Err(error) => return Err(NotStarted::Off { unit: self, memory: area, error }),
        };
        Running::start(Session::new(self, area, recording))
    }

    /// Sends branch trace messages without storing them (TR alone), for a probe on the bus.
    ///
    /// # Errors
    ///
    /// Somebody records branches, or an access raised #GP. The unit comes back.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn send_messages(self) -> Result<Messages<M>, NotStarted<MessageSession<M>>> {
        Messages::start(MessageSession::new(self))
    }

    /// Sets these, besides what is set.
    pub(crate) fn set(&mut self, control: Control) -> Result<(), GeneralProtection> {
        let bits = self.msr.rdmsr(ControlRegister::ADDRESS)?;
        // SAFETY: without BTS nothing is written to memory; with it the caller has set the area.
        unsafe { self.msr.wrmsr(ControlRegister::ADDRESS, bits | self.capabilities.control.bits(control)) }
    }

    /// Clears these.
    pub(crate) fn clear(&mut self, control: Control) -> Result<(), GeneralProtection> {
        let bits = self.msr.rdmsr(ControlRegister::ADDRESS)?;
        // SAFETY: it only ends writes to memory.
        unsafe { self.msr.wrmsr(ControlRegister::ADDRESS, bits & !self.capabilities.control.bits(control)) }
    }

    /// Makes sure that nobody records branches, and that PT, which excludes it, is off. What the control register is.
    pub(crate) fn claim_branches(&mut self) -> Result<u64, StartError> {
        let bits = self.msr.rdmsr(ControlRegister::ADDRESS)?;
        if self.capabilities.control.control(bits).intersects(RECORDERS) {
            return Err(StartError::OtherRecorder { control: bits });
        }
        if self.capabilities.processor_trace {
            let ctl: RtitCtl = self.msr.read()?;
            if ctl.contains(RtitCtl::TRACE_EN) {
                return Err(StartError::ProcessorTrace { ctl });
            }
        }
        Ok(bits)
    }

    /// Makes sure that nobody has set an area.
    pub(crate) fn claim_area(&mut self) -> Result<(), StartError> {
        match self.msr.read()? {
            DsAreaBase(0) => Ok(()),
            DsAreaBase(area) => Err(StartError::AreaInUse { area }),
        }
    }

    /// Makes sure that nobody uses the counters.
    pub(super) fn claim_counters(&mut self, program: &Program) -> Result<(), StartError> {
        match program.claim(&mut self.msr)? {
            Claim::Free => Ok(()),
            Claim::Counter { counter, control } => Err(StartError::CounterInUse { counter, control }),
            Claim::Sampler { pebs_enable } => Err(StartError::OtherSampler { pebs_enable }),
        }
    }

    /// The PMI comes through the local APIC.
    pub(super) fn require_apic(&mut self) -> Result<(), StartError> {
        let base: ApicBase = self.msr.read()?;
        match base.contains(ApicBase::ENABLE) {
            true => Ok(()),
            false => Err(StartError::ApicOff { base }),
        }
    }

    fn check<L: LinearMemory>(
        &self,
        config: &DsConfig,
        area: &mut DsArea<L>,
    ) -> Result<CheckedDs, StartError> {
        let recording = config.check(&self.capabilities, area)?;
        if area.layout() != self.capabilities.layout {
            return Err(StartError::OtherLayout);
        }
        area.check(&self.capabilities)?;
        Ok(recording)
    }
}

/// Why nothing is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// The processor cannot do it.
    Config(DsRefusal),
    /// The memory breaks a rule.
    Area(AreaError),
    /// The area was made for a processor with the other layout.
    OtherLayout,
    /// Somebody records branches.
    OtherRecorder {
        /// The control register.
        control: u64,
    },
    /// Intel PT traces: it and BTS exclude each other.
    ProcessorTrace {
        /// IA32_RTIT_CTL.
        ctl: RtitCtl,
    },
    /// Somebody has set a DS save area.
    AreaInUse {
        /// IA32_DS_AREA.
        area: u64,
    },
    /// Somebody uses a counter.
    CounterInUse {
        /// The counter.
        counter: Counter,
        /// IA32_PERFEVTSELx, or IA32_FIXED_CTR_CTRL.
        control: u64,
    },
    /// Somebody samples.
    OtherSampler {
        /// IA32_PEBS_ENABLE.
        pebs_enable: u64,
    },
    /// The control register does not hold what turns the store on: an emulator that announces what it does not have.
    NotBacked {
        /// The bits that were set.
        written: u64,
        /// What of them was read.
        read: u64,
    },
    /// The buffer asks for PMIs, and the local APIC is off.
    ApicOff {
        /// IA32_APIC_BASE.
        base: ApicBase,
    },
    /// An access raised #GP.
    Fault(GeneralProtection),
}

impl From<DsRefusal> for StartError {
    fn from(refusal: DsRefusal) -> Self {
        Self::Config(refusal)
    }
}

impl From<AreaError> for StartError {
    fn from(error: AreaError) -> Self {
        Self::Area(error)
    }
}

impl From<GeneralProtection> for StartError {
    fn from(fault: GeneralProtection) -> Self {
        Self::Fault(fault)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(refusal) => refusal.fmt(f),
            Self::Area(error) => error.fmt(f),
            Self::OtherLayout => f.write_str("the DS save area was made for a processor with another layout"),
            Self::OtherRecorder { control } => {
                write!(f, "somebody else records branches: MSR 0x1d9 is {control:#x}")
            }
            Self::ProcessorTrace { ctl } => {
                write!(f, "Intel PT traces, which excludes BTS: IA32_RTIT_CTL is {:#x}", ctl.bits())
            }
            Self::AreaInUse { area } => {
                write!(f, "somebody else uses the debug store: IA32_DS_AREA is {area:#x}")
            }
            Self::CounterInUse { counter, control } => {
                write!(f, "somebody else uses {counter}: its control register is {control:#x}")
            }
            Self::OtherSampler { pebs_enable } => {
                write!(f, "somebody else samples: IA32_PEBS_ENABLE is {pebs_enable:#x}")
            }
            Self::NotBacked { written, read } => write!(
                f,
                "CPUID announces a branch trace store, but MSR 0x1d9 reads {read:#x} after {written:#x} was written"
            ),
            Self::ApicOff { base } => {
                write!(
                    f,
                    "the local APIC, which the PMI comes through, is off: IA32_APIC_BASE is {:#x}",
                    base.bits()
                )
            }
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl core::error::Error for StartError {}
