//! The places in a buffer where something is missing.

use crate::loss::{Gap, Overwritten};
use bitflags::bitflags;

/// A short list of places with gaps, in order. A place is a number of bytes since the trace began.
///
/// All kinds of gaps at one place are noted together, so that a place always has room for another kind. A new place
/// arises only after the trace has run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gaps {
    /// The bytes that were overwritten before all remaining bytes.
    wrap: Option<(u64, Overwritten)>,
    places: [Option<(u64, Kinds)>; Self::MAX],
}

bitflags! {
    /// The kinds of gaps besides overwritten bytes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Kinds: u8 {
        const STOP = 1 << 0;
        const ERROR = 1 << 1;
        const ABANDONED = 1 << 2;
        const EXCLUDED = 1 << 3;
        const FULL = 1 << 4;
        const TURNED_OFF = 1 << 5;
    }
}

impl Kinds {
    /// Returns the kind of a gap; none for overwritten bytes.
    fn of(gap: Gap) -> Self {
        IN_ORDER.iter().find(|(_, other)| *other == gap).map_or(Self::empty(), |(kind, _)| *kind)
    }
}

impl Gaps {
    const MAX: usize = 8;

    /// Returns an empty list.
    pub(crate) const fn new() -> Self {
        Self { wrap: None, places: [None; Self::MAX] }
    }

    /// Returns whether no further place can be noted: the trace must not resume before some are drained.
    pub(crate) const fn is_full(&self) -> bool {
        self.places[Self::MAX - 1].is_some()
    }

    /// Notes a gap at `place`, which is at or after all other gaps.
    pub(crate) fn push(&mut self, place: u64, gap: Gap) {
        if let Gap::Wrap(overwritten) = gap {
            return self.wrap(place, overwritten);
        }
        let kind = Kinds::of(gap);
        let last = self.places.iter_mut().rev().find_map(Option::as_mut);
        if let Some((_, kinds)) = last.filter(|(at, _)| *at == place) {
            kinds.insert(kind);
        } else if let Some(free) = self.places.iter_mut().find(|slot| slot.is_none()) {
            *free = Some((place, kind));
        }
    }

    /// Moves the gaps at one place to a later one: only padding is between the two.
    pub(crate) fn carry(&mut self, from: u64, to: u64) {
        for (place, _) in self.places.iter_mut().flatten().filter(|(place, _)| *place == from) {
            *place = to;
        }
    }

    /// Notes that everything before `place` was overwritten, with the gaps in it. `overwritten` counts the bytes that
    /// were not noted before.
    pub(crate) fn wrap(&mut self, place: u64, overwritten: Overwritten) {
        if let Some(before) = place.checked_sub(1) {
            self.drop_until(before);
        }
        let before = self.wrap.map_or(Overwritten::Exactly(0), |(_, before)| before);
        self.wrap = Some((place, before.and(overwritten)));
    }

    /// Returns the bytes noted as overwritten.
    pub(crate) fn overwritten(&self) -> Option<Overwritten> {
        self.wrap.map(|(_, overwritten)| overwritten)
    }

    /// Returns the place of the first gap.
    pub(crate) fn first_place(&self) -> Option<u64> {
        self.wrap.map(|(place, _)| place).or(self.places[0].map(|(place, _)| place))
    }

    /// Returns the place of the last gap that is not about overwritten bytes.
    pub(crate) fn last_place(&self) -> Option<u64> {
        self.places.iter().rev().find_map(|place| place.map(|(place, _)| place))
    }

    /// Forgets the gaps up to and including `place` that are not about overwritten bytes.
    pub(crate) fn drop_until(&mut self, place: u64) {
        while self.places[0].is_some_and(|(at, _)| at <= place) {
            self.drop_first();
        }
    }

    /// Returns the place of the second gap that is not about overwritten bytes.
    pub(crate) fn second_place(&self) -> Option<u64> {
        self.places[1].map(|(place, _)| place)
    }

    /// Returns the first gap if it is at or before `place`.
    pub(crate) fn first_until(&self, place: u64) -> Option<Gap> {
        match self.wrap {
            Some((at, overwritten)) if at <= place => return Some(Gap::Wrap(overwritten)),
            _ => {}
        }
        let (_, kinds) = self.places[0].filter(|(at, _)| *at <= place)?;
        IN_ORDER.iter().find(|(kind, _)| kinds.contains(*kind)).map(|(_, gap)| *gap)
    }

    /// Takes the first gap if it is at or before `place`.
    pub(crate) fn take_until(&mut self, place: u64) -> Option<Gap> {
        let gap = self.first_until(place)?;
        match (gap, &mut self.places[0]) {
            (Gap::Wrap(_), _) => self.wrap = None,
            (_, Some((_, kinds))) => {
                kinds.remove(Kinds::of(gap));
                if kinds.is_empty() {
                    self.drop_first();
                }
            }
            _ => {}
        }
        Some(gap)
    }

