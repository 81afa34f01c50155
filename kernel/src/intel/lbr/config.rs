//! The configuration of last branch records.

use super::{Branch, LbrCapabilities};
use crate::msr::{LbrCtl, LbrSelect};
use bitflags::bitflags;
use core::fmt;

bitflags! {
    /// Kinds of branches.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Classes: u8 {
        /// Conditional jumps.
        const JCC = 1 << 0;
        /// Near relative calls.
        const NEAR_REL_CALL = 1 << 1;
        /// Near indirect calls.
        const NEAR_IND_CALL = 1 << 2;
        /// Near returns.
        const NEAR_RET = 1 << 3;
        /// Near indirect jumps.
        const NEAR_IND_JMP = 1 << 4;
        /// Near relative jumps.
        const NEAR_REL_JMP = 1 << 5;
        /// Far branches, interrupts and exceptions.
        const OTHER = 1 << 6;
    }
}

/// The branches to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LbrConfig {
    os: bool,
    user: bool,
    classes: Classes,
    call_stack: bool,
    freeze_on_pmi: bool,
}

impl LbrConfig {
    /// Returns a configuration that records all branches.
    #[must_use]
    pub const fn new() -> Self {
        Self { os: true, user: true, classes: Classes::all(), call_stack: false, freeze_on_pmi: false }
    }

    /// Sets whether branches of the kernel are recorded. The processor leaves out those that end at CPL 0. The one that
    /// leaves the kernel ends above it and is recorded; the driver drops it if one of its addresses has bit 63 set. For
    /// a kernel with addresses in the lower half, leave [`Classes::OTHER`] out.
    #[must_use]
    pub const fn os(self, os: bool) -> Self {
        Self { os, ..self }
    }

    /// Sets whether branches that end above CPL 0 are recorded.
    #[must_use]
    pub const fn user(self, user: bool) -> Self {
        Self { user, ..self }
    }

    /// Sets which kinds of branches are recorded. A processor may record others beside them, see
    /// [`LbrConfig::recorded`].
    #[must_use]
    pub const fn classes(self, classes: Classes) -> Self {
        Self { classes, ..self }
    }

    /// Sets call-stack mode: calls are recorded, and a return removes the newest call. The mode selects the kinds that
    /// it needs.
    #[must_use]
    pub const fn call_stack(self, call_stack: bool) -> Self {
        Self { call_stack, ..self }
    }

    /// Sets whether a PMI freezes the records, so that its handler finds the branches that led to it, and not its own.
    /// The records resume after [`LbrRunning::last`](super::LbrRunning::last). If IA32_PERF_GLOBAL_STATUS reports
    /// LBR_Frz, they resume when the [`Handler`](crate::pmi::Handler) has released them.
    #[must_use]
    pub const fn freeze_on_pmi(self, freeze_on_pmi: bool) -> Self {
        Self { freeze_on_pmi, ..self }
    }

    /// Returns whether a PMI freezes the records.
    pub(super) const fn freezes(&self) -> bool {
        self.freeze_on_pmi
    }

    /// Returns whether a recorded branch was requested: without the kernel, neither address may be in the kernel.
    pub(super) const fn keeps(&self, branch: &Branch) -> bool {
        self.os || !branch.is_in_upper_half()
    }

    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// This processor does not support the configuration.
    pub fn check(&self, capabilities: &LbrCapabilities) -> Result<(), LbrRefusal> {
        let all_levels = self.os && self.user;
        let table = [
            (!self.os && !self.user, LbrRefusal::NoLevel),
            (!all_levels && !capabilities.levels, LbrRefusal::Levels),
            (!self.classes.is_all() && !capabilities.classes, LbrRefusal::Classes),
            (self.call_stack && !capabilities.call_stack, LbrRefusal::CallStack),
            (self.call_stack && !self.classes.is_all(), LbrRefusal::CallStackHasClasses),
            (self.freeze_on_pmi && !capabilities.freeze_on_pmi, LbrRefusal::Freeze),
            (self.freeze_on_pmi && self.call_stack, LbrRefusal::CallStackFreezes),
        ];
        table.into_iter().find(|(wrong, _)| *wrong).map_or(Ok(()), |(_, refusal)| Err(refusal))
    }

