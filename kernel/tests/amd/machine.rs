//! A machine for the driver: the model's processor, and a program that never returns to the same place.

use pugmark_decoder_core::ibs::Sample;
use pugmark_kernel::amd::counters::{self, CountedEvent, Overflow};
use pugmark_kernel::amd::ibs::{self, IbsConfig, IbsCounts, SampleSink};
use pugmark_kernel::amd::{ExtendedLvt, LvtEntry, Northbridge};
use pugmark_kernel::cpuid::CpuIdResult;
use pugmark_kernel::lapic::{Delivery, LocalApic, LvtPc};
use pugmark_kernel::lifecycle::LateNmis;
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::{Handler, Pmi, PmiSource};
use pugmark_model::amd as model;
use pugmark_model::{
    Context, ExecMode, Mapping, Memory, PageFault, PageSize, PhysMemory, Processor as _, Retired,
};
use std::cell::RefCell;
use std::rc::Rc;

/// All profiles, and those that have IBS.
pub(crate) const ALL: [&str; 8] = ["k8", "barcelona", "trinity", "zen2", "zen3", "zen4", "zen5", "zen6"];
pub(crate) const WITH_IBS: [&str; 7] = ["barcelona", "trinity", "zen2", "zen3", "zen4", "zen5", "zen6"];

const EFER: u32 = 0xc000_0080;
const NB_CFG: u32 = 0xc001_001f;

/// The start of the program.
pub(crate) const CODE: u64 = 0x40_0000;

/// One processor. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Machine(Rc<RefCell<State>>);

struct State {
    processor: model::AmdProcessor<'static>,
    ip: u64,
    efer: u64,
    /// The number of MSR accesses before one raises #GP.
    fault_in: Option<u32>,
    /// The number of MSR accesses before a burst of the program's instructions.
    burst_in: Option<u32>,
    accesses: u32,
}

/// The number of instructions that run before an access: more than any period.
const BURST: u32 = 0x400;
/// The period of all units.
pub(crate) const PERIOD: u32 = 0x200;

impl Machine {
    /// Returns a processor whose interrupts arrive this many instructions late.
    pub(crate) fn new(profile: &str, skid: u32) -> Self {
        Self::with_errata(profile, skid, None)
    }

    /// Returns such a processor with errata in place of its own.
    pub(crate) fn with_errata(profile: &str, skid: u32, errata: Option<model::Errata>) -> Self {
        let profile = model::AmdProfile::by_name(profile).unwrap();
        let northbridge = Box::leak(Box::new(model::Northbridge::new(profile)));
        let settings = model::AmdSettings { skid, errata, ..model::AmdSettings::default() };
        let processor = model::AmdProcessor::new(profile, settings, northbridge);
        let has_northbridge = processor.owns_msr(NB_CFG);
        let state = State { processor, ip: CODE, efer: 0, fault_in: None, burst_in: None, accesses: 0 };
        let mut machine = Self(Rc::new(RefCell::new(state)));
        if has_northbridge {
            // SAFETY: the register is the model's: EnableCf8ExtCfg.
            unsafe { machine.wrmsr(NB_CFG, 1 << 46) }.unwrap();
        }
        machine
    }

    pub(crate) fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuIdResult {
        let answer = self.0.borrow().processor.cpuid(leaf, subleaf, Default::default());
        CpuIdResult { eax: answer.eax, ebx: answer.ebx, ecx: answer.ecx, edx: answer.edx }
    }

    pub(crate) fn fault_in(&self, accesses: u32) {
        self.0.borrow_mut().fault_in = Some(accesses);
    }

    pub(crate) fn burst_in(&self, accesses: u32) {
        self.0.borrow_mut().burst_in = Some(accesses);
    }

    /// Returns the number of MSR accesses so far.
    pub(crate) fn accesses(&self) -> u32 {
        self.0.borrow().accesses
    }

    pub(crate) fn violations(&self) -> model::AmdViolations {
        *self.0.borrow().processor.violations()
    }

    pub(crate) fn msr(&self, address: u32) -> u64 {
        self.0.borrow().processor.read_msr(address).unwrap()
    }

