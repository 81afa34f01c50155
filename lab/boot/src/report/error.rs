//! What is wrong with what was recorded.

use core::fmt;
use pugmark_boot::expectation::UnexpectedLoss;
use pugmark_decoder_core::Error;

use crate::workload::Mismatch;

/// What is wrong with what was recorded.
pub(crate) enum RecordingError {
    /// Packets cannot be decoded.
    Packets(Error),
    /// Branch records cannot be decoded.
    Branches(Error),
    /// Something was lost, or nothing although a loss was meant to happen.
    Loss(UnexpectedLoss),
    /// The trace has no instruction.
    Empty,
    /// A packet that the workload has asked for is missing or wrong.
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
