//! Losses that records report.

use std::fmt;

/// A loss that the records report to the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Records.
    Records,
    /// Trace.
    Trace,
    /// Code that is in no file.
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
