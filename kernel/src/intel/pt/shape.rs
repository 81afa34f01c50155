//! The sizes of a buffer's regions.

/// The number of sizes that ToPA has: 4 KiB to 128 MiB.
const SIZES: usize = 16;

/// The regions of a buffer in their order, largest first: the number of regions of each size, where each size is half
/// of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The size of the first region.
    first: u64,
    counts: [u32; SIZES],
}

impl Shape {
    /// No region yet.
    pub(crate) const EMPTY: Self = Self { first: 0, counts: [0; SIZES] };

    /// Returns `regions` regions of one size, which may be any.
    pub(crate) const fn equal(bytes: u64, regions: u32) -> Self {
        let mut counts = [0; SIZES];
        counts[0] = regions;
        Self { first: bytes, counts }
    }

    /// Adds a region at the end. Its size is that of the region before, or a half, a quarter and so on of that.
    pub(crate) fn push(&mut self, bytes: u64) {
        if self.regions() == 0 {
            self.first = bytes;
        }
        let class = (self.first / bytes).ilog2() as usize;
        debug_assert!(
            self.first >> class == bytes && self.counts[class + 1..].iter().all(|&count| count == 0)
        );
        self.counts[class] += 1;
    }

    /// Returns the number of regions.
    pub(crate) fn regions(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// Returns the size of all regions together, in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.classes().map(|(size, count)| size * u64::from(count)).sum()
    }

    /// Returns the size of a region.
    pub(crate) fn size(&self, region: u32) -> u64 {
        self.start_and_size(region).1
    }

    /// Returns the number of bytes in the regions before this one.
    pub(crate) fn start(&self, region: u32) -> u64 {
        self.start_and_size(region).0
    }

    fn start_and_size(&self, region: u32) -> (u64, u64) {
        let (mut left, mut start) = (region, 0);
        for (size, count) in self.classes() {
            if left < count {
                return (start + size * u64::from(left), size);
            }
            left -= count;
            start += size * u64::from(count);
        }
        (start, 0)
    }

    /// Returns the region that has the byte `at` of all, and the byte's offset in it.
    pub(crate) fn place(&self, at: u64) -> (u32, u64) {
        let (mut left, mut region) = (at, 0);
        for (size, count) in self.classes() {
            let all = size * u64::from(count);
            if left < all {
                return (region + (left / size) as u32, left % size);
            }
            left -= all;
            region += count;
        }
        (region, left)
    }

    /// Returns the sizes of which there are regions, with their numbers.
    fn classes(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let classes = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        classes.map(|(class, &count)| (self.first >> class, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_sizes_are_those_of_a_list() {
        for sizes in [&[64][..], &[64, 64, 16], &[8, 4, 4, 2, 1, 1], &[32, 1], &[5, 5, 5]] {
            let mut shape = Shape::EMPTY;
            match sizes[0] {
                5 => shape = Shape::equal(5, 3),
                _ => sizes.iter().for_each(|&size| shape.push(size)),
            }
            let bytes: Vec<(u32, u64)> = sizes
                .iter()
                .zip(0..)
                .flat_map(|(&size, region)| (0..size).map(move |offset| (region, offset)))
                .collect();
            assert_eq!((shape.regions() as usize, shape.capacity()), (sizes.len(), bytes.len() as u64));
            for (at, &(region, offset)) in (0..).zip(&bytes) {
                assert_eq!(shape.place(at), (region, offset), "{sizes:?} {at}");
                assert_eq!(shape.start(region) + offset, at, "{sizes:?} {at}");
                assert_eq!(shape.size(region), sizes[region as usize], "{sizes:?} {region}");
            }
        }
    }
}
