//! Errors of reading or starting a truth log.

use core::fmt;

/// Why a region of memory cannot be read or used as a truth log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The region has fewer bytes than a header.
    Short {
        /// Bytes in the region.
        bytes: usize,
    },
    /// The header does not begin with the magic number: no writer started a log here.
    Magic(u64),
    /// The version of the layout is not the one that this reader knows.
    Version(u32),
    /// The records have another size than this reader's.
    RecordBytes(u32),
    /// The header claims more records than the region can hold.
    Capacity {
        /// Records the header claims room for.
        claimed: u64,
        /// Records the region has room for.
        fits: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { bytes } => write!(f, "a truth log has a header, here are {bytes} bytes"),
            Self::Magic(found) => write!(f, "no truth log: it begins with {found:#018x}"),
            Self::Version(found) => write!(f, "truth log of unknown version {found}"),
            Self::RecordBytes(found) => write!(f, "truth log with records of {found} bytes"),
            Self::Capacity { claimed, fits } => {
                write!(f, "truth log claims room for {claimed} records where {fits} fit")
            }
        }
    }
}

impl core::error::Error for Error {}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;

    #[test]
    fn what_is_wrong_with_a_log_is_said_with_what_was_found() {
        for (error, text) in [
            (Error::Short { bytes: 3 }, "a truth log has a header, here are 3 bytes"),
            (Error::Magic(0x2a), "no truth log: it begins with 0x000000000000002a"),
            (Error::Version(9), "truth log of unknown version 9"),
            (Error::RecordBytes(8), "truth log with records of 8 bytes"),
            (Error::Capacity { claimed: 7, fits: 6 }, "truth log claims room for 7 records where 6 fit"),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}
