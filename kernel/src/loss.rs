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
    /// How many bytes those were, at the least.
    pub wrapped_bytes: u64,
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
        error: 0,
        samples: 0,
        excluded: 0,
        abandoned: 0,
        trace_stop: 0,
    };

    /// Whether nothing was lost. A TraceStop was asked for and is none.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.stop == 0
            && self.full == 0
            && self.wrap == 0
            && self.error == 0
            && self.samples == 0
            && self.excluded == 0
            && self.abandoned == 0
    }
}

/// A place in the trace where something is missing; the byte after it may be in the middle of a packet unless said
/// otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// ToPA STOP: the bytes before may end within a packet; what follows begins with a PSB.
    Stop,
    /// Overwritten bytes: look for the next PSB.
    Wrap {
        /// How many, at the least; 0 where it cannot be known.
        bytes: u64,
    },
    /// An operational error: the bytes before may end within a packet; what follows begins with a PSB.
    Error,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop => f.write_str("stopped: the buffer was full"),
            Self::Wrap { bytes } => write!(f, "{bytes} bytes were overwritten"),
            Self::Error => f.write_str("operational error"),
        }
    }
}
