//! A machine for the driver: the model's processor, memory, and a program of indirect jumps.
#![allow(dead_code, reason = "each test file uses its part")]

mod collector;
pub(crate) mod guest;
mod ledger;
mod ram;
pub(crate) mod store;
pub(crate) mod xsave;

#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use collector::{Collector, assert_same, run_within, synced, tips};
#[allow(unused_imports, reason = "each test file uses its part")]
pub(crate) use ledger::Ledger;
pub(crate) use ram::Ram;

use pugmark_kernel::cpuid::CpuIdResult;
use pugmark_kernel::intel::pt::PtCapabilities;
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::intel::pt::{Buffer, Layout, Mode};
use pugmark_kernel::intel::pt::{PtRunning, PtUnit};
use pugmark_kernel::lapic::{Delivery, LocalApic, LvtPc};
use pugmark_kernel::msr::{GeneralProtection, Msr};
use pugmark_kernel::pmi::{Handler, Pmi, PmiSource};
use pugmark_model::{self as model, Processor as _};
use std::cell::RefCell;
use std::rc::Rc;

/// A running trace on this machine.
pub(crate) type Tracing<'a> = PtRunning<Registers, &'a Ram>;

/// One processor with its memory. Clones are the same machine.
#[derive(Clone)]
pub(crate) struct Machine {
    state: Rc<RefCell<State>>,
    pub(crate) ram: Rc<Ram>,
}

struct State {
    processor: model::intel::IntelProcessor,
    /// The address of user code.
    ip: u64,
    tsc: u64,
    /// True if the driver has run since the last user code.
    in_kernel: bool,
    /// The targets of all jumps while TraceEn was set.
    jumps: Vec<u64>,
    /// The number of MSR accesses before one raises #GP, and the number of those that do.
    fault_in: Option<(u32, u32)>,
    /// The register whose read was made to fault last.
    faulted_read: Option<u32>,
    accesses: u32,
    cr3: u64,
    /// True if user code jumps between two distant places, which makes packets longer.
    far: bool,
    /// The number of MSR accesses before an interrupt, and the number of jumps in its handler.
    disturbance: Option<(u32, usize)>,
    /// The number of accesses of MSRs and of the local APIC before an event, and the event.
    hook: Option<(u32, Box<dyn FnOnce()>)>,
    /// The targets of all jumps.
    executed: Vec<u64>,
    /// True if an NMI arrived while the driver worked.
    missed: bool,
    /// True while the driver serves a PMI: NMIs wait.
    in_handler: bool,
    /// True if software has enabled the local APIC.
    apic_enabled: bool,
    /// True in VMX operation, on a processor that cannot trace there.
    vmx: bool,
}

impl Machine {
    pub(crate) fn new(profile: &str, settings: model::intel::IntelSettings) -> Self {
        Self::with_memory(profile, settings, 4 << 20)
    }

    pub(crate) fn with_memory(profile: &str, settings: model::intel::IntelSettings, bytes: usize) -> Self {
        let profile = model::intel::IntelProfile::by_name(profile).unwrap();
        let processor = model::intel::IntelProcessor::new(profile, settings);
        let state = State {
            processor,
            ip: CODE,
            tsc: 0,
            in_kernel: false,
            jumps: Vec::new(),
            fault_in: None,
            faulted_read: None,
            accesses: 0,
            cr3: 0x5000,
            far: false,
            disturbance: None,
            hook: None,
            executed: Vec::new(),
            missed: false,
            in_handler: false,
            apic_enabled: true,
            vmx: false,
        };
        Self { state: Rc::new(RefCell::new(state)), ram: Rc::new(Ram::new(bytes)) }
    }

    pub(crate) fn registers(&self) -> Registers {
        Registers(self.clone())
    }

    pub(crate) fn cpuid(&self, leaf: u32, subleaf: u32) -> CpuIdResult {
        let answer = self.state.borrow().processor.cpuid(leaf, subleaf, model::CpuidResult::default());
        CpuIdResult { eax: answer.eax, ebx: answer.ebx, ecx: answer.ecx, edx: answer.edx }
    }

    pub(crate) fn capabilities(&self) -> PtCapabilities {
        PtCapabilities::read(|leaf, subleaf| self.cpuid(leaf, subleaf)).unwrap()
    }

    pub(crate) fn unit(&self) -> PtUnit<Registers> {
        PtUnit::detect(|leaf, subleaf| self.cpuid(leaf, subleaf), self.registers()).unwrap()
    }

