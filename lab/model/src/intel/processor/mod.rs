//! One Intel logical processor, which joins the tracing units.

mod extended_state;
mod near_branches;
mod transactions;
mod vmx;

use crate::branch::{DecodeCache, InstructionKind};
use crate::intel::bts::Bts;
use crate::intel::cpuid::overlay;
use crate::intel::debugctl::DebugCtl;
use crate::intel::ds::Ds;
use crate::intel::lbr::Lbr;
use crate::intel::lbr::stack::LbrStack;
use crate::intel::misc_enable::MiscEnable;
use crate::intel::pebs::blocks::PebsBlockItems;
use crate::intel::perfmon::{IntelCounters, Perfmon};
use crate::intel::pt::Pt;
use crate::intel::registers::msr;
use crate::intel::taken_branch::TakenBranch;
use crate::intel::unit::{Bus, InstructionInfo, SharedState, TracingUnit};
use crate::intel::{IntelProfile, IntelSettings, IntelViolations, OperationalError, Registers};
use crate::predictor::Predictor;
use crate::{
    Context, CpuidResult, Delivery, DeliveryKind, GeneralProtection, Init, PageFault, PhysMemory, Pmi,
    Processor, Retired, Violations,
};
use extended_state::ExtendedState;
pub use near_branches::{NearBranch, NearBranches};
pub use vmx::VmxTransition;

/// One logical processor's tracing hardware.
///
/// Not modelled: SMM and SGX; VMX and TSX except the parts visible to Intel PT; state components of XSAVES other than
/// PT's; SMRR and the APIC page as output; output to MMIO; the trace transport subsystem, which only discards its
/// output; branch trace messages on a bus; BTF; events of general-purpose counters other than instructions, branches
/// and clocks; load latency.
#[derive(Debug)]
pub struct IntelProcessor {
    profile: &'static IntelProfile,
    settings: IntelSettings,
    pt: Pt,
    lbr: Lbr,
    counters: IntelCounters,
    bts: Bts,
    shared: SharedState,
    misc_enable: MiscEnable,
    extended_state: ExtendedState,
    vmx: bool,
    tsx: bool,
    predictor: Predictor,
    /// The address of the instruction that retired last.
    last_ip: u64,
    decode_cache: DecodeCache,
}

impl IntelProcessor {
    /// Returns a processor after a cold reset.
    pub fn new(profile: &'static IntelProfile, settings: IntelSettings) -> Self {
        let shared = SharedState {
            perfmon: Perfmon::new(profile, settings.pmi_skid),
            debugctl: DebugCtl::new(profile),
            ds: Ds::new(profile),
            last_branches: LbrStack::new(profile.lbr.as_ref().map_or(0, |stack| stack.entries)),
            traced_record: PebsBlockItems::new(),
            violations: IntelViolations::default(),
        };
        Self {
            profile,
            settings,
            pt: Pt::new(profile, settings),
            lbr: Lbr::new(profile),
            counters: IntelCounters::new(profile, settings),
            bts: Bts::new(profile, settings),
            shared,
            misc_enable: MiscEnable::new(profile),
            extended_state: ExtendedState::default(),
            vmx: false,
            tsx: false,
            predictor: Predictor::new(),
            last_ip: 0,
            decode_cache: DecodeCache::new(),
        }
    }

    /// Retires an instruction. If it is a WRMSR, only units that were on before it see it: those in `stepped`.
    fn retire_in_units(&mut self, stepped: [bool; UNITS], retired: &Retired, mem: &mut dyn PhysMemory) {
        let decoded = self.decode_cache.decode(retired);
        // The next instruction may retire much later, perhaps only because of the PMI.
        if matches!(decoded.kind, InstructionKind::Hlt | InstructionKind::Mwait) {
            self.shared.perfmon.deliver_all(&mut self.shared.violations);
        }
        if !decoded.may_transfer() && decoded.next_ip(&retired.before) != retired.after.ip {
            self.shared.violations.unexplained_transfers += 1;
        }
        let predicted = self.predictor.was_predicted(retired, decoded);
        let right = predicted.unwrap_or(true);
        let taken = TakenBranch::of_instruction(retired, decoded, self.settings.branch_level, right);
        let info = InstructionInfo { decoded, taken, mispredicted: !right };
        self.last_ip = retired.before.ip;
        // A sample is stored before the branch record of the same instruction, and after all counters have counted it.
        let units: [&mut dyn TracingUnit; UNITS] =
            [&mut self.pt, &mut self.lbr, &mut self.counters, &mut self.bts];
        for (unit, stepped) in units.into_iter().zip(stepped) {
            if stepped && unit.sees_instructions(&self.shared) {
                unit.retire(retired, &info, &mut Bus { mem, shared: &mut self.shared });
            }
        }
        self.pt.take_record(&retired.after, &mut Bus { mem, shared: &mut self.shared });
        self.shared.perfmon.instruction_retired(&mut self.shared.violations);
    }

