//! Who takes what was recorded, and the parts in which it comes: bytes where they lie, and gaps between them.

use crate::loss::Gap;

/// Who takes the trace while it runs.
///
/// Called in the PMI handler with the trace off: it must neither wait nor allocate. The bytes lie in the buffer
/// itself; they may be decoded in place or copied. They are complete in memory for this processor; another one may
/// read them, or a copy, once it has seen a value that was published after the call: the driver executes a full
/// fence before it.
pub trait Sink {
    /// The next bytes, in the order in which they were traced. A packet may go on in the next call.
    ///
    /// Returns how many of them, from the first on, it has done with: their memory is traced into again. The others
    /// stay in the buffer and come again. More than there are means all of them.
    fn bytes(&mut self, bytes: &[u8]) -> usize;

    /// Something is missing before the next bytes.
    ///
    /// Returns whether this is noted; if not, the gap and all behind it stay in the buffer and come again.
    fn gap(&mut self, gap: Gap) -> bool;
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        (**self).bytes(bytes)
    }

    fn gap(&mut self, gap: Gap) -> bool {
        (**self).gap(gap)
    }
}

/// Takes nothing: the PMI handler only accounts, and goes on in the regions that are still free.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAll;

impl Sink for KeepAll {
    fn bytes(&mut self, _: &[u8]) -> usize {
        0
    }

    fn gap(&mut self, _: Gap) -> bool {
        false
    }
}

/// A part of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes that follow those of the piece before, unless that is a gap.
    Bytes(&'a [u8]),
    /// Something is missing here.
    Gap(Gap),
}
