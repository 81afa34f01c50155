//! PEBS output to Intel PT: records go into the trace, and no DS save area is needed.
//!
//! A trace must run already ([`PtUnit::start`](crate::intel::pt::PtUnit::start)): while nothing is traced the processor
//! drops the records. `pugmark_decoder_core::pebs::PebsBlocks` reads the records from the bytes of any trace. A trace
//! without branches (BranchEn clear) holds little but records.
//!
//! SDM vol. 3, Performance Monitoring, "PEBS Output to Intel Processor Trace", was not at hand. Source: Linux's driver,
//! by Intel's authors: `arch/x86/events/intel/ds.c`, `intel_pmu_pebs_via_pt_enable` and
//! `intel_pmu_pebs_via_pt_disable`, with `intel_ds_init` for the detection, and `intel_pmu_handle_irq` in `core.c` for
//! the status bit of the interrupt after a record (OvfBuf). The fate of a record while the trace is off or filters the
//! code out is not known from there, and nothing relies on it.

use super::{Groups, PebsCapabilities, PebsConfig, PebsRefusal, Program};
use crate::cpuid::CpuIdReader;
use crate::lifecycle::{
    self, Absent, Halted, Missing, NotBacked, NotStarted, Recording, Sealed, Serve, Source, StartError,
};
use crate::msr::{
    GeneralProtection, GlobalStatus, GlobalStatusReset, MiscEnable, Msr, PebsEnable, Register, RtitCtl,
    TypedMsr,
};
use crate::pmi::{Abandoned, PmiSource, Requests};
use core::fmt;
use core::marker::PhantomData;
use pugmark_decoder_core::pebs::Format;
use raw_cpuid::CpuId;

/// The counters of one logical processor that can put samples into a trace, off.
///
/// The value cannot be sent to another thread of execution: it belongs to the processor on which it was found, and so
/// do the values made from it.
#[derive(Debug)]
pub struct TracedPebsUnit<M: Msr> {
    msr: M,
    capabilities: PebsCapabilities,
    of_this_processor: PhantomData<*const ()>,
}

impl<M: Msr> TracedPebsUnit<M> {
    /// Detects PEBS with output of its records to Intel PT. Writes no register.
    ///
    /// # Errors
    ///
    /// PEBS or this output is absent, or an access raised #GP.
    pub fn detect(cpuid: impl CpuIdReader, mut msr: M) -> Result<Self, Absent> {
        let id = CpuId::with_cpuid_reader(cpuid.clone());
        if id.get_vendor_info().is_none_or(|vendor| vendor.as_str() != "GenuineIntel") {
            return Err(Missing::Intel.into());
        }
        let misc_enable: MiscEnable = msr.read()?;
        // The layout is that of records in memory, which are not used.
        let capabilities = PebsCapabilities::detect(&cpuid, misc_enable, true, &mut msr)??;
        if !id.get_extended_feature_info().is_some_and(|features| features.has_processor_trace()) {
            return Err(Missing::ProcessorTrace.into());
        }
        if !capabilities.trace_output || capabilities.format != Format::Adaptive {
            return Err(Missing::PebsTraceOutput.into());
        }
        Ok(Self { msr, capabilities, of_this_processor: PhantomData })
    }

    /// Returns the capabilities of PEBS.
    #[must_use]
    pub const fn capabilities(&self) -> &PebsCapabilities {
        &self.capabilities
    }

    /// Puts samples into the trace that runs. Stop it before the trace.
    ///
    /// # Errors
    ///
    /// The configuration or the processor refuses, no trace runs, or another owner uses PEBS or a counter. The unit is
    /// returned, unless it cannot be stopped.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn start(
        self,
        config: &TracedPebsConfig,
    ) -> Result<TracedPebsRunning<M>, NotStarted<TracedPebsSession<M>>> {
        match config.check(&self.capabilities) {
            Ok(()) => TracedPebsRunning::start(TracedPebsSession::new(self, config)),
            Err(refusal) => {
                Err(NotStarted::Off { unit: self, memory: (), error: StartError::Refused(refusal) })
            }
        }
    }
}

