//! Error codes and their texts.

use pugmark_decoder_core::ErrorKind;
use std::ffi::{CStr, c_char, c_int};

/// `enum pt_error_code`. Functions return it negated.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Internal = 1,
    Invalid = 2,
    NoSync = 3,
    BadOpcode = 4,
    BadPacket = 5,
    BadContext = 6,
    EndOfStream = 7,
    BadQuery = 8,
    NoMemory = 9,
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
    BadCpu = 27,
}

impl Code {
    /// Returns the negated code, the value that functions return for the error.
    pub(crate) const fn status(self) -> c_int {
        -(self as c_int)
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
            ErrorKind::NoIp(_) => Self::NoIp,
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

/// Returns the text of an error; it is static. The code is the positive one.
#[unsafe(no_mangle)]
pub extern "C" fn pt_errstr(code: c_int) -> *const c_char {
    let text = usize::try_from(code).ok().and_then(|code| TEXTS.get(code));
    text.copied().unwrap_or(c"internal error.").as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_decoder_has_the_code_whose_text_is_libipts_for_it() {
        let ip = 0;
        for kind in [
            ErrorKind::UnknownOpcode(0xc9),
            ErrorKind::UnknownExtendedOpcode(0),
            ErrorKind::UnknownOpcodeAfterC3(0),
            ErrorKind::Refused(1),
            ErrorKind::MalformedPacket { packet: "TIP", value: 5 },
            ErrorKind::EndOfSlice,
            ErrorKind::OutOfSync,
            ErrorKind::UnexpectedPacket("TIP"),
            ErrorKind::IpSuppressed("FUP"),
            ErrorKind::NoIp("FUP"),
            ErrorKind::NoTarget("FUP"),
            ErrorKind::TooManyWaiting("CFE"),
            ErrorKind::StateMismatch { ip },
            ErrorKind::ModeMismatch { mode: None },
            ErrorKind::TraceMismatch { ip },
            ErrorKind::EndlessLoop { ip },
            ErrorKind::EndlessCode { ip, insns: 0 },
            ErrorKind::NoMemory { ip },
            ErrorKind::TruncatedInstruction { ip },
            ErrorKind::UnknownInstruction { ip },
            ErrorKind::UnknownMode { ip },
            ErrorKind::ReturnWithoutCall { ip },
            ErrorKind::BadReturnCompression { ip },
        ] {
            let code = Code::from(kind);
            assert_eq!(TEXTS[code as usize].to_str(), Ok(kind.libipt_text()), "{kind:?}");
        }
    }
}
