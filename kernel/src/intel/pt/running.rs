//! A unit that traces.

use super::OperationalError;
use super::session::PtSession;
use crate::drain::Sink;
use crate::lifecycle::{self, Halted, Source};
use crate::loss::Loss;
use crate::memory::Frames;
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::Abandoned;

/// A trace that runs, with the memory that the processor writes to.
pub type PtRunning<M, F> = lifecycle::Running<PtSession<M, F>>;

/// How a started trace stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtState {
    /// It runs.
    Tracing,
    /// It is off until something is drained.
    Full,
    /// It is off because code of a TraceStop range ran.
    TraceStopped,
    /// Somebody records branches (LBR or BTS), which excludes it. It goes on when it is alone at a drain, at the end of a
    /// PMI, or at [`PtRunning::go_on`].
    Excluded,
    /// It is off because the processor reported an operational error when it went on.
    Failed(OperationalError),
    /// It is off because somebody gave up on it: the PMI handler, or a call that reported a fault. It goes on at the next
    /// drain, at the end of the next PMI, or at [`PtRunning::go_on`].
    Abandoned(Abandoned),
}

impl<M: Msr, F: Frames> PtRunning<M, F> {
    /// What was lost so far, as of the last PMI or drain.
    #[must_use]
    pub fn loss(&self) -> &Loss {
        self.session().loss()
    }

    /// How it stands, as of the last PMI or drain.
    ///
    /// An operational error, a TraceStop range and a STOP region end a trace without a PMI. A kernel that wants to know
    /// calls [`PtRunning::drain`] now and then, which looks; one that relies on PMIs alone may wait for ever.
    #[must_use]
    pub fn state(&self) -> PtState {
        self.session().state()
    }

    /// How many bytes were not drained, as of the last PMI or drain.
    #[must_use]
    pub fn undrained(&self) -> u64 {
        self.session().undrained()
    }

    /// Hands what was traced so far to `sink`, and goes on. A trace that was full goes on when something was taken.
    ///
    /// # Errors
    ///
    /// An access raised #GP. Where TraceEn could not be cleared, the trace runs on and nothing was handed over;
    /// otherwise it is off, which [`PtRunning::state`] and a [`Gap`](crate::loss::Gap) say, and the next call tries again.
    pub fn drain(&mut self, sink: &mut (impl Sink + ?Sized)) -> Result<PtState, GeneralProtection> {
        self.while_halted(|session, halted| session.deliver(sink, halted))
    }

    /// Lets a trace go on that is off after a TraceStop or an error; it begins with a PSB.
    ///
    /// # Errors
    ///
    /// As [`PtRunning::drain`].
    pub fn go_on(&mut self) -> Result<PtState, GeneralProtection> {
        self.while_halted(|session, _| session.forgive())
    }

    /// This trace for a PMI handler, with the one who takes its bytes.
    pub fn source<'a, S: Sink + ?Sized>(
        &'a mut self,
        sink: &'a mut S,
    ) -> Source<'a, PtSession<M, F>, &'a mut S> {
        Source::new(self.session_mut(), sink)
    }

    /// Does something while it is halted, and lets it go on.
    fn while_halted(
        &mut self,
        work: impl FnOnce(&mut PtSession<M, F>, &Halted),
    ) -> Result<PtState, GeneralProtection> {
        let halted = self.halt()?;
        let session = self.session_mut();
        let done = session.collect(false, &halted).and_then(|()| {
            work(session, &halted);
            session.go_on(halted)
        });
        match done {
            Ok(()) => Ok(session.state()),
            Err(fault) => {
                session.leave_off(Abandoned::Fault(fault));
                Err(fault)
            }
        }
    }
}
