//! Keeps track of free physical memory.

use core::ops::Range;

/// Maximum number of separate regions; further ones are not used.
const CAPACITY: usize = 64;

/// Regions of free physical memory, by address.
#[derive(Clone, Debug)]
pub struct Regions {
    regions: [(u64, u64); CAPACITY],
    len: usize,
}

impl Regions {
    /// Returns an empty set of regions.
    #[must_use]
    pub const fn new() -> Self {
        Self { regions: [(0, 0); CAPACITY], len: 0 }
    }

    /// Adds free memory. It must not overlap regions that are already free.
    pub fn add(&mut self, mut region: Range<u64>) {
        if region.is_empty() {
            return;
        }
        // Merge it with its neighbours.
        let mut kept = 0;
        for index in 0..self.len {
            let (start, end) = self.regions[index];
            if end == region.start {
                region.start = start;
            } else if start == region.end {
                region.end = end;
            } else {
                self.regions[kept] = (start, end);
                kept += 1;
            }
        }
        self.len = kept;
        if self.len < CAPACITY {
            self.regions[self.len] = (region.start, region.end);
            self.len += 1;
            self.regions[..self.len].sort_unstable();
        }
    }

    /// Removes a range, free or not.
    pub fn remove(&mut self, range: Range<u64>) {
        let before = self.clone();
        self.len = 0;
        for region in before.iter() {
            if range.is_empty() || range.end <= region.start || range.start >= region.end {
                self.add(region);
            } else {
                self.add(region.start..range.start.max(region.start));
                self.add(range.end.min(region.end)..region.end);
            }
        }
    }

    /// Takes `size` bytes, aligned to `align` (a power of two), from the lowest region that has them.
    pub fn take(&mut self, size: u64, align: u64) -> Option<u64> {
        let start = self.iter().find_map(|region| {
            let start = region.start.checked_next_multiple_of(align)?;
            (start.checked_add(size)? <= region.end).then_some(start)
        })?;
        self.remove(start..start + size);
        Some(start)
    }

    /// Iterates over the regions, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.regions[..self.len].iter().map(|&(start, end)| start..end)
    }
}

impl Default for Regions {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn regions(ranges: &[Range<u64>]) -> Regions {
        let mut regions = Regions::new();
        ranges.iter().for_each(|range| regions.add(range.clone()));
        regions
    }

    #[test]
    fn removes_what_overlaps() {
        for (remove, left) in [
            (0..5, &[10..20, 30..40, 60..61][..]),
            (0..10, &[10..20, 30..40, 60..61]),
            (5..15, &[15..20, 30..40, 60..61]),
            (12..15, &[10..12, 15..20, 30..40, 60..61]),
            (15..35, &[10..15, 35..40, 60..61]),
            (0..70, &[]),
            (10..31, &[31..40, 60..61]),
            (15..15, &[10..20, 30..40, 60..61]),
        ] {
            let mut regions = regions(&[30..40, 10..20, 60..61]);
            regions.remove(remove.clone());
            assert_eq!(regions.iter().collect::<Vec<_>>(), left, "{remove:?}");
        }
    }

    #[test]
    fn takes_the_lowest_that_is_aligned_and_large_enough() {
        let mut regions = regions(&[0x1800..0x3000, 0x8000..0x20000]);
        assert_eq!(regions.take(0x1000, 0x1000), Some(0x2000));
        assert_eq!(regions.take(0x1000, 0x1000), Some(0x8000));
        assert_eq!(regions.take(0x8000, 0x8000), Some(0x10000));
        assert_eq!(regions.take(0x10000, 1), None);
        assert_eq!(regions.take(u64::MAX, 1), None);
        assert_eq!(regions.iter().collect::<Vec<_>>(), [0x1800..0x2000, 0x9000..0x10000, 0x18000..0x20000]);
    }

    #[test]
    fn neighbours_become_one() {
        let mut regions = regions(&[10..20, 30..40, 50..60]);
        for (add, left) in [
            (40..50, &[10..20, 30..60][..]),
            (5..10, &[5..20, 30..60]),
            (20..25, &[5..25, 30..60]),
            (25..30, &[5..60, 70..71]),
        ] {
            regions.add(add.clone());
            if add.end == 30 {
                regions.add(70..71);
            }
            assert_eq!(regions.iter().collect::<Vec<_>>(), left, "{add:?}");
        }
    }

    #[test]
    fn drops_what_does_not_fit() {
        let mut regions = Regions::new();
        (0..200).for_each(|n| regions.add(n * 10..n * 10 + 5));
        assert_eq!(regions.iter().count(), CAPACITY);
    }
}
