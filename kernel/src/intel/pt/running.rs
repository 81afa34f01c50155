//! A PT unit that traces.

use super::OperationalError;
use super::session::PtSession;
use crate::drain::Sink;
use crate::lifecycle::{self, Halted, Source};
use crate::loss::Loss;
use crate::memory::Frames;
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::{Abandoned, PmiSource};
use pugmark_decoder_core::config::Config;

/// A running trace, with the memory that the processor writes to.
pub type PtRunning<M, F> = lifecycle::Running<PtSession<M, F>>;

/// The state of a started trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtState {
    /// The trace runs.
    Tracing,
    /// The trace is off until something is drained.
    Full,
    /// The trace is off because execution entered a TraceStop range.
    TraceStopped,
    /// The trace is off because another owner records branches (LBR or BTS), which excludes it. If that has ended, the
    /// trace resumes at the next drain, at the end of a PMI, or at [`PtRunning::go_on`].
    Excluded,
    /// The trace is off because the processor reported an operational error when it was resumed.
    Failed(OperationalError),
    /// The trace is off because the PMI handler gave up, or a call reported a fault. It resumes at the next drain, at
    /// the end of the next PMI, or at [`PtRunning::go_on`].
    Abandoned(Abandoned),
}

impl<M: Msr, F: Frames> PtRunning<M, F> {
    /// Returns what was lost so far, as of the last PMI or drain.
    #[must_use]
    pub fn loss(&self) -> &Loss {
        self.session().loss()
    }

    /// Returns the state, as of the last PMI or drain.
    ///
    /// An operational error, a TraceStop range and a STOP region end a trace without a PMI. To notice that, a kernel
    /// must call [`PtRunning::drain`] from time to time, which checks; a kernel that relies on PMIs alone may wait
    /// forever.
    #[must_use]
    pub fn state(&self) -> PtState {
        self.session().state()
    }

    /// Returns the configuration of a decoder for this trace: see [`PtConfig::for_decoder`](super::PtConfig::for_decoder).
    #[must_use]
    pub fn decoder_config(&self) -> Config<'static> {
        self.session().decoder_config()
    }

    /// Returns how many bytes were not drained, as of the last PMI or drain.
    #[must_use]
    pub fn undrained(&self) -> u64 {
        self.session().undrained()
    }

    /// Offers what was traced so far to `sink`, and resumes the trace. A full trace resumes if `sink` took something.
    ///
    /// # Errors
    ///
    /// An access raised #GP. If TraceEn could not be cleared, the trace still runs and nothing was handed over.
    /// Otherwise it is off, which [`PtRunning::state`] and a [`Gap`](crate::loss::Gap) report, and the next call tries
    /// again.
    pub fn drain(&mut self, sink: &mut (impl Sink + ?Sized)) -> Result<PtState, GeneralProtection> {
        self.while_halted(|session, halted| session.deliver(sink, halted))
    }

    /// Resumes a trace that is off after a TraceStop or an error; it begins with a PSB.
    ///
    /// # Errors
    ///
    /// Those of [`PtRunning::drain`].
    pub fn go_on(&mut self) -> Result<PtState, GeneralProtection> {
        self.while_halted(|session, _| session.forgive())
    }

    /// Returns this trace as a source for a PMI handler, with the sink that receives its bytes.
    pub fn source<S: Sink + ?Sized>(&mut self, sink: &mut S) -> impl PmiSource {
        Source::new(self.session_mut(), sink)
    }

    /// Calls `work` while the unit is halted, and resumes it.
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