    pub(crate) fn buffer(&self, layout: Layout, mode: Mode) -> Buffer<&Ram> {
        Buffer::allocate(&*self.ram, &self.capabilities(), layout, mode).unwrap()
    }

    /// Starts a trace of the user code.
    pub(crate) fn start(&self, layout: Layout, mode: Mode) -> Tracing<'_> {
        self.unit().start(&user_code(), self.buffer(layout, mode)).map_err(|failed| failed.error()).unwrap()
    }

    /// Makes the MSR access after `accesses` further ones raise #GP.
    pub(crate) fn fault_in(&self, accesses: u32) {
        self.faults_in(accesses, 1);
    }

    /// Makes `faults` MSR accesses after `accesses` further ones raise #GP.
    pub(crate) fn faults_in(&self, accesses: u32, faults: u32) {
        self.state.borrow_mut().fault_in = Some((accesses, faults));
    }

    /// Returns the register whose read was made to fault last.
    pub(crate) fn faulted_read(&self) -> Option<u32> {
        self.state.borrow().faulted_read
    }

    /// Lets an NMI arrive before the MSR access after `accesses` further ones; its handler makes this many jumps.
    pub(crate) fn disturb_in(&self, accesses: u32, jumps: usize) {
        self.state.borrow_mut().disturbance = Some((accesses, jumps));
    }

    /// Calls `happens` before the access of an MSR or of the local APIC after `accesses` further ones.
    pub(crate) fn at_access(&self, accesses: u32, happens: impl FnOnce() + 'static) {
        self.state.borrow_mut().hook = Some((accesses, Box::new(happens)));
    }

    /// Cancels faults and events that have not happened. Returns whether there were any.
    pub(crate) fn cancel(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let hook = state.hook.take();
        state.fault_in.take().is_some() | hook.is_some()
    }

    /// Returns the targets of all jumps, whether they were traced or not.
    pub(crate) fn executed(&self) -> Vec<u64> {
        self.state.borrow().executed.clone()
    }

    /// Delivers an NMI to user code and calls the kernel's handler.
    pub(crate) fn handle<R>(&self, handler: impl FnOnce() -> R) -> R {
        self.deliver();
        let result = handler();
        self.iret();
        result
    }

    /// Delivers an NMI to the driver, between two of its accesses. The NMI's handler makes this many jumps, then calls
    /// `handler`.
    pub(crate) fn interrupt_driver(&self, jumps: usize, handler: impl FnOnce()) {
        let driver = kernel(HANDLER + 0x10);
        self.deliver_from(driver);
        let places = [kernel(HANDLER), kernel(HANDLER + FAR)];
        for n in 0..jumps {
            self.retire(places[n % 2], places[(n + 1) % 2], &[0xff, 0xe0]);
        }
        handler();
        self.retire(places[jumps % 2], driver, &[0x48, 0xcf]);
    }

    /// Masks the LVT entry as the local APIC does when it delivers a PMI.
    pub(crate) fn mask(&self) {
        let mut state = self.state.borrow_mut();
        let entry = state.processor.read_apic(0x340);
        state.processor.write_apic(0x340, entry | LvtPc::MASK);
    }

    /// Writes 0 to a register, as a kernel does that knows that nothing else uses it.
    pub(crate) fn put_back(&self, register: u32) {
        // SAFETY: nothing is recorded into memory.
        unsafe { self.registers().wrmsr(register, 0) }.unwrap();
    }

    /// Returns whether an interrupt has arrived that nobody has taken yet.
    pub(crate) fn take_interrupt(&self) -> bool {
        self.state.borrow_mut().processor.take_interrupt().is_some()
    }

    /// Cancels faults and interrupts. Returns whether an NMI arrived while the driver worked: a PMI or another one.
    pub(crate) fn settle(&self) -> bool {
        let mut state = self.state.borrow_mut();
        state.fault_in = None;
        state.disturbance = None;
        let pmi = state.processor.take_interrupt().is_some();
        core::mem::take(&mut state.missed) || pmi
    }

    /// Sets the CR3 of user code from now on.
    pub(crate) fn set_cr3(&self, cr3: u64) {
        self.state.borrow_mut().cr3 = cr3;
    }

    /// Makes user code jump far.
    pub(crate) fn jump_far(&self) {
        self.state.borrow_mut().far = true;
    }

    /// Returns the number of MSR accesses so far.
    pub(crate) fn accesses(&self) -> u32 {
        self.state.borrow().accesses
    }

    pub(crate) fn msr(&self, address: u32) -> u64 {
        self.state.borrow_mut().processor.read_msr(address).unwrap()
    }

    pub(crate) fn violations(&self) -> model::intel::IntelViolations {
        *self.state.borrow().processor.violations()
    }

    pub(crate) fn is_tracing(&self) -> bool {
        self.state.borrow().processor.needs_each_instruction()
    }

    pub(crate) fn jumps(&self) -> Vec<u64> {
        self.state.borrow().jumps.clone()
    }

    /// Forgets the jumps so far, in a test with very many.
    pub(crate) fn forget_jumps(&self) {
        let mut state = self.state.borrow_mut();
        state.jumps.clear();
        state.executed.clear();
    }

    /// Executes one jump of the user code; returns the PMI that came with it, if any.
    pub(crate) fn jump(&self) -> Option<model::Pmi> {
        if self.state.borrow().in_kernel {
            self.iret();
        }
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let near = CODE + (state.ip % FAR - CODE + 0x10) % 0x4000;
        let target = if state.far && state.ip < FAR { near + FAR } else { near };
        state.executed.push(target);
        let cr3 = state.cr3;
        let user = |ip| model::Context { cr3, ..user(ip) };
        if state.processor.needs_each_instruction() {
            state.jumps.push(target);
            let jump = model::Retired {
                before: user(state.ip),
                after: user(target),
                bytes: &[0xff, 0xe0],
                tsc: state.tsc,
                operand: 0,
            };
            state.processor.retire(&jump, &mut &*self.ram);
        }
        state.tsc += 10;
        state.ip = target;
        state.processor.take_interrupt()
    }

    /// Executes one branch of user code, whose encoding is `bytes`; returns its address.
    pub(crate) fn branch(&self, bytes: &[u8]) -> u64 {
        let before = self.state.borrow().user();
        let after = user(before.ip + 0x10);
        self.retire(before, after, bytes);
        let mut state = self.state.borrow_mut();
        state.ip = after.ip;
        state.tsc += 10;
        before.ip
    }

    /// Executes one taken conditional branch to itself: in a long loop it writes the same packets again and again.
    pub(crate) fn spin(&self) {
        let context = self.state.borrow().user();
        self.retire(context, context, &[0x75, 0xfe]);
        self.state.borrow_mut().tsc += 10;
    }

    /// Executes jumps without serving PMIs.
    pub(crate) fn run(&self, jumps: usize) {
        for _ in 0..jumps {
            self.jump();
        }
    }

    /// Executes jumps until the condition holds; returns whether a PMI came meanwhile.
    #[track_caller]
    pub(crate) fn jump_until(&self, is_so: impl Fn() -> bool) -> bool {
        let mut pmi = false;
        for _ in 0..JUMPS {
            if is_so() {
                return pmi;
            }
            pmi |= self.jump().is_some();
        }
        panic!("not within {JUMPS} jumps");
    }

    /// Executes jumps until a PMI arrives.
    #[track_caller]
    pub(crate) fn jump_until_pmi(&self) {
        assert!((0..JUMPS).any(|_| self.jump().is_some()), "no PMI within {JUMPS} jumps");
    }

    /// Executes jumps, and serves each PMI with the source; returns the verdicts.
    pub(crate) fn run_with(
        &self,
        jumps: usize,
        handler: &mut Handler,
        source: &mut dyn PmiSource,
    ) -> Vec<Pmi> {
        let mut served = Vec::new();
        for _ in 0..jumps {
            let mut pmi = self.jump();
            while pmi.is_some() {
                served.push(self.interrupt(handler, &mut [&mut *source]));
                pmi = self.state.borrow_mut().processor.take_interrupt();
            }
        }
        served
    }

    /// Delivers an NMI of any cause.
    pub(crate) fn interrupt(&self, handler: &mut Handler, sources: &mut [&mut dyn PmiSource]) -> Pmi {
        self.deliver();
        let interrupted = self.state.borrow().ip;
        let (mut msr, mut apic) = (self.registers(), self.registers());
        self.state.borrow_mut().in_handler = true;
        let pmi = handler.handle_at(interrupted, &mut msr, &mut apic, sources).unwrap();
        self.state.borrow_mut().in_handler = false;
        self.iret();
        pmi
    }

    /// Delivers an NMI that is only a PMI, where an access may raise #GP.
    pub(crate) fn try_interrupt(
        &self,
        handler: &mut Handler,
        source: &mut dyn PmiSource,
    ) -> Result<Pmi, GeneralProtection> {
        self.deliver();
        let (mut msr, mut apic) = (self.registers(), self.registers());
        let result = handler.handle(&mut msr, &mut apic, &mut [source]);
        self.iret();
        result
    }

    /// Unmasks the LVT entry, and returns a handler.
    pub(crate) fn handler(&self) -> Handler {
        self.arm(Delivery::Nmi).unwrap();
        Handler::new(Delivery::Nmi)
    }

    /// Unmasks the LVT entry.
    pub(crate) fn arm(&self, delivery: Delivery) -> Result<(), GeneralProtection> {
        // SAFETY: the registers stand for no hardware.
        unsafe { self.registers().set_lvt_pc(LvtPc::new(delivery)) }
    }

    /// Enables or disables the local APIC as software does.
    pub(crate) fn enable_apic(&self, on: bool) {
        self.state.borrow_mut().apic_enabled = on;
    }

    /// Enters VMX operation where IA32_VMX_MISC[14] is 0: TraceEn is cleared, and until VMXOFF each write to
    /// IA32_RTIT_CTL raises #GP.
    pub(crate) fn vmxon(&self) {
        let ctl = self.msr(RTIT_CTL);
        // SAFETY: the registers stand for no hardware.
        unsafe { self.registers().wrmsr(RTIT_CTL, ctl & !1) }.unwrap();
        self.state.borrow_mut().vmx = true;
    }

    /// Leaves VMX operation.
    pub(crate) fn vmxoff(&self) {
        self.state.borrow_mut().vmx = false;
    }

    /// Masks the LVT entry.
    pub(crate) fn disarm(&self) {
        // SAFETY: the registers stand for no hardware.
        unsafe { self.registers().set_lvt_pc(LvtPc::new(Delivery::Nmi).masked()) }.unwrap();
    }

    /// Delivers an NMI to the processor: from then on the handler executes.
    pub(crate) fn deliver(&self) {
        let context = self.state.borrow().user();
        self.deliver_from(context);
    }

    fn deliver_from(&self, before: model::Context) {
        self.deliver_as(model::DeliveryKind::Nmi, 2, before);
    }

    fn deliver_as(&self, kind: model::DeliveryKind, vector: u8, before: model::Context) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let delivery =
            model::Delivery { kind, vector, before, after: kernel(HANDLER), cr2: None, tsc: state.tsc };
        if state.processor.needs_each_instruction() {
            state.processor.deliver(&delivery, &mut &*self.ram);
        }
    }

    /// Takes a debug exception, whose handler returns at once.
    pub(crate) fn debug_exception(&self) {
        let context = self.state.borrow().user();
        self.deliver_as(model::DeliveryKind::Trap, 1, context);
        self.iret();
    }

    fn iret(&self) {
        let context = self.state.borrow().user();
        self.retire(kernel(HANDLER + 0x100), context, &[0x48, 0xcf]);
        self.state.borrow_mut().in_kernel = false;
    }

    fn retire(&self, before: model::Context, after: model::Context, bytes: &[u8]) {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let retired = model::Retired { before, after, bytes, tsc: state.tsc, operand: 0 };
        if state.processor.needs_each_instruction() {
            state.processor.retire(&retired, &mut &*self.ram);
        }
    }

    /// Runs the event of [`Machine::at_access`].
    fn hooked(&self) {
        let hook = self.state.borrow_mut().hook.take();
        match hook {
            Some((0, happens)) => happens(),
            Some((left, happens)) => self.state.borrow_mut().hook = Some((left - 1, happens)),
            None => {}
        }
    }

    /// Runs the events between two accesses of the driver.
    fn disturbed(&self) {
        self.hooked();
        let jumps = match &mut self.state.borrow_mut().disturbance {
            Some((0, jumps)) => *jumps,
            Some((left, _)) => return *left -= 1,
            None => return,
        };
        self.state.borrow_mut().disturbance = None;
        self.interrupt_driver(jumps, || ());
        let mut state = self.state.borrow_mut();
        if !state.in_handler {
            // The driver holds the trace, so the interrupt is only noted, as a PMI would be.
            state.processor.take_interrupt();
            state.missed = true;
        }
    }
}

