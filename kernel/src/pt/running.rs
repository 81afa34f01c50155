//! A unit that traces.

use super::session::Session;
use super::{OperationalError, Stopped, TraceOff, Unit};
use crate::buffer::Buffer;
use crate::drain::Sink;
use crate::loss::Loss;
use crate::memory::Frames;
use crate::msr::{GeneralProtection, GlobalStatus, Msr};
use crate::pmi::{Abandoned, PmiSource};
use core::mem::ManuallyDrop;

/// A trace that runs, with the memory that the processor writes to.
///
/// Dropping it stops the trace first; if the processor does not let itself be stopped, the memory is never freed.
/// It stays on its processor, as [`Unit`] does. A PMI may come between any two instructions: a kernel keeps the value
/// where its handler finds it, and lets nobody else touch it while the handler does ([`crate::slot::Slot`]).
#[derive(Debug)]
pub struct Running<M: Msr, F: Frames> {
    session: ManuallyDrop<Session<M, F>>,
}

/// How a started trace stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs.
    Tracing,
    /// It is off until something is drained.
    Full,
    /// It is off because code of a TraceStop range ran.
    TraceStopped,
    /// Somebody records branches (LBR or BTS), which excludes it. It goes on when it is alone at a drain, at the end of a
    /// PMI, or at [`Running::go_on`].
    Excluded,
    /// It is off because the processor reported an operational error when it went on.
    Failed(OperationalError),
    /// It is off because somebody gave up on it: the PMI handler, or a call that reported a fault. It goes on at the next
    /// drain, at the end of the next PMI, or at [`Running::go_on`].
    Abandoned(Abandoned),
}

impl<M: Msr, F: Frames> Running<M, F> {
    pub(super) const fn new(session: Session<M, F>) -> Self {
        Self { session: ManuallyDrop::new(session) }
    }

    /// What was lost so far, as of the last PMI or drain.
    #[must_use]
    pub fn loss(&self) -> &Loss {
        self.session.loss()
    }

    /// How it stands, as of the last PMI or drain.
    ///
    /// An operational error, a TraceStop range and a STOP region end a trace without a PMI. A kernel that wants to know
    /// calls [`Running::drain`] now and then, which looks; one that relies on PMIs alone may wait for ever.
    #[must_use]
    pub fn state(&self) -> State {
        self.session.state()
    }

    /// How many bytes were not drained, as of the last PMI or drain.
    #[must_use]
    pub fn undrained(&self) -> u64 {
        self.session.undrained()
    }

    /// Hands what was traced so far to `sink`, and goes on. A trace that was full goes on when something was taken.
    ///
    /// # Errors
    ///
    /// An access raised #GP. Where TraceEn could not be cleared, the trace runs on and nothing was handed over;
    /// otherwise it is off, which [`Running::state`] and a [`Gap`](crate::loss::Gap) say, and the next call tries again.
    pub fn drain(&mut self, sink: &mut (impl Sink + ?Sized)) -> Result<State, GeneralProtection> {
        self.off_and_on(|session, off| session.deliver(sink, off))
    }

    /// Lets a trace go on that is off after a TraceStop or an error; it begins with a PSB.
    ///
    /// # Errors
    ///
    /// As [`Running::drain`].
    pub fn go_on(&mut self) -> Result<State, GeneralProtection> {
        self.off_and_on(|session, _| session.forgive())
    }

    /// This trace for a PMI handler, with the one who takes its bytes.
    pub fn source<'a, S: Sink + ?Sized>(&'a mut self, sink: &'a mut S) -> PtSource<'a, M, F, S> {
        PtSource { session: &mut self.session, sink }
    }

    /// Stops the trace.
    ///
    /// A PMI that was on its way, or that the last flush asks for, comes afterwards and masks the LVT entry: a
    /// [`Handler`](crate::pmi::Handler) that is asked without sources claims it and unmasks the entry.
    ///
    /// # Errors
    ///
    /// An access raised #GP: either the trace runs on, or it is off and nobody knows how far it came.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn stop(mut self) -> Result<Stopped<M, F>, StopFailed<M, F>> {
        let off = match self.session.quiesce() {
            Ok(off) => off,
            Err(fault) => return Err(StopFailed::Running { running: self, fault }),
        };
        let collected = self.session.collect(false, &off);
        let session = self.into_session();
        match collected {
            Ok(()) => Ok(session.into_stopped()),
            Err(fault) => {
                let loss = *session.loss();
                let (unit, buffer) = session.into_parts();
                Err(StopFailed::Off { unit, buffer, loss, fault })
            }
        }
    }

    /// Does something while it is off.
    fn off_and_on(
        &mut self,
        work: impl FnOnce(&mut Session<M, F>, &TraceOff),
    ) -> Result<State, GeneralProtection> {
        let off = self.session.quiesce()?;
        let go_on = || {
            self.session.collect(false, &off)?;
            work(&mut self.session, &off);
            self.session.resume(&off)
        };
        match go_on() {
            Ok(()) => Ok(self.session.state()),
            Err(fault) => {
                self.session.abandon(Abandoned::Fault(fault));
                Err(fault)
            }
        }
    }

    fn into_session(self) -> Session<M, F> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once; `this` is neither used nor dropped any more.
        unsafe { ManuallyDrop::take(&mut this.session) }
    }
}

impl<M: Msr, F: Frames> Drop for Running<M, F> {
    fn drop(&mut self) {
        // While the processor may write to the memory nobody else may have it.
        if self.session.quiesce().is_ok() {
            // SAFETY: dropped once, and not used any more.
            unsafe { ManuallyDrop::drop(&mut self.session) };
        }
    }
}

/// A trace that did not stop as it should.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is no heap to put it on")]
pub enum StopFailed<M: Msr, F: Frames> {
    /// Clearing TraceEn raised #GP: it runs on.
    Running {
        /// The trace.
        running: Running<M, F>,
        /// The access.
        fault: GeneralProtection,
    },
    /// It is off, but reading how far it came raised #GP. What is in the memory is not known.
    Off {
        /// The unit.
        unit: Unit<M>,
        /// The memory.
        buffer: Buffer<F>,
        /// What was lost before.
        loss: Loss,
        /// The access.
        fault: GeneralProtection,
    },
}

/// A running trace in a PMI handler.
#[derive(Debug)]
pub struct PtSource<'a, M: Msr, F: Frames, S: ?Sized> {
    session: &'a mut Session<M, F>,
    sink: &'a mut S,
}

impl<M: Msr, F: Frames, S: Sink + ?Sized> PmiSource for PtSource<'_, M, F, S> {
    fn status(&self) -> GlobalStatus {
        GlobalStatus::TRACE_TOPA_PMI
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        self.session.quiesce().map(|_| ())
    }

    fn service(&mut self, seen: GlobalStatus) -> Result<bool, GeneralProtection> {
        if !seen.contains(GlobalStatus::TRACE_TOPA_PMI) {
            return Ok(false);
        }
        let off = self.session.quiesce()?;
        self.session.collect(true, &off)?;
        self.session.deliver(self.sink, &off);
        Ok(true)
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        let off = self.session.quiesce()?;
        self.session.collect(false, &off)?;
        self.session.resume(&off)
    }

    fn abandon(&mut self, why: Abandoned) {
        self.session.abandon(why);
    }
}
