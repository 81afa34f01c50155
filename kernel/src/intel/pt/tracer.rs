//! The usual content of a slot: one trace and its sink.

use super::PtRunning;
use crate::drain::Sink;
use crate::lapic::LocalApic;
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

impl<M: Msr, F: Frames, S: Sink> Traced for PtTracer<M, F, S> {
    fn serve<N: Msr, A: LocalApic>(
        &mut self,
        interrupt: Interrupt<'_, N, A>,
    ) -> Result<Pmi, GeneralProtection> {
        interrupt.serve(&mut [&mut self.running.source(&mut self.sink)])
    }
}
