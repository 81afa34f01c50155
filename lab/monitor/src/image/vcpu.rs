//! The guest's vCPUs.

use alloc::boxed::Box;

use pugmark_model::amd::Northbridge;
use pugmark_model::{Context, ExecMode, Pmi, Retired};
use pugmark_monitor::branches;
use pugmark_monitor::clock::EveryNth;
use pugmark_monitor::cmdline::StepPolicy;
use pugmark_monitor::entry::EntryMode;
use pugmark_monitor::guest::{Cpu, Exception, Instruction, Lookahead, Mode, rflags};
use pugmark_monitor::hardware::{Hardware, Profile};
use pugmark_monitor::pic_pace::PicPace;
use pugmark_monitor::tracing::TracingMemory;
use pugmark_monitor::vmcb::{Vmcb, intercept1, intercept2};
use pugmark_truth::{Branch, LogWriter, Record, RecordFlags};

use crate::image::clock::OwnClock;
use crate::image::exit::fatal;
use crate::image::local_apic::LocalApic;
use crate::image::nested::Nested;
use crate::image::peers::Peers;
use crate::image::physical::Physical;
use crate::image::probe::Probe;
use crate::image::reported::ReportedViolations;
use crate::image::vmrun::{Sse, has_lost_the_guest, vmrun};

/// One of the guest's processors, with all state that no other processor uses.
pub(crate) struct Vcpu {
    /// All processors of the machine, as seen by this one.
    pub(crate) peers: Peers,
    /// The state that the guest's software sees.
    pub(crate) cpu: Cpu,
    pub(crate) sse: Sse,
    pub(crate) vmcb: Box<Vmcb>,
    pub(crate) lookahead: Box<Lookahead>,
    /// The processor that the guest sees.
    pub(crate) profile: Profile,
    /// The model of the processor's tracing hardware.
    pub(crate) processor: Hardware,
    /// The northbridge that the processors share.
    pub(crate) northbridge: &'static Northbridge,
    pub(crate) nested: Nested,
    /// RIP of an instruction that was about to modify its successors, and so must be stepped.
    pub(crate) stepped_alone: Option<u64>,
    pub(crate) local_apic: LocalApic,
    /// The guest's clock.
    pub(crate) clock: OwnClock,
    /// The guest's memory.
    pub(crate) memory: Physical,
    /// An NMI has arrived and has not been delivered yet.
    pub(crate) nmi_pending: bool,
    /// The pace of the PIC's interrupts.
    pub(crate) pic: PicPace,
    /// RIP of the repeated instruction whose iteration was the last step.
    pub(crate) repeating_rip: Option<u64>,
    /// Linear address of the instruction that retired last.
    pub(crate) last_ip: u64,
    /// RIP of the instruction that the monitor is handling.
    pub(crate) at_rip: u64,
    /// The current instruction is emulated without an exit.
    pub(crate) emulated_without_exit: bool,
    /// The session that the last marker named.
    pub(crate) session: u16,
    pub(crate) step_policy: StepPolicy,
    /// Maximum number of instructions in a stretch.
    pub(crate) max_stretch: usize,
    /// Each access to the tracing hardware's MSRs is reported.
    pub(crate) reports_accesses: bool,
    /// The guest's violations that have been reported.
    pub(crate) reported: ReportedViolations,
    /// Number of instructions that were accounted for, and of entries into the guest while it was stepped.
    pub(crate) stepped: u64,
    pub(crate) stepping_entries: u64,
    /// Decides which instructions' times are logged.
    pub(crate) time_records: EveryNth,
    /// The monitor's own trace of the guest, from its first instruction on.
    pub(crate) probe: Option<Probe>,
    /// The truth log; `None` if it is disabled.
    pub(crate) truth: Option<LogWriter<'static>>,
}

/// Intercepts that are always active.
const ALWAYS1: u32 = intercept1::INTR
    | intercept1::NMI
    | intercept1::RDTSC
    | intercept1::CPUID
    | intercept1::RDPMC
    | intercept1::INVLPGA
    | intercept1::IO
    | intercept1::MSR
    | intercept1::SHUTDOWN;
const ALWAYS2: u32 = intercept2::VMRUN
    | intercept2::VMMCALL
    | intercept2::VMLOAD
    | intercept2::VMSAVE
    | intercept2::STGI
    | intercept2::CLGI
    | intercept2::SKINIT
    | intercept2::RDTSCP
    | intercept2::ICEBP;
/// Additional intercepts while the guest is stepped.
const STEPPING1: u32 = intercept1::PUSHF
    | intercept1::POPF
    | intercept1::IRET
    | intercept1::SWINT
    | intercept1::HLT
    | intercept1::TASK_SWITCH;
const STEPPING2: u32 = intercept2::MWAIT | intercept2::MWAIT_ARMED;
/// Intercepts #UD, which an instruction raises if the processor below lacks it.
const INVALID_OPCODE: u32 = 1 << 6;

