//! Rings that a program has begun and nobody has read yet.

use super::plugin::{rings::Rings, wire::Ring};
use std::sync::{Arc, atomic::Ordering::Relaxed};

/// The rings that are new.
#[derive(Default)]
pub(super) struct NewRings {
    /// The number of rings that were begun when they were last looked for.
    begun: u32,
    /// The numbers of those that are not filled in, or that were put back.
    unread: Vec<u32>,
}

impl NewRings {
    /// Takes the rings that are filled in, each with its number: a process is before its threads, and one that was
    /// started first comes first.
    pub(super) fn take(&mut self, rings: &Arc<Rings>) -> Vec<(Ring, u32)> {
        self.begin(rings.begun());
        let mut found = vec![];
        self.unread
            .retain(|number| Ring::open(rings, *number).map(|ring| found.push((ring, *number))).is_none());
        found.sort_by_key(|(ring, _)| ring.header().made.load(Relaxed));
        found
    }

    /// Notes the rings that begin up to a number, which is read once: another can begin at any time.
    fn begin(&mut self, begun: u32) {
        self.unread.extend(self.begun..begun);
        self.begun = begun;
    }

    /// Puts a ring back, because the recorder could not yet tell what it belongs to.
    pub(super) fn put_back(&mut self, number: u32) {
        self.unread.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::super::plugin::{rings::tests::rings, wire::Mapping};
    use super::*;

    #[test]
    fn each_ring_is_taken_once_by_age_as_soon_as_it_is_filled_in() {
        let (rings, mut new) = (rings(5), NewRings::default());
        let mut numbers = || new.take(&rings).into_iter().map(|(_, number)| number).collect::<Vec<_>>();
        let ring = |made| {
            Ring::create(&rings, Mapping::WithOthers, |header| header.made.store(made, Relaxed)).unwrap()
        };
        assert!(numbers().is_empty());
        let _younger = ring(9);
        let late = rings.take().unwrap();
        let _older = ring(3);
        assert_eq!(numbers(), [2, 0]);
        let _last = ring(10);
        // SAFETY: it is in the mapping, and all of its fields are atomic.
        unsafe { late.as_ref() }.ready.store(1, Relaxed);
        assert_eq!(numbers(), [1, 3]);
        assert!(numbers().is_empty());
        new.put_back(3);
        assert_eq!(new.take(&rings).len(), 1);
    }
}
