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
