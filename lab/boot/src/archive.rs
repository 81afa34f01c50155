//! The archive: the PMI handler's storage for drained bytes.

use alloc::vec::Vec;
use pugmark_kernel::drain::{Chunk, Sink};
use pugmark_kernel::loss::Gap;
use pugmark_protocol::After;

/// Maximum number of segments.
const SEGMENTS: usize = 256;

/// Trace bytes in preallocated memory, so that storing them neither blocks nor allocates.
#[derive(Debug)]
pub struct Archive {
    trace: Vec<u8>,
    /// Number of bytes that were preallocated.
    room: usize,
    segments: [Mark; SEGMENTS],
    count: usize,
    full: u64,
    /// No further segment can be added.
    closed: bool,
    /// Tracing paused between the bytes of different calls.
    apart: bool,
    /// The address space of the bytes that come next, if known.
    space: Option<u64>,
}

/// The start of a segment.
#[derive(Clone, Copy, Debug)]
struct Mark {
    start: usize,
    after: After,
    space: Option<u64>,
}

/// Contiguous trace bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSegment<'m> {
    /// The event before it: the start, or a kind of gap.
    pub after: After,
    /// The CR3 under which it was traced, if [`Archive::enter`] has reported it.
    pub space: Option<u64>,
    /// The bytes.
    pub bytes: &'m [u8],
}

impl Archive {
    /// Returns an empty archive with memory for this number of bytes.
    #[must_use]
    pub fn with_room(room: usize) -> Self {
        Self {
            trace: Vec::with_capacity(room),
            room,
            segments: [Mark { start: 0, after: After::Start, space: None }; SEGMENTS],
            count: 1,
            full: 0,
            closed: false,
            apart: false,
            space: None,
        }
    }

    /// Treats bytes of different calls as separate segments, for a source that is off while it is drained and whose
    /// trace does not show that.
    #[must_use]
    pub fn apart(self) -> Self {
        Self { apart: true, ..self }
    }

    /// Sets the CR3 of the bytes that come next, for a trace that does not contain it.
    pub const fn enter(&mut self, space: u64) {
        self.space = Some(space);
    }

    /// Returns all bytes, segment after segment.
    #[must_use]
    pub fn trace(&self) -> &[u8] {
        &self.trace
    }

    /// Iterates over the segments, oldest first, without the empty ones.
    pub fn segments(&self) -> impl Iterator<Item = TraceSegment<'_>> {
        (0..self.count).filter_map(|index| {
            let Mark { start, after, space } = self.segments[index];
            let end = if index + 1 < self.count { self.segments[index + 1].start } else { self.trace.len() };
            (start < end).then(|| TraceSegment { after, space, bytes: &self.trace[start..end] })
        })
    }

    /// Stores the bytes that remain in a stopped unit's buffer.
    pub fn keep<'t>(&mut self, chunks: impl Iterator<Item = Chunk<'t>>) {
        for chunk in chunks {
            match chunk {
                Chunk::Bytes(bytes) => _ = self.bytes(bytes),
                Chunk::Gap(gap) => _ = self.gap(gap),
            }
        }
    }

    /// Returns the number of times that bytes were dropped for lack of room.
    #[must_use]
    pub const fn full(&self) -> u64 {
        self.full
    }

    fn begin_segment(&mut self, after: After) {
        let mark = Mark { start: self.trace.len(), after, space: self.space };
        if self.is_new() {
            // The last segment is still empty.
            self.segments[self.count - 1] = mark;
        } else if self.count < SEGMENTS {
            self.segments[self.count] = mark;
            self.count += 1;
        } else {
            self.closed = true;
        }
    }

    /// Returns true if the last segment is still empty.
    fn is_new(&self) -> bool {
        self.segments[self.count - 1].start == self.trace.len()
    }
}

impl Sink for Archive {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        if self.is_new() {
            self.segments[self.count - 1].space = self.space;
        } else if self.apart {
            self.begin_segment(After::Off);
        }
        if bytes.len() <= self.room - self.trace.len() && !self.closed {
            // The vector has the memory already.
            self.trace.extend_from_slice(bytes);
        } else {
            self.full += 1;
            self.begin_segment(After::Full);
        }
        bytes.len()
    }

    fn gap(&mut self, gap: Gap) -> bool {
        self.begin_segment(match gap {
            Gap::Stop => After::Stop,
            Gap::Wrap(_) => After::Wrap,
            Gap::Error => After::Error,
            Gap::Full => After::Full,
            Gap::Excluded | Gap::Abandoned | Gap::TurnedOff => After::Off,
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_kernel::loss::Overwritten;

    fn segments(archive: &Archive) -> Vec<(After, &[u8])> {
        archive.segments().map(|segment| (segment.after, segment.bytes)).collect()
    }

    #[test]
    fn bytes_are_one_segment_until_a_gap() {
        let mut archive = Archive::with_room(64);
        archive.gap(Gap::Wrap(Overwritten::Exactly(1)));
        for bytes in [&b"ab"[..], b"", b"c"] {
            assert_eq!(archive.bytes(bytes), bytes.len());
        }
        // Adjacent gaps count as one.
        (0..SEGMENTS).for_each(|_| assert!(archive.gap(Gap::Stop)));
        archive.gap(Gap::Error);
        archive.bytes(b"de");
        archive.gap(Gap::Stop);
        assert_eq!(segments(&archive), [(After::Wrap, &b"abc"[..]), (After::Error, b"de")]);
        assert_eq!((archive.trace(), archive.full()), (&b"abcde"[..], 0));
    }

    #[test]
    fn what_does_not_fit_is_counted_and_is_a_gap() {
        let mut archive = Archive::with_room(4);
        archive.bytes(b"abc");
        assert_eq!(archive.bytes(b"defg"), 4);
        archive.bytes(b"h");
        archive.bytes(b"i");
        assert_eq!(segments(&archive), [(After::Start, &b"abc"[..]), (After::Full, b"h")]);
        assert_eq!(archive.full(), 2);
    }

    #[test]
    fn nothing_is_taken_when_no_more_gaps_can_be_noted() {
        let mut archive = Archive::with_room(256);
        for _ in 0..SEGMENTS + 3 {
            archive.bytes(b"a");
            archive.gap(Gap::Stop);
        }
        assert_eq!(archive.segments().count(), SEGMENTS);
        assert_eq!(archive.full(), 3);
        assert!(archive.segments().skip(1).all(|segment| segment.bytes == b"a"));
    }
}
