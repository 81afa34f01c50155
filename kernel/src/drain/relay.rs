//! Hands a trace to another processor, without a lock.

use super::Sink;
use crate::loss::{Gap, Overwritten};
use crate::memory::SharedBytes;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A ring between the processor that is traced and another one that decodes, stores or sends the trace.
///
/// The writer is a [`Sink`] for the PMI handler. It copies bytes into the ring and publishes its position; the reader
/// publishes its own. Neither waits for the other. Bytes without room stay in the trace's own buffer and are offered
/// again, so a slow reader alone loses nothing. Only a full trace buffer loses data, which is told as a [`Gap`] that
/// passes through the ring in its place.
///
/// ```
/// use pugmark_kernel::drain::{KeepAll, Relay, Sink};
/// use pugmark_kernel::loss::Gap;
///
/// let mut memory = [0; 4096];
/// let mut relay = Relay::new(&mut memory);
/// // The reader may go to another processor.
/// let (mut writer, mut reader) = relay.split();
/// assert_eq!(writer.bytes(b"packets"), 7);
/// assert!(writer.gap(Gap::Full));
///
/// /// Keeps what the reader takes.
/// #[derive(Default)]
/// struct Store(Vec<u8>, Vec<Gap>);
///
/// impl Sink for Store {
///     fn bytes(&mut self, bytes: &[u8]) -> usize {
///         self.0.extend(bytes);
///         bytes.len()
///     }
///     fn gap(&mut self, gap: Gap) -> bool {
///         self.1.push(gap);
///         true
///     }
/// }
///
/// let mut store = Store::default();
/// assert!(!reader.drain_to(&mut KeepAll), "what is not taken stays");
/// assert!(reader.drain_to(&mut store));
/// assert_eq!((&store.0[..], &store.1[..]), (&b"packets"[..], &[Gap::Full][..]));
/// ```
#[derive(Debug)]
pub struct Relay<'m> {
    memory: SharedBytes,
    /// The borrow of the memory.
    borrowed: PhantomData<&'m mut [u8]>,
    /// The numbers of bytes written and read. The byte with number `n` is at `n % memory.len()`.
    head: AtomicU64,
    tail: AtomicU64,
    gaps: [RelayedGap; GAPS],
    /// The numbers of gaps written and read.
    gap_head: AtomicU64,
    gap_tail: AtomicU64,
}

// SAFETY: only the one reader accesses bytes from `tail` to `head`, and only reads them; only the one writer accesses
// the others. Each number is published after the accesses that it ends.
unsafe impl Sync for Relay<'_> {}

// SAFETY: the relay has the only borrow of the memory, and bytes are `Send`.
unsafe impl Send for Relay<'_> {}

/// The number of gaps that fit in.
const GAPS: usize = 16;

/// A gap before the byte with the number `at`.
#[derive(Debug, Default)]
struct RelayedGap {
    at: AtomicU64,
    kind: AtomicU8,
    bytes: AtomicU64,
}

impl<'m> Relay<'m> {
    /// Creates an empty ring in this memory.
    ///
    /// # Panics
    ///
    /// There is no memory.
    #[must_use]
    pub fn new(memory: &'m mut [u8]) -> Self {
        assert!(!memory.is_empty(), "a ring needs memory");
        let len = memory.len();
        // SAFETY: initialized memory, borrowed mutably as long as the value lives.
        let memory = unsafe { SharedBytes::new(NonNull::from(memory).cast(), len) };
        let [head, tail, gap_head, gap_tail] = [const { AtomicU64::new(0) }; 4];
        Self { memory, borrowed: PhantomData, head, tail, gaps: Default::default(), gap_head, gap_tail }
    }

    /// Returns the two ends, each for one processor.
    pub fn split(&mut self) -> (RelayWriter<'_>, RelayReader<'_>) {
        let relay = Ends { relay: self, one: PhantomData };
        (RelayWriter(relay), RelayReader(Ends { ..relay }))
    }

