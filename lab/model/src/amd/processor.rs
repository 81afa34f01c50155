//! One AMD logical processor, which joins the counters, Instruction-Based Sampling (IBS) and the last branches.

use super::access::{DataAddress, DataRegisters, InstructionForms, mapping};
use super::branches::{BranchTransfer, LastBranches};
use super::caches::{CacheSide, Caches};
use super::configuration::ConfigurationRegisters;
use super::counters::{AmdCounters, CounterSet};
use super::cpuid::overlay;
use super::execution::{DataAccess, Execution, Fetcher, ops};
use super::ibs::{FetchSampling, OpSampling, SamplingOutcome};
use super::local_apic::{LocalApic, LvtEntry};
use super::registers::msr;
use super::{AmdProfile, AmdSettings, AmdViolations, Northbridge};
use crate::branch::InstructionKind;
use crate::predictor::Predictor;
use crate::{
    Context, CpuidResult, Delivery, DeliveryKind, GeneralProtection, Init, Memory, PhysMemory, Pmi,
    Processor, Retired, Violations,
};

/// One logical processor's counters, Instruction-Based Sampling, and last branches.
///
/// Timing is simple: an instruction takes a cycle, and more after misses, regardless of [`AmdSettings`]. There is no
/// speculation: each dispatched op retires, except those of an instruction that faults.
///
/// Not modelled: SVM beyond EFER.SVME, SMM, write-combining memory, the memory types of code, the op cache, fused
/// branches.
#[derive(Debug)]
pub struct AmdProcessor<'n> {
    profile: &'static AmdProfile,
    northbridge: &'n Northbridge,
    configuration: ConfigurationRegisters,
    counters: AmdCounters,
    fetch: FetchSampling,
    op: OpSampling,
    branches: LastBranches,
    local_apic: LocalApic,
    caches: Caches,
    fetcher: Fetcher,
    forms: InstructionForms,
    registers: Option<DataRegisters>,
    predictor: Predictor,
    violations: AmdViolations,
}

/// The units that count an instruction.
#[derive(Clone, Copy)]
struct CountingUnits {
    counters: CounterSet,
    fetch: bool,
    op: bool,
}

/// Vector of #DB.
const DEBUG_EXCEPTION: u8 = 1;

const ALL_UNITS: CountingUnits = CountingUnits { counters: !0, fetch: true, op: true };

impl<'n> AmdProcessor<'n> {
    /// Returns a processor after a cold reset, one of those that share `northbridge`.
    pub fn new(profile: &'static AmdProfile, settings: AmdSettings, northbridge: &'n Northbridge) -> Self {
        let errata = settings.errata.unwrap_or(profile.errata);
        Self {
            profile,
            northbridge,
            configuration: ConfigurationRegisters::new(profile),
            counters: AmdCounters::new(profile),
            fetch: FetchSampling::new(profile, errata, settings.seed),
            op: OpSampling::new(profile, errata, settings.rip_invalid, settings.seed),
            branches: LastBranches::new(profile, errata),
            local_apic: LocalApic::new(profile.extended_lvts, settings.skid),
            caches: Caches::new(profile.l3),
            fetcher: Fetcher::new(profile.fetch_block),
            forms: InstructionForms::new(),
            registers: None,
            predictor: Predictor::new(),
            violations: AmdViolations::default(),
        }
    }

    /// Sets EFER.SVME: while it is clear, a counter with HostOnly or GuestOnly does not count.
    pub fn set_svme(&mut self, svme: bool) {
        self.counters.set_svme(svme);
    }

    /// Returns true if the registers must be set before the next instruction retires: its data access is counted, or is
    /// one of the last before an op is tagged. The caches do not see data accesses at other times.
    pub fn wants_registers(&self) -> bool {
        self.op.wants_data() || self.counters.wants_data()
    }

    /// Sets the registers before the instruction that retires next.
    pub fn set_registers(&mut self, registers: DataRegisters) {
        self.registers = Some(registers);
    }

    fn count_instruction(&mut self, retired: &Retired, mem: &mut dyn PhysMemory, scope: CountingUnits) {
        let execution = self.examine(retired, mem);
        if execution.taken {
            self.transfer(&BranchTransfer {
                from: execution.ip,
                to: execution.next,
                to_cpl: retired.after.cpl,
                kind: execution.decoded.kind,
                mispredicted: execution.mispredicted,
            });
        }
        let overflows = self.counters.retire(&execution, scope.counters);
        self.signal_overflows(overflows);
        if scope.fetch {
            for fetch in execution.fetches() {
                if self.fetch.fetch(fetch) == SamplingOutcome::Interrupt {
                    self.signal_ibs();
                }
            }
        }
        // A tagging engine that was left on stays on regardless of the WRMSR.
        if (scope.op || self.op.is_stuck_on()) && self.op.retire(&execution) == SamplingOutcome::Interrupt {
            self.signal_ibs();
        }
        if matches!(execution.decoded.kind, InstructionKind::Hlt | InstructionKind::Mwait) {
            // The next instruction may retire much later, perhaps only because of the interrupt.
            self.local_apic.deliver_all(&mut self.violations);
        } else {
            self.local_apic.instruction_retired(&mut self.violations);
        }
    }

