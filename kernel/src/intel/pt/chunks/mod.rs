//! Reads the trace in place.

#[cfg(test)]
mod tests;

use super::buffer::Buffer;
use super::gaps::Gaps;
use super::ring::Ring;
use crate::drain::{Chunk, Sink};
use crate::memory::Frames;

/// An iterator over the content of a buffer, oldest first.
#[derive(Debug)]
pub struct Chunks<'a, F: Frames> {
    buffer: &'a Buffer<F>,
    ring: Ring,
    gaps: Gaps,
}

impl<'a, F: Frames> Chunks<'a, F> {
    /// Creates the iterator. The processor must not trace into `buffer` as long as `'a` lasts.
    pub(crate) const fn new(buffer: &'a Buffer<F>, ring: Ring, gaps: Gaps) -> Self {
        Self { buffer, ring, gaps }
    }
}

impl<'a, F: Frames> Iterator for Chunks<'a, F> {
    type Item = Chunk<'a>;

    fn next(&mut self) -> Option<Chunk<'a>> {
        let chunk = first(self.buffer, &self.ring, &self.gaps)?;
        match chunk {
            Chunk::Gap(_) => drop(self.gaps.take_until(self.ring.tail())),
            Chunk::Bytes(bytes) => self.ring.consume(bytes.len() as u64),
        }
        Some(chunk)
    }
}

/// Returns the oldest bytes of a buffer, or the gap before them. The processor must not trace into `buffer` as long as
/// `'a` lasts.
fn first<'a, F: Frames>(buffer: &'a Buffer<F>, ring: &Ring, gaps: &Gaps) -> Option<Chunk<'a>> {
    let tail = ring.tail();
    if let Some(gap) = gaps.first_until(tail) {
        return Some(Chunk::Gap(gap));
    }
    let end = gaps.first_place().unwrap_or(u64::MAX).min(ring.head());
    if tail >= end {
        return None;
    }
    let (region, offset) = ring.place(tail);
    let memory = buffer.memory(region, offset);
    let len = (memory.len() as u64).min(end - tail);
    // SAFETY: `len` bytes of one block of the buffer's memory, which is borrowed; the processor does not write to it,
    // as the caller promised.
    Some(Chunk::Bytes(unsafe { memory.slice(len as usize) }))
}

/// Offers the content of `buffer` to `sink`, and removes from `ring` and `gaps` everything that the sink takes. Returns
/// whether nothing is left. The processor must not trace into `buffer` meanwhile.
pub(super) fn deliver<F: Frames>(
    buffer: &Buffer<F>,
    ring: &mut Ring,
    gaps: &mut Gaps,
    sink: &mut (impl Sink + ?Sized),
) -> bool {
    while let Some(chunk) = first(buffer, ring, gaps) {
        match chunk {
            Chunk::Gap(gap) => {
                if !sink.gap(gap) {
                    return false;
                }
                gaps.take_until(ring.tail());
            }
            Chunk::Bytes(bytes) => {
                let done = sink.bytes(bytes).min(bytes.len());
                ring.consume(done as u64);
                if done < bytes.len() {
                    return false;
                }
            }
        }
    }
    true
}
