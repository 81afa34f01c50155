//! What the guest is entered with, and what is taken back when it was left.

use crate::guest::{Cpu, Shadow, efer, rflags};
use crate::single_step::NO_CONDITION;
use crate::vmcb::Vmcb;

/// DR7: the breakpoint of DR0 alone is enabled, and is one of execution.
pub const DR0_EXECUTES: u64 = 0x402;

/// How to enter the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Until something exits.
    Free,
    /// Until the breakpoint of DR0.
    Stretch,
    /// One instruction.
    Step {
        /// No interrupt may come before it: it is in a shadow, or half done.
        masked: bool,
    },
}

impl Pace {
    /// Puts the guest's state into the control block. A guest that is stepped has TF set; DR6 is empty, so that it holds
    /// this step's conditions afterwards and no older ones; SYSCALL and SYSRET, switched off, raise `#UD`. On a stretch
    /// DR7 enables the breakpoint of DR0, which is no part of the control block.
    pub fn load(self, cpu: &Cpu, vmcb: &mut Vmcb) {
        let save = &mut vmcb.save;
        save.load_from(cpu);
        if self == Self::Free {
            return;
        }
        save.efer &= !efer::SCE;
        save.dr6 = NO_CONDITION;
        if let Self::Step { masked } = self {
            save.rflags = cpu.rflags_for_stepping();
            if masked {
                save.rflags &= !rflags::IF;
            }
        } else {
            save.dr7 = DR0_EXECUTES;
        }
    }

    /// Takes the guest's state back from the control block.
    ///
    /// DR6 of a stepped guest stays as it is: its software reaches it by hand only, and delivery puts the conditions in.
    pub fn store(self, vmcb: &Vmcb, cpu: &mut Cpu) {
        let save = &vmcb.save;
        let (interrupts, sce, dr7) = (cpu.rflags & rflags::IF, cpu.efer & efer::SCE, cpu.dr7);
        save.store_to(cpu);
        match self {
            Self::Free => {
                cpu.rflags = save.rflags;
                cpu.dr6 = save.dr6;
                // VMRUN does not bring a shadow back. Which instruction opened it is not told; after either an NMI may
                // be held back.
                cpu.shadow = (vmcb.control.interrupt_shadow & 1 != 0).then_some(Shadow::MovSs);
            }
            Self::Stretch => {
                cpu.efer |= sce;
                cpu.dr7 = dr7;
            }
            Self::Step { masked } => {
                cpu.efer |= sce;
                if masked {
                    // CLI is never executed masked, and what else changes IF is executed by hand.
                    cpu.rflags |= interrupts;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Pace = Pace::Step { masked: false };
    const MASKED: Pace = Pace::Step { masked: true };
    const BS_AND_B0: u64 = 0x4001;

    /// Enters with `cpu`, lets `run` be what the guest does, and takes the state back.
    fn enter(pace: Pace, mut cpu: Cpu, run: impl FnOnce(&mut Vmcb)) -> Cpu {
        let mut vmcb = Vmcb::ZERO;
        pace.load(&cpu, &mut vmcb);
        run(&mut vmcb);
        pace.store(&vmcb, &mut cpu);
        cpu
    }

    #[test]
    fn a_step_sees_no_older_debug_conditions_and_leaves_the_guests() {
        for own in [NO_CONDITION, NO_CONDITION | BS_AND_B0] {
            for (pace, entered) in [(Pace::Free, own), (STEP, NO_CONDITION), (Pace::Stretch, NO_CONDITION)] {
                let cpu = enter(pace, Cpu { dr6: own, ..Cpu::default() }, |vmcb| {
                    assert_eq!(vmcb.save.dr6, entered, "{pace:?}");
                    vmcb.save.dr6 |= 1 << 14;
                });
                let left = if pace == Pace::Free { own | 1 << 14 } else { own };
                assert_eq!(cpu.dr6, left, "{pace:?}");
            }
        }
    }

    #[test]
    fn a_step_has_tf_and_no_syscall_and_the_guest_sees_neither() {
        for (own, pace) in [(0, STEP), (rflags::TF, STEP), (rflags::IF, MASKED), (rflags::IF, STEP)] {
            let start = Cpu { rflags: own | rflags::FIXED, efer: efer::SCE | efer::LMA, ..Cpu::default() };
            let cpu = enter(pace, start, |vmcb| {
                let taken = if pace == MASKED { own & !rflags::IF } else { own };
                assert_eq!(vmcb.save.rflags, taken | rflags::FIXED | rflags::TF, "{own:#x} {pace:?}");
                assert_eq!(vmcb.save.efer & efer::SCE, 0);
            });
            assert_eq!(cpu, start, "{own:#x} {pace:?}");
        }
    }

    #[test]
    fn a_stretch_has_one_breakpoint_and_no_tf_and_the_guest_sees_neither() {
        let start = Cpu { dr7: 0x400, dr6: NO_CONDITION, efer: efer::SCE, ..Cpu::default() };
        let cpu = enter(Pace::Stretch, start, |vmcb| {
            assert_eq!((vmcb.save.dr7, vmcb.save.rflags & rflags::TF), (DR0_EXECUTES, 0));
            assert_eq!(vmcb.save.efer & efer::SCE, 0);
            vmcb.save.dr6 |= 1;
        });
        assert_eq!(cpu, start);
    }

    #[test]
    fn a_step_that_clears_if_keeps_it_clear_unless_masked() {
        let start = Cpu { rflags: rflags::IF, ..Cpu::default() };
        for (pace, left) in [(STEP, 0), (Pace::Free, 0), (MASKED, rflags::IF)] {
            let cpu = enter(pace, start, |vmcb| vmcb.save.rflags &= !rflags::IF);
            assert_eq!(cpu.rflags, left, "{pace:?}");
        }
    }

    #[test]
    fn a_shadow_at_the_exit_of_a_free_run_holds_back_interrupts_and_nmis() {
        for (bit, takes) in [(0, true), (1, false)] {
            let start = Cpu { rflags: rflags::IF, ..Cpu::default() };
            let cpu = enter(Pace::Free, start, |vmcb| vmcb.control.interrupt_shadow = bit);
            assert_eq!((cpu.takes_interrupts(), cpu.takes_nmi()), (takes, takes));
        }
    }

    #[test]
    fn a_step_leaves_the_shadow_to_the_one_who_steps() {
        let start = Cpu { shadow: Some(Shadow::Sti), ..Cpu::default() };
        assert_eq!(enter(MASKED, start, |_| {}).shadow, Some(Shadow::Sti));
    }
}
