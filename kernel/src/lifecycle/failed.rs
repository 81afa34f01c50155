//! The errors of a start or a stop that failed, with the values that the caller gets back.

use super::{InUse, NotBacked, Recording, Running};
use crate::msr::GeneralProtection;
use core::fmt;

/// The reason why nothing is recorded. `R` is the unit's own type of reasons to refuse a configuration or memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError<R> {
    /// The processor does not support the configuration, or not with this memory.
    Refused(R),
    /// Another owner uses the unit, or a unit that excludes it.
    InUse(InUse),
    /// A register does not keep the value that turns the unit on.
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
///
/// The error returns the unit and the memory, which makes it large. If they are not needed, `?` converts it to its
/// [`StartError`] and drops them.
#[allow(clippy::large_enum_variant, reason = "there is no heap to put it on")]
pub enum NotStarted<S: Recording> {
    /// The unit is off, and unit and memory are returned.
    Off {
        /// The unit.
        unit: S::Unit,
        /// The memory; `()` if the unit records into registers.
        memory: S::Memory,
        /// The reason.
        error: StartError<S::Refusal>,
    },
    /// The unit may be on, and halting it raised #GP: the memory cannot be returned.
    Stuck {
        /// The recording, which may be running. [`Running::stop`] tries again to stop it.
        running: Running<S>,
        /// The reason for the failed start.
        error: StartError<S::Refusal>,
        /// The access by which the stop failed.
        fault: GeneralProtection,
    },
}

impl<S: Recording> NotStarted<S> {
    /// Returns the reason for the failed start.
    #[must_use]
    pub const fn error(&self) -> StartError<S::Refusal> {
        match self {
            Self::Off { error, .. } | Self::Stuck { error, .. } => *error,
        }
    }
}

/// Keeps the reason alone. The unit and the memory are dropped; a unit that could not be halted is halted first, and if
/// that fails again, its memory is never freed.
impl<S: Recording> From<NotStarted<S>> for StartError<S::Refusal> {
    fn from(failed: NotStarted<S>) -> Self {
        failed.error()
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

/// A recording that did not stop: an access raised #GP.
///
/// The error returns the recording, which makes it large. If it is not needed, `?` converts the error to the fault and
/// drops the recording.
pub struct StopFailed<S: Recording> {
    /// The recording. Another [`Running::stop`] tries again.
    pub running: Running<S>,
    /// The access that raised #GP.
    pub fault: GeneralProtection,
}

impl<S: Recording> StopFailed<S> {
    /// Halts the unit, discards the recorded data and returns the unit and the memory.
    ///
    /// # Errors
    ///
    /// The unit cannot be halted: it still runs.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn give_up(mut self) -> Result<(S::Unit, S::Memory), Self> {
        match self.running.halt_and_leave() {
            Ok(()) => Ok(self.running.into_session().into_parts()),
            Err(fault) => Err(Self { fault, ..self }),
        }
    }
}

/// Keeps the fault alone. The recording is dropped: this halts it once more, and if that fails again, the memory is
/// never freed.
impl<S: Recording> From<StopFailed<S>> for GeneralProtection {
    fn from(failed: StopFailed<S>) -> Self {
        failed.fault
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intel::pt::PtSession;
    use crate::memory::Frames;
    use crate::msr::Msr;

    fn is_error<E: core::error::Error>() {}

    /// Compiles only if the errors require nothing of the kernel's own types, such as `Debug`.
    fn are_errors<M: Msr, F: Frames>() {
        is_error::<NotStarted<PtSession<M, F>>>();
        is_error::<StopFailed<PtSession<M, F>>>();
    }

    #[test]
    fn a_failed_start_or_stop_is_an_error_whatever_the_kernels_memory_and_registers_are() {
        are_errors::<crate::fake::FakeMsr, &crate::fake::FakeFrames>();
    }
}
