//! What was lost, and why.

use core::fmt;

/// How often a trace lost something since it was started. Nothing is lost without a count here.
///
/// OVF packets are not here: they are in the trace, and its decoder counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// A region with STOP filled before the PMI was served: what was executed from then on is lost, and the last packet
    /// may be cut.
    pub stop: u64,
    /// There was no free region to go on with: the trace was off until something was drained.
    pub full: u64,
    /// The processor overwrote bytes that were not drained yet.
    pub wrap: u64,
    /// The number of those bytes. It is a lower bound, unless each [`Gap::Wrap`] says [`Overwritten::Exactly`].
    pub wrapped_bytes: u64,
    /// The processor may have overwritten bytes that were not drained yet, and nothing shows whether it has.
    pub perhaps_wrapped: u64,
    /// Operational errors (STATUS.Error): what the processor had buffered is lost.
    pub error: u64,
    /// Samples whose counter had overflowed, and stood still before the event that gives the record: at most one a
    /// counter each time that a recording goes off and on.
    pub samples: u64,
    /// Another recorder that excludes this one was on when it was to go on: it was off until it found itself alone.
    pub excluded: u64,
    /// It was left off after a fault, or because PMIs had no end, until somebody used it again.
    pub abandoned: u64,
    /// A TraceStop range was entered: no fault, but the trace is off from there.
    pub trace_stop: u64,
}

impl Loss {
    /// Nothing.
    pub const NONE: Self = Self {
        stop: 0,
        full: 0,
        wrap: 0,
        wrapped_bytes: 0,
        perhaps_wrapped: 0,
        error: 0,
        samples: 0,
        excluded: 0,
        abandoned: 0,
        trace_stop: 0,
    };

    /// Whether nothing was lost, for certain. A TraceStop was asked for and is none.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.stop == 0
            && self.full == 0
            && self.wrap == 0
            && self.perhaps_wrapped == 0
            && self.error == 0
            && self.samples == 0
            && self.excluded == 0
            && self.abandoned == 0
    }
}

/// A place in the trace where something is missing. What follows begins with a PSB, but for [`Gap::Wrap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// ToPA STOP, or a full buffer of records: the bytes before may end within a packet.
    Stop,
    /// What was here is overwritten: the bytes that follow may begin within a packet. Look for the next PSB.
    Wrap(Overwritten),
    /// An operational error: the bytes before may end within a packet.
    Error,
    /// There was no room, and the trace was off until something was drained.
    Full,
    /// Another recorder was on, and the trace was off until it found itself alone.
    Excluded,
    /// The trace was left off after a fault, or because PMIs had no end, until somebody used it again.
    Abandoned,
}

/// How many bytes were overwritten before they were drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwritten {
    /// So many.
    Exactly(u64),
    /// So many, or more of them.
    AtLeast(u64),
    /// Nothing shows whether there were any.
    Perhaps,
}

impl Overwritten {
    /// So many bytes or more, of which 0 says nothing.
    #[must_use]
    pub const fn at_least(bytes: u64) -> Self {
        match bytes {
            0 => Self::Perhaps,
            _ => Self::AtLeast(bytes),
        }
    }

    /// How many, at the least.
    #[must_use]
    pub const fn least(self) -> u64 {
        match self {
            Self::Exactly(bytes) | Self::AtLeast(bytes) => bytes,
            Self::Perhaps => 0,
        }
    }

    /// These, and then those.
    #[must_use]
    pub const fn and(self, then: Self) -> Self {
        match (self, then) {
            (Self::Exactly(one), Self::Exactly(other)) => Self::Exactly(one + other),
            _ => Self::at_least(self.least() + then.least()),
        }
    }
}

impl fmt::Display for Overwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(bytes) => write!(f, "{bytes} bytes were overwritten"),
            Self::AtLeast(bytes) => write!(f, "{bytes} bytes or more were overwritten"),
            Self::Perhaps => f.write_str("bytes may have been overwritten"),
        }
    }
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop => f.write_str("stopped: the buffer was full"),
            Self::Wrap(overwritten) => overwritten.fmt(f),
            Self::Error => f.write_str("operational error"),
            Self::Full => f.write_str("off: there was no room to go on"),
            Self::Excluded => f.write_str("off: another recorder was on"),
            Self::Abandoned => f.write_str("off: the driver gave up"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_but_trace_stop_is_a_loss() {
        type Count = fn(&mut Loss) -> &mut u64;
        let counts: [(Count, bool); 9] = [
            (|loss| &mut loss.stop, false),
            (|loss| &mut loss.full, false),
            (|loss| &mut loss.wrap, false),
            (|loss| &mut loss.perhaps_wrapped, false),
            (|loss| &mut loss.error, false),
            (|loss| &mut loss.samples, false),
            (|loss| &mut loss.excluded, false),
            (|loss| &mut loss.abandoned, false),
            (|loss| &mut loss.trace_stop, true),
        ];
        assert!(Loss::NONE.is_none());
        for (n, (count, none)) in counts.into_iter().enumerate() {
            let mut loss = Loss::NONE;
            *count(&mut loss) = 1;
            assert_eq!(loss.is_none(), none, "count {n}");
        }
    }

    #[test]
    fn what_was_overwritten_adds_up_and_is_exact_only_where_both_are() {
        use Overwritten::{AtLeast, Exactly, Perhaps};
        for (one, other, both) in [
            (Exactly(1), Exactly(2), Exactly(3)),
            (Exactly(1), AtLeast(2), AtLeast(3)),
            (AtLeast(1), Exactly(2), AtLeast(3)),
            (Exactly(1), Perhaps, AtLeast(1)),
            (Perhaps, AtLeast(2), AtLeast(2)),
            (Perhaps, Perhaps, Perhaps),
        ] {
            assert_eq!(one.and(other), both, "{one:?} {other:?}");
        }
    }

    #[test]
    fn an_unknown_number_of_bytes_is_not_told_as_none() {
        for (overwritten, text) in [
            (Overwritten::Exactly(7), "7 bytes were overwritten"),
            (Overwritten::at_least(7), "7 bytes or more were overwritten"),
            (Overwritten::at_least(0), "bytes may have been overwritten"),
        ] {
            assert_eq!(Gap::Wrap(overwritten).to_string(), text);
        }
    }
}
