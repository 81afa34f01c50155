//! The modes of a log.

use crate::{Record, Sum};

/// The contents that a log keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogMode {
    /// Every record, until the region is full; those after that are lost.
    #[default]
    Full,
    /// The last records: in a full region each new one overwrites the oldest.
    Ring,
    /// No records, but the number and a hash of each session's instructions, by processor and privilege level.
    Hash,
}

impl LogMode {
    /// Returns the mode's number in the header.
    pub(crate) const fn number(self) -> u64 {
        match self {
            Self::Full => 0,
            Self::Ring => 1,
            Self::Hash => 2,
        }
    }

    pub(crate) const fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Full,
            1 => Self::Ring,
            2 => Self::Hash,
            _ => return None,
        })
    }

    /// Returns the size of one entry (record or sum) in bytes.
    pub(crate) const fn room_bytes(self) -> usize {
        match self {
            Self::Full | Self::Ring => Record::BYTES,
            Self::Hash => Sum::BYTES,
        }
    }
}
