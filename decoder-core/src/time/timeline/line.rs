//! Extends the TSC's 56 bits to a time that does not wrap around.

/// The place of the first TSC packet, which leaves room on both sides for a TSC that goes back.
const MIDDLE: u64 = 1 << 62;

/// A line of TSC packets on which time does not wrap around, even if the 64 bits of the TSC do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// The whole TSC at [`MIDDLE`].
    origin: Option<u64>,
    /// A TSC value close to that of the first TSC packet.
    near: Option<u64>,
    /// The place of the last TSC packet.
    last: u64,
}

impl Line {
    /// Creates an empty line. Without a value `near` the first TSC, the upper eight bits of the first TSC are zero.
    pub(super) const fn new(near: Option<u64>) -> Self {
        Self { origin: None, near, last: MIDDLE }
    }

    /// Adds a TSC packet and returns its place: at most half of 2^56 ticks before or after the last one.
    pub(super) fn place(&mut self, tsc: u64) -> u64 {
        let Some(origin) = self.origin else {
            self.origin = Some(self.near.map_or(tsc, |near| near.wrapping_add_signed(step(near, tsc))));
            return self.last;
        };
        let last = origin.wrapping_add(self.last).wrapping_sub(MIDDLE);
        self.last = self.last.saturating_add_signed(step(last, tsc));
        self.last
    }

    /// Returns the TSC at a place.
    pub(super) const fn tsc(&self, place: u64) -> u64 {
        let origin = match self.origin {
            Some(origin) => origin,
            None => 0,
        };
        origin.wrapping_add(place).wrapping_sub(MIDDLE)
    }
}

/// Returns the signed distance from one TSC to another whose low 56 bits are known, by the shorter way around.
const fn step(from: u64, to: u64) -> i64 {
    (to.wrapping_sub(from) << 8) as i64 >> 8
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRAP: u64 = 1 << 56;

    #[test]
    fn fifty_six_bits_go_on_where_they_start_again() {
        for (near, packets, expected) in [
            (None, &[5, 9][..], &[5, 9][..]),
            (None, &[WRAP - 2, 3, 10], &[WRAP - 2, WRAP + 3, WRAP + 10]),
            // Back across the wrap, as after software writes the TSC.
            (None, &[3, WRAP - 2], &[3, u64::MAX - 1]),
            (None, &[0, WRAP / 2 - 1, WRAP - 2, 4], &[0, WRAP / 2 - 1, WRAP - 2, WRAP + 4]),
            (Some(7 * WRAP + 100), &[90, 110], &[7 * WRAP + 90, 7 * WRAP + 110]),
            (Some(7 * WRAP + 100), &[WRAP - 1, 0], &[7 * WRAP - 1, 7 * WRAP]),
            (Some(7 * WRAP - 100), &[3], &[7 * WRAP + 3]),
            (Some(u64::MAX), &[WRAP - 2, 1], &[u64::MAX - 1, 1]),
        ] {
            let mut line = Line::new(near);
            let mut last = None;
            for (&packet, &tsc) in packets.iter().zip(expected) {
                let place = line.place(packet);
                assert_eq!(line.tsc(place), tsc, "{near:x?} {packets:x?}");
                // A TSC that is less than half a round later has the later place.
                let forward = last.is_none_or(|(_, before)| step(before, packet) >= 0);
                assert!(
                    last.is_none_or(|(before, _)| (before <= place) == forward),
                    "{near:x?} {packets:x?}"
                );
                last = Some((place, packet));
            }
        }
    }

    #[test]
    fn a_line_has_ends() {
        let mut line = Line::new(None);
        line.place(0);
        for at in 1..400_u64 {
            line.place(at * (WRAP / 2 - 1) % WRAP);
        }
        assert_eq!(line.last, u64::MAX);
    }
}
