//! Rings that a program has begun and nobody has read yet.

use super::plugin::wire::{Ring, Rings};
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
        self.unread.extend(rings.begun_since(&mut self.begun));
        let mut found = vec![];
        self.unread
            .retain(|number| Ring::open(rings, *number).map(|ring| found.push((ring, *number))).is_none());
        found.sort_by_key(|(ring, _)| ring.header().made.load(Relaxed));
        found
    }

    /// Puts a ring back, because what it belongs to was filled in after it was looked at.
    pub(super) fn put_back(&mut self, number: u32) {
        self.unread.push(number);
    }
}
