//! Handles the guest's exits.

use pugmark_monitor::entry::EntryMode;
use pugmark_monitor::guest::{Emulation, Exception, Instruction, efer, ptwrite_operand, vector};
use pugmark_monitor::guest_map::LOCAL_APIC;
use pugmark_monitor::tracing::TracingMemory;
use pugmark_monitor::vmcb::exit_code;

use crate::image::apic_registers::is_in_service;
use crate::image::channel::report;
use crate::image::exit::{FAILED, exit, fatal};
use crate::image::interrupts;
use crate::image::vcpu::Vcpu;

/// Details of a nested page fault: it was a write, a fetch, an access to the guest's page tables.
pub(crate) const NPF_WRITE: u64 = 1 << 1;
const NPF_FETCH: u64 = 1 << 4;
const NPF_TABLES: u64 = 1 << 33;

/// Returns the kind of access that caused a nested page fault.
const fn npf_access(info: u64) -> &'static str {
    match info {
        _ if info & NPF_TABLES != 0 => "as a page table",
        _ if info & NPF_FETCH != 0 => "for an instruction",
        _ if info & NPF_WRITE != 0 => "for a write",
        _ => "for a read",
    }
}

impl Vcpu {
    /// Runs the guest at full speed until it exits, and handles the exit. `mode` is one of the two free modes.
    pub(crate) fn run_freely(&mut self, mode: EntryMode) {
        if self.processor.counts_time() {
            let now = self.now();
            self.processor.begin_time(now);
            self.enter(mode);
            let mut memory = TracingMemory { cpu: &self.cpu, memory: &mut self.memory };
            let now = self.clock.now();
            self.processor.pass_time(now, &mut memory);
        } else {
            self.enter(mode);
        }
        // The guest may have changed translations that the lookahead has cached.
        self.lookahead.flush();
        self.exited(None);
    }

    /// Handles an exit other than the debug exception of a step. `instruction` is the one at RIP if the guest was
    /// stepped.
    pub(crate) fn exited(&mut self, instruction: Option<&Instruction>) {
        let (code, info1, info2) = {
            let control = &self.vmcb.control;
            (control.exit_code, control.exit_info1, control.exit_info2)
        };
        match code {
            exit_code::INTR => self.interrupted(instruction),
            exit_code::NMI => self.record_nmi(interrupts::take_nmi()),
            exit_code::EXCEPTION_FIRST..=exit_code::EXCEPTION_LAST => {
                let vector = (code - exit_code::EXCEPTION_FIRST) as u8;
                self.raised(Exception::from_intercept(vector, info1 as u32, info2), instruction);
            }
            exit_code::NPF if info2 & !0xfff == LOCAL_APIC => {
                let timers = self.clock.read((info2 & 0xff0) as usize);
                self.local_apic.open_window(info2, info1 & NPF_WRITE != 0, timers, &self.processor);
            }
            exit_code::NPF if self.nested.open_hole(info2, info1 & NPF_WRITE != 0) => {
                self.report_missing(info2, npf_access(info1));
            }
            exit_code::PUSHF
            | exit_code::POPF
            | exit_code::IRET
            | exit_code::SWINT
            | exit_code::HLT
            | exit_code::ICEBP => {
                self.with_instruction(instruction, |vcpu, at| vcpu.emulate_at_exit(code, at))
            }
            exit_code::CPUID => self.with_instruction(instruction, Self::cpuid),
            exit_code::MSR => {
                let write = info1 != 0;
                self.with_instruction(instruction, |vcpu, instruction| vcpu.msr(write, instruction));
            }
            exit_code::RDTSC | exit_code::RDTSCP => self.with_instruction(instruction, Self::rdtsc),
            exit_code::RDPMC => self.with_instruction(instruction, Self::rdpmc),
            exit_code::IOIO => self.with_instruction(instruction, |vcpu, at| vcpu.port(info1, at)),
            exit_code::MWAIT | exit_code::MWAIT_ARMED => self.with_instruction(instruction, Self::mwait),
            // SVM's own instructions, which the guest's processor lacks.
            exit_code::VMRUN..=exit_code::SKINIT | exit_code::INVLPGA => {
                self.deliver_exception(Exception::invalid_opcode());
            }
            exit_code::SHUTDOWN => fatal!("the guest shuts down: a triple fault at rip {:#x}", self.cpu.rip),
            _ => self.unexpected(),
        }
    }

