//! A unit that is off, and the way to start it.

use super::config::CheckedDs;
use super::running::DsRunning;
use super::session::DsSession;
use super::{DsArea, DsCapabilities, DsConfig, DsRefusal, LinearMemory};
use crate::cpuid::CpuIdReader;
use crate::intel::bts::{MessageSession, Messages};
use crate::intel::pebs::Program;
use crate::lifecycle::{Absent, InUse, NotStarted, StartError};
use crate::msr::{ApicBase, DebugCtl, DebugFlags, DsAreaBase, GeneralProtection, Msr, Register, RtitCtl};
use core::marker::PhantomData;

/// The debug store of one logical processor, off.
///
/// It cannot be sent to another thread of execution: it stands for the processor that it was found on, and so does
/// what comes of it.
#[derive(Debug)]
pub struct DsUnit<M: Msr> {
    pub(super) msr: M,
    capabilities: DsCapabilities,
    of_this_processor: PhantomData<*const ()>,
}

impl<M: Msr> DsUnit<M> {
    /// Finds the unit: CPUID first, then whether its registers answer, and whether it is free.
    ///
    /// # Errors
    ///
    /// It is not there, or somebody uses it. Where IA32_DS_AREA raised #GP when its value was put back it holds an
    /// address that nothing is written to.
    pub fn detect(cpuid: impl CpuIdReader, mut msr: M) -> Result<Self, Absent> {
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
    /// The configuration, the area or the processor says no. DsUnit and area come back, unless the unit cannot be stopped
    /// any more.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn start<L: LinearMemory>(
        self,
        config: &DsConfig,
        mut area: DsArea<L>,
    ) -> Result<DsRunning<M, L>, NotStarted<DsSession<M, L>>> {
        let recording = match self.check(config, &mut area) {
            Ok(recording) => recording,
            Err(refusal) => {
                let error = StartError::Refused(refusal);
                return Err(NotStarted::Off { unit: self, memory: area, error });
            }
        };
        DsRunning::start(DsSession::new(self, area, recording))
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
    pub(crate) fn set(&mut self, flags: DebugFlags) -> Result<(), GeneralProtection> {
        let set = self.capabilities.control.bits(flags);
        // SAFETY: without BTS nothing is written to memory; with it the caller has set the area.
        unsafe { self.msr.change(|DebugCtl(bits)| DebugCtl(bits | set)) }
    }

    /// Clears these.
    pub(crate) fn clear(&mut self, flags: DebugFlags) -> Result<(), GeneralProtection> {
        let clear = self.capabilities.control.bits(flags);
        // SAFETY: it only ends writes to memory.
        unsafe { self.msr.change(|DebugCtl(bits)| DebugCtl(bits & !clear)) }
    }

    /// Makes sure that nobody records branches, and that PT, which excludes it, is off. What the control register is.
    pub(crate) fn claim_branches(&mut self) -> Result<u64, StartError<DsRefusal>> {
        let DebugCtl(bits) = self.msr.read()?;
        if self.capabilities.control.flags(DebugCtl(bits)).intersects(DebugFlags::RECORDERS) {
            return Err(InUse::BranchRecorder { address: DebugCtl::ADDRESS, control: bits }.into());
        }
        if self.capabilities.processor_trace {
            let ctl: RtitCtl = self.msr.read()?;
            if ctl.contains(RtitCtl::TRACE_EN) {
                return Err(InUse::ProcessorTrace { ctl }.into());
            }
        }
        Ok(bits)
    }

    /// Makes sure that nobody has set an area.
    pub(crate) fn claim_area(&mut self) -> Result<(), StartError<DsRefusal>> {
        match self.msr.read()? {
            DsAreaBase(0) => Ok(()),
            DsAreaBase(area) => Err(InUse::DebugStore { area }.into()),
        }
    }

    /// Makes sure that nobody uses the counters.
    pub(super) fn claim_counters(&mut self, program: &Program) -> Result<(), StartError<DsRefusal>> {
        match program.in_use(&mut self.msr)? {
            None => Ok(()),
            Some(in_use) => Err(in_use.into()),
        }
    }

    /// The PMI comes through the local APIC.
    pub(super) fn require_apic(&mut self) -> Result<(), StartError<DsRefusal>> {
        let base: ApicBase = self.msr.read()?;
        match base.contains(ApicBase::ENABLE) {
            true => Ok(()),
            false => Err(StartError::Refused(DsRefusal::ApicOff(base))),
        }
    }

    fn check<L: LinearMemory>(
        &self,
        config: &DsConfig,
        area: &mut DsArea<L>,
    ) -> Result<CheckedDs, DsRefusal> {
        let recording = config.check(&self.capabilities, area)?;
        if area.layout() != self.capabilities.layout {
            return Err(DsRefusal::OtherLayout);
        }
        area.check(&self.capabilities).map_err(DsRefusal::Area)?;
        Ok(recording)
    }
}
