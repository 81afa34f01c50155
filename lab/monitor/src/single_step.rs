//! Interprets the debug exit of a stepped guest.
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel RDT, "Debug Exceptions"; on repeated instructions:
//! "Single-Step Exception Condition", "Instruction-Breakpoint Exception Condition".

/// DR6 without any condition.
pub const NO_CONDITION: u64 = 0xffff_0ff0;

/// DR6: single step.
const BS: u64 = 1 << 14;
/// DR6: the conditions that are always the guest's own: the breakpoints of DR0 to DR3, an access to a guarded debug
/// register (BD), a switch to a task with the debug trap flag (BT).
const GUEST_CONDITIONS: u64 = 0xf | 1 << 13 | 1 << 15;

/// The state around a debug exit.
#[derive(Clone, Copy, Debug)]
pub struct DebugExit {
    /// DR6 as the exit left it; the guest was entered with [`NO_CONDITION`].
    pub dr6: u64,
    /// RIP before the guest was entered.
    pub rip_before: u64,
    /// RIP at the exit.
    pub rip_after: u64,
    /// The instruction at `rip_before` is a string instruction with a REP prefix.
    pub repeats: bool,
    /// The guest itself had set RFLAGS.TF, too.
    pub guest_steps: bool,
}

/// The progress of the instruction, and the report to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepResult {
    /// The progress of the instruction.
    pub progress: Progress,
    /// The conditions of the debug exception that the guest receives; 0: none.
    pub guest_conditions: u64,
    /// The guest's handler finds RF set in its frame, so that its IRET resumes a repeated instruction.
    pub sets_rf: bool,
}

/// The progress of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The instruction has not begun: an instruction breakpoint, or an access to a guarded debug register.
    None,
    /// One iteration of a repeated instruction, which has not retired.
    Iteration,
    /// The instruction retired.
    Retired,
}

impl DebugExit {
    /// Interprets the exit.
    #[must_use]
    pub const fn result(&self) -> StepResult {
        let stepped = self.dr6 & BS != 0;
        let progress = if !stepped {
            Progress::None
        } else if self.repeats && self.rip_before == self.rip_after {
            Progress::Iteration
        } else {
            Progress::Retired
        };
        let own_step = if stepped && self.guest_steps { BS } else { 0 };
        let resumes = matches!(progress, Progress::Iteration);
        StepResult { progress, guest_conditions: self.dr6 & GUEST_CONDITIONS | own_step, sets_rf: resumes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_retires_once_and_only_the_guests_own_conditions_reach_it() {
        // DR6, RIP after (it is 100h before), `true` if the instruction repeats, `true` if the guest steps itself; then
        // progress and the guest's conditions.
        let rows = [
            (BS, 0x102, false, false, Progress::Retired, 0),
            (BS, 0x100, false, false, Progress::Retired, 0), // a jump to itself
            (BS, 0x100, true, false, Progress::Iteration, 0),
            (BS, 0x102, true, false, Progress::Retired, 0),
            (BS, 0x102, false, true, Progress::Retired, BS),
            (BS, 0x100, true, true, Progress::Iteration, BS),
            (BS | 0b10, 0x102, false, false, Progress::Retired, 0b10),
            (BS | 0b10, 0x102, false, true, Progress::Retired, BS | 0b10),
            (0b1, 0x100, false, true, Progress::None, 0b1),
            (NO_CONDITION | BS, 0x102, false, false, Progress::Retired, 0),
            (NO_CONDITION | 1 << 13, 0x100, false, true, Progress::None, 1 << 13),
            (NO_CONDITION | BS | 1 << 15, 0x200, false, false, Progress::Retired, 1 << 15),
            (NO_CONDITION, 0x100, false, true, Progress::None, 0),
        ];
        for (dr6, to, repeats, guest_steps, progress, guest_conditions) in rows {
            let exit = DebugExit { dr6, rip_before: 0x100, rip_after: to, repeats, guest_steps };
            let verdict = exit.result();
            assert_eq!(
                (verdict.progress, verdict.guest_conditions),
                (progress, guest_conditions),
                "{exit:x?}"
            );
        }
    }

    #[test]
    fn rf_is_set_between_iterations_only() {
        for (dr6, to, repeats, resumes) in [
            (BS, 0x100, true, true),
            (BS | 1, 0x100, true, true),
            (BS, 0x102, true, false),
            (BS, 0x100, false, false),
            // An instruction breakpoint leaves RF to its handler.
            (1, 0x100, true, false),
        ] {
            let exit = DebugExit { dr6, rip_before: 0x100, rip_after: to, repeats, guest_steps: true };
            assert_eq!(exit.result().sets_rf, resumes, "{exit:x?}");
        }
    }
}