    fn drop_first(&mut self) {
        self.places[0] = None;
        self.places.rotate_left(1);
    }
}

/// The order of gaps at one place: first the causes that cut the trace, then those that kept it off.
const IN_ORDER: [(Kinds, Gap); 6] = [
    (Kinds::STOP, Gap::Stop),
    (Kinds::ERROR, Gap::Error),
    (Kinds::TURNED_OFF, Gap::TurnedOff),
    (Kinds::ABANDONED, Gap::Abandoned),
    (Kinds::EXCLUDED, Gap::Excluded),
    (Kinds::FULL, Gap::Full),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::Overwritten::{AtLeast, Exactly, Perhaps};

    #[test]
    fn gaps_come_in_order_and_at_their_place() {
        let mut gaps = Gaps::new();
        gaps.push(10, Gap::Stop);
        gaps.push(20, Gap::Error);
        assert_eq!(gaps.take_until(9), None);
        assert_eq!(gaps.first_place(), Some(10));
        assert_eq!(gaps.take_until(10), Some(Gap::Stop));
        assert_eq!(gaps.take_until(10), None);
        assert_eq!(gaps.take_until(30), Some(Gap::Error));
        assert_eq!(gaps.first_place(), None);
    }

    #[test]
    fn each_kind_is_told_once_at_a_place() {
        let all = [Gap::Stop, Gap::Error, Gap::TurnedOff, Gap::Abandoned, Gap::Excluded, Gap::Full];
        let mut gaps = Gaps::new();
        for _ in 0..Gaps::MAX {
            all.into_iter().rev().for_each(|gap| gaps.push(10, gap));
        }
        gaps.push(20, Gap::Stop);
        assert!(!gaps.is_full());
        for gap in all {
            assert_eq!((gaps.first_place(), gaps.take_until(10)), (Some(10), Some(gap)));
        }
        assert_eq!(gaps.take_until(10), None);
        assert_eq!(gaps.take_until(20), Some(Gap::Stop));
    }

    #[test]
    fn padding_comes_before_what_is_missing_at_its_end() {
        let mut gaps = Gaps::new();
        gaps.push(10, Gap::Stop);
        gaps.push(20, Gap::Abandoned);
        gaps.carry(20, 32);
        gaps.push(32, Gap::Full);
        assert_eq!(gaps.take_until(10), Some(Gap::Stop));
        assert_eq!((gaps.take_until(31), gaps.take_until(32)), (None, Some(Gap::Abandoned)));
        assert_eq!(gaps.take_until(32), Some(Gap::Full));
    }

    #[test]
    fn a_wrap_swallows_the_gaps_before_it_and_comes_before_the_others() {
        let mut gaps = Gaps::new();
        gaps.push(10, Gap::Stop);
        gaps.push(35, Gap::Stop);
        gaps.push(40, Gap::Error);
        gaps.wrap(30, Exactly(100));
        assert_eq!((gaps.first_place(), gaps.overwritten()), (Some(30), Some(Exactly(100))));
        gaps.wrap(35, Exactly(7));
        assert_eq!(gaps.take_until(34), None);
        assert_eq!(gaps.take_until(50), Some(Gap::Wrap(Exactly(107))));
        assert_eq!(gaps.take_until(50), Some(Gap::Stop), "it is after what was overwritten");
        assert_eq!(gaps.take_until(50), Some(Gap::Error));
        assert_eq!((gaps.take_until(50), gaps.overwritten()), (None, None));
    }

    #[test]
    fn one_wrap_that_is_not_known_exactly_makes_them_all_so() {
        let mut gaps = Gaps::new();
        gaps.wrap(0, Perhaps);
        gaps.wrap(8, Exactly(8));
        assert_eq!(gaps.take_until(8), Some(Gap::Wrap(AtLeast(8))));
    }

    #[test]
    fn is_full_while_there_is_still_room_for_a_wrap() {
        let mut gaps = Gaps::new();
        let mut count = 0;
        while !gaps.is_full() {
            count += 1;
            gaps.push(100 * count, Gap::Stop);
        }
        assert_eq!((count, gaps.second_place()), (Gaps::MAX as u64, Some(200)));
        assert_eq!(gaps.last_place(), Some(100 * count));
        gaps.push(100 * count, Gap::Full);
        gaps.wrap(1, Exactly(5));
        assert_eq!(gaps.take_until(1), Some(Gap::Wrap(Exactly(5))));
        for n in 1..=count {
            assert_eq!(gaps.first_place(), Some(100 * n));
            assert_eq!(gaps.take_until(u64::MAX), Some(Gap::Stop));
        }
        assert_eq!(gaps.take_until(u64::MAX), Some(Gap::Full));
    }
}
