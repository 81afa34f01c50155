//! Errors of reading or starting a truth log.

use core::fmt;

use crate::header::VERSION;

/// The reason why a region of memory cannot be read or used as a truth log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TruthError {
    /// The region has fewer bytes than a header.
    Short {
        /// Bytes in the region.
        bytes: usize,
    },
    /// The header does not begin with the magic number: no writer started a log here.
    Magic(u64),
    /// This reader does not know the version of the layout.
    Version(u32),
    /// The size of the records differs from this reader's.
    RecordBytes(u32),
    /// This reader does not know the number of the mode.
    Mode(u64),
    /// The header claims more records than the region can hold.
    Capacity {
        /// Records the header claims room for.
        claimed: u64,
        /// Records the region has room for.
        fits: u64,
    },
}

impl fmt::Display for TruthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { bytes } => write!(
                f,
                "no room for a truth log: its header has {} bytes, here are {bytes}",
                crate::Header::BYTES
            ),
            Self::Magic(found) => write!(
                f,
                "no truth log here: it begins with {found:#018x} instead of PUGTRUTH: the monitor started none"
            ),
            Self::Version(found) => write!(
                f,
                "the truth log has version {found}, this reader knows {VERSION}: build both from one source"
            ),
            Self::RecordBytes(found) => write!(
                f,
                "the truth log's records have {found} bytes, this reader's have {}",
                crate::Record::BYTES
            ),
            Self::Mode(found) => write!(f, "the truth log has mode {found}, this reader knows 0 to 2"),
            Self::Capacity { claimed, fits } => {
                write!(
                    f,
                    "the truth log claims room for {claimed} records where {fits} fit: the file is damaged"
                )
            }
        }
    }
}

impl core::error::Error for TruthError {}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;

    #[test]
    fn what_is_wrong_with_a_log_is_said_with_what_was_found() {
        for (error, text) in [
            (TruthError::Short { bytes: 3 }, "no room for a truth log: its header has 64 bytes, here are 3"),
            (
                TruthError::Magic(0x2a),
                "no truth log here: it begins with 0x000000000000002a instead of PUGTRUTH: the monitor started none",
            ),
            (
                TruthError::Version(9),
                "the truth log has version 9, this reader knows 5: build both from one source",
            ),
            (TruthError::RecordBytes(8), "the truth log's records have 8 bytes, this reader's have 24"),
            (TruthError::Mode(3), "the truth log has mode 3, this reader knows 0 to 2"),
            (
                TruthError::Capacity { claimed: 7, fits: 6 },
                "the truth log claims room for 7 records where 6 fit: the file is damaged",
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}
