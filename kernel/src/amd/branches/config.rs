//! The configuration of a branch recorder.

use super::Recorder;
use crate::intel::lbr::{Branch, Classes};
use crate::msr::amd::AmdLbrSelect;
use core::fmt;

/// The branches to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchConfig {
    os: bool,
    user: bool,
    classes: Classes,
    pub(super) freeze_on_pmi: bool,
}

impl BranchConfig {
    /// Returns a configuration that records all branches.
    #[must_use]
    pub const fn new() -> Self {
        Self { os: true, user: true, classes: Classes::all(), freeze_on_pmi: false }
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

    /// Sets which kinds of branches are recorded.
    #[must_use]
    pub const fn classes(self, classes: Classes) -> Self {
        Self { classes, ..self }
    }

    /// Sets whether a PMI freezes the records until [`BranchRunning::last`](super::BranchRunning::last) has read them.
    #[must_use]
    pub const fn freeze_on_pmi(self, freeze_on_pmi: bool) -> Self {
        Self { freeze_on_pmi, ..self }
    }

    /// Checks the configuration.
    ///
    /// # Errors
    ///
    /// This recorder does not support it.
    pub fn check(&self, recorder: Recorder) -> Result<(), BranchRefusal> {
        let (filters, freezes) = match recorder {
            Recorder::LbrV2 { freezes, .. } => (true, freezes),
            Recorder::Sampling { .. } => (false, false),
        };
        let all = self.os && self.user && self.classes.is_all();
        let table = [
            (!self.os && !self.user, BranchRefusal::NoLevel),
            (!all && !filters, BranchRefusal::Filter),
            (self.freeze_on_pmi && !freezes, BranchRefusal::Freeze),
        ];
        table.into_iter().find(|(wrong, _)| *wrong).map_or(Ok(()), |(_, refusal)| Err(refusal))
    }

    /// Returns whether a recorded branch was requested: without the kernel, neither address may be in the kernel.
    pub(super) const fn keeps(&self, branch: &Branch) -> bool {
        self.os || !branch.is_in_upper_half()
    }

    /// Returns the value for LBR_SELECT, whose bits exclude branches.
    pub(super) fn select(&self) -> AmdLbrSelect {
        let mut select = AmdLbrSelect::empty();
        select.set(AmdLbrSelect::CPL_EQ_0, !self.os);
        select.set(AmdLbrSelect::CPL_GT_0, !self.user);
        for (class, flag) in [
            (Classes::JCC, AmdLbrSelect::JCC),
            (Classes::NEAR_REL_CALL, AmdLbrSelect::NEAR_REL_CALL),
            (Classes::NEAR_IND_CALL, AmdLbrSelect::NEAR_IND_CALL),
            (Classes::NEAR_RET, AmdLbrSelect::NEAR_RET),
            (Classes::NEAR_IND_JMP, AmdLbrSelect::NEAR_IND_JMP),
            (Classes::NEAR_REL_JMP, AmdLbrSelect::NEAR_REL_JMP),
            (Classes::OTHER, AmdLbrSelect::FAR_BRANCH),
        ] {
            select.set(flag, !self.classes.contains(class));
        }
        select
    }
}

impl Default for BranchConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The reason why branches cannot be recorded as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchRefusal {
    /// Neither CPL 0 nor the levels above it were requested.
    NoLevel,
    /// Branch sampling cannot filter branches.
    Filter,
    /// A PMI cannot freeze the records.
    Freeze,
}

impl fmt::Display for BranchRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoLevel => "neither CPL 0 nor what is above it is to be recorded",
            Self::Filter => "branch sampling takes all branches",
            Self::Freeze => "a PMI cannot freeze the last branches",
        })
    }
}

impl core::error::Error for BranchRefusal {}