    /// Returns the memory from the byte with this number to the ring's end.
    fn place(&self, number: u64) -> SharedBytes {
        self.memory.from((number % self.memory.len() as u64) as usize)
    }
}

/// An end of a ring. There is one of each kind, and it may be sent to another processor but not shared.
#[derive(Clone, Copy, Debug)]
struct Ends<'r> {
    relay: &'r Relay<'r>,
    one: PhantomData<core::cell::Cell<()>>,
}

/// The end of a [`Relay`] that the traced processor writes to.
#[derive(Debug)]
pub struct RelayWriter<'r>(Ends<'r>);

/// The end of a [`Relay`] that another processor reads from.
#[derive(Debug)]
pub struct RelayReader<'r>(Ends<'r>);

impl RelayWriter<'_> {
    /// Returns the free room in bytes.
    #[must_use]
    pub fn room(&self) -> u64 {
        let relay = self.0.relay;
        // Bytes are free once the reader has published that it has read them.
        let used = relay.head.load(Ordering::Relaxed) - relay.tail.load(Ordering::Acquire);
        relay.memory.len() as u64 - used
    }
}

impl Sink for RelayWriter<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> usize {
        let relay = self.0.relay;
        let head = relay.head.load(Ordering::Relaxed);
        let bytes = &bytes[..bytes.len().min(self.room() as usize)];
        let to = relay.place(head);
        let (first, second) = bytes.split_at(bytes.len().min(to.len()));
        // SAFETY: free memory of the ring, which only this writer touches.
        unsafe { to.write(first) };
        // SAFETY: as above, from the ring's beginning.
        unsafe { relay.memory.write(second) };
        relay.head.store(head + bytes.len() as u64, Ordering::Release);
        bytes.len()
    }

    fn gap(&mut self, gap: Gap) -> bool {
        let relay = self.0.relay;
        let number = relay.gap_head.load(Ordering::Relaxed);
        if number - relay.gap_tail.load(Ordering::Acquire) == GAPS as u64 {
            return false;
        }
        let (kind, bytes) = match gap {
            Gap::Stop => (0, 0),
            Gap::Full => (1, 0),
            Gap::Error => (2, 0),
            Gap::Excluded => (3, 0),
            Gap::Abandoned => (4, 0),
            Gap::Wrap(Overwritten::Perhaps) => (5, 0),
            Gap::Wrap(Overwritten::AtLeast(bytes)) => (6, bytes),
            Gap::Wrap(Overwritten::Exactly(bytes)) => (7, bytes),
            Gap::TurnedOff => (8, 0),
        };
        let place = &relay.gaps[number as usize % GAPS];
        place.at.store(relay.head.load(Ordering::Relaxed), Ordering::Relaxed);
        place.kind.store(kind, Ordering::Relaxed);
        place.bytes.store(bytes, Ordering::Relaxed);
        // Before the bytes after it are published.
        relay.gap_head.store(number + 1, Ordering::Release);
        true
    }
}

impl RelayReader<'_> {
    /// Hands everything that has come so far to a sink. The rest that the sink does not take stays. Returns whether it
    /// has taken all.
    pub fn drain_to(&mut self, sink: &mut (impl Sink + ?Sized)) -> bool {
        let relay = self.0.relay;
        // Load the head first: each gap before it is then visible.
        let head = relay.head.load(Ordering::Acquire);
        let gaps = relay.gap_head.load(Ordering::Acquire);
        loop {
            let tail = relay.tail.load(Ordering::Relaxed);
            let number = relay.gap_tail.load(Ordering::Relaxed);
            let place = (number < gaps).then(|| &relay.gaps[number as usize % GAPS]);
            let at = place.map(|place| place.at.load(Ordering::Relaxed));
            if let (Some(place), true) = (place, at == Some(tail)) {
                if !sink.gap(place.gap()) {
                    return false;
                }
                relay.gap_tail.store(number + 1, Ordering::Release);
                continue;
            }
            let end = at.unwrap_or(head).min(head);
            if tail >= end {
                return true;
            }
            let from = relay.place(tail);
            let len = from.len().min((end - tail) as usize);
            // SAFETY: bytes that were written before `head` was published, and that the writer does not touch before
            // this reader publishes that it has read them.
            let bytes = unsafe { from.slice(len) };
            let taken = sink.bytes(bytes).min(len);
            relay.tail.store(tail + taken as u64, Ordering::Release);
            if taken < len {
                return false;
            }
        }
    }

    /// Returns the number of bytes that have come and were not read.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let relay = self.0.relay;
        relay.head.load(Ordering::Acquire) - relay.tail.load(Ordering::Relaxed)
    }
}

