//! Branch prediction: that of each branch's last outcome.
//!
//! The manual does not say how a processor predicts; records and counters only say whether it was right.

use crate::Retired;
use crate::branch::{Decoded, Kind};

const ENTRIES: usize = 256;

/// Where branches went last.
#[derive(Debug)]
pub(crate) struct Predictor {
    /// The branch, and where it went.
    entries: [(u64, u64); ENTRIES],
}

impl Predictor {
    pub(crate) const fn new() -> Self {
        Self { entries: [(0, 0); ENTRIES] }
    }

    /// Whether the branch went where it was predicted to; `None` for what is no branch. A branch that is seen for the
    /// first time is predicted to go on behind itself, a direct jump or call to its target.
    pub(crate) fn judge(&mut self, retired: &Retired, decoded: Decoded) -> Option<bool> {
        if !decoded.may_transfer() {
            return None;
        }
        let (ip, to) = (retired.before.ip, retired.after.ip);
        let entry = &mut self.entries[(ip ^ ip >> 8) as usize % ENTRIES];
        let (of, last) = core::mem::replace(entry, (ip, to));
        Some(match decoded.kind {
            Kind::DirectJump | Kind::DirectCall { .. } => true,
            _ if of == ip => last == to,
            _ => to == decoded.next_ip(&retired.before),
        })
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
        // In this order: (what is at IP, where it goes, whether it was predicted right).
        let rows = [
            (Kind::Conditional, NEXT, Some(true)),
            (Kind::Conditional, FAR, Some(false)),
            (Kind::Conditional, FAR, Some(true)),
            // What is no branch is not predicted, and takes no branch's place.
            (Kind::Other, NEXT, None),
            (Kind::MovCr3, NEXT, None),
            (Kind::Hlt, NEXT, None),
            (Kind::Conditional, FAR, Some(true)),
            (Kind::Conditional, NEXT, Some(false)),
            // A direct one has one target.
            (Kind::DirectJump, FAR, Some(true)),
            (Kind::DirectCall { to_next: false }, 0x3000, Some(true)),
            (Kind::Return, 0x3000, Some(true)),
            (Kind::Return, 0x4000, Some(false)),
            (Kind::IndirectJump, 0x4000, Some(true)),
        ];
        let mut predictor = Predictor::new();
        for (row, (kind, to, right)) in rows.into_iter().enumerate() {
            let at = |ip| Context { ip, cs_base: 0, cr3: 0, cpl: 0, mode: ExecMode::Bits64, iflag: true };
            let retired = Retired { before: at(IP), after: at(to), bytes: &[], tsc: 0, operand: 0 };
            assert_eq!(predictor.judge(&retired, Decoded { kind, len: 2 }), right, "row {row}");
        }
        // The first time an indirect one is predicted to go on behind itself.
        for (to, right) in [(0x5000, false), (0x5002, true)] {
            let at = |ip| Context { ip, cs_base: 0, cr3: 0, cpl: 0, mode: ExecMode::Bits64, iflag: true };
            let retired = Retired { before: at(0x5000), after: at(to), bytes: &[], tsc: 0, operand: 0 };
            let first = Predictor::new().judge(&retired, Decoded { kind: Kind::IndirectJump, len: 2 });
            assert_eq!(first, Some(right), "{to:#x}");
        }
    }
}