    fn examine(&mut self, retired: &Retired, mem: &mut dyn PhysMemory) -> Execution {
        let form = self.forms.of(retired);
        let decoded = form.decoded;
        let straight = decoded.next_ip(&retired.before) == retired.after.ip;
        if !decoded.may_transfer() && !straight {
            self.violations.unexplained_transfers += 1;
        }
        let fetches =
            self.fetcher.fetches_of(retired, decoded.len, &mut self.caches, mem, self.fetch.is_on());
        let access = form.access();
        let data = self.registers.take().and_then(|registers| {
            let (access, linear) = (access?, form.address(retired.before.mode, &registers)?);
            let address = DataAddress { linear, mapping: mapping(mem, linear) };
            let found = match address.mapping.map_or(Memory::Cached, |mapping| mapping.memory) {
                Memory::Cached => self.caches.access(CacheSide::Data, linear),
                Memory::Uncached | Memory::Device => self.caches.access_uncached(CacheSide::Data, linear),
            };
            Some(DataAccess { access, address, found })
        });
        let (ops, microcoded) = ops(decoded.kind, access);
        Execution {
            ip: retired.before.ip,
            next: retired.after.ip,
            cpl: retired.before.cpl,
            decoded,
            taken: decoded.may_transfer() && !straight,
            mispredicted: self.predictor.was_predicted(retired, decoded) == Some(false),
            ops,
            microcoded,
            fetches,
            data,
        }
    }

    /// Returns the northbridge that this processor shares with the other processors of its node.
    pub fn northbridge(&self) -> &'n Northbridge {
        self.northbridge
    }

    /// Returns the software's violations so far.
    pub fn violations(&self) -> &AmdViolations {
        &self.violations
    }

    /// Returns IBS_CTL, which selects the entry of the extended LVT through which IBS interrupts.
    fn ibs_control(&self) -> Option<u64> {
        let ibs = self.profile.ibs.as_ref()?;
        Some(self.northbridge.ibs_control().unwrap_or(ibs.ctl))
    }

    fn transfer(&mut self, transfer: &BranchTransfer) {
        if self.branches.transfer(transfer, self.counters.freezes_branches()) {
            self.local_apic.signal(LvtEntry::Counters);
        }
    }

    fn signal_overflows(&mut self, overflows: CounterSet) {
        if overflows != 0 && !self.branches.overflow(overflows.trailing_zeros()) {
            self.local_apic.signal(LvtEntry::Counters);
        }
    }

    fn signal_ibs(&mut self) {
        const OFFSET: u64 = 0xf;
        const VALID: u64 = 1 << 8;
        let control = self.ibs_control().unwrap_or(0);
        let index = (control & OFFSET) as usize;
        if control & VALID != 0 && self.local_apic.has_extended(index) {
            self.local_apic.signal(LvtEntry::Extended(index));
        } else {
            self.violations.samples_without_lvt += 1;
        }
    }
}

