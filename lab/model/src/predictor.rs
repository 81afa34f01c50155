//! Branch prediction: each branch is predicted to repeat its last outcome.
//!
//! The manuals do not define how a processor predicts, so this rule is the model's own. Records and counters only show
//! whether a prediction was right.

use crate::Retired;
use crate::branch::{DecodedInstruction, InstructionKind};

const ENTRIES: usize = 256;

/// The last target of each branch.
#[derive(Debug)]
pub(crate) struct Predictor {
    /// For each entry the branch's address and its last target.
    entries: [(u64, u64); ENTRIES],
}

impl Predictor {
    pub(crate) const fn new() -> Self {
        Self { entries: [(0, 0); ENTRIES] }
    }

    /// Returns whether the branch was predicted right, and `None` for an instruction that is not a branch. Direct jumps
    /// and calls are always predicted right. Any other branch that is seen for the first time is predicted not taken.
    pub(crate) fn was_predicted(&mut self, retired: &Retired, decoded: DecodedInstruction) -> Option<bool> {
        if !decoded.may_transfer() {
            return None;
        }
        let (ip, to) = (retired.before.ip, retired.after.ip);
        let (of, last) = self.went(ip, to);
        Some(match decoded.kind {
            InstructionKind::DirectJump | InstructionKind::DirectCall { .. } => true,
            _ if of == ip => last == to,
            _ => to == decoded.next_ip(&retired.before),
        })
    }

    /// Records the target of the branch at `ip`. Returns the previous entry: a branch's address and its last target.
    #[inline]
    pub(crate) fn went(&mut self, ip: u64, to: u64) -> (u64, u64) {
        core::mem::replace(&mut self.entries[(ip ^ ip >> 8) as usize % ENTRIES], (ip, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, ExecMode};

    #[test]
    fn a_branch_goes_where_it_went_last() {
        const IP: u64 = 0x1000;
        const NEXT: u64 = IP + 2;
        const FAR: u64 = 0x2000;
        // In this order: (instruction at IP, its target, `true` if it was predicted right).
        let rows = [
            (InstructionKind::Conditional, NEXT, Some(true)),
            (InstructionKind::Conditional, FAR, Some(false)),
            (InstructionKind::Conditional, FAR, Some(true)),
            // An instruction that is not a branch is not predicted, and does not replace an entry.
            (InstructionKind::Other, NEXT, None),
            (InstructionKind::MovCr3, NEXT, None),
            (InstructionKind::Hlt, NEXT, None),
            (InstructionKind::Conditional, FAR, Some(true)),
            (InstructionKind::Conditional, NEXT, Some(false)),
            // A direct branch has one target.
            (InstructionKind::DirectJump, FAR, Some(true)),
            (InstructionKind::DirectCall { to_next: false }, 0x3000, Some(true)),
            (InstructionKind::Return, 0x3000, Some(true)),
            (InstructionKind::Return, 0x4000, Some(false)),
            (InstructionKind::IndirectJump, 0x4000, Some(true)),
        ];
        let mut predictor = Predictor::new();
        for (row, (kind, to, right)) in rows.into_iter().enumerate() {
            let at = |ip| Context { ip, cs_base: 0, cr3: 0, cpl: 0, mode: ExecMode::Bits64, iflag: true };
            let retired = Retired { before: at(IP), after: at(to), bytes: &[], tsc: 0, operand: 0 };
            assert_eq!(
                predictor.was_predicted(&retired, DecodedInstruction { kind, len: 2 }),
                right,
                "row {row}"
            );
        }
        // The first time, an indirect branch is predicted to continue at the next instruction.
        for (to, right) in [(0x5000, false), (0x5002, true)] {
            let at = |ip| Context { ip, cs_base: 0, cr3: 0, cpl: 0, mode: ExecMode::Bits64, iflag: true };
            let retired = Retired { before: at(0x5000), after: at(to), bytes: &[], tsc: 0, operand: 0 };
            let first = Predictor::new()
                .was_predicted(&retired, DecodedInstruction { kind: InstructionKind::IndirectJump, len: 2 });
            assert_eq!(first, Some(right), "{to:#x}");
        }
    }
}
