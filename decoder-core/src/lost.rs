//! Losses that a stream of slices reports to its sink. The sinks of all layers use this type, and
//! [`resume`](crate::resume) reports it.

use crate::error::Error;

/// The cause of a gap in the output of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The trace could not be decoded here. Decoding continues at the next PSB.
    Error(Error),
    /// The caller reported missing bytes here. Decoding continues at the next PSB.
    Gap {
        /// The offset of the first missing byte in the stream.
        offset: u64,
        /// The number of bytes; 0 if unknown.
        bytes: u64,
    },
}
