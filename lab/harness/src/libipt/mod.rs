//! Decodes traces with Intel's libipt, if available, as a second opinion.
//!
//! The library is loaded at run time, so that it is not needed for building. [`release`] has the required releases and
//! their locations.

pub(crate) mod binding;
pub(crate) mod edges;
mod insns;
mod library;
mod packets;
pub mod release;
#[cfg(test)]
mod tests;

pub use library::Cpu;

use binding::Library;
use insns::Decoder;
use release::Release;
use std::fmt;

/// The release that decodes by default.
pub const REFERENCE: &Release = &release::V2_0_5;

/// The result of libipt's decoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// The addresses of the instructions, in order.
    pub addresses: Vec<u64>,
    /// The edges between blocks of these instructions, in order.
    pub edges: Vec<u16>,
    /// The errors, in order. After each error libipt continued at the next PSB.
    pub errors: Vec<DecodeError>,
    /// Number of overflows.
    pub overflows: u64,
}

/// An error of libipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// libipt's offset in the trace, in bytes.
    pub offset: u64,
    /// Number of instructions, or packets, before the error.
    pub after: usize,
    /// libipt's text for the error.
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
    /// The address of its first byte.
    pub base: u64,
    /// The code.
    pub bytes: &'a [u8],
    /// The CR3 of its address space; `None` means every address space.
    pub cr3: Option<u64>,
}

/// Decodes a trace with libipt's instruction flow decoder, which continues at the next PSB after each error.
///
/// `sections` are the addresses and bytes of the code; a later section hides earlier ones that it overlaps. Returns
/// `None` if [`REFERENCE`] is not found. The number of instructions is limited to [`MOST_INSTRUCTIONS`], because libipt
/// does not detect an endless loop in the code.
#[must_use]
pub fn decode(trace: &[u8], sections: &[(u64, &[u8])]) -> Option<Decoded> {
    decode_for(None, trace, sections)
}

/// Decodes like [`decode`], with the errata of a processor; a processor unknown to libipt has none.
#[must_use]
pub fn decode_for(cpu: Option<Cpu>, trace: &[u8], sections: &[(u64, &[u8])]) -> Option<Decoded> {
    let section = |&(base, bytes)| Section { base, bytes, cr3: None };
    decode_sections(cpu, trace, &sections.iter().map(section).collect::<Vec<_>>())
}

/// Decodes like [`decode_for`], with code that differs by address space.
#[must_use]
pub fn decode_sections(cpu: Option<Cpu>, trace: &[u8], sections: &[Section<'_>]) -> Option<Decoded> {
    Some(Decoder::new(Library::get(REFERENCE)?, cpu, trace, &sections, MOST_INSTRUCTIONS)?.run())
}

/// Decodes a trace from its first PSB to the first error. Reaching `most` instructions is an error too.
///
/// Returns `None` if the release is not found.
#[must_use]
pub fn decode_to_error(
    release: &'static Release,
    trace: &[u8],
    sections: &[Section<'_>],
    most: usize,
) -> Option<Decoded> {
    Some(Decoder::new(Library::get(release)?, None, trace, &sections, most)?.run_to_error())
}

/// Returns the number of packets from the first PSB on, and the first error; `None` if the release is not found.
#[must_use]
pub fn packets(release: &'static Release, trace: &[u8]) -> Option<(usize, Option<DecodeError>)> {
    packets::packets(Library::get(release)?, trace)
}

/// Maximum number of instructions that [`decode`] returns; at this number it ends with an error.
pub const MOST_INSTRUCTIONS: usize = 1 << 26;

/// The text of that error.
pub const TOO_MANY_INSTRUCTIONS: &str = "too many instructions";