    /// Writes a register, as another owner does.
    pub(crate) fn write(&self, address: u32, value: u64) {
        // SAFETY: the registers are the model's.
        unsafe { self.clone().wrmsr(address, value) }.unwrap();
    }

    pub(crate) fn rdpmc(&self, index: u32) -> u64 {
        self.0.borrow().processor.rdpmc(index).unwrap()
    }

    pub(crate) fn set_svm(&self, on: bool) {
        let mut state = self.0.borrow_mut();
        state.efer = u64::from(on) << 12;
        state.processor.set_svme(on);
    }

    pub(crate) fn ip(&self) -> u64 {
        self.0.borrow().ip
    }

    /// Runs this many instructions of the program, with a jump in each 16, or until an interrupt arrives; returns
    /// whether one did.
    pub(crate) fn run(&self, instructions: u32) -> bool {
        for _ in 0..instructions {
            self.step();
            if self.interrupt() {
                return true;
            }
        }
        false
    }

    /// Returns whether an interrupt has arrived: an NMI, where several count as one.
    pub(crate) fn interrupt(&self) -> bool {
        let mut state = self.0.borrow_mut();
        let mut came = false;
        while let Some(interrupt) = state.processor.take_interrupt() {
            assert_eq!(interrupt, pugmark_model::Pmi::Nmi);
            came = true;
        }
        came
    }

    /// Executes MOV RAX, \[RBX\] with this address in RBX.
    pub(crate) fn load(&self, address: u64) {
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        let mut registers = model::DataRegisters::default();
        registers.general[3] = address;
        state.processor.set_registers(registers);
        let (before, after) = (user(state.ip), user(state.ip + 3));
        let retired = Retired { before, after, bytes: &[0x48, 0x8b, 0x03], tsc: 0, operand: 0 };
        state.processor.retire(&retired, &mut Mapped);
        state.ip += 3;
    }

    fn step(&self) {
        let mut state = self.0.borrow_mut();
        let state = &mut *state;
        let (bytes, next): (&[u8], _) = match state.ip & 0xf {
            0xe => (&[0xeb, 0x10], state.ip + 0x12),
            _ => (&[0x90], state.ip + 1),
        };
        let retired = Retired { before: user(state.ip), after: user(next), bytes, tsc: 0, operand: 0 };
        state.processor.retire(&retired, &mut Mapped);
        state.ip = next;
    }

    fn access(&self, fault: GeneralProtection) -> Result<(), GeneralProtection> {
        let mut state = self.0.borrow_mut();
        state.accesses += 1;
        let burst = state.burst_in;
        state.burst_in = burst.and_then(|left| left.checked_sub(1));
        let faulty = state.fault_in;
        state.fault_in = faulty.and_then(|left| left.checked_sub(1));
        drop(state);
        if burst == Some(0) {
            (0..BURST).for_each(|_| self.step());
        }
        if faulty == Some(0) { Err(fault) } else { Ok(()) }
    }
}

fn user(ip: u64) -> Context {
    Context { ip, cs_base: 0, cr3: 0x5000, cpl: 3, mode: ExecMode::Bits64, iflag: true }
}

// SAFETY: these are the model's registers.
unsafe impl Msr for Machine {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        let fault = GeneralProtection { address, written: None };
        self.access(fault)?;
        let state = self.0.borrow();
        match address {
            EFER => Ok(state.efer),
            _ => state.processor.read_msr(address).map_err(|_| fault),
        }
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        let fault = GeneralProtection { address, written: Some(value) };
        self.access(fault)?;
        let kernel =
            |ip| Context { ip, cs_base: 0, cr3: 0x5000, cpl: 0, mode: ExecMode::Bits64, iflag: false };
        let before = kernel(0xffff_ffff_8100_0000);
        let at = Retired { before, after: kernel(before.ip + 2), bytes: &[0x0f, 0x30], tsc: 0, operand: 0 };
        self.0.borrow_mut().processor.write_msr(address, value, &at, &mut Mapped).map_err(|_| fault)
    }
}

