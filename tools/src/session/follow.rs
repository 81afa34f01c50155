//! The walk.

use super::{
    Session, TraceSlice, beside, layers,
    switch::{SwitchedSink, TraceOwner},
};
use pugmark_decoder_core::{
    block_cache::{BlockCache, ExecutionSink, WORDS_PER_BLOCK},
    image::Image,
    packet::Packet,
    resume::{BlockStream, Kept},
    time::Span,
};
use std::{ops::Range, thread};

/// The memory of a block cache of blocks, in 32-bit words: more blocks than the hot code of a large program has.
pub const CACHE_WORDS: usize = WORDS_PER_BLOCK << 16;
/// The most images whose blocks are kept. Blocks of others are decoded again.
const CACHES: usize = 8;
/// A stream reads a packet only if it has the bytes of the longest one, a PSB: this many more than one byte.
const READ_AHEAD: usize = 15;
/// The number of bytes that are decoded before a sink is asked if it is done.
const CHUNK: usize = if cfg!(test) { 1 << 8 } else { 1 << 16 };
/// The size of a session from which on two threads follow it.
const LARGE: u64 = 1 << 20;
/// The number of bytes of a mapped file that are decoded before their memory is given back.
pub(crate) const MAPPED_CHUNK: usize = 1 << 22;

/// Receives what was executed in slices. Errors come by [`lost`](ExecutionSink::lost), after which decoding goes on at
/// the next PSB.
pub trait SliceSink: ExecutionSink {
    /// True if [`is_done`](Self::is_done) is to be called between parts of a slice.
    const ENDS_EARLY: bool = false;
    /// True if the sink takes so little time that a thread of its own gains nothing.
    const IS_LIGHT: bool = false;
    /// True if the sink receives what lies outside of its lane's window, too.
    const SEES_OUTSIDE: bool = false;

    /// Turns to the block cache with this number, which the next blocks' numbers are of.
    fn turn_to_cache(&mut self, cache: usize) {
        let _ = cache;
    }

    /// Notes that a slice begins.
    fn begins(&mut self, slice: &TraceSlice) {
        let _ = slice;
    }

    /// Notes that a trace has come to its end, or to an error.
    fn stops(&mut self, end: SliceEnd) {
        let _ = end;
    }

    /// Notes that the next instruction, at `ip`, is the first one in its lane's window or the first one after it.
    fn turns(&mut self, is_inside: bool, ip: u64) {
        let _ = (is_inside, ip);
    }

    /// Notes an error or lost packets outside of its lane's window. A sink that sees outside is told as usual.
    fn loses_outside(&mut self) {}

    /// Returns whether nothing more is wanted.
    fn is_done(&self) -> bool {
        false
    }
}

/// Where decoding has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceEnd {
    /// The packets that the last block is between, as far as they are known.
    pub span: Span,
    /// The offset in the trace.
    pub offset: u64,
    /// The address that comes next, if it is known.
    pub ip: Option<u64>,
}

impl<'a> Session<'a> {
    /// Goes through all slices in the order of time and passes what was executed to the sink of each one's lane. With
    /// one sink, that of all lanes.
    pub fn follow<S: SliceSink>(&self, sinks: &mut [S]) {
        self.follow_traces(0..self.traces.len(), sinks);
    }

    /// Does the same for some traces only.
    pub fn follow_traces<S: SliceSink>(&self, traces: Range<usize>, sinks: &mut [S]) {
        if self.windows.is_empty() {
            return self.follow_all(traces, sinks);
        }
        self.follow_windows(traces, sinks);
    }

    /// Follows them, whatever the windows are.
    pub(super) fn follow_all<S: SliceSink>(&self, traces: Range<usize>, sinks: &mut [S]) {
        let on_two = !S::IS_LIGHT && !S::INSNS && !S::EDGES && S::BLOCKS && self.size() >= LARGE;
        let sections = self
            .sections
            .filter(|_| on_two && thread::available_parallelism().is_ok_and(|count| count.get() > 1));
        if !sections.is_some_and(|sections| beside::follow(self, sections, traces.clone(), sinks)) {
            self.follow_here(traces, sinks);
        }
    }

    /// Follows them on this thread.
    pub(super) fn follow_here<S: SliceSink>(&self, traces: Range<usize>, sinks: &mut [S]) {
        let slices = self.slices_in_order(traces.clone());
        let mut memory = BlockCaches::memory(self.images.len());
        let mut caches = BlockCaches::new(&mut memory);
        // A trace that is cut has a stream from its first slice to its last one.
        let is_cut =
            |trace: &usize| self.slices.iter().filter(|slice| slice.trace == *trace).nth(1).is_some();
        let cut: Vec<usize> = traces.filter(is_cut).collect();
        let mut kept: Vec<Kept> = cut.iter().map(|_| <Kept>::new()).collect();
        let mut streams: Vec<_> =
            kept.iter_mut().map(|kept| BlockStream::new(Image::new(&[]), self.config, kept)).collect();
        let mut owners = vec![TraceOwner::default(); cut.len()];
        for (number, slice) in slices.iter().enumerate() {
            let (cache_number, cache) = caches.of(slice.image);
            match (cut.binary_search(&slice.trace), self.switch_ip.filter(|_| !S::EDGES)) {
                (Ok(cut), Some(at)) => {
                    let after = switched_after(&slices[number..]);
                    let mut sink = SwitchedSink::new(sinks, &mut owners[cut], slice, after, at);
                    self.go_on(slice, &mut streams[cut], cache, &mut sink, |_, _| {});
                }
                (cut, _) => {
                    let lane = if sinks.len() == 1 { 0 } else { slice.lane };
                    let Some(sink) = sinks.get_mut(lane) else { continue };
                    sink.turn_to_cache(cache_number);
                    sink.begins(slice);
                    match cut {
                        Ok(cut) => self.go_on(slice, &mut streams[cut], cache, sink, |_, _| {}),
                        Err(_) => self.whole(slice, cache, sink),
                    }
                }
            }
            if S::ENDS_EARLY && sinks.iter().any(SliceSink::is_done) {
                return;
            }
        }
    }

