//! What a stream of slices says to its sink where something is missing. The sinks of all layers know it, and
//! [`resume`](crate::resume) makes it.

use crate::error::Error;

/// Why something is missing in what a stream passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The trace could not be decoded here. Decoding goes on at the next PSB.
    Error(Error),
    /// The caller said that bytes are missing here. Decoding goes on at the next PSB.
    Gap {
        /// The offset of the first one in the stream.
        offset: u64,
        /// How many; 0 if that is unknown.
        bytes: u64,
    },
}