// SAFETY: this is the model's entry.
unsafe impl LocalApic for Machine {
    fn is_enabled(&mut self) -> Result<bool, GeneralProtection> {
        Ok(true)
    }

    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
        Ok(LvtPc(self.0.borrow().processor.read_apic(0x340)))
    }

    unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
        self.0.borrow_mut().processor.write_apic(0x340, entry.0);
        Ok(())
    }
}

// SAFETY: these are the model's entries.
unsafe impl ExtendedLvt for Machine {
    fn count(&mut self) -> Result<u8, GeneralProtection> {
        Ok((self.0.borrow().processor.read_apic(0x400) >> 16) as u8)
    }

    fn entry(&mut self, n: u8) -> Result<LvtEntry, GeneralProtection> {
        Ok(LvtEntry(self.0.borrow().processor.read_apic(0x500 + 0x10 * u32::from(n))))
    }

    unsafe fn set_entry(&mut self, n: u8, entry: LvtEntry) -> Result<(), GeneralProtection> {
        self.0.borrow_mut().processor.write_apic(0x500 + 0x10 * u32::from(n), entry.0);
        Ok(())
    }
}

// SAFETY: these are the model's registers, accessed through its ports.
unsafe impl Northbridge for Machine {
    fn read(&mut self, node: u8, offset: u16) -> u32 {
        let state = self.0.borrow();
        state.processor.northbridge().port_write(0xcf8, 4, configuration(node, offset));
        state.processor.northbridge().port_read(0xcfc, 4).unwrap_or(!0)
    }

    fn write(&mut self, node: u8, offset: u16, value: u32) {
        let state = self.0.borrow();
        state.processor.northbridge().port_write(0xcf8, 4, configuration(node, offset));
        assert!(state.processor.northbridge().port_write(0xcfc, 4, value));
    }
}

/// Returns the configuration address of function 3 of a node's device.
fn configuration(node: u8, offset: u16) -> u32 {
    let offset = u32::from(offset);
    1 << 31 | offset >> 8 << 24 | (24 + u32::from(node)) << 11 | 3 << 8 | offset & 0xff
}

/// An identity mapping. Pages have 2 MiB from [`LARGE`] on and 1 GiB from [`HUGE`] on. Memory is not cached from
/// [`UNCACHED`] on, and there is no memory from [`DEVICE`] on.
struct Mapped;

pub(crate) const LARGE: u64 = 0x4000_0000;
pub(crate) const HUGE: u64 = 0x8000_0000;
pub(crate) const UNCACHED: u64 = 0xc000_0000;
pub(crate) const DEVICE: u64 = 0xd000_0000;

impl PhysMemory for Mapped {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }

    fn write(&mut self, _: u64, _: &[u8]) -> bool {
        false
    }

    fn translate(&mut self, address: u64, _: bool) -> Result<Mapping, PageFault> {
        let page = match address {
            LARGE..HUGE => PageSize::M2,
            HUGE..UNCACHED => PageSize::G1,
            _ => PageSize::K4,
        };
        let memory = match address {
            UNCACHED..DEVICE => Memory::Uncached,
            DEVICE..0xf000_0000 => Memory::Device,
            _ => Memory::Cached,
        };
        Ok(Mapping { physical: address & 0xffff_ffff, supervisor: false, marked: true, page, memory })
    }
}

/// A kernel with this driver, on one processor: it samples with counters and, if there is one, with IBS.
pub(crate) struct Kernel {
    pub(crate) machine: Machine,
    pub(crate) handler: Handler,
    pub(crate) counters: Option<counters::CounterRunning<Machine>>,
    pub(crate) ibs: Option<ibs::IbsRunning<Machine>>,
    pub(crate) fetches: Vec<u64>,
    pub(crate) ops: Vec<u64>,
    pub(crate) overflows: Vec<Overflow>,
    /// The number of interrupts that were not claimed.
    pub(crate) unclaimed: u32,
}

/// A sink that takes the addresses of samples.
struct Addresses<'a> {
    fetches: &'a mut Vec<u64>,
    ops: &'a mut Vec<u64>,
}

impl SampleSink for Addresses<'_> {
    fn sample(&mut self, sample: &Sample) -> bool {
        match sample {
            Sample::Fetch(fetch) => self.fetches.push(fetch.linear_address().unwrap()),
            Sample::Op(op) => self.ops.push(op.rip().unwrap()),
        }
        true
    }
}