    /// Retires the instruction `at`, which writes MSRs; `stepped` has the units that were on before it.
    fn has_written(&mut self, stepped: [bool; UNITS], at: &Retired, mem: &mut dyn PhysMemory) {
        self.last_ip = at.before.ip;
        match (stepped.contains(&true), self.needs_each_instruction()) {
            (true, true) => self.retire_in_units(stepped, at, mem),
            // Nothing is on any more, so a PMI cannot wait for further instructions.
            (true, false) => self.shared.perfmon.deliver_all(&mut self.shared.violations),
            (false, _) => {}
        }
    }

    /// Returns true if the registers must be set before the next instruction retires.
    pub fn wants_registers(&self) -> bool {
        self.counters.wants_registers()
    }

    /// Sets the general-purpose registers and RFLAGS after the instruction that retires next (RIP is ignored), and XMM0
    /// to XMM15, sixteen bytes each.
    pub fn set_registers(&mut self, registers: Registers, xmm: &[u8; 256]) {
        self.counters.set_registers(registers, xmm);
    }

    /// Returns true if Intel PT is the only unit that is on, with IA32_RTIT_CTL.OS clear, and no interrupt is in
    /// flight. Nothing that executes at privilege level 0 is traced then.
    ///
    /// Source: SDM vol. 3, Intel Processor Trace, "Filtering by Current Privilege Level (CPL)".
    pub fn traces_programs_only(&self) -> bool {
        self.units_on() == [true, false, false, false]
            && self.pt.skips_level_0()
            && !self.shared.perfmon.has_interrupt_on_the_way()
    }

    /// Returns true if Intel PT is on, regardless of its filters.
    pub fn is_traced(&self) -> bool {
        self.pt.needs_each_instruction(&self.shared)
    }

    /// Returns the software's violations so far.
    pub fn violations(&self) -> &IntelViolations {
        &self.shared.violations
    }

    /// Returns the reason for which IA32_RTIT_STATUS.Error was set last.
    pub fn operational_error(&self) -> Option<OperationalError> {
        self.pt.operational_error()
    }

    fn units_on(&self) -> [bool; UNITS] {
        self.units().map(|unit| unit.needs_each_instruction(&self.shared))
    }

    fn units_that_see(&self) -> [bool; UNITS] {
        self.units().map(|unit| unit.sees_instructions(&self.shared))
    }

    fn units(&self) -> [&dyn TracingUnit; UNITS] {
        [&self.pt, &self.lbr, &self.counters, &self.bts]
    }
}

impl Processor for IntelProcessor {
    fn cpuid(&self, leaf: u32, subleaf: u32, hardware: CpuidResult) -> CpuidResult {
        let answer = self.extended_state.cpuid(leaf, subleaf, overlay(self.profile, leaf, subleaf, hardware));
        let answer = if self.vmx { vmx::with_vmx(leaf, answer) } else { answer };
        if self.tsx { transactions::with_tsx(leaf, subleaf, answer) } else { answer }
    }

    fn owns_msr(&self, msr: u32) -> bool {
        is_processors_own_msr(msr)
            || self.extended_state.owns_msr(msr)
            || self.vmx && msr == vmx::IA32_VMX_MISC
            || self.units().iter().any(|unit| unit.owns_msr(msr))
    }

