//! Several instructions of the guest in one go.
//!
//! Where the processor cannot but execute what lies behind one another in memory, a breakpoint behind the last of a few
//! instructions does as well as a trap after each, and saves entering the guest for each. Whatever else ends the run,
//! a fault or an interrupt, RIP tells how far it came.

use core::arch::asm;

use pugmark_model::Context;
use pugmark_monitor::entry::{DR0_EXECUTES, Pace};
use pugmark_monitor::guest::Instruction;
use pugmark_monitor::guest_map::GUEST_RAM;
use pugmark_truth::REGION_BASE;

use crate::image::exit::fatal;
use crate::image::step::DEBUG;
use crate::image::vcpu::Vcpu;

impl Vcpu {
    /// Executes `first`, the next instruction, and those that must follow it; `false`, and nothing is done, where it is
    /// to be stepped.
    pub(crate) fn run_stretch(&mut self, first: &Instruction) -> bool {
        if self.processor.steps_singly() {
            return false;
        }
        let Some(stretch) = self.lookahead.stretch(&self.cpu, &mut self.memory, first, self.stretch) else {
            return false;
        };
        let end = stretch.end();
        // The monitor must not run into the breakpoint: it has these addresses itself.
        if (GUEST_RAM..REGION_BASE).contains(&end) {
            return false;
        }
        let before = self.context();
        let breakpoint = Breakpoint::set(end);
        self.enter(Pace::Stretch);
        breakpoint.clear();
        self.repeating = None;
        if !stretch.is_unchanged(&self.memory) {
            fatal!("the guest changes code in front of itself at rip {:#x}: stretch=1 steps it", first.rip());
        }
        let rip = self.cpu.rip;
        let Some(executed) = stretch.executed(rip) else { self.unexpected() };
        self.retire_stretch(&stretch.instructions()[..executed], before);
        if self.vmcb.control.exit_code != DEBUG {
            self.exited(stretch.instructions().get(executed));
        } else if rip != end {
            self.unexpected();
        }
        true
    }

    /// Accounts for `instructions`, none of which has changed anything that a context holds but RIP.
    fn retire_stretch(&mut self, instructions: &[Instruction], before: Context) {
        let mut before = before;
        let rip = self.cpu.rip;
        for instruction in instructions {
            self.cpu.rip = instruction.rip() + u64::from(instruction.len());
            self.retired(before, instruction, 0);
            before = self.context();
        }
        self.cpu.rip = rip;
    }
}

/// A breakpoint of execution in DR0, which the guest's own value comes back to.
struct Breakpoint {
    guests: u64,
}

impl Breakpoint {
    fn set(address: u64) -> Self {
        let guests: u64;
        // SAFETY: nothing that the monitor executes lies at `address`. TCG takes a breakpoint into account where DR7 is written,
        // so that VMRUN alone would not do.
        unsafe {
            asm!(
                "mov {guests}, dr0",
                "mov dr0, {address}",
                "mov dr7, {enable}",
                guests = out(reg) guests,
                address = in(reg) address,
                enable = in(reg) DR0_EXECUTES,
                options(nomem, nostack)
            );
        }
        Self { guests }
    }

    fn clear(self) {
        const NONE: u64 = 0x400;
        // SAFETY: no breakpoint is enabled behind this.
        unsafe {
            asm!("mov dr7, {}", "mov dr0, {}", in(reg) NONE, in(reg) self.guests, options(nomem, nostack));
        }
    }
}
