//! The usual content of a slot: one trace and its sink.

use super::{Buffer, PtConfig, PtRefusal, PtRunning, PtStopped, PtUnit};
use crate::drain::Sink;
use crate::lapic::LocalApic;
use crate::lifecycle::StartError;
use crate::memory::Frames;
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::Pmi;
use crate::slot::{Interrupt, Traced};

/// A trace and the sink that receives its bytes: the content of a [`Slot`](crate::slot::Slot) if nothing else is traced
/// on the processor.
#[derive(Debug)]
pub struct PtTracer<M: Msr, F: Frames, S> {
    /// The trace.
    pub running: PtRunning<M, F>,
    /// The sink.
    pub sink: S,
}

impl<M: Msr, F: Frames, S: Sink> PtTracer<M, F, S> {
    /// Starts a trace whose bytes `sink` receives; for [`Slot::start`](crate::slot::Slot::start).
    ///
    /// # Errors
    ///
    /// As for [`PtUnit::start`], but the unit and the buffer are dropped.
    pub fn start(
        unit: PtUnit<M>,
        config: &PtConfig,
        buffer: Buffer<F>,
        sink: S,
    ) -> Result<Self, StartError<PtRefusal>> {
        Ok(Self { running: unit.start(config, buffer)?, sink })
    }

    /// Stops the trace and hands the sink the rest; for [`Slot::stop`](crate::slot::Slot::stop). Bytes that the sink
    /// does not take stay in [`PtStopped::trace`].
    ///
    /// # Errors
    ///
    /// As for [`PtRunning::stop`], but the trace is dropped.
    pub fn stop(self) -> Result<(PtStopped<M, F>, S), GeneralProtection> {
        let Self { running, mut sink } = self;
        let mut stopped = running.stop()?;
        stopped.trace.drain_to(&mut sink);
        Ok((stopped, sink))
    }
}

impl<M: Msr, F: Frames, S: Sink> Traced for PtTracer<M, F, S> {
    fn serve<N: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, N, A>,
    ) -> Result<Pmi, GeneralProtection> {
        interrupt.serve(&mut [&mut self.running.source(&mut self.sink)])
    }

    fn resume(&mut self) -> Result<(), GeneralProtection> {
        self.running.resume().map(|_| ())
    }
}
