//! Decodes on a thread of its own, and passes what was executed to the sinks on this one: the same calls in the same
//! order as on one thread.

use super::{Session, SliceEnd, SliceSink, TraceSlice};
use pugmark_decoder_core::{
    block::Block,
    block_cache::ExecutionSink,
    event::Event,
    image::{Image, Section},
    resume::Lost,
    time::Span,
};
use std::{
    marker::PhantomData,
    ops::Range,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, channel, sync_channel},
    },
    thread,
};

/// The number of blocks that are passed on at once: some hundred kilobytes, which stay in a processor's own cache.
const BATCH: usize = 1 << 12;
/// The number of batches that wait.
const WAITING: usize = 4;

/// Something in a trace that is no block.
#[derive(Clone, Debug)]
enum Other {
    Begins(TraceSlice),
    Stops(SliceEnd),
    Event(Event),
    Lost(Lost),
    Reached(u64),
}

/// A part of what was executed.
#[derive(Debug, Default)]
struct Batch {
    blocks: Vec<Block>,
    /// The spans of the blocks, if the sinks want them.
    spans: Vec<Span>,
    /// Everything else, each with the number of blocks before it.
    others: Vec<(usize, Other)>,
}

impl Batch {
    fn clear(&mut self) {
        self.blocks.clear();
        self.spans.clear();
        self.others.clear();
    }
}

/// Decodes traces of a session on another thread, and passes what was executed to the sinks. An image cannot be sent to
/// another thread, so the images of that thread are made of `sections`. Returns false, and has done nothing, if the
/// thread cannot be started.
pub(super) fn follow<S: SliceSink>(
    session: &Session<'_>,
    sections: &[Vec<Section<'_>>],
    numbers: Range<usize>,
    sinks: &mut [S],
) -> bool {
    let Session { traces, mapped, near, config, lanes, slices, switch_ip, .. } = session;
    let is_done = AtomicBool::new(false);
    let (full, batches) = sync_channel(WAITING);
    let (back, empty) = channel();
    let decode = || {
        let session = Session {
            traces: traces.clone(),
            mapped: mapped.clone(),
            near: near.clone(),
            config: *config,
            images: sections.iter().map(|sections| Image::new(sections)).collect(),
            sections: None,
            lanes: lanes.clone(),
            slices: slices.clone(),
            switch_ip: *switch_ip,
        };
        let batch = Batch::default();
        let mut collected = [Collector::<S> {
            batch,
            span: Span::default(),
            full,
            empty,
            is_done: &is_done,
            of: PhantomData,
        }];
        session.follow_here(numbers, &mut collected);
        collected.iter_mut().for_each(Collector::pass_on);
    };
    thread::scope(|scope| {
        if thread::Builder::new().spawn_scoped(scope, decode).is_err() {
            return false;
        }
        let mut lane = 0;
        for mut batch in batches {
            if !is_done.load(Ordering::Relaxed) {
                deliver(&batch, sinks, &mut lane);
                is_done.store(S::ENDS_EARLY && sinks.iter().any(SliceSink::is_done), Ordering::Relaxed);
            }
            batch.clear();
            // The other thread may have ended.
            let _ = back.send(batch);
        }
        true
    })
}

/// Passes a batch to the sinks. `lane` is that of the slice.
fn deliver<S: SliceSink>(batch: &Batch, sinks: &mut [S], lane: &mut usize) {
    let mut from = 0;
    for (to, other) in &batch.others {
        if let Some(sink) = sinks.get_mut(*lane) {
            pass_blocks(batch, from..*to, sink);
        }
        from = *to;
        if let (Other::Begins(slice), true) = (other, sinks.len() > 1) {
            *lane = slice.lane;
        }
        let Some(sink) = sinks.get_mut(*lane) else { continue };
        match other {
            Other::Begins(slice) => sink.begins(slice),
            Other::Stops(end) => sink.stops(*end),
            Other::Event(event) => sink.event(event),
            Other::Lost(lost) => sink.lost(lost),
            Other::Reached(offset) => sink.reached(*offset),
        }
    }
    if let Some(sink) = sinks.get_mut(*lane) {
        pass_blocks(batch, from..batch.blocks.len(), sink);
    }
}

fn pass_blocks<S: SliceSink>(batch: &Batch, numbers: Range<usize>, sink: &mut S) {
    let mut spans = batch.spans.get(numbers.clone()).unwrap_or_default().iter();
    for block in &batch.blocks[numbers] {
        if S::SPANS
            && let Some(span) = spans.next()
        {
            sink.span(*span);
        }
        sink.block(block);
    }
}

/// A sink that collects batches for sinks of another kind.
struct Collector<'d, S> {
    batch: Batch,
    /// The span of the next block.
    span: Span,
    full: SyncSender<Batch>,
    empty: Receiver<Batch>,
    is_done: &'d AtomicBool,
    of: PhantomData<fn(S)>,
}

impl<S: SliceSink> Collector<'_, S> {
    fn pass_on(&mut self) {
        let next = self.empty.try_recv().unwrap_or_default();
        // Nobody takes it where the other thread has ended.
        let _ = self.full.send(std::mem::replace(&mut self.batch, next));
    }

    fn add(&mut self, other: Other) {
        self.batch.others.push((self.batch.blocks.len(), other));
        if self.batch.others.len() >= BATCH {
            self.pass_on();
        }
    }
}

impl<S: SliceSink> SliceSink for Collector<'_, S> {
    const ENDS_EARLY: bool = S::ENDS_EARLY;

    fn begins(&mut self, slice: &TraceSlice) {
        self.add(Other::Begins(slice.clone()));
    }

    fn stops(&mut self, end: SliceEnd) {
        self.add(Other::Stops(end));
    }

    fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }
}

impl<S: SliceSink> ExecutionSink for Collector<'_, S> {
    const BLOCKS: bool = true;
    const SPANS: bool = S::SPANS;

    #[inline]
    fn span(&mut self, span: Span) {
        self.span = span;
    }

    #[inline]
    fn block(&mut self, block: &Block) {
        self.batch.blocks.push(*block);
        if S::SPANS {
            self.batch.spans.push(self.span);
        }
        if self.batch.blocks.len() >= BATCH {
            self.pass_on();
        }
    }

    fn event(&mut self, event: &Event) {
        self.add(Other::Event(*event));
    }

    fn lost(&mut self, lost: &Lost) {
        self.add(Other::Lost(*lost));
    }

    fn reached(&mut self, offset: u64) {
        self.add(Other::Reached(offset));
    }
}
