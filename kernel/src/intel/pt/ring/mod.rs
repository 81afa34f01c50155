//! The place of a trace in its buffer: arithmetic only.

#[cfg(test)]
mod exhaustive;

use super::shape::Shape;
use crate::loss::Overwritten;

/// A ring of regions, with the places up to which the trace was written (head) and drained (tail).
///
/// Places are bytes since the trace began and never wrap; modulo the capacity they are offsets in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    shape: Shape,
    tail: u64,
    head: u64,
}

/// The free part of a ring that must not be overwritten, in regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// The region where the trace continues.
    pub(crate) first: u32,
    /// The region whose end requests a PMI.
    pub(crate) int: u32,
    /// The last free region.
    pub(crate) stop: u32,
}

/// The number of bytes that the processor has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Exactly this number.
    Exactly(u64),
    /// This number, or any number of whole laps more.
    AtLeast(u64),
}

impl Ring {
    /// Returns an empty ring.
    pub(crate) const fn new(shape: Shape) -> Self {
        Self { shape, tail: 0, head: 0 }
    }

    #[cfg(test)]
    pub(crate) const fn at(region: u64, regions: u32, tail: u64, head: u64) -> Self {
        Self { shape: Shape::equal(region, regions), tail, head }
    }

    pub(crate) const fn tail(&self) -> u64 {
        self.tail
    }

    pub(crate) const fn head(&self) -> u64 {
        self.head
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.shape.capacity()
    }

    /// Returns the region of a place and the offset in it. The end of a region is the beginning of the next one.
    pub(crate) fn place(&self, at: u64) -> (u32, u64) {
        self.shape.place(at % self.capacity())
    }

    /// Returns the number of the region of a place, counted through all laps.
    fn number(&self, at: u64) -> u64 {
        let laps = at / self.capacity();
        laps * u64::from(self.shape.regions()) + u64::from(self.place(at).0)
    }

    /// Returns the distance from the head to `offset` of `region`, if there is less than a lap between them.
    pub(crate) fn distance(&self, region: u32, offset: u64) -> u64 {
        let capacity = self.capacity();
        let now = (self.shape.start(region) + offset) % capacity;
        (now + capacity - self.head % capacity) % capacity
    }

    /// Returns the number of bytes written if the processor continued at the head in lap 0 and is now in `lap` of
    /// `laps`. The last lap is followed by itself. `None` if the processor cannot have come there.
    pub(crate) fn counted(&self, lap: u32, laps: u32, region: u32, offset: u64) -> Option<Written> {
        let now = u64::from(lap) * self.capacity() + self.shape.start(region) + offset;
        match now.checked_sub(self.head % self.capacity()) {
            Some(bytes) if lap + 1 < laps => Some(Written::Exactly(bytes)),
            Some(bytes) => Some(Written::AtLeast(bytes)),
            None => None,
        }
    }

    /// Returns the number of bytes written as far as the processor's place and the guard bytes at the end of the free
    /// space show it. `intact` has true for each guard byte that is unchanged; it is empty if there was no room for
    /// guard bytes.
    ///
    /// No trace contains that many guard bytes in a row. So if all are intact, the processor did not pass them: it made
    /// less than a lap. If bytes changed that the processor did not reach in this lap, it changed them in an earlier
    /// lap.
    pub(crate) fn guarded(&self, region: u32, offset: u64, intact: &[bool]) -> Written {
        let distance = self.distance(region, offset);
        let free = self.capacity() - self.undrained();
        if distance > free || intact.is_empty() {
            return Written::AtLeast(distance);
        }
        let untouched = (free - distance).min(intact.len() as u64) as usize;
        let (_, untouched) = intact.split_at(intact.len() - untouched);
        match (intact.contains(&false), untouched.contains(&false)) {
            (false, _) => Written::Exactly(distance),
            (true, true) => Written::AtLeast(distance + self.capacity()),
            (true, false) => Written::AtLeast(distance),
        }
    }

    /// Returns the part of the ring before the place `end`, which is from the tail to the head.
    pub(crate) const fn until(&self, end: u64) -> Self {
        Self { head: end, ..*self }
    }

    /// Returns the number of bytes between tail and head: never more than the capacity.
    pub(crate) const fn undrained(&self) -> u64 {
        self.head - self.tail
    }

    /// Adds the bytes that the processor has written. Overwritten bytes leave the ring; returns `None` if there are
    /// none.
    pub(crate) fn written(&mut self, written: Written) -> Option<Overwritten> {
        self.head += match written {
            Written::Exactly(bytes) | Written::AtLeast(bytes) => bytes,
        };
        let lost = self.head.saturating_sub(self.capacity()).saturating_sub(self.tail);
        self.tail += lost;
        match written {
            Written::Exactly(_) if lost == 0 => None,
            Written::Exactly(_) => Some(Overwritten::Exactly(lost)),
            Written::AtLeast(_) => Some(Overwritten::at_least(lost)),
        }
    }

    /// Removes drained bytes at the tail.
    pub(crate) const fn consume(&mut self, bytes: u64) {
        self.tail += bytes;
    }

