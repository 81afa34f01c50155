//! The usual content of a slot: one trace and its sink.

use super::{Buffer, PtConfig, PtRefusal, PtRunning, PtStopped, PtUnit};
use crate::drain::Sink;
use crate::lapic::LocalApic;
use crate::lifecycle::StartError;
use crate::memory::Frames;
use crate::msr::{GeneralProtection, Msr};
use crate::pmi::Pmi;
use crate::slot::{Interrupt, Traced};

/// A trace and the sink that receives its bytes: what a [`Slot`](crate::slot::Slot) holds where nothing else is traced
/// on the processor.
#[derive(Debug)]
pub struct PtTracer<M: Msr, F: Frames, S> {
    /// The trace.
    pub running: PtRunning<M, F>,
    /// The sink.
    pub sink: S,
}

impl<M: Msr, F: Frames, S: Sink> PtTracer<M, F, S> {
    /// Starts a trace whose bytes `sink` receives: what [`Slot::start`](crate::slot::Slot::start) calls.
    ///
    /// # Errors
    ///
    /// Those of [`PtUnit::start`], which returns the unit and the buffer, too. Here they are dropped.
    pub fn start(
        unit: PtUnit<M>,
        config: &PtConfig,
        buffer: Buffer<F>,
        sink: S,
    ) -> Result<Self, StartError<PtRefusal>> {
        Ok(Self { running: unit.start(config, buffer)?, sink })
    }

    /// Stops the trace and hands the sink what it has not received yet: what [`Slot::stop`](crate::slot::Slot::stop)
    /// calls. What the sink does not take stays in [`PtStopped::trace`].
    ///
    /// # Errors
    ///
    /// Those of [`PtRunning::stop`], which returns the trace, too. Here it is dropped.
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
