//! Units that sample.

use super::Unit;
use super::session::{IbsCounts, SampleSink, Session};
use crate::msr::{GeneralProtection, GlobalStatus, Msr};
use crate::pmi::{Abandoned, Handler, PmiSource, Route};
use core::mem::ManuallyDrop;

/// The units sample. Dropping it stops them; whoever does that has to claim the NMIs that may be on their way.
#[derive(Debug)]
pub struct Running<M: Msr> {
    session: ManuallyDrop<Session<M>>,
}

impl<M: Msr> Running<M> {
    pub(super) const fn new(session: Session<M>) -> Self {
        Self { session: ManuallyDrop::new(session) }
    }

    /// What became of the samples so far.
    #[must_use]
    pub fn counts(&self) -> &IbsCounts {
        self.session.counts()
    }

    /// The units for a handler, with the one who takes their samples. Both are served in one NMI.
    pub fn source<'a, S: SampleSink + ?Sized>(&'a mut self, sink: &'a mut S) -> IbsSource<'a, M, S> {
        self.session.begin_interrupt();
        IbsSource { session: &mut self.session, sink }
    }

    /// Takes the samples that the units have, and stops them. Their NMIs, and those of ops that were tagged already
    /// (erratum 420), may come afterwards, and `handler` claims them.
    ///
    /// # Errors
    ///
    /// An access raised #GP; another [`Running::stop`] tries again.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn stop(
        mut self,
        sink: &mut (impl SampleSink + ?Sized),
        handler: &mut Handler,
    ) -> Result<(Unit<M>, IbsCounts), StopFailed<M>> {
        match self.session.collect(sink).and_then(|_| self.session.end()) {
            Ok(()) => {
                handler.expect_late(self.session.units());
                let mut this = ManuallyDrop::new(self);
                // SAFETY: taken once; `this` is neither used nor dropped any more.
                let session = unsafe { ManuallyDrop::take(&mut this.session) };
                let counts = *session.counts();
                Ok((session.unit, counts))
            }
            Err(fault) => Err(StopFailed { running: self, fault }),
        }
    }
}

impl<M: Msr> Drop for Running<M> {
    fn drop(&mut self) {
        // A unit that cannot be stopped asks for an interrupt once more, and then waits: it writes to no memory.
        let _ = self.session.end();
        // SAFETY: dropped once, and not used any more.
        unsafe { ManuallyDrop::drop(&mut self.session) };
    }
}

/// Units that did not stop: an access raised #GP.
#[derive(Debug)]
pub struct StopFailed<M: Msr> {
    /// The units.
    pub running: Running<M>,
    /// The access.
    pub fault: GeneralProtection,
}

/// The units in a handler.
#[derive(Debug)]
pub struct IbsSource<'a, M: Msr, S: ?Sized> {
    session: &'a mut Session<M>,
    sink: &'a mut S,
}

impl<M: Msr, S: SampleSink + ?Sized> PmiSource for IbsSource<'_, M, S> {
    /// None: the units tell it in registers of their own.
    fn status(&self) -> GlobalStatus {
        GlobalStatus::empty()
    }

    fn route(&self) -> Route {
        Route::Extended
    }

    /// Nothing: a unit with a sample waits by itself, and one without counts on, so that the interrupts of others do
    /// not cost it its count.
    fn quiesce(&mut self) -> Result<(), GeneralProtection> {
        Ok(())
    }

    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        self.session.may_have_a_sample()
    }

    fn service(&mut self, _: GlobalStatus) -> Result<bool, GeneralProtection> {
        self.session.collect(self.sink)
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
