//! The error of reading registers whose branches are not the last ones.

use crate::loss::Gap;
use crate::msr::GeneralProtection;
use core::fmt;

/// The reason why the last branches of a processor are not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCurrent<'a, B> {
    /// The records were off before this call, so branches since then are missing.
    Outdated {
        /// The reason why they were off: [`Gap::TurnedOff`], [`Gap::Excluded`] or [`Gap::Abandoned`].
        why: Gap,
        /// The last branches before that, the newest first.
        before: &'a [B],
    },
    /// An access raised #GP.
    Fault(GeneralProtection),
}

impl<'a, B> NotCurrent<'a, B> {
    /// Returns the first `count` branches of `out`: as the last ones, or as outdated if records are missing after them.
    pub(crate) fn check(out: &'a mut [B], count: usize, missing: Option<Gap>) -> Result<&'a [B], Self> {
        let before = out.get(..count).unwrap_or_default();
        match missing {
            None => Ok(before),
            Some(why) => Err(Self::Outdated { why, before }),
        }
    }
}

impl<B> From<GeneralProtection> for NotCurrent<'_, B> {
    fn from(fault: GeneralProtection) -> Self {
        Self::Fault(fault)
    }
}

impl<B> fmt::Display for NotCurrent<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outdated { why, before } => {
                write!(f, "branches are missing after the {} that are recorded: {why}", before.len())
            }
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl<B: fmt::Debug> core::error::Error for NotCurrent<'_, B> {}
