//! One logical processor's tracing hardware.

use crate::branch::{DecodeCache, Kind};
use crate::cpuid::overlay;
use crate::perfmon::Perfmon;
use crate::pt::Pt;
use crate::registers::msr;
use crate::unit::{Bus, TracingUnit};
use crate::{CpuidResult, Delivery, OperationalError, PhysMemory, Pmi, Profile, Retired, Settings};

/// #GP(0): the instruction that accessed the MSR faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneralProtection;

/// What software did that the manual warns of and that hardware does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    /// Cached ToPA entries found changed in memory while TraceEn was set. A correct driver makes none.
    pub live_table_edits: u32,
    /// The physical address of the first entry found changed.
    pub first_live_edit: Option<u64>,
    /// Times that output stopped or met an operational error between a PMI's cause and its delivery: no room was
    /// left for the skid.
    pub stopped_in_skid: u32,
    /// Writes of trace output to where no memory is.
    pub writes_outside_memory: u32,
    /// Instructions that were said to retire and to go on elsewhere than behind themselves, though they are no
    /// branches: a mistake of whoever feeds the model, not of the software that runs.
    pub unexplained_transfers: u32,
    /// PMIs dropped because the LVT entry was masked. Hardware does that to a second one while the first is handled.
    pub pmis_dropped: u32,
    /// PMIs dropped because the LVT entry had a delivery mode other than Fixed or NMI.
    pub pmis_misprogrammed: u32,
}

/// One logical processor's tracing hardware.
///
/// Not modelled: SMM, VMX, TSX and SGX; XSAVES and XRSTORS of PT state; SMRR and the APIC page as output; output to
/// MMIO; the trace transport subsystem beyond swallowing what goes there; performance counters.
#[derive(Debug)]
pub struct Processor {
    profile: &'static Profile,
    pt: Pt,
    perfmon: Perfmon,
    misc_enable: u64,
    violations: Violations,
    decode_cache: DecodeCache,
}

impl Processor {
    /// A processor after a cold reset.
    pub fn new(profile: &'static Profile, settings: Settings) -> Self {
        Self {
            profile,
            pt: Pt::new(profile, settings),
            perfmon: Perfmon::new(profile, settings.pmi_skid),
            misc_enable: misc_enable::RESET,
            violations: Violations::default(),
            decode_cache: DecodeCache::new(),
        }
    }

    /// What CPUID answers: the profile's leaves laid over `hardware`, what the processor below reports for the same
    /// leaf.
    pub fn cpuid(&self, leaf: u32, subleaf: u32, hardware: CpuidResult) -> CpuidResult {
        overlay(self.profile, leaf, subleaf, hardware)
    }

    /// Whether RDMSR and WRMSR of `msr` come here.
    pub fn owns_msr(&self, msr: u32) -> bool {
        matches!(
            msr,
            msr::PLATFORM_INFO
                | msr::IA32_MISC_ENABLE
                | msr::IA32_PERF_CAPABILITIES
                | msr::IA32_PERF_GLOBAL_STATUS..=msr::IA32_PERF_GLOBAL_STATUS_SET
        ) || self.pt.owns_msr(msr)
    }

    /// RDMSR of an MSR that it owns.
    pub fn read_msr(&mut self, msr: u32) -> Result<u64, GeneralProtection> {
        match msr {
            msr::PLATFORM_INFO => Ok(u64::from(self.profile.non_turbo_ratio) << 8),
            msr::IA32_MISC_ENABLE => Ok(self.misc_enable),
            // No LBR format, no PEBS, no full-width counters.
            msr::IA32_PERF_CAPABILITIES => Ok(0),
            msr::IA32_PERF_GLOBAL_STATUS..=msr::IA32_PERF_GLOBAL_STATUS_SET => self.perfmon.read(msr),
            _ => self.pt.read_msr(msr),
        }
    }

