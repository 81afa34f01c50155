//! A recording that is going on.

use super::session::Session;
use super::unit::Unit;
use super::{Control, Stopped};
use crate::drain::Sink;
use crate::ds::{BadIndex, LinearMemory};
use crate::loss::Loss;
use crate::msr::{GeneralProtection, GlobalStatus, Msr};
use crate::pmi::PmiSource;
use core::mem::ManuallyDrop;

/// Branches are recorded, and the memory belongs to the processor. Dropping it stops the recording first; where that
/// cannot be done the memory is never given back.
#[derive(Debug)]
pub struct Running<M: Msr, L: LinearMemory> {
    session: ManuallyDrop<Session<M, L>>,
}

/// How a recording stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Branches are recorded.
    Recording,
    /// The buffer is full and the sink took nothing: it goes on when something was drained.
    Full,
    /// It is off until [`Running::resume`].
    Suspended,
    /// The index is nowhere in the buffer: somebody else wrote to the area. It is off.
    Failed(BadIndex),
}

impl<M: Msr, L: LinearMemory> Running<M, L> {
    pub(super) const fn new(session: Session<M, L>) -> Self {
        Self { session: ManuallyDrop::new(session) }
    }

    /// What was lost so far, as of the last PMI or drain.
    #[must_use]
    pub fn loss(&self) -> &Loss {
        self.session.loss()
    }

    /// How it stands, as of the last PMI or drain.
    #[must_use]
    pub fn state(&self) -> State {
        self.session.state()
    }

    /// Hands what was recorded so far to `sink`, oldest first, and goes on. What the sink takes is taken out of the
    /// buffer, record by record; a circular buffer is shown and keeps all.
    ///
    /// # Errors
    ///
    /// An access raised #GP. Where TR could not be cleared, the recording goes on and nothing was handed over;
    /// otherwise it is off, and the next call tries again.
    pub fn drain(&mut self, sink: &mut (impl Sink + ?Sized)) -> Result<State, GeneralProtection> {
        self.session.quiesce()?;
        self.session.collect();
        self.session.deliver(sink);
        self.session.resume()?;
        Ok(self.session.state())
    }

    /// Stops recording until [`Running::resume`], as when another task runs on this processor. IA32_DS_AREA stays.
    ///
    /// # Errors
    ///
    /// TR could not be cleared: the recording goes on.
    pub fn suspend(&mut self) -> Result<(), GeneralProtection> {
        self.session.quiesce()?;
        self.session.collect();
        self.session.suspend();
        Ok(())
    }

    /// Goes on after [`Running::suspend`].
    ///
    /// # Errors
    ///
    /// The control register raised #GP: it is off, and the next call tries again.
    pub fn resume(&mut self) -> Result<State, GeneralProtection> {
        self.session.wake();
        self.session.resume()?;
        Ok(self.session.state())
    }

    /// This recording for a PMI handler, with the one who takes its records.
    pub fn source<'a, S: Sink + ?Sized>(&'a mut self, sink: &'a mut S) -> BtsSource<'a, M, L, S> {
        BtsSource { session: &mut self.session, sink }
    }

    /// Stops the recording. A PMI that is on its way comes afterwards and masks the LVT entry: a
    /// [`Handler`](crate::pmi::Handler) that is asked without sources claims it and unmasks the entry.
    ///
    /// # Errors
    ///
    /// An access raised #GP: the recording goes on, or it is off and IA32_DS_AREA still names the area.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn stop(mut self) -> Result<Stopped<M, L>, StopFailed<M, L>> {
        if let Err(fault) = self.session.quiesce() {
            return Err(StopFailed { running: self, fault });
        }
        self.session.collect();
        match self.session.leave() {
            Ok(()) => Ok(self.into_session().into_stopped()),
            Err(fault) => Err(StopFailed { running: self, fault }),
        }
    }

    fn into_session(self) -> Session<M, L> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once; `this` is neither used nor dropped any more.
        unsafe { ManuallyDrop::take(&mut this.session) }
    }
}

impl<M: Msr, L: LinearMemory> Drop for Running<M, L> {
    fn drop(&mut self) {
        // While the processor may write to the memory nobody else may have it.
        if self.session.quiesce().and_then(|()| self.session.leave()).is_ok() {
            // SAFETY: dropped once, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.session) };
        }
    }
}

/// A recording that did not stop: an access raised #GP. Another [`Running::stop`] tries again, and nothing is lost that
/// was recorded.
#[derive(Debug)]
pub struct StopFailed<M: Msr, L: LinearMemory> {
    /// The recording.
    pub running: Running<M, L>,
    /// The access.
    pub fault: GeneralProtection,
}

/// Branch trace messages are sent and not stored.
#[derive(Debug)]
pub struct Messages<M: Msr> {
    unit: ManuallyDrop<Unit<M>>,
}

impl<M: Msr> Messages<M> {
    pub(super) const fn new(unit: Unit<M>) -> Self {
        Self { unit: ManuallyDrop::new(unit) }
    }

    /// Ends it.
    ///
    /// # Errors
    ///
    /// The control register raised #GP: they are still sent.
    pub fn stop(mut self) -> Result<Unit<M>, (Self, GeneralProtection)> {
        match self.unit.clear(Control::TR) {
            Ok(()) => {
                let mut this = ManuallyDrop::new(self);
                // SAFETY: taken once; `this` is neither used nor dropped any more.
                Ok(unsafe { ManuallyDrop::take(&mut this.unit) })
            }
            Err(fault) => Err((self, fault)),
        }
    }
}

impl<M: Msr> Drop for Messages<M> {
    fn drop(&mut self) {
        // Without BTS nothing is written to memory: a TR that cannot be cleared only costs bus cycles.
        let _ = self.unit.clear(Control::TR);
        // SAFETY: dropped once, and not used any more.
        unsafe { ManuallyDrop::drop(&mut self.unit) };
    }
}

/// A recording in a PMI handler.
#[derive(Debug)]
pub struct BtsSource<'a, M: Msr, L: LinearMemory, S: ?Sized> {
    session: &'a mut Session<M, L>,
    sink: &'a mut S,
}

impl<M: Msr, L: LinearMemory, S: Sink + ?Sized> PmiSource for BtsSource<'_, M, L, S> {
    fn status(&self) -> GlobalStatus {
        self.session.status()
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        self.session.quiesce()
    }

    /// The index says whether the interrupt was for this buffer: processors do not set OvfBuf for it reliably.
    fn asks(&mut self) -> Result<bool, GeneralProtection> {
        Ok(self.session.is_due())
    }

    fn service(&mut self, seen: GlobalStatus) -> Result<bool, GeneralProtection> {
        self.session.quiesce()?;
        let due = self.session.is_due();
        if due {
            self.session.collect();
            self.session.deliver(self.sink);
        }
        Ok(due || !seen.is_empty())
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.session.collect();
        self.session.resume()
    }
}
