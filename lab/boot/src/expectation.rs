//! Compares a workload's losses with the intended ones.

use core::fmt;
use pugmark_protocol::Lost;

/// The intended loss of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing.
    Nothing,
    /// Everything after a STOP.
    Stop,
    /// Everything overwritten at the end of a ring.
    Wrap,
    /// Packets dropped by an overflow, if the machine is set up for one.
    Overflow,
}

/// An unexpected loss, or an expected one that did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnexpectedLoss {
    /// The expected loss.
    pub expected: Expected,
    /// The actual loss.
    pub lost: Lost,
}

impl Expected {
    /// Compares the expectation with the actual loss.
    ///
    /// # Errors
    /// If there was a loss of another kind, or none of the expected kind. If the machine was set up to overflow
    /// (`overflows`), OVF packets are never unexpected, and [`Expected::Overflow`] requires some.
    pub fn check(self, lost: Lost, overflows: bool) -> Result<(), UnexpectedLoss> {
        let Lost { overflows: ovf, stops, wraps, full, strays: _ } = lost;
        let as_expected = match self {
            Self::Nothing => stops == 0 && wraps == 0 && (ovf == 0 || overflows),
            Self::Stop => stops > 0 && wraps == 0 && (ovf == 0 || overflows),
            Self::Wrap => stops == 0 && wraps > 0 && (ovf == 0 || overflows),
            Self::Overflow => stops == 0 && wraps == 0 && (ovf > 0 || !overflows),
        };
        if as_expected && full == 0 { Ok(()) } else { Err(UnexpectedLoss { expected: self, lost }) }
    }
}

impl fmt::Display for UnexpectedLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let expected = match self.expected {
            Expected::Nothing => "nothing",
            Expected::Stop => "a stop",
            Expected::Wrap => "a wrap",
            Expected::Overflow => "an overflow",
        };
        write!(f, "expected to lose {expected}, but lost {}", self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn only_what_is_expected_is_right() {
        let lost = |overflows, stops, wraps, full| Lost { overflows, stops, wraps, full, strays: 1 };
        // The loss; then for each expectation the right answer, without and with `overflows`.
        for (lost, right) in [
            (lost(0, 0, 0, 0), [(true, true), (false, false), (false, false), (true, false)]),
            (lost(1, 0, 0, 0), [(false, true), (false, false), (false, false), (true, true)]),
            (lost(0, 2, 0, 0), [(false, false), (true, true), (false, false), (false, false)]),
            (lost(1, 1, 0, 0), [(false, false), (false, true), (false, false), (false, false)]),
            (lost(0, 0, 1, 0), [(false, false), (false, false), (true, true), (false, false)]),
            (lost(0, 1, 1, 0), [(false, false); 4]),
            (lost(0, 0, 0, 1), [(false, false); 4]),
        ] {
            for (expected, right) in
                [Expected::Nothing, Expected::Stop, Expected::Wrap, Expected::Overflow].into_iter().zip(right)
            {
                let found = (expected.check(lost, false).is_ok(), expected.check(lost, true).is_ok());
                assert_eq!(found, right, "{expected:?} {lost}");
            }
        }
    }

    #[test]
    fn an_unexpected_loss_prints_what_was_expected_and_what_was_lost() {
        let lost = Lost { stops: 1, ..Lost::default() };
        let unexpected = Expected::Nothing.check(lost, false).unwrap_err();
        assert_eq!(
            format!("{unexpected}"),
            "expected to lose nothing, but lost ovf=0 stop=1 wrap=0 full=0 stray=0"
        );
        for (expected, text) in
            [(Expected::Stop, "a stop"), (Expected::Wrap, "a wrap"), (Expected::Overflow, "an overflow")]
        {
            let unexpected = UnexpectedLoss { expected, lost: Lost::default() };
            let text = format!("expected to lose {text}, but lost ovf=0 stop=0 wrap=0 full=0 stray=0");
            assert_eq!(format!("{unexpected}"), text);
        }
    }
}
