//! The transitions between two blocks, each with its count.

/// Half of the places are free: most are found at the first one that is looked at.
const FIRST_PLACES: usize = 1 << 10;

/// A transition from one block to another, and data about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Transition<W> {
    before: u32,
    /// The next block; 0 if the place is free.
    to: u32,
    times: u64,
    notes: W,
}

/// Transitions by the numbers of both blocks, of which the second is not 0.
///
/// Each block that is executed is looked up here, so it must cost less than a general table of hashes.
#[derive(Debug)]
pub(super) struct Transitions<W> {
    /// A power of two of places, with each transition at the first free one from the place of its hash on.
    places: Vec<Transition<W>>,
    shift: u32,
    used: usize,
}

impl<W: Copy + Default> Transitions<W> {
    pub(super) fn new() -> Self {
        Self::with_places(FIRST_PLACES)
    }

    fn with_places(count: usize) -> Self {
        Self { places: vec![Transition::default(); count], shift: 64 - count.ilog2(), used: 0 }
    }

    /// Returns the place that is looked at first.
    #[inline]
    fn first(&self, before: u32, to: u32) -> usize {
        let key = u64::from(before) << 32 | u64::from(to);
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    /// Counts a transition `times` times and returns its data; `None` if it is not known.
    #[inline]
    pub(super) fn count(&mut self, before: u32, to: u32, times: u64) -> Option<W> {
        let first = self.first(before, to);
        let place = self.places.get_mut(first)?;
        if (place.before, place.to) == (before, to) {
            place.times += times;
            return Some(place.notes);
        }
        self.count_from(first, before, to, times)
    }

    #[inline(never)]
    fn count_from(&mut self, first: usize, before: u32, to: u32, times: u64) -> Option<W> {
        let at = self.find(first, before, to);
        let place = &mut self.places[at];
        if place.to == 0 {
            return None;
        }
        place.times += times;
        Some(place.notes)
    }

    /// Returns the place of a transition, or the free one for it.
    fn find(&self, first: usize, before: u32, to: u32) -> usize {
        let mask = self.places.len() - 1;
        let mut at = first;
        while self.places[at].to != 0 && (self.places[at].before, self.places[at].to) != (before, to) {
            at = (at + 1) & mask;
        }
        at
    }

    /// Adds a transition that is not known, with its count.
    pub(super) fn add(&mut self, before: u32, to: u32, times: u64, notes: W) {
        if 2 * self.used >= self.places.len() {
            let more = Self::with_places(2 * self.places.len());
            let few = std::mem::replace(self, more);
            for old in few.places.into_iter().filter(|old| old.to != 0) {
                self.add(old.before, old.to, old.times, old.notes);
            }
        }
        let at = self.find(self.first(before, to), before, to);
        self.places[at] = Transition { before, to, times, notes };
        self.used += 1;
    }

    /// Returns all transitions that were counted, in no order: the numbers of the blocks, and the count.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, u32, u64)> + '_ {
        let known = self.places.iter().filter(|place| place.to != 0 && place.times != 0);
        known.map(|place| (place.before, place.to, place.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_transition_has_its_own_count_and_data() {
        let (mut transitions, mut expected) = (Transitions::<u32>::new(), BTreeMap::new());
        let mut random = 1_u64;
        for _ in 0..40_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (before, to) = ((random >> 40) as u32 % 60, 1 + (random >> 50) as u32 % 60);
            let notes = before * 1_000 + to;
            let known = expected.contains_key(&(before, to));
            assert_eq!(transitions.count(before, to, 1), known.then_some(notes));
            if !known {
                transitions.add(before, to, 1, notes);
            }
            *expected.entry((before, to)).or_insert(0_u64) += 1;
        }
        let found: BTreeMap<_, _> = transitions.all().map(|(from, to, times)| ((from, to), times)).collect();
        assert!(found.len() > FIRST_PLACES, "{}", found.len());
        assert_eq!(found, expected);
        assert_eq!(transitions.all().count(), expected.len());
    }
}
