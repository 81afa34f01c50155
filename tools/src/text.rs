//! What libipt's programs call errors.

use pugmark_decoder_core::error::ErrorKind;
use pugmark_decoder_core::last_ip::NoIp;
use pugmark_decoder_core::time::TimeError;

/// The text for a packet that cannot be read.
pub fn of_packet(error: ErrorKind) -> &'static str {
    match error {
        ErrorKind::MalformedPacket { .. } => "unknown packet",
        _ => "unknown opcode",
    }
}

/// The text for a time that is not known.
pub fn of_time(error: TimeError) -> &'static str {
    match error {
        TimeError::UnknownRatio => "bad configuration",
        TimeError::OutOfRange => "unknown packet",
        TimeError::UnexpectedTma => "unexpected packet context",
        TimeError::NoTsc | TimeError::NotCalibrated => "no timing information",
    }
}

/// The text for an IP that is not known.
pub fn of_ip(error: NoIp) -> &'static str {
    match error {
        NoIp::Never => "no ip",
        NoIp::Suppressed => "ip has been suppressed",
    }
}
