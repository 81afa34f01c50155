//! IBS units that sample.

use super::IbsUnit;
use super::session::{IbsCounts, IbsSession, SampleSink};
use crate::lifecycle::{self, Source};
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::PmiSource;
use pugmark_decoder_core::ibs::Sample;

/// Running IBS units. A stop reports the number of NMIs that may still arrive afterwards, including those of ops that
/// were already tagged (erratum 420). Code that drops this value must claim these NMIs itself.
pub type IbsRunning<M> = lifecycle::Running<IbsSession<M>>;

/// Units that were stopped.
#[derive(Debug)]
pub struct IbsStopped<M: Msr> {
    /// The units, off.
    pub unit: IbsUnit<M>,
    /// The fates of the samples, including the last ones.
    pub counts: IbsCounts,
    pub(super) last: [Option<Sample>; 2],
}

impl<M: Msr> IbsStopped<M> {
    /// Returns the samples that the units held when they were stopped.
    pub fn last(&self) -> impl Iterator<Item = &Sample> {
        self.last.iter().flatten()
    }
}

impl<M: Msr> IbsRunning<M> {
    /// Returns the fates of the samples so far.
    #[must_use]
    pub fn counts(&self) -> &IbsCounts {
        self.session().counts()
    }

    /// Turns units on again that another owner or a hypervisor has turned off ([`IbsCounts::turned_off`]). The handler
    /// does so, too, but a unit that is off requests no interrupt, so a kernel should call this from time to time.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the next call tries again.
    pub fn check(&mut self) -> Result<(), GeneralProtection> {
        self.with(IbsSession::check)
    }

    /// Returns the units as a source for a handler, with the sink that receives their samples. One NMI serves both
    /// units.
    pub fn source<S: SampleSink + ?Sized>(&mut self, sink: &mut S) -> impl PmiSource {
        self.session_mut().begin_interrupt();
        Source::new(self, sink)
    }
}
