//! The places in a buffer where something is missing.

use crate::loss::Gap;

/// A few gaps, ordered by place. A place is a count of bytes since the trace began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gaps {
    gaps: [Option<(u64, Gap)>; Self::MAX],
}

impl Gaps {
    const MAX: usize = 8;

    /// None.
    pub(crate) const fn new() -> Self {
        Self { gaps: [None; Self::MAX] }
    }

    /// Whether no more can be noted: the trace must not go on before some are drained.
    pub(crate) const fn is_full(&self) -> bool {
        // One place is kept for a wrap, which is noted while the trace goes on.
        self.gaps[Self::MAX - 2].is_some()
    }

    /// Notes one at the end.
    pub(crate) fn push(&mut self, place: u64, gap: Gap) {
        if let Some(free) = self.gaps.iter_mut().find(|slot| slot.is_none()) {
            *free = Some((place, gap));
        }
    }

    /// Everything before `place` was overwritten: `bytes` of it, and the gaps in it.
    pub(crate) fn wrap(&mut self, place: u64, bytes: u64) {
        let mut lost = bytes;
        while let Some(gap) = self.take_until(place) {
            if let Gap::Wrap { bytes } = gap {
                lost += bytes;
            }
        }
        self.gaps.rotate_right(1);
        self.gaps[0] = Some((place, Gap::Wrap { bytes: lost }));
    }

    /// Where the first one is.
    pub(crate) fn first_place(&self) -> Option<u64> {
        self.gaps[0].map(|(place, _)| place)
    }

    /// Takes the first one if it is at or before `place`.
    pub(crate) fn take_until(&mut self, place: u64) -> Option<Gap> {
        let (at, gap) = self.gaps[0]?;
        if at > place {
            return None;
        }
        self.gaps[0] = None;
        self.gaps.rotate_left(1);
        Some(gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_wrap_swallows_the_gaps_before_it() {
        let mut gaps = Gaps::new();
        gaps.push(10, Gap::Stop);
        gaps.push(40, Gap::Error);
        gaps.wrap(30, 100);
        gaps.wrap(35, 7);
        assert_eq!(gaps.take_until(50), Some(Gap::Wrap { bytes: 107 }));
        assert_eq!(gaps.take_until(50), Some(Gap::Error));
        assert_eq!(gaps.take_until(50), None);
    }

    #[test]
    fn is_full_while_there_is_still_room_for_a_wrap() {
        let mut gaps = Gaps::new();
        let mut count = 0;
        while !gaps.is_full() {
            count += 1;
            gaps.push(100 * count, Gap::Stop);
        }
        gaps.wrap(1, 5);
        assert_eq!(gaps.take_until(1), Some(Gap::Wrap { bytes: 5 }));
        for n in 1..=count {
            assert_eq!(gaps.first_place(), Some(100 * n));
            assert_eq!(gaps.take_until(u64::MAX), Some(Gap::Stop));
        }
    }
}
