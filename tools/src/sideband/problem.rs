//! What can be wrong with records.

use std::fmt;

/// Why a record cannot be read or has not its effect. `Display` gives libipt's texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A text has no end in its record.
    Text,
    /// The record ends before its text begins, or is about what cannot be.
    Internal,
    /// The record has not the size of its fields and samples.
    Size,
    /// What the record's reading or effect needs was not configured.
    Configuration,
    /// The file that is mapped cannot be opened.
    File,
    /// The file that is mapped is shorter than where the mapping begins.
    Offset,
    /// There are more sections than there is place for.
    Memory,
}

impl fmt::Display for Problem {
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

/// What records say is lost for the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Records.
    Records,
    /// Trace.
    Trace,
    /// Code that no file has.
    Section,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Records => "sideband lost",
            Self::Trace => "trace lost",
            Self::Section => "image section lost",
        })
    }
}