/// The machine's MSRs and local APIC.
#[derive(Clone)]
pub(crate) struct Registers(Machine);

impl std::fmt::Debug for Registers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registers")
    }
}

// SAFETY: the registers are those of the machine's only processor.
unsafe impl Msr for Registers {
    fn rdmsr(&mut self, address: u32) -> Result<u64, GeneralProtection> {
        self.0.disturbed();
        let mut state = self.0.state.borrow_mut();
        if state.access().is_err() {
            state.faulted_read = Some(address);
            return Err(GeneralProtection { address, written: None });
        }
        match state.processor.owns_msr(address) {
            true => {
                state.processor.read_msr(address).map_err(|_| GeneralProtection { address, written: None })
            }
            false if address == APIC_BASE => Ok(0xfee0_0900),
            false => Ok(0),
        }
    }

    unsafe fn wrmsr(&mut self, address: u32, value: u64) -> Result<(), GeneralProtection> {
        self.0.disturbed();
        let mut state = self.0.state.borrow_mut();
        let fault = GeneralProtection { address, written: Some(value) };
        state.access().map_err(|()| fault)?;
        if state.vmx && address == RTIT_CTL {
            return Err(fault);
        }
        assert!(state.processor.owns_msr(address), "{fault}");
        let wrmsr = model::Retired {
            before: kernel(HANDLER + 0x10),
            after: kernel(HANDLER + 0x12),
            bytes: &[0x0f, 0x30],
            tsc: state.tsc,
            operand: 0,
        };
        state.in_kernel = true;
        state.processor.write_msr(address, value, &wrmsr, &mut &*self.0.ram).map_err(|_| fault)
    }
}

