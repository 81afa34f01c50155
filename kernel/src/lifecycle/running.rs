//! A unit that records, and the steps of its start and stop.

use super::{NotStarted, StartError, StopFailed};
use crate::msr::GeneralProtection;
use crate::pmi::Abandoned;
use core::fmt;
use core::mem::{ManuallyDrop, take};

/// A unit with the memory that it records into.
///
/// Only this crate implements it, and only this crate calls its methods, the steps of a start and a stop: a session
/// that falsely claims to be halted would let memory be used while the processor writes to it.
pub trait Recording: Sealed + Sized {
    /// The unit, off.
    type Unit;
    /// The memory that the unit records into; `()` if it records into registers.
    type Memory;
    /// The result of a stop.
    type Stopped;
    /// The reasons to refuse a configuration or a buffer.
    type Refusal: Copy;

    /// True if the processor writes to memory of this session. Such memory is never freed while the unit cannot be
    /// halted.
    #[doc(hidden)]
    const WRITES_MEMORY: bool;

    /// Checks that no other owner uses the unit, and starts it.
    ///
    /// # Errors
    ///
    /// Another owner uses the unit, or the processor refuses. The unit may be on.
    #[doc(hidden)]
    fn begin(&mut self) -> Result<(), StartError<Self::Refusal>>;

    /// Halts the recording that [`Recording::begin`] or a resume started: from now on nothing is written to memory. May
    /// be called when the unit is already halted.
    ///
    /// # Errors
    ///
    /// An access raised #GP: the unit may be on.
    #[doc(hidden)]
    fn halt(&mut self) -> Result<(), GeneralProtection>;

    /// Reads the end of the recorded data.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the caller can try another stop.
    #[doc(hidden)]
    fn finish(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        Ok(())
    }

    /// Restores the session's registers besides the one that halts it.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the caller can try again.
    #[doc(hidden)]
    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        Ok(())
    }

    /// Halts the unit if it is not halted, and notes that it is left off until it is used again.
    #[doc(hidden)]
    fn abandon(&mut self, why: Abandoned);

    /// Returns the result of a stop. The session was halted, finished and left.
    #[doc(hidden)]
    fn into_stopped(self) -> Self::Stopped;

    /// Returns the unit and the memory, and discards the recorded data. The session was halted and left.
    #[doc(hidden)]
    fn into_parts(self) -> (Self::Unit, Self::Memory);
}

/// A trait that only this crate can implement.
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
    /// True if a call that halts the unit has begun, and has neither resumed the unit nor noted why it stays off.
    unsettled: bool,
}

impl<S: Recording> Running<S> {
    /// Starts a session whose configuration has been checked.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub(crate) fn start(session: S) -> Result<Self, NotStarted<S>> {
        let mut running = Self { session: ManuallyDrop::new(session), unsettled: false };
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
    /// An in-flight PMI, or one that the stop itself requests, arrives afterwards. The [`Slot`](crate::slot::Slot), or
    /// a [`Handler`](crate::pmi::Handler) called without sources, claims it and unmasks the LVT entry.
    ///
    /// # Errors
    ///
    /// An access raised #GP. Either the unit still runs, or it is halted but the end of its data could not be read or
    /// one of its registers could not be restored. The caller can try again.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn stop(mut self) -> Result<S::Stopped, StopFailed<S>> {
        self.settle();
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

    /// Calls `work`, which halts the unit, and resumes it or notes why it stays off.
    pub(crate) fn with<R>(&mut self, work: impl FnOnce(&mut S) -> R) -> R {
        let mut call = Call::new(self);
        call.begin();
        let result = work(call.session());
        call.end();
        result
    }

    /// Notes that the unit was left off, if the last call that halted it has not ended.
    fn settle(&mut self) {
        if take(&mut self.unsettled) {
            self.session.abandon(Abandoned::NotResumed);
        }
    }

    fn halt(&mut self) -> Result<Halted, GeneralProtection> {
        Halted::halt(&mut *self.session)
    }

    pub(super) fn halt_and_leave(&mut self) -> Result<(), GeneralProtection> {
        let halted = self.halt()?;
        self.session.leave(&halted)
    }

    pub(super) fn into_session(self) -> S {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once; `this` is neither used nor dropped afterwards.
        unsafe { ManuallyDrop::take(&mut this.session) }
    }
}

/// A call that may halt a unit.
///
/// If it is dropped between [`Call::begin`] and [`Call::end`], as by a panic in a sink, it notes that the unit stays
/// off. If it is forgotten, the next call notes that.
pub(super) struct Call<'a, S: Recording>(&'a mut Running<S>);

impl<'a, S: Recording> Call<'a, S> {
    pub(super) fn new(running: &'a mut Running<S>) -> Self {
        running.settle();
        Self(running)
    }

    /// Notes that the unit may be halted from now on.
    pub(super) const fn begin(&mut self) {
        self.0.unsettled = true;
    }

    /// Notes that the unit was resumed, or that the session knows why it is off.
    pub(super) const fn end(&mut self) {
        self.0.unsettled = false;
    }

    pub(super) fn session(&mut self) -> &mut S {
        &mut self.0.session
    }

    pub(super) fn session_ref(&self) -> &S {
        &self.0.session
    }
}

impl<S: Recording> Drop for Call<'_, S> {
    fn drop(&mut self) {
        self.0.settle();
    }
}

impl<S: Recording> fmt::Debug for Call<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").finish_non_exhaustive()
    }
}

impl<S: Recording> Drop for Running<S> {
    fn drop(&mut self) {
        // While the processor may write to the memory, nothing else may have it.
        if self.halt_and_leave().is_ok() || !S::WRITES_MEMORY {
            // SAFETY: dropped once, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.session) };
        }
    }
}

impl<S: Recording> fmt::Debug for Running<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
    }
}
