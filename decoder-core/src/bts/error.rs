//! The errors of branch records: what is wrong, and in which record.

use core::fmt;

/// An error, and the index of the record that caused it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// How many records precede the one that caused the error.
    pub index: u64,
    /// What is wrong.
    pub kind: ErrorKind,
}

/// What is wrong with a branch record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes end within the record.
    Truncated {
        /// The number of bytes.
        bytes: usize,
        /// The size of a record, in bytes.
        needed: usize,
    },
    /// A PERF_RECORD_SAMPLE has more than PERF_SAMPLE_IP and PERF_SAMPLE_ADDR.
    OtherSample {
        /// Its size.
        bytes: usize,
    },
    /// An address does not fit into the layout.
    TooWide {
        /// The address.
        address: u64,
    },
    /// Records that are all zero: memory that the processor has not written.
    Empty {
        /// How many there are in a row.
        count: u64,
    },
    /// Execution cannot have come to the branch: no straight way leads there, so records are missing or the code is
    /// not the traced code.
    Unreachable {
        /// Where the record before led.
        at: u64,
        /// Where this one comes from.
        from: u64,
        /// The instruction at which the straight way ends.
        end: u64,
    },
    /// The branch leads neither to a target of the instruction at its origin nor to a handler.
    Impossible {
        /// The origin.
        from: u64,
        /// Where the record says it led.
        to: u64,
    },
    /// The image has no byte here.
    NoMemory {
        /// The address of the instruction.
        ip: u64,
    },
    /// The bytes here are not an instruction.
    UnknownInstruction {
        /// Their address.
        ip: u64,
    },
}

impl ErrorKind {
    /// The address of the instruction that the error is about, if it is about one.
    #[must_use]
    pub const fn ip(&self) -> Option<u64> {
        match *self {
            Self::Unreachable { from, .. } | Self::Impossible { from, .. } => Some(from),
            Self::NoMemory { ip } | Self::UnknownInstruction { ip } => Some(ip),
            Self::Truncated { .. } | Self::OtherSample { .. } | Self::TooWide { .. } | Self::Empty { .. } => {
                None
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "branch record {}: {}", self.index, self.kind)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { bytes, needed } => write!(f, "{bytes} bytes, a record has {needed}"),
            Self::OtherSample { bytes } => {
                write!(f, "a sample of {bytes} bytes, one of nothing but IP and ADDR has 24")
            }
            Self::TooWide { address } => write!(f, "no room for the address {address:#x}"),
            Self::Empty { count } => write!(f, "empty, {count} in a row"),
            Self::Unreachable { at, from, end } => {
                write!(f, "no straight way from {at:#x} to {from:#x}, it ends at {end:#x}")
            }
            Self::Impossible { from, to } => {
                write!(f, "the instruction at {from:#x} does not lead to {to:#x}, and no handler is there")
            }
            Self::NoMemory { ip } => write!(f, "no memory in the image for the instruction at {ip:#x}"),
            Self::UnknownInstruction { ip } => write!(f, "no instruction at {ip:#x}"),
        }
    }
}

impl core::error::Error for Error {}
impl core::error::Error for ErrorKind {}
