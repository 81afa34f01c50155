//! Executes one instruction of the guest.

use pugmark_model::Context;
use pugmark_monitor::entry::EntryMode;
use pugmark_monitor::guest::{Emulation, Exception, ExecutionOutcome, Instruction, execute, rflags};
use pugmark_monitor::single_step::{DebugExit, Progress, StepResult};
use pugmark_monitor::translation;
use pugmark_monitor::vmcb::exit_code;

use crate::image::interrupts;
use crate::image::vcpu::Vcpu;

/// The exit code of a debug exception.
pub(crate) const EXIT_DEBUG: u64 = exit_code::EXCEPTION_FIRST + 1;

impl Vcpu {
    /// Executes one instruction or a stretch, or delivers an event instead.
    pub(crate) fn step(&mut self) {
        let instruction = match self.lookahead.next(&self.cpu, &mut self.memory) {
            Ok(instruction) => instruction,
            Err(error) => return self.deliver_error(error),
        };
        let masked = self.cpu.shadow.is_some() || self.window_is_open();
        if !masked && self.run_stretch(&instruction) {
            return;
        }
        match instruction.emulation() {
            Some(Emulation::Cli) if masked => self.emulate_without_exit(&instruction),
            Some(emulation) if emulation.when_stepping() && !exits(emulation) => {
                self.emulate_without_exit(&instruction)
            }
            _ => self.step_in_hardware(&instruction, masked),
        }
    }

    /// Emulates an instruction that the processor below has not begun.
    fn emulate_without_exit(&mut self, instruction: &Instruction) {
        self.emulated_without_exit = true;
        self.emulate(instruction);
        self.emulated_without_exit = false;
    }

    /// Emulates an instruction.
    pub(crate) fn emulate(&mut self, instruction: &Instruction) {
        let before = self.context();
        self.vmsave();
        let done = execute(&mut self.cpu, &mut self.memory, instruction);
        self.vmload_if_changed();
        match done {
            Ok(ExecutionOutcome::Retired { single_step }) => {
                self.retired(before, instruction, 0);
                self.deliver_single_step_if(single_step);
            }
            Ok(ExecutionOutcome::Halted { single_step }) => {
                self.retired(before, instruction, 0);
                if single_step { self.deliver_single_step_if(true) } else { self.halt() }
            }
            Ok(ExecutionOutcome::Deliver(event)) => {
                self.probe(before, instruction.bytes());
                self.deliver(event);
            }
            Err(error) => self.deliver_error(error),
        }
    }

    /// Lets the processor below execute the instruction.
    fn step_in_hardware(&mut self, instruction: &Instruction, masked: bool) {
        let before = self.context();
        let guest_steps = self.cpu.owns_single_step();
        self.enter(EntryMode::Step { masked });
        if self.vmcb.control.exit_code != EXIT_DEBUG {
            return self.exited(Some(instruction));
        }
        let exit = DebugExit {
            dr6: self.vmcb.save.dr6,
            rip_before: instruction.rip(),
            rip_after: self.cpu.rip,
            repeats: instruction.repeats(),
            guest_steps,
        };
        let StepResult { progress, guest_conditions, sets_rf: resumes } = exit.result();
        if progress == Progress::None && guest_conditions == 0 {
            self.unexpected();
        }
        if progress != Progress::None {
            self.local_apic.close_window(&mut self.processor, &mut self.clock);
            self.close_holes();
            self.cpu.shadow = None;
        }
        self.repeating_rip = (progress == Progress::Iteration).then_some(instruction.rip());
        if progress == Progress::Retired {
            self.retired_in_hardware(before, instruction);
        }
        if guest_conditions != 0 {
            if resumes {
                self.cpu.rflags |= rflags::RF;
            }
            self.deliver_exception(Exception::debug(guest_conditions));
        }
    }

    fn retired_in_hardware(&mut self, before: Context, instruction: &Instruction) {
        self.cpu.rflags &= !rflags::RF;
        if translation::may_change(instruction.bytes()) {
            self.lookahead.flush();
        }
        self.retired(before, instruction, 0);
    }

    /// Returns whether `instruction` is a repeated instruction with some iterations done.
    pub(crate) fn is_repeating(&self, instruction: &Instruction) -> bool {
        self.repeating_rip == Some(instruction.rip())
    }

    /// Accounts for an instruction whose effect the monitor has produced, and advances RIP.
    pub(crate) fn finish(&mut self, instruction: &Instruction, operand: u64) {
        let before = self.context();
        let next = pugmark_monitor::guest::retire(&mut self.cpu, instruction);
        self.retired(before, instruction, operand);
        self.deliver_single_step_if(matches!(next, ExecutionOutcome::Retired { single_step: true }));
    }

    /// Delivers the guest's own single-step trap if it is due.
    pub(crate) fn deliver_single_step_if(&mut self, due: bool) {
        if due {
            self.deliver_exception(Exception::single_step());
        }
    }

    /// Returns the instruction at the RIP of an exit. If it cannot be read, delivers the fault and returns `None`.
    pub(crate) fn instruction_at_rip(&mut self) -> Option<Instruction> {
        match self.lookahead.next(&self.cpu, &mut self.memory) {
            Ok(instruction) => Some(instruction),
            Err(error) => {
                self.deliver_error(error);
                None
            }
        }
    }

    /// Executes HLT: waits for an event that ends the halt.
    fn halt(&mut self) {
        self.pass_on_interrupts();
        // A pending NMI ends the halt at once.
        while !(self.nmi_pending && self.cpu.takes_nmi() || self.has_requests()) {
            if self.cpu.rflags & rflags::IF == 0 {
                self.record_nmi(interrupts::wait_for_nmi());
                continue;
            }
            if let Some(vector) = self.due_of_pic(true) {
                return self.deliver_interrupt(vector, false);
            }
            self.advance_clock(false);
            self.clock.arm();
            let taken = interrupts::wait();
            self.record_nmi(taken.nmi);
            if let Some(vector) = taken.vector {
                if self.clock.is_timers_below(vector) {
                    self.local_apic.end_interrupt();
                    continue;
                }
                return self.deliver_interrupt(vector, false);
            }
        }
    }
}

/// Returns whether the processor below exits at the instruction; it has SCE clear while the guest is stepped. An
/// instruction that exits appears in QEMU's execution log of that processor.
const fn exits(emulation: Emulation) -> bool {
    use Emulation::{Int, Int1, Int3, Into, Iret, Popf, Pushf, Syscall, Sysret};
    matches!(emulation, Pushf(_) | Popf(_) | Iret(_) | Int(_) | Int3 | Int1 | Into | Syscall | Sysret(_))
}
