//! Errors in a request.

use crate::levels::Levels;
use core::{error, fmt};

/// An error in an event string, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FindError<'a> {
    /// The offset of the wrong part in the string, in bytes.
    pub offset: usize,
    /// The wrong part.
    pub text: &'a str,
    /// The kind of error.
    pub kind: FindErrorKind,
}

/// The kinds of errors in an event string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindErrorKind {
    /// The processor has no event of this name.
    UnknownEvent,
    /// Only other revisions of the processor have this event.
    OtherRevision,
    /// The event needs a unit mask.
    MissingUnitMask,
    /// The event has no unit masks.
    NoUnitMasks,
    /// The event has no such unit mask, and the number is not a combination of its codes.
    UnknownUnitMask,
}

impl FindErrorKind {
    /// Returns the name of libpfm3's error, without its `PFMLIB_ERR_`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownEvent | Self::OtherRevision => "NOTFOUND",
            Self::MissingUnitMask | Self::NoUnitMasks | Self::UnknownUnitMask => "UMASK",
        }
    }
}

impl fmt::Display for FindError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}: {}", self.text, self.offset, self.kind)
    }
}

impl fmt::Display for FindErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownEvent => "the processor has no event of this name",
            Self::OtherRevision => "only other revisions of the processor have this event",
            Self::MissingUnitMask => "the event needs a unit mask",
            Self::NoUnitMasks => "the event has no unit masks",
            Self::UnknownUnitMask => "not a unit mask of the event",
        })
    }
}

impl error::Error for FindError<'_> {}

/// An error in a request. Events are given by their index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchError {
    /// The request has nothing to count or sample.
    NoEvents,
    /// The request has no privilege levels.
    NoLevels,
    /// A privilege level that counters cannot select.
    Levels {
        /// The event, or `None` if the levels are the request's.
        event: Option<usize>,
        /// All levels of the event or request.
        levels: Levels,
    },
    /// Unknown flags of a counter.
    Flags {
        /// The event.
        event: usize,
        /// The unknown flags.
        flags: u32,
    },
    /// The counter mask is above 3.
    CounterMask {
        /// The event.
        event: usize,
        /// The counter mask.
        mask: u32,
    },
    /// The request has more events than there are counters.
    TooManyEvents {
        /// The number of events.
        events: usize,
        /// The number of counters of the processor.
        counters: u8,
    },
    /// No available counter is left.
    NoCounter {
        /// The first event without a counter.
        event: usize,
    },
    /// The event needs a unit mask. A string can select none only by the number 0, if no unit mask has that code.
    MissingUnitMask {
        /// The event.
        event: usize,
    },
    /// The event's unit masks cannot be combined.
    Combination {
        /// The event.
        event: usize,
    },
    /// The event was selected for another processor.
    OtherCpu {
        /// The event.
        event: usize,
        /// The processor.
        cpu: &'static str,
    },
    /// Only other revisions of the processor have this unit mask.
    OtherRevision {
        /// The event.
        event: usize,
        /// The unit mask.
        unit_mask: &'static str,
    },
    /// Guest, host or an event select of twelve bits, on a processor before family 10h.
    SinceFam10h {
        /// The event.
        event: usize,
    },
    /// The processor has no IBS.
    NoIbs,
    /// IBS cannot count dispatched ops before revision C of family 10h.
    NoOpCount {
        /// The event that needs it, or `None` if the features do.
        event: Option<usize>,
    },
}

impl DispatchError {
    /// Returns the name of libpfm3's error, without its `PFMLIB_ERR_`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoEvents
            | Self::NoLevels
            | Self::Levels { .. }
            | Self::Flags { .. }
            | Self::CounterMask { .. } => "INVAL",
            Self::TooManyEvents { .. } | Self::NoCounter { .. } => "NOASSIGN",
            Self::Combination { .. } => "FEATCOMB",
            Self::MissingUnitMask { .. } => "UMASK",
            Self::OtherCpu { .. }
            | Self::OtherRevision { .. }
            | Self::SinceFam10h { .. }
            | Self::NoIbs
            | Self::NoOpCount { .. } => "BADHOST",
        }
    }
}

impl fmt::Display for DispatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoEvents => f.write_str("nothing is to be counted or sampled"),
            Self::NoLevels => f.write_str("no privilege level to count at"),
            Self::Levels { event: None, levels } => {
                write!(f, "no counter has the privilege levels {:#x}", levels.bits())
            }
            Self::Levels { event: Some(event), levels } => {
                write!(f, "event {event}: no counter has the privilege levels {:#x}", levels.bits())
            }
            Self::Flags { event, flags } => write!(f, "event {event}: unknown flags {flags:#x}"),
            Self::CounterMask { event, mask } => {
                write!(f, "event {event}: the counter mask {mask} is above 3")
            }
            Self::TooManyEvents { events, counters } => write!(f, "{events} events for {counters} counters"),
            Self::NoCounter { event } => write!(f, "event {event}: no counter is left"),
            Self::MissingUnitMask { event } => write!(f, "event {event}: it needs a unit mask"),
            Self::Combination { event } => write!(f, "event {event}: its unit masks do not go together"),
            Self::OtherCpu { event, cpu } => write!(f, "event {event}: it was selected for {cpu}"),
            Self::OtherRevision { event, unit_mask } => {
                write!(
                    f,
                    "event {event}: only other revisions of the processor have the unit mask {unit_mask}"
                )
            }
            Self::SinceFam10h { event } => {
                write!(f, "event {event}: guest and host are known since family 10h")
            }
            Self::NoIbs => f.write_str("the processor has no IBS"),
            Self::NoOpCount { event: None } => {
                f.write_str("IBS counts dispatched ops since revision C of family 10h")
            }
            Self::NoOpCount { event: Some(event) } => {
                write!(f, "event {event}: IBS counts dispatched ops since revision C of family 10h")
            }
        }
    }
}

impl error::Error for DispatchError {}
