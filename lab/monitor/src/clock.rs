//! Decides when a periodic action is due.

/// A counter that is due once in a fixed number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EveryNth {
    period: u32,
    left: u32,
}

impl EveryNth {
    /// The default interval at which the log records the time of an instruction. The log has room for seven million
    /// records, and the times take one percent of it.
    pub const DEFAULT_PERIOD: u32 = 100;

    /// Returns a counter that is due the first time and then once in `period` times; never if `period` is 0.
    #[must_use]
    pub const fn new(period: u32) -> Self {
        Self { period, left: 0 }
    }

    /// Counts one time, and returns whether the action is due.
    pub const fn next_is_due(&mut self) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.left = self.period.saturating_sub(1);
        self.period > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_time_and_then_every_nth_is_due() {
        for (period, expected) in [
            (0, [false; 7]),
            (1, [true; 7]),
            (2, [true, false, true, false, true, false, true]),
            (3, [true, false, false, true, false, false, true]),
        ] {
            let mut every = EveryNth::new(period);
            assert_eq!(core::array::from_fn(|_| every.next_is_due()), expected, "{period}");
        }
    }
}
