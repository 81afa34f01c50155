//! Executes several instructions of the guest at full speed.
//!
//! If certain instructions execute in sequence, or leave the sequence at one of a few addresses, a breakpoint at each
//! of these addresses replaces a trap after each instruction, and saves an entry into the guest for each. If a fault or
//! an interrupt ends the run, RIP tells how many executed.

use core::arch::asm;

use pugmark_model::Context;
use pugmark_monitor::entry::{EntryMode, execute_breakpoints};
use pugmark_monitor::guest::{Gpr, Instruction, Stretch, StretchLimits, rflags};
use pugmark_monitor::guest_map::MONITOR;
use pugmark_monitor::vmcb::exit_code;

use crate::image::exit::fatal;
use crate::image::exits::NPF_WRITE;
use crate::image::step::EXIT_DEBUG;
use crate::image::vcpu::Vcpu;

impl Vcpu {
    /// Executes `first`, the next instruction, and the instructions that follow it in sequence. Returns `false`, and
    /// does nothing, if `first` must be stepped.
    pub(crate) fn run_stretch(&mut self, first: &Instruction) -> bool {
        if self.stepped_alone.take() == Some(first.rip()) {
            return false;
        }
        let most = usize::try_from(self.processor.max_unreported()).unwrap_or(usize::MAX);
        if most == 1 {
            return false;
        }
        let limits = StretchLimits {
            instructions: self.max_stretch.min(most),
            // A branch is recorded before the next instruction executes, and storing the record in memory may fault.
            through_branches: !self.processor.records_branches(),
            alone: self.peers.is_alone(),
        };
        let mut stretch = self.lookahead.take_stretch(first.rip());
        let found = self.lookahead.stretch(&self.cpu, &mut self.memory, first, limits, &mut stretch);
        let done = found && self.enter_stretch(first, &stretch);
        self.lookahead.keep_stretch(first.rip(), stretch);
        done
    }

    /// Executes a stretch. Returns `false`, and does nothing, if the monitor itself would hit a breakpoint.
    fn enter_stretch(&mut self, first: &Instruction, stretch: &Stretch) -> bool {
        // The monitor occupies these addresses.
        if stretch.exits().any(|exit| MONITOR.contains(&exit)) {
            return false;
        }
        let before = self.context();
        let count = self.cpu.get(Gpr::Rcx);
        let begins_on_one = stretch.is_loop();
        // If one of the instructions modifies another one, the write exits.
        self.nested.protect(stretch.addresses());
        let breakpoints = Breakpoints::set(stretch);
        self.enter(EntryMode::Stretch { breakpoints: stretch.exits().len(), begins_on_one });
        breakpoints.clear();
        self.nested.unprotect();
        let rip = self.cpu.rip;
        // RF is cleared by the first instruction that completes.
        let begun = !begins_on_one || self.vmcb.save.rflags & rflags::RF == 0;
        let Some(executed) = stretch.executed(rip, begun) else { self.unexpected() };
        let changed = stretch.first_changed(&self.memory, executed);
        if changed.is_some_and(|changed| changed < executed) {
            fatal!(
                "another processor changed instructions that were about to execute after rip {:#x}: run the guest with \
                 stretch=1",
                first.rip()
            );
        }
        let iterated = executed == 0 && first.repeats() && self.cpu.get(Gpr::Rcx) != count;
        self.repeating_rip = iterated.then_some(rip);
        self.retire_stretch(&stretch.instructions()[..executed], before);
        let control = &self.vmcb.control;
        let to_page = |address: u64| (address ^ control.exit_info2) & !0xfff == 0;
        if control.exit_code == exit_code::NPF
            && control.exit_info1 & NPF_WRITE != 0
            && stretch.addresses().any(to_page)
        {
            self.stepped_alone = Some(rip);
        } else if changed.is_some() {
            // The instruction that exited is not the one that was found; the next entry finds it.
        } else if self.vmcb.control.exit_code != EXIT_DEBUG {
            self.exited(stretch.instructions().get(executed));
        } else if !stretch.exits().any(|exit| exit == rip) {
            self.unexpected();
        }
        true
    }

    /// Accounts for `instructions`, which have changed only RIP in the context.
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

/// The execution breakpoints of a stretch; restores the guest's addresses afterwards.
struct Breakpoints {
    guest_addresses: [u64; Stretch::MAX_EXITS],
}

impl Breakpoints {
    /// Sets breakpoints at the exits of a stretch.
    fn set(stretch: &Stretch) -> Self {
        let mut addresses = [0; Stretch::MAX_EXITS];
        addresses.iter_mut().zip(stretch.exits()).for_each(|(address, exit)| *address = exit);
        let guests = swap_breakpoint_addresses(addresses);
        // SAFETY: the monitor executes nothing at these addresses. TCG activates a breakpoint only when DR7 is written,
        // so loading DR7 by VMRUN alone would not be enough.
        unsafe { set_dr7(execute_breakpoints(stretch.exits().len())) };
        Self { guest_addresses: guests }
    }

    fn clear(self) {
        // SAFETY: no breakpoint is enabled after this.
        unsafe { set_dr7(execute_breakpoints(0)) };
        swap_breakpoint_addresses(self.guest_addresses);
    }
}

/// Writes addresses to DR0 to DR3 while no breakpoint is enabled, and returns the previous ones.
fn swap_breakpoint_addresses(addresses: [u64; 4]) -> [u64; 4] {
    let mut held = [0; 4];
    // SAFETY: an address has no effect while its breakpoint is not enabled.
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

/// Writes DR7.
///
/// # Safety
/// No breakpoint that the value enables may be at an address in the monitor.
unsafe fn set_dr7(value: u64) {
    // SAFETY: guaranteed by the caller.
    unsafe { asm!("mov dr7, {}", in(reg) value, options(nomem, nostack)) };
}