// SAFETY: the entry is that of the machine's only processor.
unsafe impl LocalApic for Registers {
    fn is_enabled(&mut self) -> Result<bool, GeneralProtection> {
        self.0.hooked();
        let mut state = self.0.state.borrow_mut();
        state.access().map_err(|()| GeneralProtection { address: SPURIOUS, written: None })?;
        Ok(state.apic_enabled)
    }

    fn lvt_pc(&mut self) -> Result<LvtPc, GeneralProtection> {
        self.0.hooked();
        let mut state = self.0.state.borrow_mut();
        state.access().map_err(|()| GeneralProtection { address: LVT_PC, written: None })?;
        Ok(LvtPc(state.processor.read_apic(0x340)))
    }

    unsafe fn set_lvt_pc(&mut self, entry: LvtPc) -> Result<(), GeneralProtection> {
        self.0.hooked();
        let mut state = self.0.state.borrow_mut();
        let fault = GeneralProtection { address: LVT_PC, written: Some(u64::from(entry.0)) };
        state.access().map_err(|()| fault)?;
        state.processor.write_apic(0x340, entry.0);
        Ok(())
    }
}

impl State {
    fn user(&self) -> model::Context {
        model::Context { cr3: self.cr3, ..user(self.ip) }
    }

    fn access(&mut self) -> Result<(), ()> {
        self.accesses += 1;
        match self.fault_in {
            Some((0, faults)) => {
                self.fault_in = (faults > 1).then(|| (0, faults - 1));
                Err(())
            }
            Some((left, faults)) => {
                self.fault_in = Some((left - 1, faults));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// Returns a configuration for user code only, so that the handler is not in the trace.
pub(crate) fn user_code() -> PtConfig {
    PtConfig::new().user(true)
}

/// A number of jumps that suffices for every event that a test waits for.
const JUMPS: u32 = 20_000;
const APIC_BASE: u32 = 0x1b;
const RTIT_CTL: u32 = 0x570;
/// The spurious-interrupt vector register, in x2APIC mode.
const SPURIOUS: u32 = 0x80f;
/// The LVT entry, in x2APIC mode.
const LVT_PC: u32 = 0x834;
const CODE: u64 = 0x40_0000;
/// The distance of the far places: an address there differs in its upper half.
const FAR: u64 = 1 << 40;
const HANDLER: u64 = 0xffff_8000_0000_1000;

fn user(ip: u64) -> model::Context {
    model::Context { ip, cs_base: 0, cr3: 0x5000, cpl: 3, mode: model::ExecMode::Bits64, iflag: true }
}

fn kernel(ip: u64) -> model::Context {
    model::Context { ip, cs_base: 0, cr3: 0x5000, cpl: 0, mode: model::ExecMode::Bits64, iflag: false }
}
