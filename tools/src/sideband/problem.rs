//! Problems with records.

use std::fmt;

/// The reason that a record cannot be read or cannot take effect. `Display` gives libipt's texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordProblem {
    /// A text does not end within its record.
    Text,
    /// The record ends before its text begins, or its contents are impossible.
    Internal,
    /// The record's size is not that of its fields and samples.
    Size,
    /// Something needed to read or apply the record was not configured.
    Configuration,
    /// The file that is mapped cannot be opened.
    File,
    /// The mapping begins after the end of the mapped file.
    Offset,
    /// There are more sections than the limit allows.
    Memory,
}

impl fmt::Display for RecordProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "unknown packet",
            Self::Internal => "internal error",
            Self::Size => "decoder out of sync",
            Self::Configuration => "bad configuration",
            Self::File => "bad file",
            Self::Offset => "invalid argument",
            Self::Memory => "out of memory",
        })
    }
}
