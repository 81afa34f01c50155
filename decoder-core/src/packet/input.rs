//! The bytes that are read: a whole trace, or what is at hand of one that comes in slices.

use super::PSB;

/// Bytes of a trace, with their place in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    pub(crate) bytes: &'a [u8],
    /// The offset of the first byte in the trace.
    pub(crate) base: u64,
    /// Whether more bytes follow, but are not at hand.
    pub(crate) more: bool,
    /// How many bytes after a packet may decide what that packet means.
    pub(crate) reach: usize,
}

/// How many bytes must be at hand to read a packet, if more follow: the size of the longest packet, a PSB. No
/// packet's first bytes decide alone what it is if erratum SKD007 applies, so none is read earlier.
pub(crate) const LONGEST: usize = 16;

impl<'a> Input<'a> {
    /// A whole trace.
    pub(crate) const fn whole(trace: &'a [u8]) -> Self {
        Self { bytes: trace, base: 0, more: false, reach: usize::MAX }
    }

    /// Whether the trace comes in slices.
    pub(crate) const fn is_sliced(&self) -> bool {
        self.reach != usize::MAX
    }

    /// The bytes at which a packet may begin that can be read.
    pub(crate) fn readable(&self) -> &'a [u8] {
        let end = if self.more { self.bytes.len().saturating_sub(LONGEST - 1) } else { self.bytes.len() };
        self.bytes.get(..end).unwrap_or_default()
    }
}

/// Where a search for a PSB begins that may have begun before `offset`.
pub(crate) const fn before_psb(offset: u64) -> u64 {
    offset.saturating_sub(PSB.len() as u64 - 1)
}
