//! What can be wrong with PEBS records, and in which.

use core::fmt;

/// An error, and the record that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// How many records are before it.
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
        /// How many there are.
        bytes: usize,
        /// How many the record has.
        needed: usize,
    },
    /// An adaptive record's size is not that of the groups that it says it has.
    Size {
        /// What it says.
        size: usize,
        /// What its groups have.
        groups: usize,
    },
    /// An adaptive record has groups that are not known.
    Groups {
        /// Its record format, bits 31:0.
        format: u32,
    },
    /// A value does not fit into the format: a field of 32 bits.
    TooWide {
        /// The value.
        value: u64,
    },
    /// An adaptive record holds 1 to 32 branches.
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
