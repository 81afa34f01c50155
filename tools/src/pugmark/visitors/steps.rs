//! Steps of execution that lead from one function to another.

use super::functions::WalkedFunctions;
use pugmark_decoder_core::{flow::ExecutedInsn, insn::Class};

/// The way in which a step leads from one function to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepWay {
    /// A near call.
    Call,
    /// A near return.
    Return,
    /// An interrupt, an exception, a far call, or an instruction that enters the kernel.
    Interrupt,
    /// IRET, SYSRET or a similar instruction.
    InterruptReturn,
    /// A direct jump into another function, or code that goes on where one begins.
    Jump,
    /// An indirect jump into another function.
    IndirectJump,
    /// The abort of a transaction, which goes on with the code for that.
    Abort,
}

/// A step from one function to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WalkStep {
    pub(super) way: StepWay,
    /// The instruction that leads away, or before which execution was interrupted.
    pub(super) from: u64,
    /// The address after that instruction, or of the one that was interrupted: where a callee returns to.
    pub(super) next: u64,
    /// The next instruction.
    pub(super) to: u64,
}

/// The last thing before an instruction, which leads to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StepBefore {
    /// Nothing that is known.
    #[default]
    Nothing,
    /// An instruction.
    Insn(ExecutedInsn),
    /// An interrupt before the instruction at this address.
    Interrupt(u64),
    /// The abort of a transaction, before the instruction at this address.
    Abort(u64),
}

impl StepBefore {
    /// Returns the step that leads to the instruction at `to`, if that enters or leaves a function.
    #[inline]
    pub(super) fn step(self, to: u64, functions: &mut WalkedFunctions<'_>) -> Option<WalkStep> {
        let insn = match self {
            Self::Nothing => return None,
            Self::Interrupt(from) => {
                return Some(WalkStep { way: StepWay::Interrupt, from, next: from, to });
            }
            Self::Abort(from) => return Some(WalkStep { way: StepWay::Abort, from, next: from, to }),
            Self::Insn(insn) => insn,
        };
        let (from, next) = (insn.ip, insn.ip.wrapping_add(insn.len.into()));
        let way = match insn.class {
            Class::NearReturn => StepWay::Return,
            // Code calls the instruction that follows to learn its own address, and never returns from it.
            Class::NearCall | Class::IndirectCall if next != to => StepWay::Call,
            Class::FarCall if next != to => StepWay::Interrupt,
            Class::FarReturn if next != to => StepWay::InterruptReturn,
            _ if !functions.are_apart(from, to) => return None,
            Class::IndirectJump => StepWay::IndirectJump,
            _ => StepWay::Jump,
        };
        Some(WalkStep { way, from, next, to })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::symbols::TracedSymbols;
    use pugmark_decoder_core::mode::ExecMode;

    #[test]
    fn an_instruction_leads_to_another_function_by_its_class() {
        let names = TracedSymbols::known(&[("a", 0x100, 0x200), ("b", 0x200, 0x300)], &[]);
        let mut functions = WalkedFunctions::named(&names);
        let mut way = |class, ip, to| {
            let insn = ExecutedInsn { ip, len: 4, class, mode: ExecMode::Bits64, speculative: false };
            let step = StepBefore::Insn(insn).step(to, &mut functions);
            step.map(|step| {
                assert_eq!((step.from, step.next, step.to), (ip, ip + 4, to));
                step.way
            })
        };
        for (class, expected) in [
            (Class::NearCall, [Some(StepWay::Call); 2]),
            (Class::IndirectCall, [Some(StepWay::Call); 2]),
            (Class::NearReturn, [Some(StepWay::Return); 2]),
            (Class::FarCall, [Some(StepWay::Interrupt); 2]),
            (Class::FarReturn, [Some(StepWay::InterruptReturn); 2]),
            (Class::NearJump, [Some(StepWay::Jump), None]),
            (Class::CondJump, [Some(StepWay::Jump), None]),
            (Class::FarJump, [Some(StepWay::Jump), None]),
            (Class::IndirectJump, [Some(StepWay::IndirectJump), None]),
        ] {
            assert_eq!([0x240, 0x140].map(|to| way(class, 0x110, to)), expected, "{class:?}");
            // The next instruction, in the same function and in the next one.
            let is_return = (class == Class::NearReturn).then_some(StepWay::Return);
            assert_eq!(way(class, 0x110, 0x114), is_return, "{class:?}");
            let apart = if class == Class::IndirectJump { StepWay::IndirectJump } else { StepWay::Jump };
            assert_eq!(way(class, 0x1fc, 0x200), is_return.or(Some(apart)), "{class:?}");
        }
        assert_eq!([0x1fc, 0x1f0].map(|ip| way(Class::Other, ip, ip + 4)), [Some(StepWay::Jump), None]);
    }
}
