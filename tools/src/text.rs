//! The texts that libipt's programs print for errors.

use crate::code::CacheError;
use pugmark_decoder_core::ErrorKind;
use pugmark_decoder_core::last_ip::NoIp;
use pugmark_decoder_core::time::TimeError;
use std::io;

/// Returns the text for a packet that cannot be read.
pub fn of_packet(error: ErrorKind) -> &'static str {
    match error {
        ErrorKind::MalformedPacket { .. } => "unknown packet",
        _ => "unknown opcode",
    }
}

/// Returns the text for a time that is unknown.
pub fn of_time(error: TimeError) -> &'static str {
    match error {
        TimeError::UnknownRatio => "bad configuration",
        TimeError::OutOfRange => "unknown packet",
        TimeError::UnexpectedTma => "unexpected packet context",
        TimeError::NoTsc | TimeError::NotCalibrated => "no timing information",
    }
}

/// Returns the text for an IP that is unknown.
pub fn of_ip(error: NoIp) -> &'static str {
    match error {
        NoIp::Never => "no ip",
        NoIp::Suppressed => "ip has been suppressed",
    }
}

/// Returns the text for a part of a file that cannot be read.
pub fn of_cache(error: &CacheError) -> &'static str {
    match error {
        CacheError::Open(_) => "bad file",
        CacheError::Offset { .. } => "invalid argument",
        CacheError::Full => "out of memory",
    }
}

/// Returns the system's own text, as C's `strerror` does.
pub fn of_system(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().into()
}