impl Vcpu {
    /// Runs the guest until it ends the machine.
    pub(crate) fn run(&mut self) -> ! {
        loop {
            self.report_missing_of_hand();
            self.at_rip = self.cpu.rip;
            self.report_first_violations();
            if self.has_requests() {
                self.answer_requests();
                continue;
            }
            // An event of the tracing hardware precedes the next instruction.
            if let Some(fault) = self.processor.take_page_fault() {
                self.deliver_exception(Exception::page_fault(fault.code, fault.address));
                continue;
            }
            self.pass_on_interrupts();
            let window = self.window_is_open();
            let stepped = window || self.cpu.shadow.is_some() || self.is_stepped() && !self.is_unseen();
            self.advance_clock(self.is_stepped() && !self.is_unseen());
            if self.nmi_pending && !window && self.cpu.takes_nmi() {
                self.nmi_pending = false;
                self.deliver_nmi();
            } else if !window
                && self.cpu.takes_interrupts()
                && let Some(vector) = self.due_of_pic(false)
            {
                let repeating = self.repeating_rip == Some(self.cpu.rip);
                self.deliver_interrupt(vector, repeating);
            } else if stepped {
                self.set_registers_before();
                self.step();
            } else if self.is_stepped() {
                self.run_freely(EntryMode::FreeInKernel);
            } else {
                self.run_freely(EntryMode::Free);
            }
        }
    }

    /// Returns whether only the next instruction can access the page in place of the local APIC's, or a page without
    /// memory.
    pub(crate) fn window_is_open(&self) -> bool {
        self.local_apic.window_is_open() || self.nested.hole_is_open()
    }

    /// Returns whether the guest must be stepped.
    pub(crate) fn is_stepped(&self) -> bool {
        self.is_logged() || self.processor.needs_each_instruction()
    }

    /// Returns whether the tracing hardware sees no instruction until execution returns from the kernel.
    fn is_unseen(&self) -> bool {
        self.step_policy == StepPolicy::Traced
            && self.cpu.cpl == 0
            && self.cpu.mode() == Mode::Bits64
            && self.processor.sees_nothing_of_the_kernel()
    }

    /// Returns the interrupt of the PIC that is to be delivered now.
    pub(crate) fn due_of_pic(&mut self, halted: bool) -> Option<u8> {
        let at_once = halted || !self.is_stepped() || self.is_unseen();
        self.pic.take_due(self.stepped, at_once)
    }

    /// Returns whether retiring instructions are logged now.
    pub(crate) fn is_logged(&self) -> bool {
        match self.step_policy {
            StepPolicy::Traced | StepPolicy::AllLevels => self.processor.is_on(),
            StepPolicy::Always => self.session != 0,
        }
    }

    /// Returns the state that the tracing hardware sees.
    pub(crate) fn context(&self) -> Context {
        let Cpu { rip, cr3, cpl, .. } = self.cpu;
        let (mode, cs_base) = match self.cpu.code_bits() {
            64 => (ExecMode::Bits64, 0),
            32 => (ExecMode::Bits32, self.cpu.cs.base),
            _ => (ExecMode::Bits16, self.cpu.cs.base),
        };
        let linear = cs_base.wrapping_add(rip);
        let ip = if mode == ExecMode::Bits64 { linear } else { linear & 0xffff_ffff };
        Context { ip, cs_base, cr3, cpl, mode, iflag: self.cpu.rflags & rflags::IF != 0 }
    }

    /// Accounts for `instruction`, which executed in the state `before` and has retired.
    pub(crate) fn retired(&mut self, before: Context, instruction: &Instruction, operand: u64) {
        self.probe(before, instruction.bytes());
        self.last_ip = before.ip;
        self.stepped += 1;
        let after = self.context();
        let tsc = self.clock.retired();
        if self.is_logged() {
            self.log(before, self.log_flags(before));
            self.log_branch(branches::of_instruction(instruction, before, after));
            self.log_time(tsc);
        }
        if self.processor.needs_each_instruction() {
            self.processor.set_registers_after(&self.cpu, || self.sse.bytes());
            let retired = Retired { before, after, bytes: instruction.bytes(), tsc, operand };
            let mut memory = TracingMemory { cpu: &self.cpu, memory: &mut self.memory };
            self.processor.retire(&retired, &mut memory);
        }
    }

    /// Passes the registers before the next instruction to the tracing hardware, if it needs the addresses of the
    /// instruction's data.
    fn set_registers_before(&mut self) {
        if self.processor.needs_registers_before() {
            self.vmsave();
            self.processor.set_registers_before(&self.cpu);
        }
    }

    /// Returns the log's flags for an instruction that executes in the state `before`.
    pub(crate) fn log_flags(&self, before: Context) -> RecordFlags {
        let flags = RecordFlags::new(before.cpl);
        let flags = if self.processor.is_traced() { flags.traced() } else { flags };
        if self.emulated_without_exit { flags.emulated() } else { flags }
    }

