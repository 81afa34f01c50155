//! The places from which a guest accesses memory that it does not have: each is reported once.

use alloc::vec::Vec;

use crate::guest_map::PAGE;

/// The report that an access requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// The access is the first from its place.
    First,
    /// The access is the first from its place, and the last to be reported.
    Last,
    /// The access is not reported.
    None,
}

/// The reported places: the instruction, and the page that it accessed.
#[derive(Debug, Default)]
pub struct MissingPlaces(Vec<(u64, u64)>);

impl MissingPlaces {
    /// Maximum number of reported places. A guest that searches everywhere for memory would flood the reader.
    pub const MAX: usize = 256;

    /// Returns an empty set of places.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Notes that the instruction at `rip` has accessed `address`.
    pub fn note(&mut self, rip: u64, address: u64) -> Telling {
        let place = (rip, address & !(PAGE - 1));
        if self.is_full() || self.0.contains(&place) {
            return Telling::None;
        }
        self.0.push(place);
        if self.is_full() { Telling::Last } else { Telling::First }
    }

    /// Returns whether nothing more is reported.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.0.len() >= Self::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_told_once() {
        let mut places = MissingPlaces::new();
        for (rip, address, expected) in [
            (0x1000, 0x1000_0000, Telling::First),
            (0x1000, 0x1000_0000, Telling::None),
            (0x1000, 0x1000_0fff, Telling::None),
            (0x1000, 0x1000_1000, Telling::First),
            (0x1004, 0x1000_0000, Telling::First),
            (0x1004, 0x1000_0008, Telling::None),
        ] {
            assert_eq!(places.note(rip, address), expected, "{rip:#x} {address:#x}");
        }
    }

    #[test]
    fn of_many_places_the_first_are_told() {
        let mut places = MissingPlaces::new();
        let told: Vec<_> = (0..300).map(|page| places.note(0x1000, page * PAGE)).collect();
        let last = MissingPlaces::MAX - 1;
        assert!(told[..last].iter().all(|told| *told == Telling::First));
        assert_eq!(told[last], Telling::Last);
        assert!(places.is_full() && told[last + 1..].iter().all(|told| *told == Telling::None));
    }
}
