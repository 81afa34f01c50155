//! The errors of PEBS records: what is wrong, and in which record.

use core::fmt;

/// An error, and the index of the record that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// How many records precede the one that caused the error.
    pub index: u64,
    /// What is wrong.
    pub kind: ErrorKind,
}

/// What is wrong with a PEBS record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes end within the record.
    Truncated {
        /// The number of bytes.
        bytes: usize,
        /// The record's size, in bytes.
        needed: usize,
    },
    /// An adaptive record's size differs from that of its groups.
    Size {
        /// The size that the record gives.
        size: usize,
        /// The size of its groups.
        groups: usize,
    },
    /// An adaptive record has unknown groups.
    Groups {
        /// Its record format, bits 31:0.
        format: u32,
    },
    /// A value does not fit into the format: a field of 32 bits.
    TooWide {
        /// The value.
        value: u64,
    },
    /// The number of branches is not between 1 and 32, which is what an adaptive record can hold.
    Branches {
        /// How many there are.
        count: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PEBS record {}: {}", self.index, self.kind)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { bytes, needed } => write!(f, "{bytes} bytes, it has {needed}"),
            Self::Size { size, groups } => write!(f, "it says {size} bytes, its groups have {groups}"),
            Self::Groups { format } => write!(f, "groups that are not known: {format:#x}"),
            Self::TooWide { value } => write!(f, "no room for the value {value:#x}"),
            Self::Branches { count } => write!(f, "{count} branches, it holds 1 to 32"),
        }
    }
}

impl core::error::Error for Error {}
impl core::error::Error for ErrorKind {}
