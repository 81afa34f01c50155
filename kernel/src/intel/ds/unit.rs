//! A debug store that is off: detection and start.

use super::config::CheckedDs;
use super::running::DsRunning;
use super::session::DsSession;
use super::{DsArea, DsCapabilities, DsConfig, DsRefusal, LinearMemory, MessageSession, Messages};
use crate::cpuid::CpuIdReader;
use crate::intel::pebs::Program;
use crate::lifecycle::{Absent, InUse, NotStarted, StartError};
use crate::msr::{
    ApicBase, DebugCtl, DebugFlags, DsAreaBase, GeneralProtection, Msr, Register, RtitCtl, TypedMsr,
};
use core::fmt;
use core::marker::PhantomData;

/// The debug store of one logical processor, off.
///
/// The value cannot be sent to another thread of execution: it belongs to the processor on which it was found, and so
/// do the values made from it.
#[derive(Debug)]
pub struct DsUnit<M: Msr> {
    pub(super) msr: M,
    capabilities: DsCapabilities,
    of_this_processor: PhantomData<*const ()>,
}

impl<M: Msr> DsUnit<M> {
    /// Detects the unit: first by CPUID, then by checking that its registers work and that no other owner uses it.
    ///
    /// # Errors
    ///
    /// The unit is absent, or another owner uses it. If IA32_DS_AREA raised #GP when its value was restored, it holds
    /// an address that nothing is written to.
    pub fn detect(cpuid: impl CpuIdReader, mut msr: M) -> Result<Self, Absent> {
        let capabilities = DsCapabilities::detect(cpuid, &mut msr)?;
        Ok(Self { msr, capabilities, of_this_processor: PhantomData })
    }

    /// Detects the unit as [`DsUnit::detect`] does, and takes it over if firmware, a boot loader or another kernel
    /// before this one has left it on, or an area in IA32_DS_AREA: ends the recording of branches (last branch records
    /// too, which exclude the unit) and of samples, releases the counters that sampled, and returns the state of the
    /// unit. A recording of this driver sees that it was turned off
    /// ([`Loss::turned_off`](crate::loss::Loss::turned_off)).
    ///
    /// # Errors
    ///
    /// The unit is absent, or it stays on: another owner below this kernel (a hypervisor) uses it.
    pub fn take_over(cpuid: impl CpuIdReader, mut msr: M) -> Result<(Self, Option<DsLeftOn>), Absent> {
        let capabilities = DsCapabilities::read(cpuid, &mut msr)?;
        let left_on = DsLeftOn::turn_off(&capabilities, &mut msr)?;
        capabilities.probe(&mut msr)?;
        Ok((Self { msr, capabilities, of_this_processor: PhantomData }, left_on))
    }

    /// Returns the unit's capabilities.
    #[must_use]
    pub const fn capabilities(&self) -> &DsCapabilities {
        &self.capabilities
    }

    /// Starts recording into `area`. The first branch may be missed: the processor begins some time after the write
    /// that enables it.
    ///
    /// The configuration and each page of the area are checked before any register is written, and counters that
    /// another owner uses are left alone. The order of writes is: the management area and the counters, IA32_DS_AREA,
    /// IA32_PEBS_ENABLE and IA32_PERF_GLOBAL_CTRL, then TR and BTS, with BTINT if the buffer requests PMIs. The LVT
    /// entry belongs to the [`Handler`](crate::pmi::Handler).
    ///
    /// # Errors
    ///
    /// The configuration, the area or the processor refuses. Unit and area are returned, unless the unit cannot be
    /// stopped.
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

    /// Sends branch trace messages on the bus, for a probe, without storing them (TR alone).
    ///
    /// # Errors
    ///
    /// Another owner records branches, or an access raised #GP. The unit is returned.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn send_messages(self) -> Result<Messages<M>, NotStarted<MessageSession<M>>> {
        Messages::start(MessageSession::new(self))
    }

    /// Sets these flags and keeps the others.
    pub(crate) fn set(&mut self, flags: DebugFlags) -> Result<(), GeneralProtection> {
        let set = self.capabilities.control.bits(flags);
        // SAFETY: without BTS nothing is written to memory; with it, the caller has set the area.
        unsafe { self.msr.change(|DebugCtl(bits)| DebugCtl(bits | set)) }
    }

    /// Clears these flags.
    pub(crate) fn clear(&mut self, flags: DebugFlags) -> Result<(), GeneralProtection> {
        let clear = self.capabilities.control.bits(flags);
        // SAFETY: this only ends writes to memory.
        unsafe { self.msr.change(|DebugCtl(bits)| DebugCtl(bits & !clear)) }
    }

    /// Returns whether branch trace messages are stored in memory.
    pub(crate) fn stores_branches(&mut self) -> Result<bool, GeneralProtection> {
        Ok(self.capabilities.control.flags(self.msr.read()?).contains(DebugFlags::BTS))
    }

    /// Checks that no other owner records branches, and that PT is off if it excludes BTS. Returns the control
    /// register.
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

    /// Checks that no other owner has set an area.
    pub(crate) fn claim_area(&mut self) -> Result<(), StartError<DsRefusal>> {
        match self.msr.read()? {
            DsAreaBase(0) => Ok(()),
            DsAreaBase(area) => Err(InUse::DebugStore { area }.into()),
        }
    }

    /// Checks that no other owner uses the counters.
    pub(super) fn claim_counters(&mut self, program: &Program) -> Result<(), StartError<DsRefusal>> {
        match program.in_use(&mut self.msr)? {
            None => Ok(()),
            Some(in_use) => Err(in_use.into()),
        }
    }

    /// Checks that the local APIC, which delivers the PMI, is on.
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

/// The state of a debug store that another owner had left on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsLeftOn {
    /// IA32_DEBUGCTL, or the register that the family has in its place.
    pub control: u64,
    /// IA32_DS_AREA.
    pub area: u64,
    /// IA32_PEBS_ENABLE; 0 where there is no PEBS.
    pub pebs_enable: u64,
}

impl DsLeftOn {
    /// Ends all recording, first the writes to memory. Returns `None` if nothing was on.
    fn turn_off(
        capabilities: &DsCapabilities,
        msr: &mut impl Msr,
    ) -> Result<Option<Self>, GeneralProtection> {
        let recorders = capabilities.control.bits(DebugFlags::RECORDERS | DebugFlags::BTINT);
        let DebugCtl(control) = msr.read()?;
        if control & recorders != 0 {
            // SAFETY: this only ends writes to memory.
            unsafe { msr.write(DebugCtl(control & !recorders)) }?;
        }
        let pebs_enable = if capabilities.pebs.is_ok() { Program::turn_off(msr)? } else { 0 };
        let DsAreaBase(area) = msr.read()?;
        if area != 0 {
            // SAFETY: nothing is recorded any more.
            unsafe { msr.write(DsAreaBase(0)) }?;
        }
        let was_on = control & recorders != 0 || area != 0 || pebs_enable != 0;
        Ok(was_on.then_some(Self { control, area, pebs_enable }))
    }
}

impl fmt::Display for DsLeftOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { control, area, pebs_enable } = self;
        write!(f, "the debug store was left on: debug control {control:#x}, area {area:#x}")?;
        write!(f, ", IA32_PEBS_ENABLE {pebs_enable:#x}")
    }
}
