//! Performance counters that count.

use super::overflow::{OverflowCounts, OverflowSink};
use super::session::CounterSession;
use super::{CounterUnit, MAX_COUNTERS, Rdpmc};
use crate::lifecycle::{self, Source};
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::PmiSource;

/// Running counters. A stop reports the number of NMIs that may still arrive for overflows that no handler has seen.
/// Code that drops this value must claim these NMIs itself.
pub type CounterRunning<M> = lifecycle::Running<CounterSession<M>>;

/// Counters that were stopped.
#[derive(Debug)]
pub struct CounterStopped<M: Msr> {
    /// The counters, off; their registers have the values after a reset.
    pub unit: CounterUnit<M>,
    /// The fates of the overflows.
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

    /// Returns the count of each event, in the order of the list.
    #[must_use]
    pub fn totals(&self) -> &[u64] {
        self.totals.get(..self.len).unwrap_or_default()
    }
}

impl<M: Msr> CounterRunning<M> {
    /// Returns the count of event `event` of the list so far; `None` if the list is shorter. A counter that something
    /// else has turned off is turned on again and counted in [`OverflowCounts::turned_off`]; no interrupt reports this.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the next call tries again.
    pub fn count(&mut self, event: usize) -> Result<Option<u64>, GeneralProtection> {
        self.with(|session| session.value(event))
    }

    /// Returns the counter of an event; for an event that needs two, the first one.
    #[must_use]
    pub fn counter(&self, event: usize) -> Option<u8> {
        self.session().counter(event)
    }

    /// Returns the RDPMC index and base count of the event; `None` if the list is shorter, or if RDPMC does not reach
    /// the counter.
    #[must_use]
    pub fn rdpmc(&self, event: usize) -> Option<Rdpmc> {
        self.session().rdpmc(event)
    }

    /// Returns the fates of the overflows so far.
    #[must_use]
    pub fn overflows(&self) -> &OverflowCounts {
        self.session().counts()
    }

    /// Reacts to a change of EFER.SVME: with SVM off, HostOnly would make a counter count nothing, so it is not
    /// written.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the next call tries again.
    pub fn svm_changed(&mut self) -> Result<(), GeneralProtection> {
        self.with(CounterSession::svm_changed)
    }

    /// Returns the counters as a source for a handler, with the sink that receives their overflows.
    pub fn source<S: OverflowSink + ?Sized>(&mut self, sink: &mut S) -> impl PmiSource {
        self.session_mut().begin_interrupt();
        Source::new(self, sink)
    }
}