/// The configuration of samples in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedPebsConfig {
    counters: PebsConfig,
    groups: Groups,
    pmi_after_each_record: bool,
}

impl TracedPebsConfig {
    /// Returns a configuration of these counters. A record has the basic group alone, and requests no PMI.
    #[must_use]
    pub const fn new(counters: PebsConfig) -> Self {
        Self { counters, groups: Groups::BASIC, pmi_after_each_record: false }
    }

    /// Sets the groups that a record has.
    #[must_use]
    pub const fn groups(self, groups: Groups) -> Self {
        Self { groups, ..self }
    }

    /// Sets whether each record requests a PMI (PMI_AFTER_EACH_RECORD), which [`TracedPebsRunning::source`] serves.
    #[must_use]
    pub const fn pmi_after_each_record(self, pmi_after_each_record: bool) -> Self {
        Self { pmi_after_each_record, ..self }
    }

    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// This processor does not support the configuration.
    pub fn check(&self, capabilities: &PebsCapabilities) -> Result<(), TracedPebsRefusal> {
        // No buffer has to keep records free.
        self.counters.check(capabilities, u32::MAX).map_err(TracedPebsRefusal::Counters)?;
        // No block of a trace has values of counters.
        match self.groups.record_bytes(capabilities.format, false) {
            Ok(_) => Ok(()),
            Err(_) => Err(TracedPebsRefusal::Groups(self.groups)),
        }
    }
}

/// The reason why samples cannot be put into a trace as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracedPebsRefusal {
    /// The counters cannot sample as requested.
    Counters(PebsRefusal),
    /// A record in a trace cannot have these groups: more than 32 branches, or values of counters.
    Groups(Groups),
    /// No trace runs, so the processor would drop all records.
    NotTraced(RtitCtl),
}

impl fmt::Display for TracedPebsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counters(refusal) => refusal.fmt(f),
            Self::Groups(_) => {
                f.write_str("a record in a trace has 32 last branches at most, and no counters")
            }
            Self::NotTraced(ctl) => {
                write!(f, "IA32_RTIT_CTL is {:#x}: no trace runs that samples could go into", ctl.bits())
            }
        }
    }
}

impl core::error::Error for TracedPebsRefusal {}

/// Counters whose samples go into the trace. A stop returns the unit.
pub type TracedPebsRunning<M> = lifecycle::Running<TracedPebsSession<M>>;

impl<M: Msr> TracedPebsRunning<M> {
    /// Returns the number of samples that are missing because a PMI stopped the counters between an overflow and the
    /// event to sample.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.session().lost
    }

    /// Returns how often something else (a VM exit that loads IA32_PERF_GLOBAL_CTRL, or another owner) had turned the
    /// sampling off, as of the last PMI. Samples of that time are missing.
    #[must_use]
    pub fn turned_off(&self) -> u64 {
        self.session().turned_off
    }

    /// Returns how often the counters were left off until the next PMI, after a fault or because PMIs did not end.
    #[must_use]
    pub fn abandoned(&self) -> u64 {
        self.session().abandoned
    }

    /// Returns these counters as a source for a PMI handler, beside the source of the trace. A handler needs both: one
    /// that halts the trace alone lets samples be dropped.
    pub fn source(&mut self) -> impl PmiSource {
        Source::new(self, ())
    }
}

/// The counters with their configuration.
#[derive(Debug)]
pub struct TracedPebsSession<M: Msr> {
    unit: TracedPebsUnit<M>,
    program: Program,
    lost: u64,
    turned_off: u64,
    abandoned: u64,
}

