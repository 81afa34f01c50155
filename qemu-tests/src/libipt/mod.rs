//! libipt, where it is installed, as a second reader of traces.
//!
//! The library is loaded at run time, so that nothing needs it to build. Debian has it in `libipt2`.

mod insns;
mod library;
mod packets;
#[cfg(test)]
mod tests;

pub use library::Cpu;

use insns::Decoder;
use library::Library;
use std::fmt;

/// What libipt made of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// The addresses of the instructions, in order.
    pub addresses: Vec<u64>,
    /// The errors between them. After each, libipt went on at the next PSB.
    pub errors: Vec<DecodeError>,
    /// How many overflows it saw.
    pub overflows: u64,
}

/// An error of libipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Where libipt was in the trace, in bytes.
    pub offset: u64,
    /// How many instructions, or packets, it had found before.
    pub after: usize,
    /// Its name for what is wrong.
    pub text: &'static str,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}, after {}: {}", self.offset, self.after, self.text)
    }
}

/// Code at an address.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Where its first byte is.
    pub base: u64,
    /// The code.
    pub bytes: &'a [u8],
    /// The address space that it is in; none: all.
    pub cr3: Option<u64>,
}

/// Decodes a trace by libipt's instruction flow decoder, going on at the next PSB after each error.
///
/// `sections` are the code: where it was, and its bytes; a later section hides what is behind it of earlier ones.
/// `None` when libipt is not installed. The number of instructions is limited to [`MOST_INSTRUCTIONS`], because
/// libipt does not see that a loop in the code has no end.
#[must_use]
pub fn decode(trace: &[u8], sections: &[(u64, &[u8])]) -> Option<Decoded> {
    decode_for(None, trace, sections)
}

/// Like [`decode`], with the errata of a processor; one that libipt does not know has none.
#[must_use]
pub fn decode_for(cpu: Option<Cpu>, trace: &[u8], sections: &[(u64, &[u8])]) -> Option<Decoded> {
    let section = |&(base, bytes)| Section { base, bytes, cr3: None };
    decode_sections(cpu, trace, &sections.iter().map(section).collect::<Vec<_>>())
}

/// Like [`decode_for`], with code that differs by address space.
#[must_use]
pub fn decode_sections(cpu: Option<Cpu>, trace: &[u8], sections: &[Section<'_>]) -> Option<Decoded> {
    Some(Decoder::new(Library::get()?, cpu, trace, &sections, MOST_INSTRUCTIONS)?.run())
}

/// Decodes a trace from its first PSB to the first error, or until it has so many instructions. Then that is the error.
///
/// `None` when libipt is not installed.
#[must_use]
pub fn decode_to_error(trace: &[u8], sections: &[Section<'_>], most: usize) -> Option<Decoded> {
    Some(Decoder::new(Library::get()?, None, trace, &sections, most)?.run_to_error())
}

/// How many packets there are from the first PSB on, and the first error; `None` when libipt is not installed.
#[must_use]
pub fn packets(trace: &[u8]) -> Option<(usize, Option<DecodeError>)> {
    packets::packets(Library::get()?, trace)
}

/// How many instructions [`decode`] gives at most; then it ends with an error that says so.
pub const MOST_INSTRUCTIONS: usize = 1 << 26;

/// What that error says.
pub const TOO_MANY_INSTRUCTIONS: &str = "too many instructions";
