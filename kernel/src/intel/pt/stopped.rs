//! A stopped trace.

use super::PtUnit;
use super::chunks::Chunks;
use super::gaps::Gaps;
use super::ring::Ring;
use crate::intel::pt::buffer::Buffer;
use crate::loss::Loss;
use crate::memory::Frames;
use crate::msr::Msr;

/// The result of a stop.
#[derive(Debug)]
pub struct PtStopped<M: Msr, F: Frames> {
    /// The unit, which can be started again.
    pub unit: PtUnit<M>,
    /// What was traced and not drained.
    pub trace: Trace<F>,
    /// What was lost.
    pub loss: Loss,
}

/// The rest of a trace, in its buffer.
#[derive(Debug)]
pub struct Trace<F: Frames> {
    buffer: Buffer<F>,
    ring: Ring,
    gaps: Gaps,
}

impl<F: Frames> Trace<F> {
    pub(super) const fn new(buffer: Buffer<F>, ring: Ring, gaps: Gaps) -> Self {
        Self { buffer, ring, gaps }
    }

    /// Returns how many bytes there are.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.ring.head() - self.ring.tail()
    }

    /// Returns whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes, oldest first, with the gaps between them.
    #[must_use]
    pub const fn chunks(&self) -> Chunks<'_, F> {
        Chunks::new(&self.buffer, self.ring, self.gaps)
    }

    /// Returns the memory, for the next trace.
    #[must_use]
    pub fn into_buffer(self) -> Buffer<F> {
        self.buffer
    }
}
