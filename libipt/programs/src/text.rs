//! Texts that libipt's programs print for what a file or the system refuses.

use crate::code::CacheError;
use pugmark_ipt::Code;
use std::io;

/// Returns the text for a part of a file that cannot be read.
pub fn of_cache(error: &CacheError) -> &'static str {
    match error {
        CacheError::Open(_) => Code::BadFile.text(),
        CacheError::Offset { .. } => Code::Invalid.text(),
        CacheError::Full => Code::NoMemory.text(),
    }
}

/// Returns the system's own text, as C's `strerror` does.
pub fn of_system(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().into()
}
