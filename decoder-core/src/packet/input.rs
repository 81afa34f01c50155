//! The bytes to read: a whole trace, or the part at hand of one that comes in slices.

use super::PSB;

/// Bytes of a trace, with their place in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    pub(crate) bytes: &'a [u8],
    /// The offset of the first byte in the trace.
    pub(crate) base: u64,
    /// True if more bytes follow, but are not at hand.
    pub(crate) more: bool,
    /// The maximum number of bytes after a packet that its meaning may depend on.
    pub(crate) reach: usize,
}

/// The number of bytes that must be at hand to read a packet, if more follow: the size of the longest packet, a PSB.
/// With erratum SKD007 a packet's first bytes do not determine its kind, so no packet is read earlier.
pub(crate) const LONGEST: usize = 16;

impl<'a> Input<'a> {
    /// Creates the input of a whole trace.
    pub(crate) const fn whole(trace: &'a [u8]) -> Self {
        Self { bytes: trace, base: 0, more: false, reach: usize::MAX }
    }

    /// Returns true if the trace comes in slices.
    pub(crate) const fn is_sliced(&self) -> bool {
        self.reach != usize::MAX
    }

    /// Returns the bytes at which a readable packet may begin.
    pub(crate) fn readable(&self) -> &'a [u8] {
        let end = if self.more { self.bytes.len().saturating_sub(LONGEST - 1) } else { self.bytes.len() };
        self.bytes.get(..end).unwrap_or_default()
    }
}

/// Returns the start of a search for a PSB that may have begun before `offset`.
pub(crate) const fn before_psb(offset: u64) -> u64 {
    offset.saturating_sub(PSB.len() as u64 - 1)
}