impl<M: Msr> TracedPebsSession<M> {
    fn new(unit: TracedPebsUnit<M>, config: &TracedPebsConfig) -> Self {
        let program = Program::new(config.counters, unit.capabilities, config.groups.data_cfg())
            .into_trace(config.pmi_after_each_record);
        Self { unit, program, lost: 0, turned_off: 0, abandoned: 0 }
    }

    fn status_bits(&self) -> GlobalStatus {
        self.program.status().union(GlobalStatus::OVF_BUF)
    }

    fn go_on(&mut self) -> Result<(), GeneralProtection> {
        // Another owner that came meanwhile keeps the sampling off.
        if !self.program.is_on() && self.unit.msr.read::<PebsEnable>()?.0 != 0 {
            return Ok(());
        }
        if !self.program.is_prepared() {
            self.program.prepare(&mut self.unit.msr)?;
        }
        // SAFETY: records go into the output of Intel PT, which belongs to whoever has set IA32_RTIT_CTL.TraceEn.
        unsafe { self.program.go_on(&mut self.unit.msr, &mut self.lost) }
    }
}

impl<M: Msr> Sealed for TracedPebsSession<M> {}

impl<M: Msr> Recording for TracedPebsSession<M> {
    type Unit = TracedPebsUnit<M>;
    type Memory = ();
    type Stopped = TracedPebsUnit<M>;
    type Refusal = TracedPebsRefusal;

    // The trace owns the memory.
    const WRITES_MEMORY: bool = false;

    /// Starts in the order of Linux: the events, the reload values, IA32_PEBS_ENABLE, then IA32_PERF_GLOBAL_CTRL.
    fn begin(&mut self) -> Result<(), StartError<TracedPebsRefusal>> {
        let msr = &mut self.unit.msr;
        let ctl: RtitCtl = msr.read()?;
        if !ctl.contains(RtitCtl::TRACE_EN) {
            return Err(StartError::Refused(TracedPebsRefusal::NotTraced(ctl)));
        }
        if let Some(in_use) = self.program.in_use(msr)? {
            return Err(in_use.into());
        }
        // A request that an earlier recording left would be treated as this recording's.
        let left = self.status_bits();
        // SAFETY: this clears bits of counters that are off; no memory is written.
        unsafe { self.unit.msr.write(GlobalStatusReset(left)) }?;
        self.program.prepare(&mut self.unit.msr)?;
        self.go_on()?;
        let (written, PebsEnable(read)) = (self.program.enable().0, self.unit.msr.read()?);
        match read == written {
            true => Ok(()),
            false => Err(StartError::NotBacked(NotBacked { address: PebsEnable::ADDRESS, written, read })),
        }
    }

    /// Stops the counters. Samples of another owner, who has taken PEBS over, continue.
    fn halt(&mut self) -> Result<(), GeneralProtection> {
        let enabled: PebsEnable = self.unit.msr.read()?;
        if self.program.is_on() && enabled != self.program.enable() && enabled.0 != 0 {
            self.program.forget();
            self.turned_off += 1;
            return Ok(());
        }
        let kept = self.program.stop(&mut self.unit.msr)?;
        self.turned_off += u64::from(!kept);
        Ok(())
    }

    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        self.program.put_back(&mut self.unit.msr)
    }

    /// Counts that the counters were left off. Those that cannot be halted continue; they write to no other owner's
    /// memory.
    fn abandon(&mut self, _: Abandoned) {
        self.abandoned += u64::from(self.halt().is_ok());
    }

    fn into_stopped(self) -> TracedPebsUnit<M> {
        self.unit
    }

    fn into_parts(self) -> (TracedPebsUnit<M>, ()) {
        (self.unit, ())
    }
}

impl<M: Msr> Serve<()> for TracedPebsSession<M> {
    fn status(&self) -> Requests {
        self.status_bits().into()
    }

    fn serve(&mut self, seen: Requests, (): &mut (), _: &Halted) -> Result<bool, GeneralProtection> {
        Ok(!seen.is_empty())
    }

    fn resume(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        self.go_on()
    }
}
