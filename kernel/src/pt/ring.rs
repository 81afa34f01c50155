//! Where a trace stands in its buffer: pure arithmetic.

/// A ring of equal regions, with the places where the trace was written and drained to.
///
/// Places are bytes since the trace began and never wrap; modulo the capacity they are offsets in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    region: u64,
    regions: u64,
    tail: u64,
    head: u64,
}

/// The free part of a ring that must not be overwritten, in regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// The region where the trace goes on.
    pub(crate) first: u32,
    /// The one whose end asks for a PMI.
    pub(crate) int: u32,
    /// The last one that is free.
    pub(crate) stop: u32,
}

impl Ring {
    /// An empty ring.
    pub(crate) const fn new(region_bytes: u64, regions: u32) -> Self {
        Self { region: region_bytes, regions: regions as u64, tail: 0, head: 0 }
    }

    pub(crate) const fn tail(&self) -> u64 {
        self.tail
    }

    pub(crate) const fn head(&self) -> u64 {
        self.head
    }

    pub(crate) const fn capacity(&self) -> u64 {
        self.region * self.regions
    }

    /// The region and the offset in it. A region's end is the next one's begin.
    pub(crate) const fn place(&self, at: u64) -> (u32, u64) {
        ((at / self.region % self.regions) as u32, at % self.region)
    }

    /// How many bytes the processor has written to come to `offset` of `region`, if it went round less than once.
    pub(crate) const fn distance(&self, region: u32, offset: u64) -> u64 {
        let capacity = self.capacity();
        let now = (region as u64 * self.region + offset) % capacity;
        (now + capacity - self.head % capacity) % capacity
    }

    /// The processor has written so many bytes.
    pub(crate) const fn written(&mut self, bytes: u64) {
        self.head += bytes;
    }

    /// Drops what was overwritten, and says how many bytes that is.
    pub(crate) const fn drop_overwritten(&mut self) -> u64 {
        let oldest = self.head.saturating_sub(self.capacity());
        let lost = oldest.saturating_sub(self.tail);
        self.tail += lost;
        lost
    }

    /// The ring holds what was written last up to `offset` of `region`, and if `wrapped` it is full of it.
    pub(crate) const fn snapshot(&mut self, region: u32, offset: u64, wrapped: bool) {
        let now = (region as u64 * self.region + offset) % self.capacity();
        self.head = if wrapped { now + self.capacity() } else { now };
        self.tail = if wrapped { now } else { 0 };
    }

    /// Bytes from the tail on are drained.
    pub(crate) const fn consume(&mut self, bytes: u64) {
        self.tail += bytes;
    }

    /// Goes on at the next region's begin; only where all is drained.
    pub(crate) const fn skip_to_next_region(&mut self) {
        self.head = self.head.next_multiple_of(self.region);
        self.tail = self.head;
    }

    /// What is free, with `spare` regions behind the one with INT where there are so many.
    pub(crate) const fn window(&self, spare: u32) -> Option<Window> {
        // The region with the tail is not free, not even the bytes before the tail: it would be written from its begin.
        let first = self.head / self.region;
        let end = self.tail / self.region + self.regions;
        if first >= end {
            return None;
        }
        let stop = end - 1;
        let wanted = stop.saturating_sub(spare as u64);
        let int = if wanted < first { first } else { wanted };
        Some(Window {
            first: (first % self.regions) as u32,
            int: (int % self.regions) as u32,
            stop: (stop % self.regions) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: u64 = 0x1000;

    fn ring(regions: u32, tail: u64, head: u64) -> Ring {
        Ring { region: REGION, regions: u64::from(regions), tail, head }
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
            ring.written(distance);
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
        // (tail, head, lost, tail after)
        let table = [
            (0, 0x4000, 0, 0),
            (0, 0x4001, 1, 1),
            (0x800, 0x5000, 0x800, 0x1000),
            (0x1000, 0x1000, 0, 0x1000),
        ];
        for (tail, head, lost, after) in table {
            let mut ring = ring(4, tail, head);
            assert_eq!(ring.drop_overwritten(), lost);
            assert_eq!(ring.tail(), after);
        }
    }

    #[test]
    fn a_snapshot_is_the_first_lap_or_the_whole_ring() {
        // (region, offset, wrapped, tail, head)
        let table = [
            (0, 0, false, 0, 0),
            (2, 5, false, 0, 0x2005),
            (2, 5, true, 0x2005, 0x6005),
            (3, 0x1000, true, 0, 0x4000),
        ];
        for (region, offset, wrapped, tail, head) in table {
            let mut ring = ring(4, 0, 0);
            ring.snapshot(region, offset, wrapped);
            assert_eq!((ring.tail(), ring.head()), (tail, head));
        }
    }

    #[test]
    fn a_driven_chain_goes_on_at_the_next_region() {
        let mut ring = ring(2, 0x1000, 0x1000);
        ring.skip_to_next_region();
        assert_eq!((ring.tail(), ring.head()), (0x1000, 0x1000));
        ring.written(0x20);
        ring.consume(0x20);
        ring.skip_to_next_region();
        assert_eq!((ring.tail(), ring.head()), (0x2000, 0x2000));
        assert_eq!(ring.place(ring.head()), (0, 0));
    }
}
