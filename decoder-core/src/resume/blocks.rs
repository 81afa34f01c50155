//! Instructions, blocks and edges of a trace that comes in slices.

use super::{Lost, by_the_manual, tail::Tail};
use crate::{
    block::BlockDecoder,
    config::Config,
    error::{Error, ErrorKind},
    event::Counters,
    graph::{ExecutionSink, Graph},
    image::{Asid, Image},
    packet::Input,
};

/// Walks over the code along a trace that comes in slices: [`BlockDecoder::visit`], from slice to slice.
#[derive(Debug)]
pub struct BlockStream<'c, 'm> {
    tail: Tail<'m>,
    walk: SlicedWalk<'c>,
}

/// A stream without its bytes.
#[derive(Debug)]
struct SlicedWalk<'c> {
    /// Between two slices, always there.
    decoder: Option<BlockDecoder<'c>>,
    image: Image<'c>,
    config: Config<'c>,
    synced: bool,
    errors: u64,
}

impl<'c, 'm> BlockStream<'c, 'm> {
    /// A stream in front of its first slice. What must be kept of slices goes into `kept`: [`KEPT`](super::KEPT) bytes
    /// will do; fewer than 1024 do not compile.
    #[must_use]
    pub fn new<const N: usize>(image: Image<'c>, config: Config<'c>, kept: &'m mut [u8; N]) -> Self {
        let config = by_the_manual(config);
        let decoder = Some(BlockDecoder::with_config(&[], image, config));
        Self { tail: Tail::new(kept), walk: SlicedWalk { decoder, image, config, synced: false, errors: 0 } }
    }

    /// Decodes the next slice, and passes on to `sink` what is certain without the slice after it.
    pub fn decode<S: ExecutionSink>(&mut self, slice: &[u8], graph: &mut Graph<'_>, sink: &mut S) {
        let Self { tail, walk } = self;
        tail.feed(slice, |input| walk.run(input, graph, sink));
    }

    /// Says that `bytes` bytes are missing before the next slice; 0 if it is not known how many. What was kept is
    /// decoded, then decoding restarts at the next PSB.
    pub fn gap<S: ExecutionSink>(&mut self, bytes: u64, graph: &mut Graph<'_>, sink: &mut S) {
        let offset = self.tail.end();
        self.end(graph, sink);
        sink.lost(&Lost::Gap { offset, bytes });
        self.go_to(offset + bytes);
    }

    /// Says that the stream ends: what was kept is decoded. The next slice begins another stream, with offset 0.
    pub fn finish<S: ExecutionSink>(&mut self, graph: &mut Graph<'_>, sink: &mut S) {
        self.end(graph, sink);
        self.go_to(0);
    }

    /// Replaces the image. Call it between two slices; it holds from the next block on.
    pub fn set_image(&mut self, image: Image<'c>) {
        self.walk.image = image;
        if let Some(decoder) = &mut self.walk.decoder {
            decoder.set_image(image);
        }
    }

    /// The offset of the next slice's first byte.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.tail.end()
    }

    /// The address of the next instruction, or of the one executed last; `None` while tracing is off.
    #[must_use]
    pub fn ip(&self) -> Option<u64> {
        self.walk.decoder.as_ref().and_then(BlockDecoder::ip)
    }

    /// The address space at the decoder's place, as far as the trace gave it.
    #[must_use]
    pub fn asid(&self) -> Asid {
        self.walk.decoder.as_ref().map(BlockDecoder::asid).unwrap_or_default()
    }

    /// The time of the last event, outcome or target used: the estimated TSC, 56 bits; `None` before the first TSC
    /// packet.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        self.walk.decoder.as_ref().and_then(BlockDecoder::time)
    }

    /// Counts of the packets read so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.walk.decoder.as_ref().map(BlockDecoder::counters).unwrap_or_default()
    }

    /// How many times decoding had to skip to the next PSB because of an error.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.walk.errors
    }

    fn end<S: ExecutionSink>(&mut self, graph: &mut Graph<'_>, sink: &mut S) {
        let Self { tail, walk } = self;
        tail.finish(|input| walk.run(input, graph, sink));
    }

    fn go_to(&mut self, offset: u64) {
        self.tail.go_to(offset);
        self.walk.synced = false;
        if let Some(decoder) = &mut self.walk.decoder {
            decoder.restart(offset);
        }
    }
}

impl SlicedWalk<'_> {
    /// Decodes what is at hand, and returns the offset from which on bytes are needed again.
    fn run<S: ExecutionSink>(&mut self, input: Input<'_>, graph: &mut Graph<'_>, sink: &mut S) -> u64 {
        const { assert!(!S::FILLS, "a stream passes on everything at once") };
        let Some(decoder) = self.decoder.take() else { return input.base };
        let mut decoder = decoder.resumed(input, self.config, self.image);
        while self.synced || decoder.resync().is_some() {
            self.synced = true;
            match decoder.visit(graph, sink) {
                Ok(()) | Err(Error { kind: ErrorKind::EndOfSlice, .. }) => break,
                Err(error) => {
                    self.synced = false;
                    self.errors += 1;
                    sink.lost(&Lost::Error(error));
                }
            }
        }
        let keep = decoder.walker.keep_from();
        self.decoder =
            Some(decoder.resumed(Input { bytes: &[], base: keep, ..input }, self.config, self.image));
        keep
    }
}
