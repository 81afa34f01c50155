//! Units that sample.

use super::IbsUnit;
use super::session::{IbsCounts, IbsSession, SampleSink};
use crate::lifecycle::{self, Source};
use crate::msr::Msr;
use pugmark_decoder_core::ibs::Sample;

/// The units sample. A stop tells how many NMIs may come afterwards, those of ops that were tagged already among them
/// (erratum 420); whoever drops this has to claim them.
pub type IbsRunning<M> = lifecycle::Running<IbsSession<M>>;

/// Units that were stopped.
#[derive(Debug)]
pub struct IbsStopped<M: Msr> {
    /// The units, off.
    pub unit: IbsUnit<M>,
    /// What became of the samples, also of the last ones.
    pub counts: IbsCounts,
    pub(super) last: [Option<Sample>; 2],
}

impl<M: Msr> IbsStopped<M> {
    /// The samples that the units had when they were stopped.
    pub fn last(&self) -> impl Iterator<Item = &Sample> {
        self.last.iter().flatten()
    }
}

impl<M: Msr> IbsRunning<M> {
    /// What became of the samples so far.
    #[must_use]
    pub fn counts(&self) -> &IbsCounts {
        self.session().counts()
    }

    /// The units for a handler, with the one who takes their samples. Both are served in one NMI.
    pub fn source<'a, S: SampleSink + ?Sized>(
        &'a mut self,
        sink: &'a mut S,
    ) -> Source<'a, IbsSession<M>, &'a mut S> {
        self.session_mut().begin_interrupt();
        Source::new(self.session_mut(), sink)
    }
}
