//! A start or a stop that failed, and what it gives back.

use super::{Recording, Running};
use crate::msr::GeneralProtection;
use core::fmt;

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
        error: S::StartError,
    },
    /// The unit may be on, and halting it raised #GP: the memory stays with it.
    Stuck {
        /// What may be running. Another [`Running::stop`] tries again.
        running: Running<S>,
        /// What was wrong first.
        error: S::StartError,
        /// What was wrong with the stop.
        fault: GeneralProtection,
    },
}

impl<S: Recording> NotStarted<S> {
    /// What was wrong.
    #[must_use]
    pub const fn error(&self) -> S::StartError {
        match self {
            Self::Off { error, .. } | Self::Stuck { error, .. } => *error,
        }
    }
}

impl<S: Recording<StartError: fmt::Debug>> fmt::Debug for NotStarted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off { error, .. } => f.debug_struct("Off").field("error", error).finish_non_exhaustive(),
            Self::Stuck { error, fault, .. } => {
                f.debug_struct("Stuck").field("error", error).field("fault", fault).finish_non_exhaustive()
            }
        }
    }
}

impl<S: Recording<StartError: fmt::Display>> fmt::Display for NotStarted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off { error, .. } => error.fmt(f),
            Self::Stuck { error, fault, .. } => write!(f, "{error}; and it does not stop: {fault}"),
        }
    }
}

impl<S: Recording<StartError: core::error::Error>> core::error::Error for NotStarted<S> {}

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