    fn read_msr(&self, msr: u32) -> Result<u64, GeneralProtection> {
        match msr {
            msr::PLATFORM_INFO if self.profile.has_platform_info() => {
                Ok(u64::from(self.profile.non_turbo_ratio) << 8)
            }
            msr::PLATFORM_INFO => Err(GeneralProtection),
            msr::IA32_MISC_ENABLE => Ok(self.misc_enable.value()),
            msr::IA32_PERF_CAPABILITIES => self.profile.perf_capabilities.ok_or(GeneralProtection),
            vmx::IA32_VMX_MISC if self.vmx => Ok(vmx::PT_IN_VMX),
            _ if self.extended_state.owns_msr(msr) => Ok(self.extended_state.xss()),
            msr::IA32_PERF_GLOBAL_INUSE if self.profile.perfmon_version >= 4 => Ok(self.counters.in_use()),
            _ if is_processors_own_msr(msr) => self.shared.perfmon.read(msr),
            _ => {
                let owner = self.units().into_iter().find(|unit| unit.owns_msr(msr));
                owner.ok_or(GeneralProtection)?.read_msr(msr, &self.shared)
            }
        }
    }

    /// Writes an MSR. If the WRMSR clears TraceEn, the trace has its own address; if it sets TraceEn, the next address.
    fn write_msr(
        &mut self,
        msr: u32,
        value: u64,
        at: &Retired,
        mem: &mut dyn PhysMemory,
    ) -> Result<(), GeneralProtection> {
        let stepped = self.units_that_see();
        match msr {
            msr::IA32_MISC_ENABLE => self.misc_enable.write(value)?,
            msr::PLATFORM_INFO | msr::IA32_PERF_CAPABILITIES => return Err(GeneralProtection),
            _ if self.extended_state.owns_msr(msr) => self.extended_state.set_xss(value)?,
            _ if is_processors_own_msr(msr) => self.shared.perfmon.write(msr, value)?,
            _ => {
                let units: [&mut dyn TracingUnit; UNITS] =
                    [&mut self.pt, &mut self.lbr, &mut self.counters, &mut self.bts];
                let owner = units.into_iter().find(|unit| unit.owns_msr(msr));
                let bus = &mut Bus { mem, shared: &mut self.shared };
                owner.ok_or(GeneralProtection)?.write_msr(msr, value, at, bus)?;
            }
        }
        self.has_written(stepped, at, mem);
        Ok(())
    }

    fn event_that_is_not_counted(&self, msr: u32) -> Option<u64> {
        self.counters.event_that_is_not_counted(msr)
    }

    /// Executes RDPMC. Source: SDM vol. 2, "RDPMC": 4000H in the upper half of ECX selects the fixed-function counters.
    fn rdpmc(&self, index: u32) -> Result<u64, GeneralProtection> {
        let fixed = msr::IA32_FIXED_CTR0 + (index & 0xffff);
        if index >> 16 == FIXED_COUNTERS && fixed < msr::IA32_FIXED_CTR_CTRL && self.counters.owns_msr(fixed)
        {
            self.read_msr(fixed)
        } else {
            self.counters.rdpmc(index).ok_or(GeneralProtection)
        }
    }

    /// Returns whether TraceEn, TR or LBR is set, or a counter counts instructions.
    fn needs_each_instruction(&self) -> bool {
        self.units_on().contains(&true)
    }

    fn is_on(&self) -> bool {
        self.needs_each_instruction()
    }

    fn counts_time(&self) -> bool {
        self.counters.is_counting(&self.shared)
    }

    fn begin_time(&mut self, tsc: u64) {
        self.counters.begin_time(tsc, &self.shared);
    }

    fn pass_time(&mut self, tsc: u64, mem: &mut dyn PhysMemory) {
        let interrupts = self.counters.pass_time(tsc, &mut Bus { mem, shared: &mut self.shared });
        // Without reported instructions, the interrupt would never arrive.
        if interrupts && !self.needs_each_instruction() {
            self.shared.perfmon.deliver_all(&mut self.shared.violations);
        }
    }

