//! The end of a slice, kept until the next one comes.

use crate::packet::{Input, LONGEST};

/// Bytes at the end of the decoded part that are needed again.
#[derive(Debug)]
pub(super) struct Tail<'m> {
    memory: &'m mut [u8],
    len: usize,
    /// The offset of the first byte.
    base: u64,
    reach: usize,
}

/// A copy of a tail.
#[derive(Clone, Debug)]
pub(super) struct SavedTail<const N: usize> {
    bytes: [u8; N],
    len: usize,
    base: u64,
}

/// Bytes of a slice that are first decoded together with a tail. Mostly the tail is not needed after that.
const FIRST: usize = 64;

/// Bytes that may be kept in addition to `reach`: the bytes before, because a PSB may begin there, and a packet, which
/// may have any size if the caller's reader of unknown packets says so.
const MARGIN: usize = LONGEST - 1 + 2 * LONGEST + u8::MAX as usize;

impl<'m> Tail<'m> {
    pub(super) fn new<const N: usize>(memory: &'m mut [u8; N]) -> Self {
        const { assert!(N >= 1024, "too little memory for what is kept of a slice") };
        // Room for a PSB that may be needed again, for a packet that looks ahead, and for progress.
        let reach = (N - MARGIN - FIRST) / 2;
        Self { memory, len: 0, base: 0, reach }
    }

    /// Creates a tail with the contents of one that was saved.
    pub(super) fn restored<const N: usize>(saved: &SavedTail<N>, memory: &'m mut [u8; N]) -> Self {
        *memory = saved.bytes;
        Self { len: saved.len, base: saved.base, ..Self::new(memory) }
    }

    /// Returns a copy; `None` if it takes more memory.
    pub(super) fn save<const N: usize>(&self) -> Option<SavedTail<N>> {
        let mut bytes = [0; N];
        bytes.get_mut(..self.len)?.copy_from_slice(self.memory.get(..self.len)?);
        Some(SavedTail { bytes, len: self.len, base: self.base })
    }

    /// Returns the offset where the next slice begins.
    pub(super) const fn end(&self) -> u64 {
        self.base + self.len as u64
    }

    /// Decodes a slice by `run`, which returns the offset from which on bytes are needed again.
    pub(super) fn feed(&mut self, slice: &[u8], mut run: impl FnMut(Input<'_>) -> u64) {
        let start = self.end();
        let (mut copied, mut most) = (0, FIRST);
        while self.base < start {
            let rest = slice.get(copied..).unwrap_or_default();
            let added = self.append(rest.get(..most).unwrap_or(rest));
            if added == 0 {
                // The slice is used up. Memory cannot be: no decoder keeps that much.
                break;
            }
            copied += added;
            most *= 2;
            let keep = run(self.input(true));
            self.forget_before(keep);
        }
        if copied == slice.len() {
            return;
        }
        // The bytes before the slice are not needed any more.
        let input = |base: u64| Input {
            bytes: usize::try_from(base - start).ok().and_then(|at| slice.get(at..)).unwrap_or_default(),
            base,
            more: true,
            reach: self.reach,
        };
        let keep = run(input(start)).max(start);
        let rest = input(keep).bytes;
        (self.len, self.base) = (0, keep);
        self.append(rest);
    }

    /// Decodes the bytes that were kept, as the end of the stream. The caller then sets the [next offset](Self::go_to).
    pub(super) fn finish(&self, run: impl FnOnce(Input<'_>) -> u64) {
        run(self.input(false));
    }

    /// Continues with a slice at this offset.
    pub(super) const fn go_to(&mut self, offset: u64) {
        (self.base, self.len) = (offset, 0);
    }

    fn input(&self, more: bool) -> Input<'_> {
        let bytes = self.memory.get(..self.len).unwrap_or_default();
        Input { bytes, base: self.base, more, reach: self.reach }
    }

    /// Appends as many of the bytes as fit, and returns their number.
    fn append(&mut self, bytes: &[u8]) -> usize {
        let room = self.memory.get_mut(self.len..).unwrap_or_default();
        let added = bytes.len().min(room.len());
        if let (Some(room), Some(bytes)) = (room.get_mut(..added), bytes.get(..added)) {
            room.copy_from_slice(bytes);
        }
        self.len += added;
        added
    }

    fn forget_before(&mut self, offset: u64) {
        let forgotten = usize::try_from(offset.saturating_sub(self.base)).unwrap_or(usize::MAX).min(self.len);
        self.memory.copy_within(forgotten..self.len, 0);
        self.len -= forgotten;
        self.base += forgotten as u64;
    }
}
