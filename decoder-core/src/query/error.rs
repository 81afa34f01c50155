//! The errors of the query decoder.

use super::Pending;
use crate::error::Error;
use core::fmt;

/// The reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryError {
    /// The trace has an error.
    Trace(Error),
    /// The next branch event is of another kind: the trace does not fit the caller's walk.
    Other {
        /// The offset of the next packet.
        offset: u64,
        /// The kind of the next branch event.
        pending: Pending,
    },
}

impl From<Error> for QueryError {
    fn from(error: Error) -> Self {
        Self::Trace(error)
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trace(error) => error.fmt(f),
            Self::Other { offset, pending } => {
                let what = match pending {
                    Pending::Event => "an event",
                    Pending::Conditional => "the outcome of a conditional branch",
                    Pending::Indirect => "the target of an indirect branch",
                };
                write!(f, "{offset:#x}: {what} comes next, and something else was asked for")
            }
        }
    }
}

impl core::error::Error for QueryError {}