    /// Returns the value for MSR_LBR_SELECT, whose bits exclude branches.
    pub(super) fn select(&self, capabilities: &LbrCapabilities) -> LbrSelect {
        let mut select = LbrSelect::empty();
        select.set(LbrSelect::CPL_EQ_0, !self.os);
        select.set(LbrSelect::CPL_NEQ_0, !self.user);
        let recorded = self.recorded(capabilities);
        for (class, flag) in [
            (Classes::JCC, LbrSelect::JCC),
            (Classes::NEAR_REL_CALL, LbrSelect::NEAR_REL_CALL),
            (Classes::NEAR_IND_CALL, LbrSelect::NEAR_IND_CALL),
            (Classes::NEAR_RET, LbrSelect::NEAR_RET),
            (Classes::NEAR_IND_JMP, LbrSelect::NEAR_IND_JMP),
            (Classes::NEAR_REL_JMP, LbrSelect::NEAR_REL_JMP),
            (Classes::OTHER, LbrSelect::FAR_BRANCH),
        ] {
            select.set(flag, !recorded.contains(class));
        }
        select.set(LbrSelect::EN_CALLSTACK, self.call_stack);
        select
    }

    /// Returns the value for IA32_LBR_CTL without LBREn; its bits include branches.
    pub(super) fn control(&self) -> LbrCtl {
        let mut control = LbrCtl::empty();
        control.set(LbrCtl::OS, self.os);
        control.set(LbrCtl::USR, self.user);
        let recorded = self.wanted();
        for (class, flag) in [
            (Classes::JCC, LbrCtl::JCC),
            (Classes::NEAR_REL_CALL, LbrCtl::NEAR_REL_CALL),
            (Classes::NEAR_IND_CALL, LbrCtl::NEAR_IND_CALL),
            (Classes::NEAR_RET, LbrCtl::NEAR_RET),
            (Classes::NEAR_IND_JMP, LbrCtl::NEAR_IND_JMP),
            (Classes::NEAR_REL_JMP, LbrCtl::NEAR_REL_JMP),
            (Classes::OTHER, LbrCtl::OTHER_BRANCH),
        ] {
            control.set(flag, recorded.contains(class));
        }
        control.set(LbrCtl::CALL_STACK, self.call_stack);
        control
    }

    /// Returns the kinds of branches that the processor records: those that were requested, and on Nehalem and Westmere
    /// jumps beside calls and returns, which they would not record otherwise. A reader that wants the requested kinds
    /// alone must look at the instruction at [`Branch::from`].
    #[must_use]
    pub const fn recorded(&self, capabilities: &LbrCapabilities) -> Classes {
        let wanted = self.wanted();
        if !capabilities.calls_need_jumps {
            return wanted;
        }
        let both = Classes::NEAR_IND_JMP.union(Classes::NEAR_REL_JMP);
        let jumps = if wanted.intersects(Classes::NEAR_REL_CALL.union(Classes::NEAR_RET)) {
            both
        } else if wanted.contains(Classes::NEAR_IND_CALL) {
            Classes::NEAR_IND_JMP
        } else {
            Classes::empty()
        };
        wanted.union(jumps)
    }

    const fn wanted(&self) -> Classes {
        match self.call_stack {
            true => Classes::NEAR_REL_CALL.union(Classes::NEAR_IND_CALL).union(Classes::NEAR_RET),
            false => self.classes,
        }
    }
}

impl Default for LbrConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The reason why branches cannot be recorded as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LbrRefusal {
    /// Neither CPL 0 nor the levels above it were requested.
    NoLevel,
    /// This processor cannot filter by privilege level.
    Levels,
    /// This processor cannot filter by kind of branch.
    Classes,
    /// The processor has no call-stack mode.
    CallStack,
    /// Call-stack mode selects calls and returns itself: no other choice of kinds is possible.
    CallStackHasClasses,
    /// A PMI cannot freeze the records.
    Freeze,
    /// Call-stack mode would lose its calls if a PMI froze it, because returns continue meanwhile.
    CallStackFreezes,
}

impl fmt::Display for LbrRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoLevel => "neither CPL 0 nor what is above it is to be recorded",
            Self::Levels => "last branch records cannot be filtered by privilege level",
            Self::Classes => "last branch records cannot be filtered by kind",
            Self::CallStack => "there is no call-stack mode",
            Self::CallStackHasClasses => "call-stack mode records calls and returns, and nothing else",
            Self::Freeze => "there is no FREEZE_LBRS_ON_PMI",
            Self::CallStackFreezes => "call-stack mode does not go with FREEZE_LBRS_ON_PMI",
        })
    }
}

impl core::error::Error for LbrRefusal {}
