//! The registers that select the last branches to record.

use bitflags::bitflags;

bitflags! {
    /// MSR_LBR_SELECT (`0x1c8`): the branches that are not recorded.
    ///
    /// Scope: logical processor, on some models the core. Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel
    /// Resource Director Technology Features, "Filtering of Last Branch Records".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct LbrSelect: u64 {
        /// CPL_EQ_0: branches that end at CPL 0.
        const CPL_EQ_0 = 1 << 0;
        /// CPL_NEQ_0: branches that end above CPL 0.
        const CPL_NEQ_0 = 1 << 1;
        /// JCC: conditional jumps.
        const JCC = 1 << 2;
        /// NEAR_REL_CALL.
        const NEAR_REL_CALL = 1 << 3;
        /// NEAR_IND_CALL.
        const NEAR_IND_CALL = 1 << 4;
        /// NEAR_RET.
        const NEAR_RET = 1 << 5;
        /// NEAR_IND_JMP: without returns and calls.
        const NEAR_IND_JMP = 1 << 6;
        /// NEAR_REL_JMP: without calls.
        const NEAR_REL_JMP = 1 << 7;
        /// FAR_BRANCH: including interrupts and exceptions.
        const FAR_BRANCH = 1 << 8;
        /// EN_CALLSTACK: a return removes the newest call. Haswell and later.
        const EN_CALLSTACK = 1 << 9;
    }
}

bitflags! {
    /// IA32_LBR_CTL (`0x14ce`): the branches that are recorded.
    ///
    /// Scope: logical processor. Source: SDM vol. 3, Last Branch Records, "IA32_LBR_CTL".
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct LbrCtl: u64 {
        /// LBREn: branches are recorded.
        const LBR_EN = 1 << 0;
        /// OS: branches that end at CPL 0.
        const OS = 1 << 1;
        /// USR: branches that end above CPL 0.
        const USR = 1 << 2;
        /// CALL_STACK: a return removes the newest call.
        const CALL_STACK = 1 << 3;
        /// JCC: conditional jumps.
        const JCC = 1 << 16;
        /// NEAR_REL_JMP.
        const NEAR_REL_JMP = 1 << 17;
        /// NEAR_IND_JMP.
        const NEAR_IND_JMP = 1 << 18;
        /// NEAR_REL_CALL.
        const NEAR_REL_CALL = 1 << 19;
        /// NEAR_IND_CALL.
        const NEAR_IND_CALL = 1 << 20;
        /// NEAR_RET.
        const NEAR_RET = 1 << 21;
        /// OTHER_BRANCH: far branches, interrupts, exceptions.
        const OTHER_BRANCH = 1 << 22;
    }
}

/// IA32_LBR_DEPTH (`0x14cf`): the number of records; a write clears all records.
///
/// Scope: logical processor. Source: SDM vol. 3, Last Branch Records, "IA32_LBR_DEPTH".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LbrDepth(pub u64);

flags! {
    LbrSelect = 0x1c8,
    LbrCtl = 0x14ce,
}

values! {
    LbrDepth = 0x14cf,
}
