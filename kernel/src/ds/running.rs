//! A recording that is going on.

use super::session::Session;
use super::{Half, LinearMemory, State, Stopped};
use crate::drain::Sink;
use crate::loss::Loss;
use crate::msr::{GeneralProtection, GlobalStatus, Msr};
use crate::pmi::{Abandoned, PmiSource};
use core::mem::ManuallyDrop;

/// Branches are recorded, or counters sample, or both, and the memory belongs to the processor. Dropping it stops the recording first; where that
/// cannot be done the memory is never given back.
#[derive(Debug)]
pub struct Running<M: Msr, L: LinearMemory> {
    session: ManuallyDrop<Session<M, L>>,
}

impl<M: Msr, L: LinearMemory> Running<M, L> {
    pub(super) const fn new(session: Session<M, L>) -> Self {
        Self { session: ManuallyDrop::new(session) }
    }

    /// What of a half was lost so far, as of the last PMI or drain.
    #[must_use]
    pub fn loss(&self, half: Half) -> &Loss {
        self.session.loss(half)
    }

    /// How a half stands, as of the last PMI or drain, if it is recorded at all.
    #[must_use]
    pub fn state(&self, half: Half) -> Option<State> {
        self.session.state(half)
    }

    /// Hands what was recorded so far to the sinks, oldest first, and goes on. What they take is taken out of the
    /// buffers, record by record; a circular buffer is shown and keeps all.
    ///
    /// # Errors
    ///
    /// An access raised #GP. Where TR or a counter could not be stopped, that half goes on and nothing was handed over;
    /// otherwise it is off, and the next call tries again.
    pub fn drain(
        &mut self,
        branches: &mut (impl Sink + ?Sized),
        samples: &mut (impl Sink + ?Sized),
    ) -> Result<(), GeneralProtection> {
        self.session.quiesce()?;
        self.session.collect();
        self.session.deliver(branches, samples);
        self.session.resume()
    }

    /// Stops recording until [`Running::resume`], as when another task runs on this processor. IA32_DS_AREA stays. A task
    /// that moves to another processor is stopped here and started there, with that processor's unit: what was recorded
    /// is drained first, as a start empties the area.
    ///
    /// # Errors
    ///
    /// TR or a counter could not be stopped: that half goes on.
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
    /// An access raised #GP: some of it is off, and the next call tries again.
    pub fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.session.wake();
        self.session.resume()
    }

    /// This recording for a PMI handler, with those who take its records.
    pub fn source<'a, B: Sink + ?Sized, P: Sink + ?Sized>(
        &'a mut self,
        branches: &'a mut B,
        samples: &'a mut P,
    ) -> DsSource<'a, M, L, B, P> {
        DsSource { session: &mut self.session, branches, samples }
    }

    /// Stops the recording, and gives its counters back. A PMI that is on its way comes afterwards and masks the LVT entry: a
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

/// A recording in a PMI handler.
#[derive(Debug)]
pub struct DsSource<'a, M: Msr, L: LinearMemory, B: ?Sized, P: ?Sized> {
    session: &'a mut Session<M, L>,
    branches: &'a mut B,
    samples: &'a mut P,
}

impl<M: Msr, L: LinearMemory, B: Sink + ?Sized, P: Sink + ?Sized> PmiSource for DsSource<'_, M, L, B, P> {
    fn status(&self) -> GlobalStatus {
        self.session.status()
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        self.session.quiesce()
    }

    /// The index says whether the interrupt was for these buffers: processors do not set OvfBuf for branch records
    /// reliably.
    fn asks(&mut self) -> Result<bool, GeneralProtection> {
        Ok(self.session.is_due())
    }

    fn service(&mut self, seen: GlobalStatus) -> Result<bool, GeneralProtection> {
        self.session.quiesce()?;
        let due = self.session.is_due();
        if due {
            self.session.collect();
            self.session.deliver(self.branches, self.samples);
        }
        Ok(due || !seen.is_empty())
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.session.collect();
        self.session.resume()
    }

    fn abandon(&mut self, _: Abandoned) {
        self.session.abandon();
    }
}