    /// Returns the slices of some traces in the order of time.
    pub(super) fn slices_in_order(&self, traces: Range<usize>) -> Vec<&TraceSlice> {
        let mut slices: Vec<&TraceSlice> =
            self.slices.iter().filter(|slice| traces.contains(&slice.trace)).collect();
        slices.sort_by_key(|slice| slice.tsc);
        slices
    }

    /// Decodes a slice that is all of its trace.
    fn whole<S: SliceSink>(&self, slice: &TraceSlice, cache: &mut BlockCache<'_>, sink: &mut S) {
        let (trace, image) = (self.traces[slice.trace], self.image(slice.image));
        if S::ENDS_EARLY || self.mapped(slice.trace).is_some() {
            let mut kept = <Kept>::new();
            let mut stream = BlockStream::new(image, self.config, &mut kept);
            return self.go_on(slice, &mut stream, cache, sink, |_, _| {});
        }
        layers::blocks(trace, image, self.config, cache, sink);
    }

    /// Decodes the next slice of a trace. Calls `pauses` after each part of it.
    pub(super) fn go_on<S: SliceSink>(
        &self,
        slice: &TraceSlice,
        stream: &mut BlockStream<'a, '_>,
        cache: &mut BlockCache<'_>,
        sink: &mut S,
        mut pauses: impl FnMut(&BlockStream<'a, '_>, &mut S),
    ) {
        let trace = self.traces[slice.trace];
        stream.set_image(self.image(slice.image));
        let to = slice.range.end.saturating_add(read_ahead(trace, slice.range.end)).min(trace.len());
        let bytes = trace.get(stream.offset() as usize..to).unwrap_or_default();
        let mapped = self.mapped(slice.trace);
        let size = match mapped {
            _ if S::ENDS_EARLY => CHUNK,
            Some(_) => MAPPED_CHUNK,
            None => bytes.len().max(1),
        };
        for chunk in bytes.chunks(size) {
            let from = stream.offset() as usize;
            stream.decode(chunk, cache, sink);
            if let Some(mapped) = mapped {
                // The chunk before, too: a sink that looks up times may have read it again.
                mapped.forget(from.saturating_sub(MAPPED_CHUNK)..from + chunk.len());
            }
            if S::ENDS_EARLY && sink.is_done() {
                return;
            }
            pauses(stream, sink);
        }
        if slice.range.end == trace.len() {
            stream.finish(cache, sink);
            let offset = slice.range.end as u64;
            sink.stops(SliceEnd { span: Span::at(offset), offset, ip: stream.ip() });
        }
    }
}

/// Returns the lane of the next slice of the first one's trace, if a switch of threads leads to it.
pub(super) fn switched_after(slices: &[&TraceSlice]) -> Option<usize> {
    let (slice, rest) = slices.split_first()?;
    let after = rest.iter().find(|after| after.trace == slice.trace);
    after.filter(|after| after.is_switch).map(|after| after.lane)
}

/// Returns the number of bytes after a slice that a stream needs to read the last packet of the slice, and not the
/// first one after it. Outcomes and targets are read as soon as they are whole.
fn read_ahead(trace: &[u8], end: usize) -> usize {
    match Packet::parse(trace.get(end..).unwrap_or_default()) {
        Ok(Some((Packet::TntShort(_) | Packet::TntLong(_) | Packet::Tip(_), _))) => 0,
        _ => READ_AHEAD,
    }
}

/// The block caches of some images.
pub(crate) struct BlockCaches<'m> {
    caches: Vec<(Option<usize>, BlockCache<'m>)>,
    /// The order in which they were used, the last one last.
    order: Vec<usize>,
}

impl<'m> BlockCaches<'m> {
    /// Returns the memory for the caches of as many images.
    pub(crate) fn memory(images: usize) -> Vec<Vec<u32>> {
        (0..CACHES.min(images).max(1)).map(|_| vec![0; CACHE_WORDS]).collect()
    }

    pub(crate) fn new(memory: &'m mut [Vec<u32>]) -> Self {
        let caches: Vec<_> = memory.iter_mut().map(|memory| (None, BlockCache::new(memory))).collect();
        Self { order: (0..caches.len()).collect(), caches }
    }

    /// Returns the block cache of an image, with its number; one that was used longest ago if it has none. A cache
    /// forgets blocks of another image.
    pub(super) fn of(&mut self, image: usize) -> (usize, &mut BlockCache<'m>) {
        let known = self.caches.iter().position(|(of, _)| *of == Some(image));
        let number = known.unwrap_or_else(|| self.order[0]);
        self.order.retain(|other| *other != number);
        self.order.push(number);
        let (of, cache) = &mut self.caches[number];
        *of = Some(image);
        (number, cache)
    }
}
