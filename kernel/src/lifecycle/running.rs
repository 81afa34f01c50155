//! A unit that records.

use super::{NotStarted, StartError, StopFailed};
use crate::msr::GeneralProtection;
use core::fmt;
use core::mem::ManuallyDrop;

/// A unit with what it records into: the steps that its start, its interrupts and its stop are made of.
///
/// Not to be implemented outside: a session that claims to be halted and is not would let the memory be used while the
/// processor writes to it.
pub trait Recording: Sized {
    /// The unit, off.
    type Unit;
    /// The memory that the unit records into; `()` where it records into registers.
    type Memory;
    /// What a stop gives back.
    type Stopped;
    /// What its configuration and memory can be refused for.
    type Refusal: Copy;

    /// The processor writes to memory of this session: it stays with a unit that does not let itself be halted.
    const WRITES_MEMORY: bool;

    /// Makes sure that the unit is free, and starts it.
    ///
    /// # Errors
    ///
    /// Somebody uses it, or the processor says no. It may be on.
    fn begin(&mut self) -> Result<(), StartError<Self::Refusal>>;

    /// Halts what [`Recording::begin`] or a resume has started: from here on nothing is written to memory. May be called
    /// when it is halted.
    ///
    /// # Errors
    ///
    /// An access raised #GP: it may be on.
    fn halt(&mut self) -> Result<(), GeneralProtection>;

    /// Reads for the last time what was recorded.
    ///
    /// # Errors
    ///
    /// An access raised #GP; another stop tries again.
    fn finish(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        Ok(())
    }

    /// Gives back the registers that it has taken besides the one that halts it.
    ///
    /// # Errors
    ///
    /// An access raised #GP; another call tries again.
    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        Ok(())
    }

    /// What a stop gives back. It was halted, finished and left.
    fn into_stopped(self) -> Self::Stopped;

    /// The unit and the memory, whatever was recorded. It was halted and left.
    fn into_parts(self) -> (Self::Unit, Self::Memory);
}

/// A unit is halted: the processor writes nothing to memory until the unit goes on.
#[derive(Debug)]
pub struct Halted(());

impl Halted {
    /// Halts a session.
    ///
    /// # Errors
    ///
    /// An access raised #GP: it may be on.
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
/// Dropping it halts the unit first; if the unit does not let itself be halted, memory that the processor may still write
/// to is never given back. It stays on its processor, as the unit does. A PMI may come between any two instructions: a kernel
/// keeps the value where its handler finds it, and lets nobody else touch it while the handler does
/// ([`Slot`](crate::slot::Slot)).
pub struct Running<S: Recording> {
    session: ManuallyDrop<S>,
}

impl<S: Recording> Running<S> {
    /// Starts a session whose configuration was checked.
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

    /// Stops it for good.
    ///
    /// A PMI that was on its way, or that the stop itself asks for, comes afterwards: the
    /// [`Slot`](crate::slot::Slot), or a [`Handler`](crate::pmi::Handler) that is asked without sources, claims it and
    /// unmasks the LVT entry.
    ///
    /// # Errors
    ///
    /// An access raised #GP: it runs on, or it is halted and what it has recorded, or a register that it uses, could not be
    /// dealt with. Another call tries again.
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
        // While the processor may write to the memory nobody else may have it.
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
