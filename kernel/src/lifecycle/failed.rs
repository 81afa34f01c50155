//! A start or a stop that failed, and what it gives back.

use super::{InUse, NotBacked, Recording, Running};
use crate::msr::GeneralProtection;
use core::fmt;

/// Why nothing is recorded. `R` is what the unit's own configuration and memory can be refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError<R> {
    /// The processor cannot do it, or not with this memory.
    Refused(R),
    /// Somebody uses the unit, or one that excludes it.
    InUse(InUse),
    /// A register does not hold what turns the unit on.
    NotBacked(NotBacked),
    /// An access raised #GP.
    Fault(GeneralProtection),
}

impl<R> From<InUse> for StartError<R> {
    fn from(in_use: InUse) -> Self {
        Self::InUse(in_use)
    }
}

impl<R> From<GeneralProtection> for StartError<R> {
    fn from(fault: GeneralProtection) -> Self {
        Self::Fault(fault)
    }
}

impl<R: fmt::Display> fmt::Display for StartError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::InUse(in_use) => in_use.fmt(f),
            Self::NotBacked(not_backed) => write!(f, "announced, but {not_backed}"),
            Self::Fault(fault) => fault.fmt(f),
        }
    }
}

impl<R: core::error::Error> core::error::Error for StartError<R> {}

/// A recording that did not start.
#[allow(clippy::large_enum_variant, reason = "there is no heap to put it on")]
pub enum NotStarted<S: Recording> {
    /// The unit is off and everything is given back.
    Off {
        /// The unit.
        unit: S::Unit,
        /// The memory; `()` where it records into registers.
        memory: S::Memory,
        /// What was wrong.
        error: StartError<S::Refusal>,
    },
    /// The unit may be on, and halting it raised #GP: the memory stays with it.
    Stuck {
        /// What may be running. Another [`Running::stop`] tries again.
        running: Running<S>,
        /// What was wrong first.
        error: StartError<S::Refusal>,
        /// What was wrong with the stop.
        fault: GeneralProtection,
    },
}

impl<S: Recording> NotStarted<S> {
    /// What was wrong.
    #[must_use]
    pub const fn error(&self) -> StartError<S::Refusal> {
        match self {
            Self::Off { error, .. } | Self::Stuck { error, .. } => *error,
        }
    }
}

impl<S: Recording<Refusal: fmt::Debug>> fmt::Debug for NotStarted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off { error, .. } => f.debug_struct("Off").field("error", error).finish_non_exhaustive(),
            Self::Stuck { error, fault, .. } => {
                f.debug_struct("Stuck").field("error", error).field("fault", fault).finish_non_exhaustive()
            }
        }
    }
}

impl<S: Recording<Refusal: fmt::Display>> fmt::Display for NotStarted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off { error, .. } => error.fmt(f),
            Self::Stuck { error, fault, .. } => write!(f, "{error}; and it does not stop: {fault}"),
        }
    }
}

impl<S: Recording<Refusal: core::error::Error>> core::error::Error for NotStarted<S> {}

/// A recording that did not stop as it should: an access raised #GP.
pub struct StopFailed<S: Recording> {
    /// The recording. Another [`Running::stop`] tries again.
    pub running: Running<S>,
    /// The access.
    pub fault: GeneralProtection,
}

impl<S: Recording> StopFailed<S> {
    /// The unit and the memory, for who does not care for what was recorded any more.
    ///
    /// # Errors
    ///
    /// It does not let itself be halted: it runs on.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn give_up(mut self) -> Result<(S::Unit, S::Memory), Self> {
        match self.running.halt_and_leave() {
            Ok(()) => Ok(self.running.into_session().into_parts()),
            Err(fault) => Err(Self { fault, ..self }),
        }
    }
}

impl<S: Recording> fmt::Debug for StopFailed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopFailed").field("fault", &self.fault).finish_non_exhaustive()
    }
}

impl<S: Recording> fmt::Display for StopFailed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the recording does not stop: {}", self.fault)
    }
}

impl<S: Recording> core::error::Error for StopFailed<S> {}
