//! The errors of a trace: what is wrong, and at which packet.

use crate::mode::ExecMode;
use core::fmt;

/// An error and the offset of the packet that caused it.
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
    /// No packet begins with `02 c3` and this byte.
    UnknownOpcodeAfterC3(u8),
    /// A packet whose opcode is known has this value where the manual allows none.
    MalformedPacket {
        /// The packet's name in the manual.
        packet: &'static str,
        /// The value that is not allowed.
        value: u64,
    },
    /// [`Config::unknown`](crate::config::Config::unknown) refused an unknown packet, with a code of its own.
    Refused(u32),
    /// The slice of the trace ends here, and the bytes after it decide what comes next. That is no loss: the decoder goes
    /// on in the next slice. Streams ([`resume`](crate::resume)) never report it.
    EndOfSlice,
    /// What this packet means depends on packets that are farther away than the decoder can look in a trace that
    /// comes in slices.
    LooksTooFar,
    /// The caller asked for more before a PSB was found, or after an error without synchronising again.
    OutOfSync,
    /// This packet has no meaning at this place.
    UnexpectedPacket(&'static str),
    /// This packet suppresses its IP although an IP is needed here.
    IpSuppressed(&'static str),
    /// This packet needs an IP, and no packet had one since the synchronisation; only in libipt's
    /// [dialect](crate::config::Dialect), which tells this from [`IpSuppressed`](Self::IpSuppressed).
    NoIp(&'static str),
    /// This packet suppresses its IP although an IP is needed to continue; only in libipt's
    /// [dialect](crate::config::Dialect), which tells this from [`IpSuppressed`](Self::IpSuppressed).
    NoTarget(&'static str),
    /// More packets wait for the packet that completes them than a processor ever leaves waiting.
    TooManyWaiting(&'static str),
    /// The state in a PSB+ (the packets from PSB to PSBEND, which repeat the current state) differs from the state
    /// that the packets before it left.
    StateMismatch {
        /// Where the decoder is.
        ip: u64,
    },
    /// A MODE.Exec in a PSB+ gives another mode or RFLAGS.IF than the packets before it left.
    ModeMismatch {
        /// The mode that the MODE.Exec gives.
        mode: Option<ExecMode>,
    },
    /// The instruction needs one kind of packet (an outcome or a target), but the trace has another kind next.
    TraceMismatch {
        /// The instruction.
        ip: u64,
    },
    /// The path to the next event is an endless loop: no instruction in it needs a packet.
    EndlessLoop {
        /// An instruction in the loop.
        ip: u64,
    },
    /// The image has no byte at the instruction's address.
    NoMemory {
        /// The address of the instruction.
        ip: u64,
    },
    /// The image holds the begin of the instruction, but not all of its bytes.
    TruncatedInstruction {
        /// The address of the instruction.
        ip: u64,
    },
    /// The bytes at this address are no instruction.
    UnknownInstruction {
        /// Their address.
        ip: u64,
    },
    /// No packet gave the execution mode, or a packet gave one that does not exist.
    UnknownMode {
        /// The address of the instruction.
        ip: u64,
    },
    /// A compressed return whose call is not in the trace.
    ReturnWithoutCall {
        /// The return.
        ip: u64,
    },
    /// A not-taken outcome for a return.
    BadReturnCompression {
        /// The return.
        ip: u64,
    },
}

impl ErrorKind {
    /// libipt's text for the same error.
    #[must_use]
    pub const fn libipt_text(&self) -> &'static str {
        match self {
            Self::UnknownOpcode(_)
            | Self::UnknownExtendedOpcode(_)
            | Self::UnknownOpcodeAfterC3(_)
            | Self::Refused(_) => "unknown opcode",
            Self::MalformedPacket { .. } => "unknown packet",
            Self::EndOfSlice => "reached end of trace stream",
            Self::OutOfSync => "decoder out of sync",
            Self::UnexpectedPacket(_) => "unexpected packet context",
            Self::IpSuppressed(_) => "ip has been suppressed",
            Self::NoIp(_) => "no ip",
            Self::NoTarget(_) => "internal error",
            Self::TooManyWaiting(_) | Self::LooksTooFar => "out of memory",
            Self::StateMismatch { .. } | Self::ModeMismatch { .. } => "bad status update",
            Self::TraceMismatch { .. } | Self::EndlessLoop { .. } => "trace stream does not match query",
            Self::NoMemory { .. } => "no memory mapped at this address",
            Self::TruncatedInstruction { .. }
            | Self::UnknownInstruction { .. }
            | Self::UnknownMode { .. } => "unknown instruction",
            Self::ReturnWithoutCall { .. } => "compressed return without call",
            Self::BadReturnCompression { .. } => "bad compressed return",
        }
    }

    /// The address of the instruction that the error is about, if it is about one.
    #[must_use]
    pub const fn ip(&self) -> Option<u64> {
        match *self {
            Self::StateMismatch { ip }
            | Self::TraceMismatch { ip }
            | Self::EndlessLoop { ip }
            | Self::NoMemory { ip }
            | Self::TruncatedInstruction { ip }
            | Self::UnknownInstruction { ip }
            | Self::UnknownMode { ip }
            | Self::ReturnWithoutCall { ip }
            | Self::BadReturnCompression { ip } => Some(ip),
            _ => None,
        }
    }
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
            Self::UnknownOpcodeAfterC3(byte) => write!(f, "unknown packet opcode 0x02 0xc3 {byte:#04x}"),
            Self::MalformedPacket { packet, value } => write!(f, "{packet} packet with value {value:#x}"),
            Self::Refused(code) => write!(f, "unknown packet refused with code {code:#x}"),
            Self::EndOfSlice => f.write_str("the slice of the trace ends"),
            Self::LooksTooFar => f.write_str("what it means depends on packets that are too far away"),
            Self::OutOfSync => f.write_str("not synchronised onto a PSB"),
            Self::UnexpectedPacket(packet) => write!(f, "{packet} packet has no meaning here"),
            Self::IpSuppressed(packet) | Self::NoTarget(packet) => {
                write!(f, "{packet} packet without the IP that is needed here")
            }
            Self::NoIp(packet) => write!(f, "{packet} packet without an IP, and none was before it"),
            Self::TooManyWaiting(packet) => {
                write!(f, "{packet} packet while too many others wait for their partners")
            }
            Self::ModeMismatch { mode: Some(mode) } => {
                write!(f, "MODE.Exec in a PSB+ contradicts what is known: {mode:?}")
            }
            Self::ModeMismatch { mode: None } => {
                write!(f, "MODE.Exec in a PSB+ contradicts what is known: no mode")
            }
            Self::StateMismatch { ip } => write!(f, "PSB+ contradicts the state at {ip:#x}"),
            Self::TraceMismatch { ip } => write!(f, "the instruction at {ip:#x} does not fit the trace"),
            Self::EndlessLoop { ip } => write!(f, "endless loop at {ip:#x} on the way to the next event"),
            Self::NoMemory { ip } => write!(f, "no memory in the image for the instruction at {ip:#x}"),
            Self::TruncatedInstruction { ip } => {
                write!(f, "no memory in the image for all of the instruction at {ip:#x}")
            }
            Self::UnknownInstruction { ip } => write!(f, "no instruction at {ip:#x}"),
            Self::UnknownMode { ip } => write!(f, "unknown execution mode at {ip:#x}"),
            Self::ReturnWithoutCall { ip } => write!(f, "compressed return without a call at {ip:#x}"),
            Self::BadReturnCompression { ip } => write!(f, "not-taken outcome for the return at {ip:#x}"),
        }
    }
}

impl core::error::Error for Error {}
impl core::error::Error for ErrorKind {}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::string::ToString;

    #[test]
    fn errors_say_where_and_what_and_have_libipts_words() {
        let ip = 0x1000;
        for (kind, own, libipt) in [
            (ErrorKind::UnknownOpcode(0xc9), "unknown packet opcode 0xc9", "unknown opcode"),
            (
                ErrorKind::MalformedPacket { packet: "TIP", value: 5 },
                "TIP packet with value 0x5",
                "unknown packet",
            ),
            (ErrorKind::Refused(7), "unknown packet refused with code 0x7", "unknown opcode"),
            (ErrorKind::OutOfSync, "not synchronised onto a PSB", "decoder out of sync"),
            (
                ErrorKind::UnexpectedPacket("TIP"),
                "TIP packet has no meaning here",
                "unexpected packet context",
            ),
            (
                ErrorKind::IpSuppressed("FUP"),
                "FUP packet without the IP that is needed here",
                "ip has been suppressed",
            ),
            (ErrorKind::NoTarget("TIP"), "TIP packet without the IP that is needed here", "internal error"),
            (
                ErrorKind::TooManyWaiting("CFE"),
                "CFE packet while too many others wait for their partners",
                "out of memory",
            ),
            (ErrorKind::StateMismatch { ip }, "PSB+ contradicts the state at 0x1000", "bad status update"),
            (
                ErrorKind::TraceMismatch { ip },
                "the instruction at 0x1000 does not fit the trace",
                "trace stream does not match query",
            ),
            (
                ErrorKind::EndlessLoop { ip },
                "endless loop at 0x1000 on the way to the next event",
                "trace stream does not match query",
            ),
            (
                ErrorKind::NoMemory { ip },
                "no memory in the image for the instruction at 0x1000",
                "no memory mapped at this address",
            ),
            (ErrorKind::UnknownInstruction { ip }, "no instruction at 0x1000", "unknown instruction"),
            (ErrorKind::UnknownMode { ip }, "unknown execution mode at 0x1000", "unknown instruction"),
            (
                ErrorKind::ReturnWithoutCall { ip },
                "compressed return without a call at 0x1000",
                "compressed return without call",
            ),
            (
                ErrorKind::BadReturnCompression { ip },
                "not-taken outcome for the return at 0x1000",
                "bad compressed return",
            ),
        ] {
            assert_eq!(Error { offset: 0x40, kind }.to_string(), std::format!("0x40: {own}"));
            assert_eq!(kind.libipt_text(), libipt, "{kind:?}");
            assert_eq!(kind.ip(), own.contains("0x1000").then_some(ip), "{kind:?}");
        }
    }
}
