//! The pace of the PIC's interrupts while a guest is stepped.
//!
//! A PC's BIOS lets the timer interrupt by the PIC 18 times a second, by a clock that does not stop while the guest is
//! stepped. On a slow host the handler would take all of the time. So such an interrupt is held back until some
//! instructions have retired since the last one.

/// The interrupt that is held back, and the time of the last one.
#[derive(Clone, Copy, Debug, Default)]
pub struct PicPace {
    held: Option<u8>,
    /// The number of stepped instructions at the last delivery.
    last: Option<u64>,
}

impl PicPace {
    /// Minimum number of stepped instructions from one delivery to the next: ten times those of a BIOS's handler of the
    /// timer.
    pub const INSTRUCTIONS: u64 = 4096;

    /// Holds back an interrupt that was acknowledged at the PIC. The PIC raises no other one of the same or a lower
    /// priority until the guest has ended it.
    pub const fn hold(&mut self, vector: u8) {
        self.held = Some(vector);
    }

    /// Returns the interrupt that is to be delivered now, after `stepped` stepped instructions; `at_once`: the guest is
    /// not stepped, or has halted.
    pub fn take_due(&mut self, stepped: u64, at_once: bool) -> Option<u8> {
        let too_early = self.last.is_some_and(|last| stepped - last < Self::INSTRUCTIONS);
        if too_early && !at_once {
            return None;
        }
        let vector = self.held.take()?;
        self.last = Some(stepped);
        Some(vector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_waits_until_the_guest_has_got_on() {
        let mut pace = PicPace::default();
        assert_eq!(pace.take_due(5, true), None, "nothing came");
        pace.hold(8);
        assert_eq!(pace.take_due(10, false), Some(8), "the first");
        assert_eq!(pace.take_due(10_000, false), None);
        pace.hold(9);
        assert_eq!(pace.take_due(10_000, false), Some(9));
        pace.hold(8);
        for (stepped, at_once, due) in [
            (10_000, false, None),
            (10_000 + PicPace::INSTRUCTIONS - 1, false, None),
            (10_000 + PicPace::INSTRUCTIONS, false, Some(8)),
        ] {
            assert_eq!(pace.take_due(stepped, at_once), due, "{stepped}");
        }
        pace.hold(8);
        assert_eq!(pace.take_due(10_001 + PicPace::INSTRUCTIONS, true), Some(8), "halted, or not stepped");
    }
}
