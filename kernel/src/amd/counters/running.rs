//! Counters that count.

use super::session::{CounterSession, OverflowCounts, OverflowSink};
use super::{CounterUnit, MAX_COUNTERS, Rdpmc};
use crate::lifecycle::{self, Source};
use crate::msr::{GeneralProtection, Msr};

/// The counters count. A stop tells how many NMIs of overflows that no handler has seen may come afterwards; whoever drops
/// this has to claim them.
pub type CounterRunning<M> = lifecycle::Running<CounterSession<M>>;

/// Counters that were stopped.
#[derive(Debug)]
pub struct CounterStopped<M: Msr> {
    /// The counters, off, and their registers as after a reset.
    pub unit: CounterUnit<M>,
    /// What became of the overflows.
    pub overflows: OverflowCounts,
    totals: [u64; MAX_COUNTERS],
    len: usize,
}

impl<M: Msr> CounterStopped<M> {
    pub(super) const fn new(
        unit: CounterUnit<M>,
        overflows: OverflowCounts,
        totals: [u64; MAX_COUNTERS],
        len: usize,
    ) -> Self {
        Self { unit, overflows, totals, len }
    }

    /// How often each event happened, in the order of the list.
    #[must_use]
    pub fn totals(&self) -> &[u64] {
        self.totals.get(..self.len).unwrap_or_default()
    }
}

impl<M: Msr> CounterRunning<M> {
    /// How often event `event` of the list has happened so far; `None` where the list is shorter.
    ///
    /// # Errors
    ///
    /// The access raised #GP.
    pub fn count(&mut self, event: usize) -> Result<Option<u64>, GeneralProtection> {
        self.session_mut().value(event)
    }

    /// The counter that counts it; for an event that takes two the first one.
    #[must_use]
    pub fn counter(&self, event: usize) -> Option<u8> {
        self.session().counter(event)
    }

    /// How RDPMC reads it; `None` where the list is shorter, or RDPMC does not reach the counter.
    #[must_use]
    pub fn rdpmc(&self, event: usize) -> Option<Rdpmc> {
        self.session().rdpmc(event)
    }

    /// What became of the overflows so far.
    #[must_use]
    pub fn overflows(&self) -> &OverflowCounts {
        self.session().counts()
    }

    /// EFER.SVME has changed: with SVM off HostOnly would count nothing, and is not written.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the next call tries again.
    pub fn svm_changed(&mut self) -> Result<(), GeneralProtection> {
        self.session_mut().svm_changed()
    }

    /// The counters for a handler, with the one who takes their overflows.
    pub fn source<'a, S: OverflowSink + ?Sized>(
        &'a mut self,
        sink: &'a mut S,
    ) -> Source<'a, CounterSession<M>, &'a mut S> {
        self.session_mut().begin_interrupt();
        Source::new(self.session_mut(), sink)
    }
}
