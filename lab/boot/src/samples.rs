//! The PMI handler's storage for drained samples.

use alloc::vec::Vec;

/// Samples in preallocated memory, so that storing them neither blocks nor allocates.
#[derive(Clone, Debug)]
pub struct SampleMemory<T> {
    samples: Vec<T>,
    /// Number of samples that were preallocated.
    room: usize,
    full: u64,
}

impl<T> SampleMemory<T> {
    /// Allocates memory for this number of samples.
    #[must_use]
    pub fn with_room(room: usize) -> Self {
        Self { samples: Vec::with_capacity(room), room, full: 0 }
    }

    /// Stores a sample. Returns false, and drops the sample, if there is no room for it.
    pub fn store(&mut self, sample: T) -> bool {
        let fits = self.samples.len() < self.room;
        if fits {
            // The vector has the memory already.
            self.samples.push(sample);
        } else {
            self.full += 1;
        }
        fits
    }

    /// Returns the stored samples, oldest first.
    #[must_use]
    pub fn samples(&self) -> &[T] {
        &self.samples
    }

    /// Returns the number of samples dropped for lack of room.
    #[must_use]
    pub const fn full(&self) -> u64 {
        self.full
    }
}

/// A sample that names the instruction that caused the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreciseSample {
    /// Samples are missing before this one.
    pub after_gap: bool,
    /// The address of the instruction, if the processor records it.
    pub event: Option<u64>,
    /// The address of the next instruction after the event, if the processor records it.
    pub next: Option<u64>,
}

/// Precise samples, and the gaps between them.
#[derive(Clone, Debug)]
pub struct PreciseSamples {
    memory: SampleMemory<PreciseSample>,
    gap: bool,
}

impl PreciseSamples {
    /// Allocates memory for this number of samples.
    #[must_use]
    pub fn with_room(room: usize) -> Self {
        Self { memory: SampleMemory::with_room(room), gap: false }
    }

    /// Stores a sample. For lack of room it is dropped and counted, and so are all later ones.
    pub fn store(&mut self, event: Option<u64>, next: Option<u64>) {
        self.memory.store(PreciseSample { after_gap: self.gap, event, next });
        self.gap = false;
    }

    /// Notes that samples are missing before the next one.
    pub const fn gap(&mut self) {
        self.gap = true;
    }

    /// Returns the stored samples, oldest first.
    #[must_use]
    pub fn samples(&self) -> &[PreciseSample] {
        self.memory.samples()
    }

    /// Returns the number of samples dropped for lack of room.
    #[must_use]
    pub const fn full(&self) -> u64 {
        self.memory.full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_without_room_is_counted_and_dropped() {
        let mut memory = SampleMemory::with_room(2);
        assert_eq!([1, 2, 3, 4].map(|sample| memory.store(sample)), [true, true, false, false]);
        assert_eq!((memory.samples(), memory.full()), (&[1, 2][..], 2));
    }

    #[test]
    fn a_gap_stands_before_the_next_sample_only() {
        let mut samples = PreciseSamples::with_room(4);
        samples.store(Some(1), None);
        // Adjacent gaps count as one, and a gap at the end precedes no sample.
        samples.gap();
        samples.gap();
        samples.store(None, Some(2));
        samples.store(Some(3), Some(4));
        samples.gap();
        let found = samples.samples().iter().map(|sample| (sample.after_gap, sample.event, sample.next));
        assert!(found.eq([(false, Some(1), None), (true, None, Some(2)), (false, Some(3), Some(4)),]));
        assert_eq!(samples.full(), 0);
    }
}
