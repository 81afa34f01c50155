//! libipt's error codes and their texts.

use core::ffi::{CStr, c_int};
use pugmark_decoder_core::{ErrorKind, last_ip::NoIp, time::TimeError};

/// An answer, or the error status that the function returns: a negated [`Code`], or one of a caller's own.
pub type Answer<T> = Result<T, c_int>;

/// `enum pt_error_code`, with the names of libipt's header in short. libipt's functions return it negated.
#[allow(missing_docs, reason = "each has its text in the table below")]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Internal = 1,
    Invalid = 2,
    NoSync = 3,
    BadOpcode = 4,
    BadPacket = 5,
    BadContext = 6,
    EndOfStream = 7,
    BadQuery = 8,
    NoMemory = 9,
    BadConfig = 10,
    NoIp = 11,
    IpSuppressed = 12,
    NotMapped = 13,
    BadInstruction = 14,
    NoTime = 15,
    NoCbr = 16,
    BadImage = 17,
    NotSupported = 19,
    ReturnWithoutCall = 20,
    BadReturn = 21,
    BadStatusUpdate = 22,
    NoEnable = 23,
    EventIgnored = 24,
    BadFile = 26,
    BadCpu = 27,
}

impl Code {
    /// Returns the negated code, the value that functions return for the error.
    #[must_use]
    pub const fn status(self) -> c_int {
        -(self as c_int)
    }

    /// Returns the text that libipt has for the error.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match TEXTS[self as usize].to_str() {
            Ok(text) => text,
            Err(_) => "",
        }
    }

    /// Returns the text of the error with this (positive) number; `None` if there is none.
    #[must_use]
    pub fn text_of(number: c_int) -> Option<&'static CStr> {
        usize::try_from(number).ok().and_then(|number| TEXTS.get(number)).copied()
    }
}

/// libipt's code for each error of the decoder.
impl From<ErrorKind> for Code {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::UnknownOpcode(_)
            | ErrorKind::UnknownExtendedOpcode(_)
            | ErrorKind::UnknownOpcodeAfterC3(_)
            | ErrorKind::Refused(_) => Self::BadOpcode,
            ErrorKind::MalformedPacket { .. } => Self::BadPacket,
            ErrorKind::OutOfSync => Self::NoSync,
            ErrorKind::UnexpectedPacket(_) => Self::BadContext,
            ErrorKind::EndOfSlice | ErrorKind::Truncated { .. } => Self::EndOfStream,
            ErrorKind::TraceMismatch { .. }
            | ErrorKind::EndlessLoop { .. }
            | ErrorKind::EndlessCode { .. } => Self::BadQuery,
            ErrorKind::TooManyWaiting(_) | ErrorKind::LooksTooFar => Self::NoMemory,
            ErrorKind::IpSuppressed(_) => Self::IpSuppressed,
            ErrorKind::NoMemory { .. } => Self::NotMapped,
            ErrorKind::TruncatedInstruction { .. }
            | ErrorKind::UnknownInstruction { .. }
            | ErrorKind::UnknownMode { .. } => Self::BadInstruction,
            ErrorKind::ReturnWithoutCall { .. } => Self::ReturnWithoutCall,
            ErrorKind::BadReturnCompression { .. } => Self::BadReturn,
            ErrorKind::StateMismatch { .. } | ErrorKind::ModeMismatch { .. } => Self::BadStatusUpdate,
            // Errors of other kinds of recordings, and those that libipt calls internal as well.
            _ => Self::Internal,
        }
    }
}

/// libipt's code for an unknown time.
impl From<TimeError> for Code {
    fn from(error: TimeError) -> Self {
        match error {
            TimeError::UnknownRatio => Self::BadConfig,
            TimeError::OutOfRange => Self::BadPacket,
            TimeError::UnexpectedTma => Self::BadContext,
            TimeError::NoTsc | TimeError::NotCalibrated => Self::NoTime,
        }
    }
}

/// libipt's code for an unknown address.
impl From<NoIp> for Code {
    fn from(error: NoIp) -> Self {
        match error {
            NoIp::Never => Self::NoIp,
            NoIp::Suppressed => Self::IpSuppressed,
        }
    }
}

/// The texts, by the number of the error.
const TEXTS: [&CStr; 28] = [
    c"OK",
    c"internal error",
    c"invalid argument",
    c"decoder out of sync",
    c"unknown opcode",
    c"unknown packet",
    c"unexpected packet context",
    c"reached end of trace stream",
    c"trace stream does not match query",
    c"out of memory",
    c"bad configuration",
    c"no ip",
    c"ip has been suppressed",
    c"no memory mapped at this address",
    c"unknown instruction",
    c"no timing information",
    c"no core:bus ratio",
    c"bad image",
    c"locking error",
    c"not supported",
    c"compressed return without call",
    c"bad compressed return",
    c"bad status update",
    c"expected tracing enabled event",
    c"event ignored",
    c"overflow",
    c"bad file",
    c"unknown cpu",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_decoder_has_libipts_text() {
        let ip = 0;
        for (kind, text) in [
            (ErrorKind::UnknownOpcode(0xc9), "unknown opcode"),
            (ErrorKind::UnknownExtendedOpcode(0), "unknown opcode"),
            (ErrorKind::UnknownOpcodeAfterC3(0), "unknown opcode"),
            (ErrorKind::Refused(1), "unknown opcode"),
            (ErrorKind::MalformedPacket { packet: "TIP", value: 5 }, "unknown packet"),
            (ErrorKind::EndOfSlice, "reached end of trace stream"),
            (ErrorKind::OutOfSync, "decoder out of sync"),
            (ErrorKind::UnexpectedPacket("TIP"), "unexpected packet context"),
            (ErrorKind::IpSuppressed("FUP"), "ip has been suppressed"),
            (ErrorKind::TooManyWaiting("CFE"), "out of memory"),
            (ErrorKind::StateMismatch { ip }, "bad status update"),
            (ErrorKind::ModeMismatch { mode: None }, "bad status update"),
            (ErrorKind::TraceMismatch { ip }, "trace stream does not match query"),
            (ErrorKind::EndlessLoop { ip }, "trace stream does not match query"),
            (ErrorKind::EndlessCode { ip, insns: 0 }, "trace stream does not match query"),
            (ErrorKind::NoMemory { ip }, "no memory mapped at this address"),
            (ErrorKind::TruncatedInstruction { ip }, "unknown instruction"),
            (ErrorKind::UnknownInstruction { ip }, "unknown instruction"),
            (ErrorKind::UnknownMode { ip }, "unknown instruction"),
            (ErrorKind::ReturnWithoutCall { ip }, "compressed return without call"),
            (ErrorKind::BadReturnCompression { ip }, "bad compressed return"),
            (ErrorKind::Truncated { bytes: 5, needed: 24 }, "reached end of trace stream"),
            (ErrorKind::LooksTooFar, "out of memory"),
        ] {
            assert_eq!(Code::from(kind).text(), text, "{kind:?}");
        }
        assert_eq!(Code::from(NoIp::Never).text(), "no ip");
        assert_eq!(Code::from(NoIp::Suppressed).text(), "ip has been suppressed");
        assert_eq!(Code::from(TimeError::UnknownRatio).text(), "bad configuration");
        assert_eq!((Code::text_of(28), Code::text_of(-1), Code::text_of(0)), (None, None, Some(c"OK")));
    }
}
