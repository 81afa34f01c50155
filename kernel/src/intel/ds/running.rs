//! A recording that is going on.

use super::session::DsSession;
use super::{DsState, Half, LinearMemory};
use crate::drain::Sink;
use crate::lifecycle::{self, Source};
use crate::loss::Loss;
use crate::msr::{GeneralProtection, Msr};

/// Branches are recorded, or counters sample, or both, and the memory belongs to the processor. A stop gives the counters
/// back.
pub type DsRunning<M, L> = lifecycle::Running<DsSession<M, L>>;

impl<M: Msr, L: LinearMemory> DsRunning<M, L> {
    /// What of a half was lost so far, as of the last PMI or drain.
    #[must_use]
    pub fn loss(&self, half: Half) -> &Loss {
        self.session().loss(half)
    }

    /// How a half stands, as of the last PMI or drain, if it is recorded at all.
    #[must_use]
    pub fn state(&self, half: Half) -> Option<DsState> {
        self.session().state(half)
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
        let halted = self.halt()?;
        let session = self.session_mut();
        session.collect(&halted);
        session.deliver(branches, samples, &halted);
        session.go_on(halted)
    }

    /// Stops recording until [`DsRunning::resume`], as when another task runs on this processor. IA32_DS_AREA stays. A task
    /// that moves to another processor is stopped here and started there, with that processor's unit: what was recorded
    /// is drained first, as a start empties the area.
    ///
    /// # Errors
    ///
    /// TR or a counter could not be stopped: that half goes on.
    pub fn suspend(&mut self) -> Result<(), GeneralProtection> {
        let halted = self.halt()?;
        self.session_mut().collect(&halted);
        self.session_mut().suspend();
        Ok(())
    }

    /// Goes on after [`DsRunning::suspend`].
    ///
    /// # Errors
    ///
    /// An access raised #GP: some of it is off, and the next call tries again.
    pub fn resume(&mut self) -> Result<(), GeneralProtection> {
        let halted = self.halt()?;
        let session = self.session_mut();
        session.collect(&halted);
        session.wake();
        session.go_on(halted)
    }

    /// This recording for a PMI handler, with those who take its records.
    pub fn source<'a, B: Sink + ?Sized, P: Sink + ?Sized>(
        &'a mut self,
        branches: &'a mut B,
        samples: &'a mut P,
    ) -> Source<'a, DsSession<M, L>, (&'a mut B, &'a mut P)> {
        Source::new(self.session_mut(), (branches, samples))
    }
}
