//! Architectural PEBS that is off, and the handles of one that samples.

use super::{ArchPebsBuffer, ArchPebsCapabilities, ArchPebsConfig, ArchPebsSession};
use crate::cpuid::CpuIdReader;
use crate::drain::Sink;
use crate::lifecycle::{self, Absent, NotStarted, Source, StartError};
use crate::loss::Loss;
use crate::memory::Frames;
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::PmiSource;
use core::marker::PhantomData;

/// The architectural PEBS of one logical processor, off.
///
/// The value cannot be sent to another thread of execution: it belongs to the processor on which it was found.
#[derive(Debug)]
pub struct ArchPebsUnit<M: Msr> {
    pub(super) msr: M,
    pub(super) capabilities: ArchPebsCapabilities,
    of_this_processor: PhantomData<*const ()>,
}

impl<M: Msr> ArchPebsUnit<M> {
    /// Detects architectural PEBS. Writes no register.
    ///
    /// # Errors
    ///
    /// The processor does not have it, or an access raised #GP.
    pub fn detect(cpuid: impl CpuIdReader, mut msr: M) -> Result<Self, Absent> {
        let capabilities = ArchPebsCapabilities::read(cpuid, &mut msr)?;
        Ok(Self { msr, capabilities, of_this_processor: PhantomData })
    }

    /// Returns the capabilities.
    #[must_use]
    pub const fn capabilities(&self) -> &ArchPebsCapabilities {
        &self.capabilities
    }

    /// Samples into a buffer. A PMI handler drains it by [`ArchPebsRunning::source`].
    ///
    /// # Errors
    ///
    /// The processor refuses the configuration, or another owner samples or uses a counter. Unit and buffer are
    /// returned, unless it cannot be stopped.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn start<F: Frames>(
        self,
        buffer: ArchPebsBuffer<F>,
        config: &ArchPebsConfig,
    ) -> Result<ArchPebsRunning<M, F>, NotStarted<ArchPebsSession<M, F>>> {
        match config.check(&self.capabilities) {
            Ok(()) => ArchPebsRunning::start(ArchPebsSession::new(self, buffer, *config)),
            Err(refusal) => {
                Err(NotStarted::Off { unit: self, memory: buffer, error: StartError::Refused(refusal) })
            }
        }
    }
}

/// Counters that sample into a buffer.
pub type ArchPebsRunning<M, F> = lifecycle::Running<ArchPebsSession<M, F>>;

impl<M: Msr, F: Frames> ArchPebsRunning<M, F> {
    /// Offers the records so far to a sink, as a PMI handler does. The counters stand still meanwhile.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the counters may be off until the next call.
    pub fn drain(&mut self, sink: &mut impl Sink) -> Result<(), GeneralProtection> {
        self.with(|session| session.drain(sink))
    }

    /// Returns the losses since the start.
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.session().loss
    }

    /// Returns these counters as a source for a PMI handler, with the sink of the records.
    pub fn source<S: Sink>(&mut self, sink: S) -> impl PmiSource {
        Source::new(self, sink)
    }
}

/// Counters that were stopped.
#[derive(Debug)]
pub struct ArchPebsStopped<M: Msr, F: Frames> {
    /// The unit, off.
    pub unit: ArchPebsUnit<M>,
    /// The losses.
    pub loss: Loss,
    pub(super) buffer: ArchPebsBuffer<F>,
    pub(super) len: usize,
}

impl<M: Msr, F: Frames> ArchPebsStopped<M, F> {
    /// Returns the records that were not drained.
    #[must_use]
    pub fn records(&self) -> &[u8] {
        // SAFETY: nothing samples any more, and the buffer is borrowed.
        unsafe { self.buffer.bytes().slice(self.len) }
    }

    /// Returns the unit and the buffer, for another start.
    #[must_use]
    pub fn into_parts(self) -> (ArchPebsUnit<M>, ArchPebsBuffer<F>) {
        (self.unit, self.buffer)
    }
}
