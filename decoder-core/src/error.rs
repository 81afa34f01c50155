//! What can be wrong with a trace, and where.

use core::fmt;

/// An error and the offset of the packet that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// The packet's offset in the trace, in bytes.
    pub offset: u64,
    /// What is wrong.
    pub kind: ErrorKind,
}

/// What is wrong with a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No packet begins with this byte.
    UnknownOpcode(u8),
    /// No packet begins with `02` and this byte.
    UnknownExtendedOpcode(u8),
    /// A packet whose opcode is known has this value where the manual allows none.
    MalformedPacket {
        /// The packet's name in the manual.
        packet: &'static str,
        /// The value that is not allowed.
        value: u64,
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
            Self::UnknownOpcode(byte) => write!(f, "unknown packet opcode {byte:#04x}"),
            Self::UnknownExtendedOpcode(byte) => write!(f, "unknown extended packet opcode 0x02 {byte:#04x}"),
            Self::MalformedPacket { packet, value } => write!(f, "{packet} packet with value {value:#x}"),
        }
    }
}

impl core::error::Error for Error {}
impl core::error::Error for ErrorKind {}
