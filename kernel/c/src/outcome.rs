//! Errors as numbers, with their text, and the end of a trace.

use core::ffi::{c_char, c_int};
use core::fmt::{self, Write};
use pugmark_kernel::loss::Loss;
use pugmark_kernel::short::ShortError;

/// No error.
pub const OK: c_int = 0;
/// The processor has no Intel PT, or another owner uses it.
pub const ERROR_ABSENT: c_int = 1;
/// The processor cannot trace into this memory, or there is too little of it.
pub const ERROR_BUFFER: c_int = 2;
/// The processor did not start the trace.
pub const ERROR_START: c_int = 3;
/// There is no trace, or one already; or the local APIC is disabled.
pub const ERROR_SLOT: c_int = 4;
/// A register raised #GP when the trace was stopped.
pub const ERROR_STOP: c_int = 5;
/// The memory for a copy of the trace has too few bytes.
pub const ERROR_SCRATCH: c_int = 6;
/// The trace cannot be decoded.
pub const ERROR_DECODE: c_int = 7;
/// An argument is null, misaligned or out of range.
pub const ERROR_ARGUMENT: c_int = 8;

/// The reason why a function did not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The driver's or the decoder's error.
    Short(ShortError),
    /// An argument that cannot be used.
    Argument(&'static str),
}

impl<E: Into<ShortError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Short(error.into())
    }
}

impl Failure {
    const fn number(&self) -> c_int {
        match self {
            Self::Short(ShortError::Absent(_)) => ERROR_ABSENT,
            Self::Short(ShortError::Buffer(_)) => ERROR_BUFFER,
            Self::Short(ShortError::Start(_)) => ERROR_START,
            Self::Short(ShortError::Slot(_)) => ERROR_SLOT,
            Self::Short(ShortError::Stop(_)) => ERROR_STOP,
            Self::Short(ShortError::Scratch { .. }) => ERROR_SCRATCH,
            Self::Short(ShortError::Decode(_)) => ERROR_DECODE,
            Self::Argument(_) => ERROR_ARGUMENT,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(error) => error.fmt(f),
            Self::Argument(wrong) => f.write_str(wrong),
        }
    }
}

/// The size of [`Outcome::reason`], with the 0 at its end.
const REASON: usize = 128;

/// The end of a trace: `pugmark_outcome`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Outcome {
    /// The number of instructions decoded.
    pub instructions: u64,
    /// The hash of their addresses.
    pub hash: u64,
    /// The number of near calls.
    pub calls: u64,
    /// The number of bytes of trace.
    pub bytes: u64,
    /// The number of places where the trace could not be decoded.
    pub errors: u64,
    /// The number of performance-monitoring interrupts served.
    pub pmis: u64,
    /// The losses of the driver.
    pub loss: Loss,
    /// 1 if nothing was lost and everything was decoded.
    pub is_whole: c_int,
    /// The text of the error with its values, or of the losses; it ends with a 0.
    pub reason: [c_char; REASON],
}

impl Outcome {
    pub(crate) const EMPTY: Self = Self {
        instructions: 0,
        hash: 0,
        calls: 0,
        bytes: 0,
        errors: 0,
        pmis: 0,
        loss: Loss::NONE,
        is_whole: 0,
        reason: [0; REASON],
    };

    /// Notes the losses, with their text.
    pub(crate) fn lost(&mut self, loss: &Loss) {
        self.loss = *loss;
        self.is_whole = (loss.is_none() && self.errors == 0).into();
        self.explain(loss);
    }

    fn explain(&mut self, reason: impl fmt::Display) {
        // The text is cut where there is no more room.
        let _ = write!(Text { rest: &mut self.reason }, "{reason}");
    }
}

/// A text for C: the last byte stays 0.
struct Text<'a> {
    rest: &'a mut [c_char],
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = text.floor_char_boundary(self.rest.len() - 1);
        let (place, rest) = core::mem::take(&mut self.rest).split_at_mut(room);
        place.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte as c_char);
        self.rest = rest;
        if room < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Calls `work`, writes what it returns to `outcome`, and returns the error's number.
///
/// # Safety
///
/// `outcome` is null, misaligned or valid for writes.
pub(crate) unsafe fn report(outcome: *mut Outcome, work: impl FnOnce() -> Result<Outcome, Failure>) -> c_int {
    if outcome.is_null() || !outcome.is_aligned() {
        return ERROR_ARGUMENT;
    }
    let (number, result) = match work() {
        Ok(result) => (OK, result),
        Err(failure) => {
            let mut result = Outcome::EMPTY;
            result.explain(&failure);
            (failure.number(), result)
        }
    };
    // SAFETY: aligned, not null, and valid by the caller's promise.
    unsafe { outcome.write(result) };
    number
}

/// Returns the text of an error's number, which is never null.
#[unsafe(no_mangle)]
pub extern "C" fn pugmark_text(error: c_int) -> *const c_char {
    let text = match error {
        OK => c"no error",
        ERROR_ABSENT => c"no Intel PT here",
        ERROR_BUFFER => c"no memory for the trace",
        ERROR_START => c"the trace did not start",
        ERROR_SLOT => c"there is no trace, or one already; or the local APIC is disabled",
        ERROR_STOP => c"the trace did not stop",
        ERROR_SCRATCH => c"the memory for a copy of the trace is too small",
        ERROR_DECODE => c"the trace cannot be decoded",
        ERROR_ARGUMENT => c"an argument is null, misaligned or out of range",
        _ => c"no error has this number",
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;
    use std::string::String;

    #[test]
    fn a_reason_that_is_too_long_is_cut_between_characters_and_ends_with_0() {
        for (text, kept) in [("", 0), ("short", 5), (&"x".repeat(200)[..], 127), (&"é".repeat(100)[..], 126)]
        {
            let mut outcome = Outcome::EMPTY;
            outcome.explain(text);
            let bytes = outcome.reason.map(|byte| byte as u8);
            let end = bytes.iter().position(|byte| *byte == 0).unwrap();
            assert_eq!((end, &bytes[..end]), (kept, &text.as_bytes()[..kept]));
        }
        // In several pieces.
        let mut outcome = Outcome::EMPTY;
        let pieces = ["y".repeat(126), "é".into(), "z".into()];
        outcome.explain(format_args!("{}{}{}", pieces[0], pieces[1], pieces[2]));
        let bytes: std::vec::Vec<_> = outcome.reason.iter().map(|byte| *byte as u8).collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), "y".repeat(126) + "\0\0");
    }

    #[test]
    fn a_trace_is_whole_without_a_loss_and_without_an_error() {
        let lost = Loss { wrap: 1, wrapped_bytes: 4096, ..Loss::NONE };
        for (errors, loss, is_whole) in [(0, Loss::NONE, 1), (1, Loss::NONE, 0), (0, lost, 0)] {
            let mut outcome = Outcome { errors, ..Outcome::EMPTY };
            outcome.lost(&loss);
            assert_eq!((outcome.is_whole, outcome.loss.wrap), (is_whole, loss.wrap));
            let text: String = outcome.reason.iter().map(|byte| char::from(*byte as u8)).collect();
            assert!(text.starts_with(if loss.wrap == 0 { "nothing was lost\0" } else { "1 " }), "{text}");
        }
    }
}