    /// WRMSR of an MSR that it owns. `at` is the WRMSR itself. When it does not fault it retires here: `retire` is
    /// not called for it. The address before it shows in the trace when it clears TraceEn, the one after it when it
    /// sets TraceEn.
    pub fn write_msr(
        &mut self,
        msr: u32,
        value: u64,
        at: &Retired,
        mem: &mut dyn PhysMemory,
    ) -> Result<(), GeneralProtection> {
        let was_stepping = self.steps();
        match msr {
            msr::IA32_MISC_ENABLE => self.misc_enable = misc_enable::write(self.misc_enable, value)?,
            msr::PLATFORM_INFO | msr::IA32_PERF_CAPABILITIES => return Err(GeneralProtection),
            msr::IA32_PERF_GLOBAL_STATUS..=msr::IA32_PERF_GLOBAL_STATUS_SET => {
                self.perfmon.write(msr, value)?
            }
            _ => {
                let bus = &mut Bus { mem, perfmon: &mut self.perfmon, violations: &mut self.violations };
                self.pt.write_msr(msr, value, at, bus)?;
            }
        }
        if was_stepping && self.steps() {
            self.retire(at, mem);
        }
        Ok(())
    }

    /// Some unit must see every instruction now: TraceEn is set.
    pub fn steps(&self) -> bool {
        self.pt.steps()
    }

    /// An instruction retired. To be called for each one while [`Processor::steps`].
    pub fn retire(&mut self, retired: &Retired, mem: &mut dyn PhysMemory) {
        let decoded = self.decode_cache.decode(retired);
        // The next instruction may be long in coming, and only for the PMI.
        if matches!(decoded.kind, Kind::Hlt | Kind::Mwait) {
            self.perfmon.arrive(&mut self.violations);
        }
        if !decoded.may_transfer() && decoded.next_ip(&retired.before) != retired.after.ip {
            self.violations.unexplained_transfers += 1;
        }
        let bus = &mut Bus { mem, perfmon: &mut self.perfmon, violations: &mut self.violations };
        if self.pt.steps() {
            self.pt.retire(retired, decoded, bus);
        }
        self.perfmon.tick(&mut self.violations);
    }

    /// An interrupt or exception was delivered. To be called for each one while [`Processor::steps`].
    pub fn deliver(&mut self, delivery: &Delivery, mem: &mut dyn PhysMemory) {
        let bus = &mut Bus { mem, perfmon: &mut self.perfmon, violations: &mut self.violations };
        if self.pt.steps() {
            self.pt.deliver(delivery, bus);
        }
    }

    /// The LVT performance-monitoring-counters register (local APIC offset 340h).
    pub fn lvt_pc(&self) -> u32 {
        self.perfmon.lvt()
    }

    /// Writes the LVT performance-monitoring-counters register.
    pub fn set_lvt_pc(&mut self, value: u32) {
        self.perfmon.set_lvt(value);
    }

    /// The PMI that reaches the local APIC's core interface now, if one does. The LVT entry's mask bit is set by then.
    /// To be asked after each event, and after each WRMSR.
    pub fn take_pmi(&mut self) -> Option<Pmi> {
        self.perfmon.take()
    }

    /// What software did wrong so far.
    pub fn violations(&self) -> &Violations {
        &self.violations
    }

    /// Why IA32_RTIT_STATUS.Error was set last.
    pub fn operational_error(&self) -> Option<OperationalError> {
        self.pt.operational_error()
    }
}

/// IA32_MISC_ENABLE. Source: SDM vol. 4, Model-Specific Registers, "IA-32 Architectural MSRs".
mod misc_enable {
    use super::GeneralProtection;

    /// Performance monitoring available, BTS unavailable, PEBS unavailable: read-only, writes of them are ignored.
    const READ_ONLY: u64 = 1 << 7 | 1 << 11 | 1 << 12;
    /// Fast strings, thermal control, SpeedStep, MONITOR, limit CPUID, xTPR, XD disable.
    const WRITABLE: u64 = 1 << 0 | 1 << 3 | 1 << 16 | 1 << 18 | 1 << 22 | 1 << 23 | 1 << 34;

    pub(super) const RESET: u64 = READ_ONLY | 1 << 0 | 1 << 16 | 1 << 18;

    pub(super) fn write(old: u64, value: u64) -> Result<u64, GeneralProtection> {
        if value & !(READ_ONLY | WRITABLE) != 0 {
            return Err(GeneralProtection);
        }
        Ok(old & READ_ONLY | value & WRITABLE)
    }
}