impl Processor for AmdProcessor<'_> {
    fn cpuid(&self, leaf: u32, subleaf: u32, hardware: CpuidResult) -> CpuidResult {
        overlay(self.profile, leaf, subleaf, hardware)
    }

    fn owns_msr(&self, msr: u32) -> bool {
        match msr {
            msr::NB_CFG if self.northbridge.configuration().is_some() => true,
            msr::IBS_CTL => self.profile.ibs.is_some(),
            _ if self.branches.owns_msr(msr) => true,
            _ => {
                self.counters.owns_msr(msr)
                    || self.fetch.owns_msr(msr)
                    || self.op.owns_msr(msr)
                    || self.configuration.owns_msr(msr)
            }
        }
    }

    fn read_msr(&self, msr: u32) -> Result<u64, GeneralProtection> {
        match msr {
            msr::NB_CFG if self.northbridge.configuration().is_some() => {
                self.northbridge.configuration().ok_or(GeneralProtection)
            }
            msr::IBS_CTL => self.ibs_control().ok_or(GeneralProtection),
            _ if self.fetch.owns_msr(msr) => Ok(self.fetch.read(msr)),
            _ if self.op.owns_msr(msr) => Ok(self.op.read(msr)),
            _ if self.branches.owns_msr(msr) => Ok(self.branches.read(msr)),
            _ if self.configuration.owns_msr(msr) => self.configuration.read(msr),
            _ => self.counters.read(msr),
        }
    }

    /// Writes an MSR. A unit or counter that was on before and still is counts the WRMSR, unless the WRMSR writes that
    /// very counter or a register of that unit.
    fn write_msr(
        &mut self,
        msr: u32,
        value: u64,
        at: &Retired,
        mem: &mut dyn PhysMemory,
    ) -> Result<(), GeneralProtection> {
        let before = self.counters.counting();
        let was_stepping = self.needs_each_instruction();
        match msr {
            msr::NB_CFG if self.northbridge.configuration().is_some() => {
                self.northbridge.set_configuration(value)
            }
            // Read-only.
            msr::IBS_CTL => return Err(GeneralProtection),
            _ if self.fetch.owns_msr(msr) => self.fetch.write(msr, value, &mut self.violations)?,
            _ if self.op.owns_msr(msr) => self.op.write(msr, value, &mut self.violations)?,
            _ if self.branches.owns_msr(msr) => {
                if self.branches.write(msr, value, &mut self.violations)? {
                    self.local_apic.signal(LvtEntry::Counters);
                }
            }
            _ if self.configuration.owns_msr(msr) => self.configuration.write(msr, value)?,
            _ => self.counters.write(msr, value, &mut self.violations)?,
        }
        // After the write of another register, a unit of IBS is on exactly if it was on before. WRMSR is no branch.
        let scope = CountingUnits {
            counters: before & !self.counters.counters_written_by(msr),
            fetch: !self.fetch.owns_msr(msr),
            op: !self.op.owns_msr(msr),
        };
        if was_stepping {
            self.count_instruction(at, mem, scope);
        }
        Ok(())
    }

    fn event_that_is_not_counted(&self, msr: u32) -> Option<u64> {
        self.counters.event_that_is_not_counted(msr)
    }

    fn rdpmc(&self, index: u32) -> Result<u64, GeneralProtection> {
        self.counters.rdpmc(index)
    }

    /// Returns true if a unit is on, or an interrupt is in flight.
    fn needs_each_instruction(&self) -> bool {
        self.is_on() || self.op.is_stuck_on() || self.local_apic.has_interrupt_on_the_way()
    }

    /// Returns whether a counter counts instructions, a unit of IBS is enabled, or branches are recorded.
    fn is_on(&self) -> bool {
        self.counters.need_each_instruction()
            || self.fetch.is_on()
            || self.op.is_on()
            || self.records_branches()
    }

    fn counts_time(&self) -> bool {
        self.counters.counting() != 0
    }

    fn begin_time(&mut self, tsc: u64) {
        self.counters.begin_time(tsc);
    }

    fn pass_time(&mut self, tsc: u64, _mem: &mut dyn PhysMemory) {
        let overflows = self.counters.pass_time(tsc);
        self.signal_overflows(overflows);
        // Without reported instructions, the interrupt would never arrive.
        if overflows != 0 && !self.is_on() {
            self.local_apic.deliver_all(&mut self.violations);
        }
    }

    /// Returns true if branches are recorded, or will be when a counter overflows.
    fn records_branches(&self) -> bool {
        self.branches.is_on()
    }

    fn max_unreported(&self) -> u32 {
        let until_data = if self.counters.wants_data() { 0 } else { self.op.instructions_until_data() };
        u32::try_from(until_data).unwrap_or(u32::MAX).clamp(1, self.local_apic.instructions_until_interrupt())
    }

    fn retire(&mut self, retired: &Retired, mem: &mut dyn PhysMemory) {
        self.count_instruction(retired, mem, ALL_UNITS);
    }

    fn deliver(&mut self, delivery: &Delivery, _mem: &mut dyn PhysMemory) {
        self.registers = None;
        let aborted = self.fetcher.abort(delivery.before.ip);
        if self.fetch.fetch(&aborted) == SamplingOutcome::Interrupt {
            self.signal_ibs();
        }
        if delivery.vector == DEBUG_EXCEPTION && delivery.kind != DeliveryKind::SoftwareInterrupt {
            self.branches.debug_exception();
        }
        self.transfer(&BranchTransfer {
            from: delivery.before.ip,
            to: delivery.after.ip,
            to_cpl: delivery.after.cpl,
            kind: InstructionKind::Far,
            mispredicted: false,
        });
        let overflows = self.counters.deliver(delivery.kind, delivery.before.cpl);
        self.signal_overflows(overflows);
        if delivery.kind == DeliveryKind::Fault {
            self.op.abort();
        }
    }

    /// Takes an interrupt, whose kind is the LVT entry's message type. The entry stays unmasked.
    fn take_interrupt(&mut self) -> Option<Pmi> {
        self.local_apic.take_delivered()
    }

    /// Returns true for the LVT entry of the counters (340h), the extended feature and control registers (400h, 410h),
    /// and the extended LVT (500h to 530h).
    fn owns_apic(&self, offset: u32) -> bool {
        self.local_apic.owns(offset)
    }

    fn read_apic(&self, offset: u32) -> u32 {
        self.local_apic.read(offset)
    }

    /// Sets the bit of the extended space in the version register (30h).
    fn adjust_apic(&self, offset: u32, value: u32) -> u32 {
        self.local_apic.adjust(offset, value)
    }

    fn write_apic(&mut self, offset: u32, value: u32) {
        self.local_apic.write(offset, value);
    }

    /// Resets the local APIC, as INIT does; counters and IBS stay as they are.
    fn init(&mut self, _: &Init, _: &mut dyn PhysMemory) {
        self.local_apic.init();
    }

    fn start_up(&mut self, _: &Context, _: u64, _: &mut dyn PhysMemory) {}

    fn all_violations(&self) -> Violations {
        Violations::Amd(self.violations)
    }
}
