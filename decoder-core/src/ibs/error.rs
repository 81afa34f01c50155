//! What can be wrong with raw IBS samples, and where.

use core::fmt;

/// An error, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// Where the sample begins.
    pub offset: usize,
    /// What is wrong.
    pub kind: ErrorKind,
}

/// What is wrong with a raw sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes end within the sample, or there is no room for it.
    Truncated {
        /// How many there are.
        bytes: usize,
        /// How many it has.
        needed: usize,
    },
    /// Neither a fetch nor an op has this size with these capabilities.
    Size {
        /// The number of bytes after the size field.
        size: u32,
        /// The capabilities.
        caps: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}: {}", self.offset, self.kind)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { bytes, needed } => write!(f, "{bytes} bytes, the IBS sample has {needed}"),
            Self::Size { size, caps } => {
                write!(f, "no IBS sample has {size} bytes with the capabilities {caps:#x}")
            }
        }
    }
}

impl core::error::Error for Error {}
impl core::error::Error for ErrorKind {}
