//! Executes one instruction of the guest.

use pugmark_model::Context;
use pugmark_monitor::entry::Pace;
use pugmark_monitor::guest::{Emulation, Exception, Instruction, Next, execute, rflags};
use pugmark_monitor::single_step::{DebugExit, Progress, Verdict};
use pugmark_monitor::translation;
use pugmark_monitor::vmcb::exit_code;

use crate::image::interrupts;
use crate::image::vcpu::Vcpu;

/// The exit code of a debug exception.
pub(crate) const DEBUG: u64 = exit_code::EXCEPTION_FIRST + 1;

impl Vcpu {
    /// Executes one instruction or a stretch, or delivers an event instead.
    pub(crate) fn step(&mut self) {
        let instruction = match self.lookahead.next(&self.cpu, &mut self.memory) {
            Ok(instruction) => instruction,
            Err(error) => return self.deliver_error(error),
        };
        let masked = self.cpu.shadow.is_some() || self.local_apic.window_is_open();
        if !masked && self.run_stretch(&instruction) {
            return;
        }
        match instruction.emulation() {
            Some(Emulation::Cli) if masked => self.execute_ahead(&instruction),
            Some(emulation) if emulation.when_stepping() && !exits(emulation) => {
                self.execute_ahead(&instruction)
            }
            _ => self.execute_below(&instruction, masked),
        }
    }

    /// Executes by hand an instruction that the processor below has not begun.
    fn execute_ahead(&mut self, instruction: &Instruction) {
        self.ahead = true;
        self.execute(instruction);
        self.ahead = false;
    }

    /// Executes an instruction by hand.
    pub(crate) fn execute(&mut self, instruction: &Instruction) {
        let before = self.context();
        self.fetch_extra();
        let done = execute(&mut self.cpu, &mut self.memory, instruction);
        self.return_extra();
        match done {
            Ok(Next::Retired { single_step }) => {
                self.retired(before, instruction, 0);
                self.trap_if(single_step);
            }
            Ok(Next::Halted { single_step }) => {
                self.retired(before, instruction, 0);
                if single_step { self.trap_if(true) } else { self.halt() }
            }
            Ok(Next::Deliver(event)) => {
                self.deliver(event);
            }
            Err(error) => self.deliver_error(error),
        }
    }

    /// Lets the processor below execute the instruction.
    fn execute_below(&mut self, instruction: &Instruction, masked: bool) {
        let before = self.context();
        let guest_steps = self.cpu.owns_single_step();
        self.enter(Pace::Step { masked });
        if self.vmcb.control.exit_code != DEBUG {
            return self.exited(Some(instruction));
        }
        let exit = DebugExit {
            dr6: self.vmcb.save.dr6,
            from: instruction.rip(),
            to: self.cpu.rip,
            repeats: instruction.repeats(),
            guest_steps,
        };
        let Verdict { progress, guest_conditions, resumes } = exit.verdict();
        if progress == Progress::None && guest_conditions == 0 {
            self.unexpected();
        }
        if progress != Progress::None {
            self.local_apic.close_window(&mut self.processor);
            self.cpu.shadow = None;
        }
        self.repeating = (progress == Progress::Iteration).then_some(instruction.rip());
        if progress == Progress::Retired {
            self.finished_below(before, instruction);
        }
        if guest_conditions != 0 {
            if resumes {
                self.cpu.rflags |= rflags::RF;
            }
            self.deliver_exception(Exception::debug(guest_conditions));
        }
    }

    fn finished_below(&mut self, before: Context, instruction: &Instruction) {
        self.cpu.rflags &= !rflags::RF;
        if translation::may_change(instruction.bytes()) {
            self.lookahead.flush();
        }
        self.retired(before, instruction, 0);
    }

    /// Returns whether `instruction` is a repeated instruction with some iterations done.
    pub(crate) fn is_repeating(&self, instruction: &Instruction) -> bool {
        self.repeating == Some(instruction.rip())
    }

    /// Accounts for an instruction whose effect the monitor has produced, and moves past it.
    pub(crate) fn finish(&mut self, instruction: &Instruction, operand: u64) {
        let before = self.context();
        let next = pugmark_monitor::guest::retire(&mut self.cpu, instruction);
        self.retired(before, instruction, operand);
        self.trap_if(matches!(next, Next::Retired { single_step: true }));
    }

    /// Delivers the guest's own single-step trap if it is due.
    pub(crate) fn trap_if(&mut self, due: bool) {
        if due {
            self.deliver_exception(Exception::single_step());
        }
    }

    /// Returns the instruction at the RIP of an exit. If it cannot be read, delivers the fault and returns `None`.
    pub(crate) fn instruction(&mut self) -> Option<Instruction> {
        match self.lookahead.next(&self.cpu, &mut self.memory) {
            Ok(instruction) => Some(instruction),
            Err(error) => {
                self.deliver_error(error);
                None
            }
        }
    }

    /// Executes HLT: waits for an event that ends it.
    fn halt(&mut self) {
        self.poll_pmi();
        // A pending NMI ends the halt at once.
        while !(self.nmi_pending && self.cpu.takes_nmi() || self.is_wanted()) {
            if self.cpu.rflags & rflags::IF == 0 {
                self.took_nmi(interrupts::wait_for_nmi());
                continue;
            }
            let taken = interrupts::wait();
            self.took_nmi(taken.nmi);
            if let Some(vector) = taken.vector {
                return self.deliver_interrupt(vector, false);
            }
        }
    }
}

/// Returns whether the processor below exits at the instruction; it has SCE clear while the guest is stepped. An
/// instruction at which it exits appears in a log that QEMU keeps of that processor.
const fn exits(emulation: Emulation) -> bool {
    use Emulation::{Int, Int1, Int3, Into, Iret, Popf, Pushf, Syscall, Sysret};
    matches!(emulation, Pushf(_) | Popf(_) | Iret(_) | Int(_) | Int3 | Int1 | Into | Syscall | Sysret(_))
}