    /// Appends one record to the log.
    pub(crate) fn log(&self, before: Context, flags: RecordFlags) {
        if let Some(truth) = &self.truth {
            let Context { ip, cr3, .. } = before;
            truth.append(Record { rip: ip, cr3, session: self.session, flags, cpu: self.peers.index() });
        }
    }

    /// Appends the time at which the last logged instruction retired, for one instruction in a few.
    fn log_time(&mut self, tsc: u64) {
        if let Some(truth) = &self.truth
            && self.time_records.next_is_due()
        {
            truth.append(Record::of_time(tsc, self.session, self.peers.index()));
        }
    }

    /// Appends the record of a branch, if branches are recorded.
    pub(crate) fn log_branch(&self, branch: Option<Branch>) {
        let Some(branch) = branch.filter(|_| self.processor.records_branches()) else { return };
        if let Some(truth) = &self.truth {
            truth.append(Record::of_branch(branch, self.session, self.peers.index()));
        }
    }

    /// Enters the guest once and stores its state.
    pub(crate) fn enter(&mut self, mode: EntryMode) {
        mode.load(&self.cpu, &mut self.vmcb);
        let free = matches!(mode, EntryMode::Free | EntryMode::FreeInKernel);
        // A counter of time stops while the processor is halted, and its overflow is noticed at an interrupt.
        let counts_time = free && self.processor.counts_time();
        if free {
            self.clock.arm();
        }
        let control = &mut self.vmcb.control;
        match mode {
            EntryMode::Free | EntryMode::FreeInKernel => {
                // While NMIs are blocked, the IRET that ends the blocking must exit.
                let exits = self.cpu.nmi_blocked || mode == EntryMode::FreeInKernel;
                let iret = if exits { intercept1::IRET } else { 0 };
                control.intercept1 = ALWAYS1 | iret;
                control.intercept2 = ALWAYS2;
                control.intercept_exceptions = INVALID_OPCODE;
            }
            EntryMode::Stretch { .. } | EntryMode::Step { .. } => {
                self.stepping_entries += 1;
                control.intercept1 = ALWAYS1 | STEPPING1;
                control.intercept2 = ALWAYS2 | STEPPING2;
                control.intercept_exceptions = !0;
            }
        }
        if counts_time {
            control.intercept1 |= intercept1::HLT;
            control.intercept2 |= intercept2::MWAIT | intercept2::MWAIT_ARMED;
        }
        // SAFETY: `setup` has enabled SVM and filled the control block with the physical addresses of maps and tables
        // that live forever; physical and virtual addresses are the same. Interrupts and GIF are enabled only within
        // the windows of `interrupts`.
        unsafe { vmrun(&raw mut *self.vmcb, &raw mut self.cpu.gpr, &raw mut self.sse) };
        if has_lost_the_guest(&self.vmcb.save) {
            fatal!(
                "QEMU has lost the guest's state: another processor loaded x87 state during a #VMEXIT of the first \
                 one, which QEMU's TCG does not survive. Start the machine again"
            );
        }
        mode.store(&self.vmcb, &mut self.cpu);
        self.at_rip = self.cpu.rip;
    }

    /// Executes `VMSAVE`, so that `cpu` holds the state that stays in the processor across exits.
    pub(crate) fn vmsave(&mut self) {
        let vmcb = &raw mut *self.vmcb;
        // SAFETY: the control block is the guest's, and its physical address equals its address.
        unsafe { core::arch::asm!("vmsave rax", in("rax") vmcb, options(nostack)) };
        self.vmcb.save.store_vmsave_state_to(&mut self.cpu);
    }

    /// Executes `VMLOAD` if that state has changed since [`Vcpu::vmsave`].
    pub(crate) fn vmload_if_changed(&mut self) {
        let mut found = self.cpu;
        self.vmcb.save.store_vmsave_state_to(&mut found);
        if found != self.cpu {
            self.vmload();
        }
    }

    /// Executes `VMLOAD`, so that the processor loads that state from `cpu`.
    pub(crate) fn vmload(&mut self) {
        self.vmcb.save.load_vmload_state_from(&self.cpu);
        let vmcb = &raw const *self.vmcb;
        // SAFETY: as in `vmsave`; the monitor uses none of the registers that this loads.
        unsafe { core::arch::asm!("vmload rax", in("rax") vmcb, options(nostack)) };
    }

    /// Passes due interrupts of the tracing hardware to the local APIC, or records them as a pending NMI.
    pub(crate) fn pass_on_interrupts(&mut self) {
        while let Some(interrupt) = self.processor.take_interrupt() {
            match interrupt {
                Pmi::Fixed(vector) => self.local_apic.interrupt_self(vector),
                Pmi::Nmi => self.nmi_pending = true,
            }
        }
    }
}
