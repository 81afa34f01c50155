//! How often something is done.

/// One time in a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every {
    period: u32,
    left: u32,
}

impl Every {
    /// How often the log says when an instruction retired: it has room for seven million records, of which the times take
    /// one in a hundred.
    pub const USUAL: u32 = 100;

    /// The first time, and then one time in `period`; never where that is 0.
    #[must_use]
    pub const fn new(period: u32) -> Self {
        Self { period, left: 0 }
    }

    /// Whether it is to be done this time.
    pub const fn is_due(&mut self) -> bool {
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
    fn the_first_time_and_then_each_so_many_is_due() {
        for (period, expected) in [
            (0, [false; 7]),
            (1, [true; 7]),
            (2, [true, false, true, false, true, false, true]),
            (3, [true, false, false, true, false, false, true]),
        ] {
            let mut every = Every::new(period);
            assert_eq!(core::array::from_fn(|_| every.is_due()), expected, "{period}");
        }
    }
}
