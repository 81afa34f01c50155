//! Instructions, blocks and edges of a trace that comes in slices.

use super::{
    Kept, Lost,
    tail::{SavedTail, Tail},
};
use crate::{
    block::{BlockDecoder, OpenBlock},
    block_cache::{BlockCache, ExecutionSink, Scratch},
    config::Config,
    error::{Error, ErrorKind},
    event::Counters,
    flow::{WalkState, Walker},
    image::{Asid, Image},
    keeper::Lent,
    packet::{Input, Packets},
};

/// A walk over the code along a trace that comes in slices: [`BlockDecoder::visit`], from slice to slice.
#[derive(Debug)]
pub struct BlockStream<'c, 'm> {
    tail: Tail<'m>,
    walk: SlicedWalk<'c, 'm>,
}

/// The state of a [`BlockStream`] between two slices: a stream can go on from there any number of times.
///
/// It has some 1500 bytes, and `N` for the parts of slices that the stream keeps: as many as its [`Kept`] has.
#[derive(Clone, Debug)]
pub struct SavedStream<'c, const N: usize = { super::KEPT }> {
    tail: SavedTail<N>,
    packets: Packets<'c>,
    image: Image<'c>,
    state: WalkState,
    open: OpenBlock,
    synced: bool,
    errors: u64,
}

/// The state of a stream, without its bytes.
#[derive(Debug)]
struct SlicedWalk<'c, 'm> {
    /// The place in the trace.
    packets: Packets<'c>,
    image: Image<'c>,
    state: &'m mut WalkState,
    scratch: &'m mut Scratch,
    open: OpenBlock,
    synced: bool,
    errors: u64,
}

impl<'c, 'm> BlockStream<'c, 'm> {
    /// Creates a stream in front of its first slice.
    #[must_use]
    pub fn new<const N: usize>(image: Image<'c>, config: Config<'c>, kept: &'m mut Kept<N>) -> Self {
        let packets = Packets::with_config(&[], config);
        let Kept { bytes, state, scratch } = kept;
        state.clear();
        let walk =
            SlicedWalk { packets, image, state, scratch, open: OpenBlock::NONE, synced: false, errors: 0 };
        Self { tail: Tail::new(bytes), walk }
    }

    /// Creates a stream that continues where another was saved.
    #[must_use]
    pub fn restored<const N: usize>(saved: &SavedStream<'c, N>, kept: &'m mut Kept<N>) -> Self {
        let SavedStream { tail, packets, image, state: saved_state, open, synced, errors } = saved;
        let Kept { bytes, state, scratch } = kept;
        state.clone_from(saved_state);
        let (packets, image, open) = (packets.clone(), *image, *open);
        let walk = SlicedWalk { packets, image, state, scratch, open, synced: *synced, errors: *errors };
        Self { tail: Tail::restored(tail, bytes), walk }
    }

    /// Saves the state between two slices; `None` if `N` is less than this stream keeps of its last slice.
    #[must_use]
    pub fn save<const N: usize>(&self) -> Option<SavedStream<'c, N>> {
        let SlicedWalk { packets, image, state, open, synced, errors, .. } = &self.walk;
        Some(SavedStream {
            tail: self.tail.save()?,
            packets: packets.clone(),
            image: *image,
            state: (**state).clone(),
            open: *open,
            synced: *synced,
            errors: *errors,
        })
    }

    /// Decodes the next slice, and passes to `sink` what is certain without the slice after it.
    pub fn decode<S: ExecutionSink>(&mut self, slice: &[u8], cache: &mut BlockCache<'_>, sink: &mut S) {
        let Self { tail, walk } = self;
        tail.feed(slice, |input| walk.run(input, cache, sink));
    }

    /// Reports that `bytes` bytes are missing before the next slice; 0 if the number is unknown. Decodes the bytes that
    /// were kept, then restarts at the next PSB.
    pub fn gap<S: ExecutionSink>(&mut self, bytes: u64, cache: &mut BlockCache<'_>, sink: &mut S) {
        let offset = self.tail.end();
        self.end(cache, sink);
        sink.lost(&Lost::Gap { offset, bytes });
        self.go_to(offset + bytes);
    }

    /// Ends the stream: decodes the bytes that were kept. The next slice begins another stream, with offset 0.
    pub fn finish<S: ExecutionSink>(&mut self, cache: &mut BlockCache<'_>, sink: &mut S) {
        self.end(cache, sink);
        self.go_to(0);
    }

    /// Replaces the image from the next block on. Call it between two slices.
    pub fn set_image(&mut self, image: Image<'c>) {
        self.walk.image = image;
        self.walk.open.forget_image();
    }

    /// Returns the offset of the next slice's first byte.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.tail.end()
    }

    /// Returns the address of the next instruction, or of the one executed last; `None` while tracing is off.
    #[must_use]
    pub fn ip(&self) -> Option<u64> {
        self.walk.state.place()
    }

    /// Returns the address space at the decoder's place, as far as the trace gave it.
    #[must_use]
    pub fn asid(&self) -> Asid {
        self.walk.state.space()
    }

    /// Returns the time of the last event, outcome or target used: the estimated TSC, 56 bits; `None` before the first
    /// TSC packet.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        self.walk.state.when().tsc
    }

    /// Returns counts of the packets read so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.walk.state.counters()
    }

    /// Returns how many times decoding had to skip to the next PSB because of an error.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.walk.errors
    }

    fn end<S: ExecutionSink>(&mut self, cache: &mut BlockCache<'_>, sink: &mut S) {
        let Self { tail, walk } = self;
        tail.finish(|input| walk.run(input, cache, sink));
    }

    fn go_to(&mut self, offset: u64) {
        self.tail.go_to(offset);
        self.walk.synced = false;
        let SlicedWalk { packets, image, state, .. } = &mut self.walk;
        packets.restart(offset);
        Walker::with_state(packets.clone(), *image, state).restart(offset);
    }
}

impl SlicedWalk<'_, '_> {
    /// Decodes the bytes at hand, and returns the offset from which on bytes are needed again.
    fn run<S: ExecutionSink>(&mut self, input: Input<'_>, cache: &mut BlockCache<'_>, sink: &mut S) -> u64 {
        const { assert!(!S::FILLS, "a stream passes on everything at once") };
        let Self { packets, image, state, scratch, open, synced, errors } = self;
        let mut decoder = over(packets, input, *image, state, scratch, open);
        while *synced || decoder.resync().is_some() {
            *synced = true;
            match decoder.visit(cache, sink) {
                Ok(()) | Err(Error { kind: ErrorKind::EndOfSlice, .. }) => break,
                Err(error) => {
                    *synced = false;
                    *errors += 1;
                    sink.lost(&Lost::Error(error));
                }
            }
        }
        let keep = decoder.walker.keep_from();
        *open = decoder.open_block();
        packets.continue_after(decoder.walker.packets(), keep);
        keep
    }
}

/// Returns a decoder of the bytes at hand. Not inlined, to save stack: the decoder is used elsewhere.
#[inline(never)]
fn over<'a, 's>(
    packets: &Packets<'a>,
    input: Input<'a>,
    image: Image<'a>,
    state: &'s mut WalkState,
    scratch: &'s mut Scratch,
    open: &OpenBlock,
) -> BlockDecoder<'a, Lent<'s>> {
    let packets = packets.resumed(input, *packets.config());
    BlockDecoder::with_state(Walker::with_state(packets, image, state), scratch, *open)
}
