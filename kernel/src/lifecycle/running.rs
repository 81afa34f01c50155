//! A unit that records, and the steps of its start and stop.

use super::{NotStarted, StartError, StopFailed};
use crate::msr::GeneralProtection;
use core::fmt;
use core::mem::ManuallyDrop;

/// A unit with the memory that it records into.
///
/// Only this crate implements it, and only this crate calls its methods, the steps of a start and a stop: a session
/// that claims to be halted and is not would let memory be used while the processor writes to it.
pub trait Recording: Sealed + Sized {
    /// The unit, off.
    type Unit;
    /// The memory that the unit records into; `()` if it records into registers.
    type Memory;
    /// What a stop returns.
    type Stopped;
    /// Why a configuration or a buffer can be refused.
    type Refusal: Copy;

    /// Whether the processor writes to memory of this session. If so, the memory is never freed while the unit cannot
    /// be halted.
    #[doc(hidden)]
    const WRITES_MEMORY: bool;

    /// Checks that no other owner uses the unit, and starts it.
    ///
    /// # Errors
    ///
    /// Another owner uses it, or the processor refuses. The unit may be on.
    #[doc(hidden)]
    fn begin(&mut self) -> Result<(), StartError<Self::Refusal>>;

    /// Halts what [`Recording::begin`] or a resume started: from now on nothing is written to memory. May be called
    /// when the unit is already halted.
    ///
    /// # Errors
    ///
    /// An access raised #GP: the unit may be on.
    #[doc(hidden)]
    fn halt(&mut self) -> Result<(), GeneralProtection>;

    /// Reads the end of what was recorded.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the caller can try another stop.
    #[doc(hidden)]
    fn finish(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        Ok(())
    }

    /// Restores the registers that the session uses besides the one that halts it.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the caller can try again.
    #[doc(hidden)]
    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        Ok(())
    }

    /// Returns the result of a stop. The session was halted, finished and left.
    #[doc(hidden)]
    fn into_stopped(self) -> Self::Stopped;

    /// Returns the unit and the memory and discards what was recorded. The session was halted and left.
    #[doc(hidden)]
    fn into_parts(self) -> (Self::Unit, Self::Memory);
}

/// What only this crate can implement.
pub trait Sealed {}

/// The proof that a unit is halted: the processor writes nothing to memory until the unit is resumed.
#[derive(Debug)]
pub struct Halted(());

impl Halted {
    /// Halts a session.
    ///
    /// # Errors
    ///
    /// An access raised #GP: the unit may be on.
    pub(crate) fn halt(session: &mut impl Recording) -> Result<Self, GeneralProtection> {
        session.halt()?;
        Ok(Self(()))
    }

    #[cfg(test)]
    pub(crate) const fn for_tests() -> Self {
        Self(())
    }
}

/// A unit that records, with the memory that the processor writes to.
///
/// Dropping it halts the unit first. If the unit cannot be halted, memory that the processor may still write to is
/// never freed. The value stays on its processor, as the unit does. A PMI may arrive between any two instructions: the
/// kernel must keep the value where its handler finds it, and nothing else may access it while the handler does
/// ([`Slot`](crate::slot::Slot)).
pub struct Running<S: Recording> {
    session: ManuallyDrop<S>,
}

impl<S: Recording> Running<S> {
    /// Starts a session whose configuration has been checked.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub(crate) fn start(session: S) -> Result<Self, NotStarted<S>> {
        let mut running = Self { session: ManuallyDrop::new(session) };
        let Err(error) = running.session.begin() else { return Ok(running) };
        match running.halt_and_leave() {
            Ok(()) => {
                let (unit, memory) = running.into_session().into_parts();
                Err(NotStarted::Off { unit, memory, error })
            }
            Err(fault) => Err(NotStarted::Stuck { running, error, fault }),
        }
    }

    /// Stops the recording for good.
    ///
    /// A PMI that was on its way, or that the stop itself requests, arrives afterwards. The
    /// [`Slot`](crate::slot::Slot), or a [`Handler`](crate::pmi::Handler) called without sources, claims it and unmasks
    /// the LVT entry.
    ///
    /// # Errors
    ///
    /// An access raised #GP. Either the unit still runs, or it is halted but the end of what it recorded could not be
    /// read or one of its registers could not be restored. The caller can try again.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn stop(mut self) -> Result<S::Stopped, StopFailed<S>> {
        let stopped = self.halt().and_then(|halted| {
            self.session.finish(&halted)?;
            self.session.leave(&halted)
        });
        match stopped {
            Ok(()) => Ok(self.into_session().into_stopped()),
            Err(fault) => Err(StopFailed { running: self, fault }),
        }
    }

    pub(crate) fn session(&self) -> &S {
        &self.session
    }

    pub(crate) fn session_mut(&mut self) -> &mut S {
        &mut self.session
    }

    pub(crate) fn halt(&mut self) -> Result<Halted, GeneralProtection> {
        Halted::halt(self.session_mut())
    }

    pub(super) fn halt_and_leave(&mut self) -> Result<(), GeneralProtection> {
        let halted = self.halt()?;
        self.session.leave(&halted)
    }

    pub(super) fn into_session(self) -> S {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once; `this` is neither used nor dropped any more.
        unsafe { ManuallyDrop::take(&mut this.session) }
    }
}

impl<S: Recording> Drop for Running<S> {
    fn drop(&mut self) {
        // While the processor may write to the memory, nothing else may have it.
        if self.halt_and_leave().is_ok() || !S::WRITES_MEMORY {
            // SAFETY: dropped once, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.session) };
        }
    }
}

impl<S: Recording> fmt::Debug for Running<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}