    /// Moves to the beginning of the next region; only if everything is drained.
    pub(crate) fn skip_to_next_region(&mut self) {
        let (region, offset) = self.place(self.head);
        if offset > 0 {
            self.head += self.shape.size(region) - offset;
        }
        self.tail = self.head;
    }

    /// Returns the free part, with `spare` regions after the one with INT if there are that many.
    pub(crate) fn window(&self, spare: u32) -> Option<Window> {
        // The region with the tail is not free, not even before the tail: the processor would write it from its
        // beginning.
        let regions = u64::from(self.shape.regions());
        let first = self.number(self.head);
        let end = self.number(self.tail) + regions;
        if first >= end {
            return None;
        }
        let stop = end - 1;
        let wanted = stop.saturating_sub(spare.into());
        let int = if wanted < first { first } else { wanted };
        Some(Window {
            first: (first % regions) as u32,
            int: (int % regions) as u32,
            stop: (stop % regions) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: u64 = 0x1000;

    fn ring(regions: u32, tail: u64, head: u64) -> Ring {
        Ring::at(REGION, regions, tail, head)
    }

    #[test]
    fn the_distance_follows_from_the_position() {
        // (regions, head, region, offset, distance)
        let table = [
            (4, 0, 0, 0, 0),
            (4, 0, 0, 0x10, 0x10),
            (4, 0x10, 0, 0x30, 0x20),
            (4, 0x10, 2, 0x8, 0x1ff8),
            (4, 0x3ff0, 0, 0x20, 0x30),
            (4, 0x3ff0, 3, 0x1000, 0x10),
            (4, 0x5010, 1, 0x10, 0),
            (4, 0x5010, 1, 0x8, 0x3ff8),
            (4, 0, 3, 0x1000, 0),
            (1, 0x10, 0, 0x1000, 0xff0),
        ];
        for (regions, head, region, offset, distance) in table {
            let mut ring = ring(regions, head, head);
            assert_eq!(ring.distance(region, offset), distance, "{regions} {head:#x} {region} {offset:#x}");
            assert_eq!(ring.written(Written::Exactly(distance)), None);
            assert_eq!(ring.place(ring.head()), ring.place(u64::from(region) * REGION + offset));
        }
    }

    #[test]
    fn a_window_ends_before_the_region_with_the_tail() {
        let window = |first, int, stop| Some(Window { first, int, stop });
        // (regions, spare, tail, head, window)
        let table = [
            (4, 1, 0, 0, window(0, 2, 3)),
            (4, 3, 0, 0, window(0, 0, 3)),
            (4, 1, 0x10, 0x10, window(0, 2, 3)),
            (4, 1, 0x1000, 0x1000, window(1, 3, 0)),
            (4, 1, 0x2800, 0x2800, window(2, 0, 1)),
            (4, 1, 0, 0x1000, window(1, 2, 3)),
            (4, 1, 0, 0x2000, window(2, 2, 3)),
            (4, 1, 0, 0x3000, window(3, 3, 3)),
            (4, 1, 0, 0x3fff, window(3, 3, 3)),
            (4, 1, 0, 0x4000, None),
            (4, 1, 0xfff, 0x4000, None),
            (4, 1, 0x1000, 0x4000, window(0, 0, 0)),
            (2, 1, 0x5000, 0x5000, window(1, 1, 0)),
            (1, 0, 0, 0, window(0, 0, 0)),
            (1, 0, 0, 0x1000, None),
        ];
        for (regions, spare, tail, head, window) in table {
            assert_eq!(ring(regions, tail, head).window(spare), window, "{regions} {tail:#x}..{head:#x}");
        }
    }

    #[test]
    fn overwritten_bytes_leave_the_ring() {
        use Written::{AtLeast, Exactly};
        // (tail, head, written, lost, tail after)
        let table = [
            (0, 0, Exactly(0x4000), None, 0),
            (0, 0x3000, Exactly(0x1001), Some(Overwritten::Exactly(1)), 1),
            (0x800, 0x800, Exactly(0x4800), Some(Overwritten::Exactly(0x800)), 0x1000),
            (0x1000, 0x1000, Exactly(0), None, 0x1000),
            (0x1000, 0x1000, AtLeast(0x10), Some(Overwritten::Perhaps), 0x1000),
            (0x1000, 0x1800, AtLeast(0x4000), Some(Overwritten::AtLeast(0x800)), 0x1800),
        ];
        for (tail, head, written, lost, after) in table {
            let mut ring = ring(4, tail, head);
            assert_eq!(ring.written(written), lost);
            assert_eq!(ring.tail(), after);
        }
    }

    #[test]
    fn a_driven_chain_goes_on_at_the_next_region() {
        let mut ring = ring(2, 0x1000, 0x1000);
        ring.skip_to_next_region();
        assert_eq!((ring.tail(), ring.head()), (0x1000, 0x1000));
        assert_eq!(ring.written(Written::Exactly(0x20)), None);
        ring.consume(0x20);
        ring.skip_to_next_region();
        assert_eq!((ring.tail(), ring.head()), (0x2000, 0x2000));
        assert_eq!(ring.place(ring.head()), (0, 0));
    }
}
