//! Prepares the control block for VM entry, and stores the guest's state after an exit.

use crate::guest::{Cpu, Shadow, efer, rflags};
use crate::single_step::NO_CONDITION;
use crate::vmcb::Vmcb;

/// Returns a DR7 that enables the first `count` debug registers as execution breakpoints.
#[must_use]
pub const fn execute_breakpoints(count: usize) -> u64 {
    const NONE: u64 = 0x400;
    let mut value = NONE;
    let mut index = 0;
    while index < count {
        value |= 0b10 << (2 * index);
        index += 1;
    }
    value
}

/// The mode of a VM entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryMode {
    /// Run until something exits.
    Free,
    /// Run until something exits, in a kernel that the tracing hardware does not see. A return to a program exits, too:
    /// SYSRET raises #UD, and IRET has an intercept.
    FreeInKernel,
    /// Run until execution reaches a breakpoint in one of the first debug registers.
    Stretch {
        /// Number of breakpoints.
        breakpoints: usize,
        /// One of the breakpoints is on the first instruction and must not fire before that instruction has executed.
        begins_on_one: bool,
    },
    /// Run one instruction.
    Step {
        /// No interrupt may be delivered before the instruction, which is in an interrupt shadow or partially executed.
        masked: bool,
    },
}

impl EntryMode {
    /// Loads the guest's state into the control block.
    ///
    /// For a stepped guest TF is set. DR6 is cleared of conditions at entry, so that at the exit it holds only this
    /// step's conditions. SYSCALL and SYSRET are disabled and raise `#UD`. For a stretch DR7 enables breakpoints; their
    /// addresses are not part of the control block.
    pub fn load(self, cpu: &Cpu, vmcb: &mut Vmcb) {
        let save = &mut vmcb.save;
        save.load_from(cpu);
        if self == Self::Free {
            return;
        }
        save.efer &= !efer::SCE;
        if self == Self::FreeInKernel {
            return;
        }
        save.dr6 = NO_CONDITION;
        match self {
            Self::Free | Self::FreeInKernel => {}
            Self::Step { masked } => {
                save.rflags = cpu.rflags_for_stepping();
                if masked {
                    save.rflags &= !rflags::IF;
                }
            }
            Self::Stretch { breakpoints, begins_on_one } => {
                save.dr7 = execute_breakpoints(breakpoints);
                if begins_on_one {
                    save.rflags |= rflags::RF;
                }
            }
        }
    }

