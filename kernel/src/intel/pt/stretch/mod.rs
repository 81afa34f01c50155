//! Stretches of a trace without gaps, as a decoder takes them.

#[cfg(test)]
mod tests;

use super::buffer::Buffer;
use super::chunks::Chunks;
use super::gaps::Gaps;
use super::ring::Ring;
use crate::drain::Chunk;
use crate::loss::Gap;
use crate::memory::Frames;

/// An iterator over the stretches of a trace, oldest first.
#[derive(Debug)]
pub struct Stretches<'a, F: Frames> {
    buffer: &'a Buffer<F>,
    ring: Ring,
    gaps: Gaps,
    /// True if the first stretch may begin within a packet.
    cut: bool,
}

/// Bytes without a gap, for one run of a decoder.
///
/// They are in one slice, or in several: a ring continues at its beginning, and regions may be anywhere in memory. A
/// packet may continue in the next slice, so a decoder that takes one slice needs a copy of several
/// ([`Stretch::copy_to`]).
#[derive(Debug)]
pub struct Stretch<'a, F: Frames> {
    buffer: &'a Buffer<F>,
    ring: Ring,
    gap: Option<Gap>,
    cut: bool,
}

impl<'a, F: Frames> Stretches<'a, F> {
    /// Creates the iterator. The processor must not trace into `buffer` as long as `'a` lasts.
    pub(crate) const fn new(buffer: &'a Buffer<F>, ring: Ring, gaps: Gaps) -> Self {
        Self { buffer, ring, gaps, cut: false }
    }

    /// Leaves out everything but the last `bytes` bytes. The first stretch then [begins within a
    /// packet](Stretch::begins_within_a_packet): a decoder starts at its first PSB.
    #[must_use]
    pub fn newest(mut self, bytes: u64) -> Self {
        let older = self.ring.undrained().saturating_sub(bytes);
        if older > 0 {
            self.ring.consume(older);
            let tail = self.ring.tail();
            while self.gaps.take_until(tail).is_some() {}
            self.cut = true;
        }
        self
    }
}

impl<'a, F: Frames> Iterator for Stretches<'a, F> {
    type Item = Stretch<'a, F>;

    fn next(&mut self) -> Option<Stretch<'a, F>> {
        let tail = self.ring.tail();
        let gap = self.gaps.take_until(tail);
        // Several gaps may be at one place; the first one cut the trace.
        while gap.is_some() && self.gaps.take_until(tail).is_some() {}
        let end = self.gaps.first_place().unwrap_or(u64::MAX).min(self.ring.head());
        let ring = self.ring.until(end);
        self.ring.consume(ring.undrained());
        let cut = core::mem::take(&mut self.cut);
        (ring.undrained() > 0).then_some(Stretch { buffer: self.buffer, ring, gap, cut })
    }
}

impl<'a, F: Frames> Stretch<'a, F> {
    /// Returns the number of bytes, which is not 0.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "there is no empty stretch")]
    pub const fn len(&self) -> u64 {
        self.ring.undrained()
    }

    /// Returns the gap before the stretch, if there is one; the first one of several.
    /// [`Trace::chunks`](super::Trace::chunks) has all gaps, also those at the trace's end.
    #[must_use]
    pub const fn gap(&self) -> Option<Gap> {
        self.gap
    }

    /// Returns whether the stretch may begin within a packet, because the bytes before it are overwritten or left out:
    /// the decoder must look for the first PSB, and bytes before that are no error. `pugmark-decoder-core` has
    /// `Pieces::wrapped` for it.
    #[must_use]
    pub const fn begins_within_a_packet(&self) -> bool {
        self.cut || matches!(self.gap, Some(Gap::Wrap(_)))
    }

    /// Returns the bytes, in the slices in which the processor wrote them.
    pub fn slices(&self) -> impl Iterator<Item = &'a [u8]> + use<'a, F> {
        Chunks::new(self.buffer, self.ring, Gaps::new()).filter_map(|chunk| match chunk {
            Chunk::Bytes(bytes) => Some(bytes),
            Chunk::Gap(_) => None,
        })
    }

    /// Returns the bytes as two slices, of which the second one may be empty. `None` if there are more than two, which
    /// is impossible if all regions are one block of memory
    /// ([`Layout::contiguous_topa`](super::Layout::contiguous_topa)).
    #[must_use]
    pub fn as_slices(&self) -> Option<(&'a [u8], &'a [u8])> {
        let mut slices = self.slices();
        let two = (slices.next()?, slices.next().unwrap_or(&[]));
        slices.next().is_none().then_some(two)
    }

    /// Copies the bytes to the beginning of `memory`, and returns the copy: one slice for a decoder. `None` if there is
    /// not enough memory.
    #[must_use]
    pub fn copy_to<'m>(&self, memory: &'m mut [u8]) -> Option<&'m [u8]> {
        let copy = memory.get_mut(..usize::try_from(self.len()).ok()?)?;
        let mut rest = &mut *copy;
        for slice in self.slices() {
            let (to, after) = rest.split_at_mut_checked(slice.len())?;
            to.copy_from_slice(slice);
            rest = after;
        }
        Some(copy)
    }
}