impl RelayedGap {
    fn gap(&self) -> Gap {
        let bytes = self.bytes.load(Ordering::Relaxed);
        match self.kind.load(Ordering::Relaxed) {
            0 => Gap::Stop,
            1 => Gap::Full,
            2 => Gap::Error,
            3 => Gap::Excluded,
            4 => Gap::Abandoned,
            5 => Gap::Wrap(Overwritten::Perhaps),
            6 => Gap::Wrap(Overwritten::AtLeast(bytes)),
            8 => Gap::TurnedOff,
            _ => Gap::Wrap(Overwritten::Exactly(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sink that takes at most `room` bytes, and keeps bytes and gaps.
    #[derive(Default)]
    struct Seen(Vec<Result<u8, Gap>>, Option<usize>);

    impl Sink for Seen {
        fn bytes(&mut self, bytes: &[u8]) -> usize {
            let taken = bytes.len().min(self.1.unwrap_or(usize::MAX));
            self.0.extend(bytes[..taken].iter().map(|byte| Ok(*byte)));
            taken
        }
        fn gap(&mut self, gap: Gap) -> bool {
            self.0.push(Err(gap));
            true
        }
    }

    #[test]
    fn each_gap_passes_in_its_place_and_as_it_is() {
        let kinds = [
            Gap::Stop,
            Gap::Full,
            Gap::Error,
            Gap::Excluded,
            Gap::Abandoned,
            Gap::TurnedOff,
            Gap::Wrap(Overwritten::Perhaps),
            Gap::Wrap(Overwritten::AtLeast(7)),
            Gap::Wrap(Overwritten::Exactly(1 << 40)),
        ];
        let mut memory = [0; 5];
        let mut relay = Relay::new(&mut memory);
        let (mut writer, mut reader) = relay.split();
        let (mut seen, mut expected) = (Seen::default(), vec![]);
        for (n, gap) in kinds.into_iter().cycle().take(100).enumerate() {
            let bytes = [n as u8; 2];
            assert_eq!(writer.bytes(&bytes), 2);
            assert!(writer.gap(gap));
            expected.extend([Ok(n as u8), Ok(n as u8), Err(gap)]);
            // Two at a time, so that gaps are at the head, too.
            if n % 2 == 1 {
                assert_eq!((reader.waiting(), reader.drain_to(&mut seen)), (4, true));
            }
        }
        assert_eq!(seen.0, expected);
    }

    #[test]
    fn what_has_no_room_is_not_taken_and_what_is_not_read_stays() {
        let mut memory = [0; 8];
        let mut relay = Relay::new(&mut memory);
        let (mut writer, mut reader) = relay.split();
        assert_eq!((writer.bytes(b"abcdefghij"), writer.bytes(b"x")), (8, 0));
        let mut seen = Seen(vec![], Some(3));
        assert!(!reader.drain_to(&mut seen));
        assert_eq!(writer.room(), 3);
        assert_eq!((writer.bytes(b"ijkl"), reader.waiting(), writer.room()), (3, 8, 0));
        seen.1 = None;
        assert!(reader.drain_to(&mut seen));
        assert_eq!(seen.0, b"abcdefghijk".map(Ok));
        let noted = (0..20).filter(|_| writer.gap(Gap::Full)).count();
        assert_eq!(noted, GAPS);
    }
}
