//! Faults of a recording.

use core::fmt;
use pugmark_boot::expectation::UnexpectedLoss;
use pugmark_decoder_core::Error;

use crate::workload::Mismatch;

/// A fault of a recording.
pub(crate) enum RecordingError {
    /// Packets cannot be decoded.
    Packets(Error),
    /// Branch records cannot be decoded.
    Branches(Error),
    /// An unexpected loss, or no loss although one was intended.
    Loss(UnexpectedLoss),
    /// The trace has no instruction.
    Empty,
    /// A packet that the workload requested is missing or wrong.
    Mismatch(Mismatch),
}

impl fmt::Display for RecordingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packets(error) => write!(f, "decode: {error}"),
            Self::Branches(error) => write!(f, "decode: {error}"),
            Self::Loss(loss) => loss.fmt(f),
            Self::Empty => f.write_str("nothing was traced"),
            Self::Mismatch(mismatch) => mismatch.fmt(f),
        }
    }
}
