//! MSR_LBR_SELECT: the branches that the stack captures, and the call-stack mode.
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring Features, the tables "MSR_LBR_SELECT" of
//! Nehalem, Sandy Bridge and Haswell, and the list below Haswell's table. Sandy Bridge's table excepts calls and
//! returns from the jumps that bits 6 and 7 exclude, and says that Nehalem's filter has other semantics.

use crate::intel::taken_branch::{TakenBranch, TakenBranchKind};

const CPL_EQ_0: u64 = 1 << 0;
const CPL_NEQ_0: u64 = 1 << 1;
const JCC: u64 = 1 << 2;
const NEAR_REL_CALL: u64 = 1 << 3;
const NEAR_IND_CALL: u64 = 1 << 4;
const NEAR_RET: u64 = 1 << 5;
const NEAR_IND_JMP: u64 = 1 << 6;
const NEAR_REL_JMP: u64 = 1 << 7;
const FAR_BRANCH: u64 = 1 << 8;
const EN_CALLSTACK: u64 = 1 << 9;

/// The register. A set bit excludes branches of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BranchFilter(u64);

impl BranchFilter {
    pub(super) const fn new(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    const fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// Returns true if the value is allowed. With EN_CALLSTACK, other bits must be set or clear; otherwise the stack's
    /// contents are undefined.
    pub(super) const fn is_valid(self) -> bool {
        let set = JCC | NEAR_IND_JMP | NEAR_REL_JMP | FAR_BRANCH;
        let clear = NEAR_REL_CALL | NEAR_IND_CALL | NEAR_RET;
        !self.has(EN_CALLSTACK) || (self.has(set) && self.0 & clear == 0 && !self.has(CPL_EQ_0 | CPL_NEQ_0))
    }

    fn passes_level(self, taken: &TakenBranch) -> bool {
        !self.has(if taken.cpl == 0 { CPL_EQ_0 } else { CPL_NEQ_0 })
    }

    /// Returns true if the branch removes the last record: a return in call-stack mode.
    pub(super) fn flushes(self, taken: &TakenBranch) -> bool {
        self.has(EN_CALLSTACK) && taken.kind == TakenBranchKind::Return && self.passes_level(taken)
    }

    /// Returns whether the branch is captured. `jumps_include_calls`: as on Nehalem, indirect calls and returns are
    /// indirect jumps too, and relative calls are relative jumps.
    pub(super) fn captures(self, taken: &TakenBranch, jumps_include_calls: bool) -> bool {
        let as_jump = match taken.kind {
            TakenBranchKind::RelativeCall { .. } => NEAR_REL_JMP,
            TakenBranchKind::IndirectCall | TakenBranchKind::Return => NEAR_IND_JMP,
            _ => 0,
        };
        if jumps_include_calls && self.0 & as_jump != 0 {
            return false;
        }
        let left_out = match taken.kind {
            TakenBranchKind::Conditional => JCC,
            TakenBranchKind::RelativeCall { to_next: true } if self.has(EN_CALLSTACK) => return false,
            TakenBranchKind::RelativeCall { .. } => NEAR_REL_CALL,
            TakenBranchKind::IndirectCall => NEAR_IND_CALL,
            TakenBranchKind::Return => NEAR_RET,
            TakenBranchKind::IndirectJump => NEAR_IND_JMP,
            TakenBranchKind::RelativeJump => NEAR_REL_JMP,
            TakenBranchKind::FarBranch | TakenBranchKind::Event | TakenBranchKind::DebugException => {
                FAR_BRANCH
            }
        };
        !self.has(left_out) && self.passes_level(taken)
    }
}