    /// Stores the guest's state from the control block.
    ///
    /// A stepped guest's DR6 stays unchanged: the monitor emulates MOV to and from DR6, and event delivery adds the
    /// conditions.
    pub fn store(self, vmcb: &Vmcb, cpu: &mut Cpu) {
        let save = &vmcb.save;
        let (interrupts, sce, dr7) = (cpu.rflags & rflags::IF, cpu.efer & efer::SCE, cpu.dr7);
        save.store_to(cpu);
        match self {
            Self::Free | Self::FreeInKernel => {
                if self == Self::FreeInKernel {
                    cpu.efer |= sce;
                }
                cpu.rflags = save.rflags;
                cpu.dr6 = save.dr6;
                // VMRUN does not restore a shadow, and the exit does not tell which instruction opened it. NMIs may be
                // held back after either, so MOV SS is assumed.
                cpu.shadow = (vmcb.control.interrupt_shadow & 1 != 0).then_some(Shadow::MovSs);
            }
            Self::Stretch { .. } => {
                cpu.efer |= sce;
                cpu.dr7 = dr7;
                // RF may still be set if the first instruction has not executed; the guest's own RF is clear in a
                // stretch.
                cpu.rflags &= !rflags::RF;
            }
            Self::Step { masked } => {
                cpu.efer |= sce;
                if masked {
                    // The processor never executes CLI while masked; the monitor emulates all others that change IF.
                    cpu.rflags |= interrupts;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: EntryMode = EntryMode::Step { masked: false };
    const MASKED: EntryMode = EntryMode::Step { masked: true };
    const STRETCH: EntryMode = EntryMode::Stretch { breakpoints: 3, begins_on_one: false };
    const BS_AND_B0: u64 = 0x4001;

    /// Enters with `cpu`, lets `run` act as the guest, and returns the stored state.
    fn enter(mode: EntryMode, mut cpu: Cpu, run: impl FnOnce(&mut Vmcb)) -> Cpu {
        let mut vmcb = Vmcb::ZERO;
        mode.load(&cpu, &mut vmcb);
        run(&mut vmcb);
        mode.store(&vmcb, &mut cpu);
        cpu
    }

    #[test]
    fn a_step_sees_no_older_debug_conditions_and_leaves_the_guests() {
        for own in [NO_CONDITION, NO_CONDITION | BS_AND_B0] {
            for (mode, entered) in [(EntryMode::Free, own), (STEP, NO_CONDITION), (STRETCH, NO_CONDITION)] {
                let cpu = enter(mode, Cpu { dr6: own, ..Cpu::default() }, |vmcb| {
                    assert_eq!(vmcb.save.dr6, entered, "{mode:?}");
                    vmcb.save.dr6 |= 1 << 14;
                });
                let left = if mode == EntryMode::Free { own | 1 << 14 } else { own };
                assert_eq!(cpu.dr6, left, "{mode:?}");
            }
        }
    }

    #[test]
    fn a_step_has_tf_and_no_syscall_and_the_guest_sees_neither() {
        for (own, mode) in [(0, STEP), (rflags::TF, STEP), (rflags::IF, MASKED), (rflags::IF, STEP)] {
            let start = Cpu { rflags: own | rflags::FIXED, efer: efer::SCE | efer::LMA, ..Cpu::default() };
            let cpu = enter(mode, start, |vmcb| {
                let taken = if mode == MASKED { own & !rflags::IF } else { own };
                assert_eq!(vmcb.save.rflags, taken | rflags::FIXED | rflags::TF, "{own:#x} {mode:?}");
                assert_eq!(vmcb.save.efer & efer::SCE, 0);
            });
            assert_eq!(cpu, start, "{own:#x} {mode:?}");
        }
    }

    #[test]
    fn a_kernel_that_runs_freely_has_no_sysret_and_keeps_everything_else() {
        let start = Cpu { dr6: NO_CONDITION | BS_AND_B0, efer: efer::SCE | efer::LMA, ..Cpu::default() };
        let mode = EntryMode::FreeInKernel;
        let cpu = enter(mode, start, |vmcb| {
            assert_eq!(vmcb.save.efer & (efer::SCE | efer::LMA), efer::LMA);
            assert_eq!((vmcb.save.dr6, vmcb.save.rflags & rflags::TF), (start.dr6, 0));
            vmcb.save.rflags |= rflags::IF;
            vmcb.save.dr6 |= 1 << 13;
            vmcb.control.interrupt_shadow = 1;
        });
        assert_eq!((cpu.efer, cpu.dr6, cpu.shadow), (start.efer, start.dr6 | 1 << 13, Some(Shadow::MovSs)));
        assert_ne!(cpu.rflags & rflags::IF, 0);
        assert_eq!(enter(mode, Cpu { efer: 0, ..start }, |_| {}).efer, 0);
    }

    #[test]
    fn a_stretch_has_breakpoints_and_no_tf_and_the_guest_sees_neither() {
        let start = Cpu { dr7: 0x400, dr6: NO_CONDITION, efer: efer::SCE, ..Cpu::default() };
        for (breakpoints, dr7) in [(1, 0x402), (2, 0x40a), (3, 0x42a), (4, 0x4aa)] {
            for begins_on_one in [false, true] {
                let cpu = enter(EntryMode::Stretch { breakpoints, begins_on_one }, start, |vmcb| {
                    let rf = if begins_on_one { rflags::RF } else { 0 };
                    assert_eq!((vmcb.save.dr7, vmcb.save.rflags & (rflags::TF | rflags::RF)), (dr7, rf));
                    assert_eq!(vmcb.save.efer & efer::SCE, 0);
                    // No instruction has executed: RF is still set.
                    vmcb.save.dr6 |= 1;
                });
                assert_eq!(cpu, start, "{breakpoints}");
            }
        }
    }

    #[test]
    fn a_step_that_clears_if_keeps_it_clear_unless_masked() {
        let start = Cpu { rflags: rflags::IF, ..Cpu::default() };
        for (mode, left) in [(STEP, 0), (EntryMode::Free, 0), (MASKED, rflags::IF)] {
            let cpu = enter(mode, start, |vmcb| vmcb.save.rflags &= !rflags::IF);
            assert_eq!(cpu.rflags, left, "{mode:?}");
        }
    }

    #[test]
    fn a_shadow_at_the_exit_of_a_free_run_holds_back_interrupts_and_nmis() {
        for (bit, takes) in [(0, true), (1, false)] {
            let start = Cpu { rflags: rflags::IF, ..Cpu::default() };
            let cpu = enter(EntryMode::Free, start, |vmcb| vmcb.control.interrupt_shadow = bit);
            assert_eq!((cpu.takes_interrupts(), cpu.takes_nmi()), (takes, takes));
        }
    }

    #[test]
    fn a_step_leaves_the_shadow_to_the_one_who_steps() {
        let start = Cpu { shadow: Some(Shadow::Sti), ..Cpu::default() };
        assert_eq!(enter(MASKED, start, |_| {}).shadow, Some(Shadow::Sti));
    }
}
