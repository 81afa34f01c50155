//! Several instructions of the guest in one go.
//!
//! Where the processor cannot but execute certain instructions or leave them at one of a few places, a breakpoint at each
//! of these places does as well as a trap after each instruction, and saves entering the guest for each. Whatever else
//! ends the run, a fault or an interrupt, RIP tells how far it came.

use core::arch::asm;

use pugmark_model::Context;
use pugmark_monitor::entry::{Pace, execute_breakpoints};
use pugmark_monitor::guest::{Gpr, Instruction, Stretch, rflags};
use pugmark_monitor::guest_map::GUEST_RAM;
use pugmark_truth::REGION_BASE;

use crate::image::exit::fatal;
use crate::image::step::DEBUG;
use crate::image::vcpu::Vcpu;

impl Vcpu {
    /// Executes `first`, the next instruction, and those that must follow it; `false`, and nothing is done, where it is
    /// to be stepped.
    pub(crate) fn run_stretch(&mut self, first: &Instruction) -> bool {
        let most = self.processor.in_one_go();
        if most == 1 {
            return false;
        }
        // Each branch is recorded before the next instruction, and in memory that may fault.
        let through = !self.processor.records_branches();
        let limit = self.stretch.min(most);
        let Some(mut stretch) = self.room.take() else { return false };
        let found = self.lookahead.stretch(&self.cpu, &mut self.memory, first, limit, through, &mut stretch);
        let done = found && self.run_through(first, &stretch);
        self.room = Some(stretch);
        done
    }

    /// Executes what was found; `false`, and nothing is done, where the monitor itself would run into a breakpoint.
    fn run_through(&mut self, first: &Instruction, stretch: &Stretch) -> bool {
        // It has these addresses itself.
        if stretch.exits().any(|exit| (GUEST_RAM..REGION_BASE).contains(&exit)) {
            return false;
        }
        let before = self.context();
        let count = self.cpu.get(Gpr::Rcx);
        let begins_on_one = stretch.is_loop();
        let breakpoints = Breakpoints::set(stretch);
        self.enter(Pace::Stretch { breakpoints: stretch.exits().len(), begins_on_one });
        breakpoints.clear();
        if !stretch.is_unchanged(&self.memory) {
            fatal!("the guest changes code in front of itself at rip {:#x}: stretch=1 steps it", first.rip());
        }
        let rip = self.cpu.rip;
        // RF is cleared by the first instruction that completes.
        let begun = !begins_on_one || self.vmcb.save.rflags & rflags::RF == 0;
        let Some(executed) = stretch.executed(rip, begun) else { self.unexpected() };
        let iterated = executed == 0 && first.repeats() && self.cpu.get(Gpr::Rcx) != count;
        self.repeating = iterated.then_some(rip);
        self.retire_stretch(&stretch.instructions()[..executed], before);
        if self.vmcb.control.exit_code != DEBUG {
            self.exited(stretch.instructions().get(executed));
        } else if !stretch.exits().any(|exit| exit == rip) {
            self.unexpected();
        }
        true
    }

    /// Accounts for `instructions`, none of which has changed anything that a context holds but RIP.
    fn retire_stretch(&mut self, instructions: &[Instruction], before: Context) {
        let mut before = before;
        let rip = self.cpu.rip;
        for (index, instruction) in instructions.iter().enumerate() {
            self.cpu.rip = instructions.get(index + 1).map_or(rip, Instruction::rip);
            self.retired(before, instruction, 0);
            before = self.context();
        }
    }
}

/// Breakpoints of execution, which the guest's own addresses come back to.
struct Breakpoints {
    guests: [u64; Stretch::MAX_EXITS],
}

impl Breakpoints {
    /// At the exits of a stretch.
    fn set(stretch: &Stretch) -> Self {
        let mut addresses = [0; Stretch::MAX_EXITS];
        addresses.iter_mut().zip(stretch.exits()).for_each(|(address, exit)| *address = exit);
        let guests = swap(addresses);
        // SAFETY: nothing that the monitor executes lies at these addresses. TCG takes a breakpoint into account where DR7 is
        // written, so that VMRUN alone would not do.
        unsafe { set_dr7(execute_breakpoints(stretch.exits().len())) };
        Self { guests }
    }

    fn clear(self) {
        // SAFETY: no breakpoint is enabled behind this.
        unsafe { set_dr7(execute_breakpoints(0)) };
        swap(self.guests);
    }
}

/// Puts addresses into DR0 to DR3 while none is enabled, and returns what they held.
fn swap(addresses: [u64; 4]) -> [u64; 4] {
    let mut held = [0; 4];
    // SAFETY: what is not enabled has no effect.
    unsafe {
        asm!(
            "mov {0}, dr0", "mov dr0, {4}", "mov {1}, dr1", "mov dr1, {5}",
            "mov {2}, dr2", "mov dr2, {6}", "mov {3}, dr3", "mov dr3, {7}",
            out(reg) held[0], out(reg) held[1], out(reg) held[2], out(reg) held[3],
            in(reg) addresses[0], in(reg) addresses[1], in(reg) addresses[2], in(reg) addresses[3],
            options(nomem, nostack)
        );
    }
    held
}

/// # Safety
/// What it enables must lie nowhere in the monitor.
unsafe fn set_dr7(value: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("mov dr7, {}", in(reg) value, options(nomem, nostack)) };
}
