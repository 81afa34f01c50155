//! Counters that count.

use super::session::{OverflowCounts, OverflowSink, Session};
use super::{MAX_COUNTERS, Rdpmc, Unit};
use crate::msr::{GeneralProtection, GlobalStatus, Msr};
use crate::pmi::{Abandoned, Handler, PmiSource};
use core::mem::ManuallyDrop;

/// The counters count. Dropping it stops them; whoever does that has to claim the NMIs that may be on their way.
#[derive(Debug)]
pub struct Running<M: Msr> {
    session: ManuallyDrop<Session<M>>,
}

/// Counters that were stopped.
#[derive(Debug)]
pub struct Stopped<M: Msr> {
    /// The counters, off, and their registers as after a reset.
    pub unit: Unit<M>,
    /// What became of the overflows.
    pub overflows: OverflowCounts,
    totals: [u64; MAX_COUNTERS],
    len: usize,
}

impl<M: Msr> Stopped<M> {
    /// How often each event happened, in the order of the list.
    #[must_use]
    pub fn totals(&self) -> &[u64] {
        self.totals.get(..self.len).unwrap_or_default()
    }
}

impl<M: Msr> Running<M> {
    pub(super) const fn new(session: Session<M>) -> Self {
        Self { session: ManuallyDrop::new(session) }
    }

    /// How often event `event` of the list has happened so far; `None` where the list is shorter.
    ///
    /// # Errors
    ///
    /// The access raised #GP.
    pub fn count(&mut self, event: usize) -> Result<Option<u64>, GeneralProtection> {
        self.session.value(event)
    }

    /// The counter that counts it; for an event that takes two the first one.
    #[must_use]
    pub fn counter(&self, event: usize) -> Option<u8> {
        self.session.counter(event)
    }

    /// How RDPMC reads it; `None` where the list is shorter, or RDPMC does not reach the counter.
    #[must_use]
    pub fn rdpmc(&self, event: usize) -> Option<Rdpmc> {
        self.session.rdpmc(event)
    }

    /// What became of the overflows so far.
    #[must_use]
    pub fn overflows(&self) -> &OverflowCounts {
        self.session.counts()
    }

    /// EFER.SVME has changed: with SVM off HostOnly would count nothing, and is not written.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the next call tries again.
    pub fn svm_changed(&mut self) -> Result<(), GeneralProtection> {
        self.session.svm_changed()
    }

    /// The counters for a handler, with the one who takes their overflows.
    pub fn source<'a, S: OverflowSink + ?Sized>(&'a mut self, sink: &'a mut S) -> CounterSource<'a, M, S> {
        self.session.begin_interrupt();
        CounterSource { session: &mut self.session, sink }
    }

    /// Stops the counters. NMIs of overflows that no handler has seen may come afterwards, and `handler` claims them.
    ///
    /// # Errors
    ///
    /// An access raised #GP; another [`Running::stop`] tries again.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn stop(mut self, handler: &mut Handler) -> Result<Stopped<M>, StopFailed<M>> {
        match self.session.end() {
            Ok(nmis) => {
                handler.expect_late(nmis);
                let mut this = ManuallyDrop::new(self);
                // SAFETY: taken once; `this` is neither used nor dropped any more.
                let session = unsafe { ManuallyDrop::take(&mut this.session) };
                Ok(Stopped {
                    overflows: *session.counts(),
                    totals: core::array::from_fn(|n| session.total(n)),
                    len: session.len(),
                    unit: session.unit,
                })
            }
            Err(fault) => Err(StopFailed { running: self, fault }),
        }
    }
}

impl<M: Msr> Drop for Running<M> {
    fn drop(&mut self) {
        // A counter that cannot be stopped counts on, and writes to no memory.
        let _ = self.session.reset();
        // SAFETY: dropped once, and not used any more.
        unsafe { ManuallyDrop::drop(&mut self.session) };
    }
}

/// Counters that did not stop: an access raised #GP.
#[derive(Debug)]
pub struct StopFailed<M: Msr> {
    /// The counters.
    pub running: Running<M>,
    /// The access.
    pub fault: GeneralProtection,
}

/// The counters in a handler. They stand still while it works.
#[derive(Debug)]
pub struct CounterSource<'a, M: Msr, S: ?Sized> {
    session: &'a mut Session<M>,
    sink: &'a mut S,
}

impl<M: Msr, S: OverflowSink + ?Sized> PmiSource for CounterSource<'_, M, S> {
    /// None: AMD's status is a register of its own.
    fn status(&self) -> GlobalStatus {
        GlobalStatus::empty()
    }

    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        self.session.quiesce()
    }

    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        self.session.may_have_overflowed()
    }

    fn service(&mut self, _: GlobalStatus) -> Result<bool, GeneralProtection> {
        self.session.serve(self.sink)
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.session.resume()
    }

    fn abandon(&mut self, _: Abandoned) {
        self.session.abandon();
    }

    fn late_requests(&self) -> u8 {
        self.session.served()
    }
}
