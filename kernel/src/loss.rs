//! The losses of a recording and their causes: counts ([`Loss`]), and places in the recorded data ([`Gap`]).
//!
//! ```
//! use pugmark_kernel::loss::Loss;
//!
//! let loss = Loss { wrap: 1, wrapped_bytes: 4096, ..Loss::NONE };
//! assert!(!loss.is_none());
//! // A TraceStop range is configured, so to stop in it is no loss.
//! assert!(Loss { trace_stop: 1, ..Loss::NONE }.is_none());
//! ```

use core::fmt;

/// The number of losses of a trace since it was started. The driver counts every loss here.
///
/// OVF packets, by which the processor reports its own buffer overflows, are not counted: they are in the trace, and
/// the decoder counts them.
///
/// Kernels in C have this structure, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Loss {
    /// A region with the STOP flag was full before the PMI was served: the trace from then on is lost, and the last
    /// packet may be cut.
    pub stop: u64,
    /// No region was free to continue in: the trace was off until bytes were drained.
    pub full: u64,
    /// The processor overwrote bytes that had not been drained yet.
    pub wrap: u64,
    /// The number of overwritten bytes. It is a lower bound, unless each [`Gap::Wrap`] says [`Overwritten::Exactly`].
    pub wrapped_bytes: u64,
    /// The processor may have overwritten bytes that had not been drained yet, and nothing shows whether it did.
    pub perhaps_wrapped: u64,
    /// Operational errors (the Error bit in IA32_RTIT_STATUS): data that the processor had buffered internally is lost.
    pub error: u64,
    /// Samples whose counter had overflowed when the recording was turned off, before the event that writes the record:
    /// at most one per counter each time.
    pub samples: u64,
    /// Another recorder that excludes this one was on when this one was to resume: it stayed off until the other
    /// recorder was off.
    pub excluded: u64,
    /// The recording was left off after a fault, or because PMIs did not end, until the driver used it again.
    pub abandoned: u64,
    /// The recording was found off although the driver had left it on, or other owners had used its registers: the
    /// processor clears enable bits at VMXON, at a VM exit, at a debug exception and at INIT, and another owner can
    /// take a unit over. Everything from then until the driver noticed is lost.
    pub turned_off: u64,
    /// Execution entered a TraceStop range. This is configured and not a fault, but the trace is off from there.
    pub trace_stop: u64,
}

impl Loss {
    /// No loss.
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
        turned_off: 0,
        trace_stop: 0,
    };

    /// Returns whether certainly nothing was lost. A TraceStop is configured and does not count as a loss.
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
            && self.turned_off == 0
    }
}

/// Lists each count that is not 0, and marks an unknown number of overwritten bytes.
impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.stop, "stopped: the buffer was full"),
            (self.full, "off: there was no room to go on"),
            (self.wrap, "overwritten before it was drained"),
            (self.perhaps_wrapped, "perhaps overwritten before it was drained"),
            (self.error, "operational error"),
            (self.samples, "sample lost"),
            (self.excluded, "off: another recorder was on"),
            (self.abandoned, "off: the driver gave up"),
            (self.turned_off, "off: something else had turned it off"),
            (self.trace_stop, "stopped: execution entered a TraceStop range"),
        ];
        let mut separator = "";
        for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count} × {what}")?;
            separator = "; ";
        }
        match (self.wrap + self.perhaps_wrapped, self.wrapped_bytes) {
            (0, _) if separator.is_empty() => f.write_str("nothing was lost"),
            (0, _) => Ok(()),
            (_, 0) => f.write_str("; it is unknown how many bytes were overwritten"),
            (_, bytes) => write!(f, "; {bytes} bytes or more were overwritten"),
        }
    }
}

/// A place in the trace where data is missing. After it the trace continues with a PSB, a packet at which a decoder can
/// start, except after [`Gap::Wrap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// ToPA STOP, or a full buffer of records: the bytes before the gap may end within a packet.
    Stop,
    /// The bytes here were overwritten: those after the gap may begin within a packet. A decoder must look for the next
    /// PSB.
    Wrap(Overwritten),
    /// An operational error: the bytes before the gap may end within a packet.
    Error,
    /// No region was free, and the trace was off until bytes were drained.
    Full,
    /// Another recorder that excludes this one was on, and the trace was off until the other recorder was off.
    Excluded,
    /// The trace was left off after a fault, or because PMIs did not end, until the driver used it again.
    Abandoned,
    /// The recording was found off, or its registers were in use by other owners: see [`Loss::turned_off`]. The bytes
    /// before the gap may end within a packet.
    TurnedOff,
}

/// The number of bytes that were overwritten before they were drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwritten {
    /// Exactly this number.
    Exactly(u64),
    /// This number or more.
    AtLeast(u64),
    /// It is unknown whether any were overwritten.
    Perhaps,
}

impl Overwritten {
    /// Returns a lower bound of `bytes`; for 0 it is unknown whether any were overwritten.
    pub(crate) const fn at_least(bytes: u64) -> Self {
        match bytes {
            0 => Self::Perhaps,
            _ => Self::AtLeast(bytes),
        }
    }

    /// Returns a lower bound of the number.
    #[must_use]
    pub const fn least(self) -> u64 {
        match self {
            Self::Exactly(bytes) | Self::AtLeast(bytes) => bytes,
            Self::Perhaps => 0,
        }
    }

    /// Adds up two consecutive losses.
    pub(crate) const fn and(self, then: Self) -> Self {
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
            Self::TurnedOff => f.write_str("off: something else had turned it off"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_but_trace_stop_is_a_loss() {
        type Count = fn(&mut Loss) -> &mut u64;
        let counts: [(Count, bool); 10] = [
            (|loss| &mut loss.stop, false),
            (|loss| &mut loss.full, false),
            (|loss| &mut loss.wrap, false),
            (|loss| &mut loss.perhaps_wrapped, false),
            (|loss| &mut loss.error, false),
            (|loss| &mut loss.samples, false),
            (|loss| &mut loss.excluded, false),
            (|loss| &mut loss.abandoned, false),
            (|loss| &mut loss.turned_off, false),
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
    fn a_loss_names_what_there_is_of_it_and_says_where_a_number_is_unknown() {
        let wrapped = |wrap, perhaps_wrapped, wrapped_bytes| Loss {
            wrap,
            perhaps_wrapped,
            wrapped_bytes,
            ..Loss::NONE
        };
        let unknown = "it is unknown how many bytes were overwritten";
        for (loss, text) in [
            (Loss::NONE, "nothing was lost"),
            (Loss { trace_stop: 2, ..Loss::NONE }, "2 × stopped: execution entered a TraceStop range"),
            (
                Loss { stop: 1, error: 3, ..Loss::NONE },
                "1 × stopped: the buffer was full; 3 × operational error",
            ),
            (
                Loss { full: 1, samples: 4, excluded: 5, abandoned: 6, turned_off: 7, ..Loss::NONE },
                "1 × off: there was no room to go on; 4 × sample lost; 5 × off: another recorder was on; \
                 6 × off: the driver gave up; 7 × off: something else had turned it off",
            ),
            (wrapped(2, 0, 700), "2 × overwritten before it was drained; 700 bytes or more were overwritten"),
            (wrapped(0, 1, 0), &format!("1 × perhaps overwritten before it was drained; {unknown}")),
            (wrapped(1, 0, 0), &format!("1 × overwritten before it was drained; {unknown}")),
        ] {
            assert_eq!(loss.to_string(), text);
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
