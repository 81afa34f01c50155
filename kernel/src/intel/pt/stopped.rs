//! A stopped trace.

use super::chunks::{self, Chunks};
use super::gaps::Gaps;
use super::ring::Ring;
use super::stretch::Stretches;
use super::{OperationalError, PtUnit};
use crate::drain::Sink;
use crate::intel::pt::buffer::Buffer;
use crate::loss::Loss;
use crate::memory::Frames;
use crate::msr::Msr;

/// The result of a stop.
#[derive(Debug)]
pub struct PtStopped<M: Msr, F: Frames> {
    /// The unit, which can be started again.
    pub unit: PtUnit<M>,
    /// The undrained trace.
    pub trace: Trace<F>,
    /// The losses.
    pub loss: Loss,
    /// The last operational error, if there was one.
    pub error: Option<OperationalError>,
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

    /// Returns the number of bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.ring.head() - self.ring.tail()
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes, oldest first, with the gaps between them.
    #[must_use]
    pub const fn chunks(&self) -> Chunks<'_, F> {
        Chunks::new(&self.buffer, self.ring, self.gaps)
    }

    /// Returns the stretches between the gaps, oldest first, each for one run of a decoder.
    ///
    /// ```
    /// use pugmark_decoder_core::flow::{InsnDecoder, Pieces};
    /// use pugmark_decoder_core::image::Image;
    /// use pugmark_kernel::{intel::pt::Trace, memory::Frames};
    ///
    /// /// Returns the number of instructions in a trace. `memory` is as large as the trace's buffer.
    /// fn count<F: Frames>(trace: &Trace<F>, image: Image<'_>, memory: &mut [u8]) -> u64 {
    ///     let mut instructions = 0;
    ///     for stretch in trace.stretches() {
    ///         let bytes = match stretch.as_slices() {
    ///             // The bytes where the processor wrote them.
    ///             Some((bytes, [])) => bytes,
    ///             // A ring that continues at its beginning: a packet may lie across the two.
    ///             _ => stretch.copy_to(memory).expect("memory for the whole buffer"),
    ///         };
    ///         let decoder = InsnDecoder::new(bytes, image.clone());
    ///         let mut pieces = match stretch.begins_within_a_packet() {
    ///             true => Pieces::wrapped(decoder),
    ///             false => Pieces::new(decoder),
    ///         };
    ///         while pieces.next_with(|_| instructions += 1).is_some() {}
    ///     }
    ///     instructions
    /// }
    /// ```
    #[must_use]
    pub const fn stretches(&self) -> Stretches<'_, F> {
        Stretches::new(&self.buffer, self.ring, self.gaps)
    }

    /// Hands the rest to a sink, such as the one that received the bytes before it in the PMI handler. Bytes that the
    /// sink does not take stay. Returns whether it has taken all.
    pub fn drain_to(&mut self, sink: &mut (impl Sink + ?Sized)) -> bool {
        chunks::deliver(&self.buffer, &mut self.ring, &mut self.gaps, sink)
    }

    /// Returns the memory, for the next trace.
    #[must_use]
    pub fn into_buffer(self) -> Buffer<F> {
        self.buffer
    }
}