    /// Returns true if IA32_DEBUGCTL.TR is set (branch trace messages), or the last branch records are on.
    fn records_branches(&self) -> bool {
        self.shared.debugctl.tr() || self.lbr.needs_each_instruction(&self.shared)
    }

    fn max_unreported(&self) -> u32 {
        let until_sample =
            u32::try_from(self.counters.instructions_until_sample(&self.shared)).unwrap_or(u32::MAX);
        until_sample.clamp(1, self.shared.perfmon.instructions_until_pmi())
    }

    fn retire(&mut self, retired: &Retired, mem: &mut dyn PhysMemory) {
        self.retire_in_units(self.units_that_see(), retired, mem);
    }

    fn deliver(&mut self, delivery: &Delivery, mem: &mut dyn PhysMemory) {
        let taken = TakenBranch::of_delivery(delivery, self.last_ip, self.settings.branch_level);
        let own = self.shared.ds.delivers_fault(delivery);
        let units: [(&mut dyn TracingUnit, bool); UNITS] = [
            (&mut self.pt, true),
            (&mut self.lbr, true),
            (&mut self.counters, true),
            // The #PF of a branch record does not make a branch record.
            (&mut self.bts, !own),
        ];
        for (unit, sees) in units {
            if sees && unit.sees_instructions(&self.shared) {
                unit.deliver(delivery, &taken, &mut Bus { mem, shared: &mut self.shared });
            }
        }
        self.pt.take_record(&delivery.after, &mut Bus { mem, shared: &mut self.shared });
        if delivery.kind == DeliveryKind::SoftwareInterrupt {
            self.last_ip = delivery.before.ip;
        }
    }

    /// Takes an interrupt. If it is a PMI, the LVT entry's mask bit is set.
    fn take_interrupt(&mut self) -> Option<Pmi> {
        self.shared.perfmon.take_delivered()
    }

    /// Returns the page fault of an access to the Debug Store save area. The record that caused it is lost, and so are
    /// all records until this method is called.
    ///
    /// The manual requires that the area is mapped, and does not define the behaviour otherwise. Here the delivery of
    /// that #PF does not make a branch record, which would fault again; its handler is recorded as usual.
    fn take_page_fault(&mut self) -> Option<PageFault> {
        self.shared.ds.take_fault()
    }

    /// Returns true for the LVT performance-monitoring-counters register, the only one modelled.
    fn owns_apic(&self, offset: u32) -> bool {
        offset == LVT_PC
    }

    fn read_apic(&self, _offset: u32) -> u32 {
        self.shared.perfmon.lvt()
    }

    fn write_apic(&mut self, _offset: u32, value: u32) {
        self.shared.perfmon.set_lvt(value);
    }

    /// Processes INIT, which ends the recording of branches in memory. Intel PT goes on: its MSRs keep their values,
    /// and the trace shows INIT.
    ///
    /// Source: SDM vol. 3, Processor Management and Initialization, "Processor State After Reset".
    fn init(&mut self, init: &Init, mem: &mut dyn PhysMemory) {
        self.pt.init(init, &mut Bus { mem, shared: &mut self.shared });
        self.shared.perfmon.init();
        self.shared.debugctl.clear_tr_and_bts();
    }

    fn start_up(&mut self, at: &Context, tsc: u64, mem: &mut dyn PhysMemory) {
        self.pt.start_up(at, tsc, &mut Bus { mem, shared: &mut self.shared });
    }

    fn all_violations(&self) -> Violations {
        Violations::Intel(self.shared.violations)
    }
}

/// The upper half of ECX with which RDPMC reads a fixed-function counter.
const FIXED_COUNTERS: u32 = 0x4000;
/// The offset of the LVT performance-monitoring-counters register in the page of the local APIC's registers.
const LVT_PC: u32 = 0x340;
/// Number of units.
const UNITS: usize = 4;

/// Returns true for MSRs that belong to no unit.
fn is_processors_own_msr(number: u32) -> bool {
    matches!(
        number,
        msr::PLATFORM_INFO
            | msr::IA32_MISC_ENABLE
            | msr::IA32_PERF_CAPABILITIES
            | msr::IA32_PERF_GLOBAL_STATUS..=msr::IA32_PERF_GLOBAL_INUSE
    )
}