impl Kernel {
    /// Takes the samples that the units had at the end; returns the fates of all samples.
    pub(crate) fn take_last(&mut self, stopped: LateNmis<ibs::IbsStopped<Machine>>) -> IbsCounts {
        let stopped = stopped.expect(&mut self.handler);
        let mut addresses = Addresses { fetches: &mut self.fetches, ops: &mut self.ops };
        stopped.last().for_each(|sample| assert!(addresses.sample(sample)));
        stopped.counts
    }

    pub(crate) fn new(profile: &str, skid: u32) -> Self {
        let machine = Machine::new(profile, skid);
        let handler = Handler::amd(Delivery::Nmi);
        // SAFETY: the entry represents no hardware.
        unsafe { machine.clone().set_lvt_pc(LvtPc::new(Delivery::Nmi)) }.unwrap();
        Self {
            machine,
            handler,
            counters: None,
            ibs: None,
            fetches: Vec::new(),
            ops: Vec::new(),
            overflows: Vec::new(),
            unclaimed: 0,
        }
    }

    pub(crate) fn counters_unit(&self) -> counters::CounterUnit<Machine> {
        let machine = self.machine.clone();
        counters::CounterUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.clone()).unwrap()
    }

    /// Returns the IBS units, with their interrupt routed.
    pub(crate) fn ibs_unit(&self) -> ibs::IbsUnit<Machine> {
        let machine = self.machine.clone();
        let mut unit =
            ibs::IbsUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.clone()).unwrap();
        unit.route(&mut machine.clone(), Some(&mut machine.clone())).unwrap();
        unit
    }

    /// Returns events for retired instructions of user code, counted and sampled.
    pub(crate) fn events() -> [CountedEvent; 2] {
        let instructions = CountedEvent::new(0xc0, 0).os(false);
        [instructions, instructions.every(PERIOD.into())]
    }

    pub(crate) fn both() -> IbsConfig {
        // Fetches of 16 or 32 bytes, each of which holds many of the program's instructions.
        IbsConfig::new().fetch(0x10).op(PERIOD)
    }

    /// Handles an NMI.
    pub(crate) fn nmi(&mut self) -> Result<Pmi, GeneralProtection> {
        let mut keep = |overflow| {
            self.overflows.push(overflow);
            true
        };
        let mut addresses = Addresses { fetches: &mut self.fetches, ops: &mut self.ops };
        let mut counters = self.counters.as_mut().map(|running| running.source(&mut keep));
        let mut ibs = self.ibs.as_mut().map(|running| running.source(&mut addresses));
        let mut sources: Vec<&mut dyn PmiSource> = Vec::new();
        sources.extend(counters.as_mut().map(|source| source as &mut dyn PmiSource));
        sources.extend(ibs.as_mut().map(|source| source as &mut dyn PmiSource));
        let at = self.machine.ip();
        let (mut msr, mut apic) = (self.machine.clone(), self.machine.clone());
        let pmi = self.handler.handle_at(at, &mut msr, &mut apic, &mut sources)?;
        self.unclaimed += u32::from(pmi == Pmi::NotOurs);
        Ok(pmi)
    }

    /// Handles the NMIs that have arrived: one at a time, and then one that arrived meanwhile.
    pub(crate) fn serve(&mut self) {
        for _ in 0..100 {
            if !self.machine.interrupt() {
                return;
            }
            self.nmi_or_again();
        }
        panic!("interrupts without end");
    }

    /// Runs this many instructions of the program and serves their interrupts.
    pub(crate) fn run(&mut self, instructions: u32) {
        for _ in 0..instructions {
            if self.machine.run(1) {
                self.nmi_or_again();
                self.serve();
            }
        }
    }

    /// Handles an NMI; if a fault is reported, the kernel tries once more.
    fn nmi_or_again(&mut self) {
        if self.nmi().is_err() {
            let unclaimed = self.unclaimed;
            self.nmi().unwrap();
            // The second try was not an interrupt.
            self.unclaimed = unclaimed;
        }
    }
}
