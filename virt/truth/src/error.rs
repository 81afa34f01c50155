//! What is wrong with a log.

use core::fmt;

/// Why bytes are no truth log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Fewer bytes than a header has.
    Short {
        /// How many there are.
        bytes: usize,
    },
    /// The header does not begin with the magic: the monitor never wrote it.
    Magic(u64),
    /// A layout this reader does not know.
    Version(u32),
    /// Records of another size than this reader's.
    RecordBytes(u32),
    /// The header claims more records than the region holds.
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
