//! Texts: those that libipt's programs print for errors, and any without what a terminal obeys.

use crate::code::CacheError;
use pugmark_decoder_core::ErrorKind;
use pugmark_decoder_core::last_ip::NoIp;
use pugmark_decoder_core::time::TimeError;
use std::borrow::Cow;
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

/// Returns a name or a message without characters that a terminal obeys or that end a line: each is shown by its
/// number, as in `\u{1b}`. So are those that change the direction of what follows.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_hidden = |letter: char| {
        letter.is_control() || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_hidden) {
        return text.into();
    }
    let mut shown = String::new();
    for letter in text.chars() {
        match is_hidden(letter) {
            true => shown.extend(letter.escape_unicode()),
            false => shown.push(letter),
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_shown_by_its_number() {
        for (text, expected) in [
            ("a b<c>;é", "a b<c>;é"),
            ("\x1b]0;x\x07", "\\u{1b}]0;x\\u{7}"),
            ("a\nb\r\tc", "a\\u{a}b\\u{d}\\u{9}c"),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
            ("a\u{202e}b\u{2066}\u{2028}", "a\\u{202e}b\\u{2066}\\u{2028}"),
        ] {
            assert_eq!(printable(text), expected);
        }
    }
}