    /// Prints the details of an exit that the monitor cannot handle, and ends the machine.
    pub(crate) fn unexpected(&self) -> ! {
        let (control, save) = (&self.vmcb.control, &self.vmcb.save);
        report!(
            "unexpected exit {:#x} at rip {:#x}: info1 {:#x}, info2 {:#x}, cs {:#x}/{:#x}, cpl {}, rflags {:#x}, \
             rsp {:#x}, cr0 {:#x}, cr2 {:#x}, cr3 {:#x}, cr4 {:#x}, efer {:#x}",
            control.exit_code,
            save.rip,
            control.exit_info1,
            control.exit_info2,
            save.cs.selector,
            save.cs.attributes,
            save.cpl,
            save.rflags,
            save.rsp,
            save.cr0,
            save.cr2,
            save.cr3,
            save.cr4,
            save.efer,
        );
        exit(FAILED)
    }

    /// Handles the exit for a pending interrupt that the guest can take.
    fn interrupted(&mut self, instruction: Option<&Instruction>) {
        let taken = interrupts::take();
        self.record_nmi(taken.nmi);
        if let Some(vector) = taken.vector {
            if self.clock.is_timers_below(vector) {
                self.local_apic.end_interrupt();
                return;
            }
            if !is_in_service(vector) {
                return self.pic.hold(vector);
            }
            let repeating = instruction.is_some_and(|instruction| self.is_repeating(instruction));
            self.deliver_interrupt(vector, repeating);
        }
    }

    fn raised(&mut self, exception: Exception, instruction: Option<&Instruction>) {
        let invalid = exception.vector == vector::INVALID_OPCODE;
        match instruction {
            // SYSCALL and SYSRET, which have no intercept.
            Some(instruction) if invalid && instruction.emulation().is_some() => self.emulate(instruction),
            _ if invalid => {
                self.with_instruction(instruction, |vcpu, at| vcpu.invalid_opcode(exception, at));
            }
            _ => self.deliver_exception(exception),
        }
    }

    /// Handles a #UD that may be raised by an instruction of the guest's processor that the processor below lacks:
    /// PTWRITE, and in long mode on an AMD processor SYSENTER and SYSEXIT.
    fn invalid_opcode(&mut self, exception: Exception, instruction: &Instruction) {
        match instruction.emulation() {
            Some(Emulation::Sysenter | Emulation::Sysexit(_))
                if self.processor.has_sysenter_in_long_mode() =>
            {
                self.emulate(instruction);
            }
            // SYSCALL and SYSRET are disabled only while the monitor must see them.
            Some(Emulation::Syscall | Emulation::Sysret(_)) if self.cpu.efer & efer::SCE != 0 => {
                self.emulate(instruction);
            }
            _ if self.has_ptwrite() => self.ptwrite(exception, instruction),
            _ => self.deliver_exception(exception),
        }
    }

    fn ptwrite(&mut self, exception: Exception, instruction: &Instruction) {
        self.vmsave();
        match ptwrite_operand(&self.cpu, &mut self.memory, instruction) {
            Ok(Some(operand)) => self.finish(instruction, operand.value),
            Ok(None) => self.deliver_exception(exception),
            Err(error) => self.deliver_error(error),
        }
    }

    /// Executes MWAIT. It may end at any time, so it ends at once.
    fn mwait(&mut self, instruction: &Instruction) {
        let [hints, extensions] = [self.cpu.gpr[0], self.cpu.gpr[1]];
        self.finish(instruction, hints & 0xffff_ffff | extensions << 32);
    }

    /// Emulates the instruction at which the processor below has exited. If the instruction there is not one that
    /// causes this exit, another processor has modified the code meanwhile, as Linux does when it patches an
    /// instruction by way of INT3. The instruction that exited has had no effect, so the guest executes the new code.
    fn emulate_at_exit(&mut self, code: u64, instruction: &Instruction) {
        if instruction.emulation().is_some_and(|emulation| emulation.exits_with(code)) {
            self.emulate(instruction);
        }
    }

    fn with_instruction(
        &mut self,
        known: Option<&Instruction>,
        handle: impl FnOnce(&mut Self, &Instruction),
    ) {
        match known {
            Some(instruction) => handle(self, instruction),
            None => {
                if let Some(instruction) = self.instruction_at_rip() {
                    handle(self, &instruction);
                }
            }
        }
    }
}
