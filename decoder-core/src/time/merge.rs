//! The traces of several processors as one, by time.

use core::fmt;
use core::iter::Fuse;

/// A merge of the items of several processors: each processor is an iterator of times and items, and the result is all
/// items in the order of their times, each with the index of its processor.
///
/// A time is a TSC value, as returned by [`Moment::tsc`](super::Moment::tsc) or a decoder's `time()`. The TSCs of the
/// processors must be synchronized, as they are after a reset on all that announce an invariant TSC, unless software
/// has written one. Only the lower 56 bits are compared, those of a TSC packet, so times may wrap around within the
/// trace; two times that are compared must be less than 2^55 ticks apart.
///
/// Items of one processor keep their order: one whose time is before that of the previous item counts as simultaneous
/// with it. Of simultaneous items, those of the lower index come first. The order of two processors' items is the true
/// order if the errors of both times ([`Moment::error`](super::Moment::error)) together are less than the distance.
///
/// The merge holds one item of each processor at a time, and searches all of these for the next one.
///
/// ```
/// use pugmark_decoder_core::time::{Merge, ProcessorItems};
///
/// let (first, second) = ([(10, "lock"), (40, "unlock")], [(20, "wait"), (41, "lock")]);
/// let mut processors = [first, second].map(ProcessorItems::new);
/// let merged: Vec<_> = Merge::new(&mut processors).map(|merged| (merged.processor, merged.item)).collect();
/// assert_eq!(merged, [(0, "lock"), (1, "wait"), (0, "unlock"), (1, "lock")]);
/// ```
///
/// Source: SDM vol. 3, Time-Stamp Counter, "Invariant TSC"; Intel Processor Trace, "Timestamp Counter (TSC) Packet".
pub struct Merge<'p, I: Iterator> {
    processors: &'p mut [ProcessorItems<I>],
}

/// The items of one processor, in order.
pub struct ProcessorItems<I: Iterator> {
    items: Fuse<I>,
    next: Option<I::Item>,
    /// The latest time so far.
    time: Option<u64>,
}

/// An item in the order of all processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged<T> {
    /// The index of its processor.
    pub processor: usize,
    /// Its time; that of the previous item of the same processor, if that is later.
    pub tsc: u64,
    /// The item.
    pub item: T,
}

impl<T, I: Iterator<Item = (u64, T)>> ProcessorItems<I> {
    /// Creates the items of one processor: times and items, in the processor's order.
    pub fn new(items: impl IntoIterator<Item = (u64, T), IntoIter = I>) -> Self {
        Self { items: items.into_iter().fuse(), next: None, time: None }
    }

    /// Returns the time of the next item.
    fn time(&mut self) -> Option<u64> {
        if self.next.is_none() {
            self.next = self.items.next();
        }
        let (tsc, _) = self.next.as_ref()?;
        Some(self.time.filter(|&time| is_before(*tsc, time)).unwrap_or(*tsc))
    }
}

impl<'p, T, I: Iterator<Item = (u64, T)>> Merge<'p, I> {
    /// Creates the merge of these processors' items.
    pub const fn new(processors: &'p mut [ProcessorItems<I>]) -> Self {
        Self { processors }
    }
}

impl<T, I: Iterator<Item = (u64, T)>> Iterator for Merge<'_, I> {
    type Item = Merged<T>;

    fn next(&mut self) -> Option<Merged<T>> {
        let mut first: Option<(usize, u64)> = None;
        for (processor, items) in self.processors.iter_mut().enumerate() {
            let Some(time) = items.time() else { continue };
            if first.is_none_or(|(_, first)| is_before(time, first)) {
                first = Some((processor, time));
            }
        }
        let (processor, tsc) = first?;
        let items = self.processors.get_mut(processor)?;
        items.time = Some(tsc);
        let (_, item) = items.next.take()?;
        Some(Merged { processor, tsc, item })
    }
}

impl<I: Iterator> fmt::Debug for ProcessorItems<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessorItems").field("time", &self.time).finish_non_exhaustive()
    }
}

impl<I: Iterator> fmt::Debug for Merge<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Merge").field(&self.processors).finish()
    }
}

/// Returns true if `tsc` is before `other`, by the shorter way around their lower 56 bits.
const fn is_before(tsc: u64, other: u64) -> bool {
    ((tsc.wrapping_sub(other) << 8) as i64) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;
    use std::vec::Vec;

    const WRAP: u64 = 1 << 56;

    fn merged(processors: &[&[u64]]) -> Vec<(usize, u64, usize)> {
        let items = |times: &&[u64]| {
            let items: Vec<_> = times.iter().copied().zip(0..).collect();
            ProcessorItems::new(items)
        };
        let mut processors: Vec<_> = processors.iter().map(items).collect();
        Merge::new(&mut processors).map(|Merged { processor, tsc, item }| (processor, tsc, item)).collect()
    }

    /// The times of each processor's items, and the merged ones: processor, time, the item's number.
    type Row<'a> = (&'a [&'a [u64]], &'a [(usize, u64, usize)]);

    #[test]
    fn items_come_by_time_and_those_of_a_processor_in_their_order() {
        let rows: [Row<'_>; 8] = [
            (&[], &[]),
            (&[&[], &[]], &[]),
            (&[&[5, 6], &[]], &[(0, 5, 0), (0, 6, 1)]),
            (
                &[&[1, 4], &[2, 3], &[0, 9]],
                &[(2, 0, 0), (0, 1, 0), (1, 2, 0), (1, 3, 1), (0, 4, 1), (2, 9, 1)],
            ),
            // Simultaneous items: the lower index first.
            (&[&[7, 7], &[7]], &[(0, 7, 0), (0, 7, 1), (1, 7, 0)]),
            // The time of an item goes back: it stays after the previous item, and others keep their places.
            (&[&[5, 3, 9], &[4, 6]], &[(1, 4, 0), (0, 5, 0), (0, 5, 1), (1, 6, 1), (0, 9, 2)]),
            // The 56 bits wrap around, on one processor before the other, and with more bits than those.
            (&[&[WRAP - 2, 3], &[WRAP - 1, 1]], &[(0, WRAP - 2, 0), (1, WRAP - 1, 0), (1, 1, 1), (0, 3, 1)]),
            (&[&[WRAP + 2, WRAP + 3], &[1, 4]], &[(1, 1, 0), (0, WRAP + 2, 0), (0, WRAP + 3, 1), (1, 4, 1)]),
        ];
        for (processors, expected) in rows {
            assert_eq!(merged(processors), expected, "{processors:x?}");
        }
    }

    #[test]
    fn a_processor_that_has_ended_is_not_asked_again() {
        let mut asked = 0;
        let ends = core::iter::from_fn(|| {
            asked += 1;
            assert!(asked < 3, "it has ended");
            (asked < 2).then_some((8, ()))
        });
        let ends: &mut dyn Iterator<Item = (u64, ())> = &mut { ends };
        let lasts: &mut dyn Iterator<Item = (u64, ())> = &mut (7..20).map(|tsc| (tsc, ()));
        let mut processors = [ends, lasts].map(ProcessorItems::new);
        assert_eq!(Merge::new(&mut processors).count(), 14);
    }
}
