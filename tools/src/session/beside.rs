//! Decodes on a thread of its own, and passes what was executed to the sinks on this one: the same calls in the same
//! order as on one thread.

use super::{BlockNumbers, Session, SliceEnd, SliceSink, TraceSlice};
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
    slice::Iter,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, SyncSender, channel, sync_channel},
    },
    thread,
};

/// The number of blocks that are passed on at once: some ten kilobytes, which stay in a processor's own cache.
const BATCH: usize = 1 << 12;
/// The maximum number of numbered blocks. When it is reached, the numbers start at 1 again; in tests that is soon.
const NUMBERED: usize = if cfg!(test) { 3 } else { 1 << 18 };
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
    /// The numbers start at 1 again: no block has one.
    Renumbered,
}

/// A part of what was executed.
#[derive(Debug, Default)]
struct Batch {
    /// The numbers of the blocks, from 1 on; 0 for the next of `unnumbered`.
    blocks: Vec<u32>,
    /// The blocks that have got the next numbers, in their order.
    new: Vec<Block>,
    /// Blocks without numbers.
    unnumbered: Vec<Block>,
    /// The spans of the blocks, if the sinks want them.
    spans: Vec<Span>,
    /// Everything else, each with the number of blocks before it.
    others: Vec<(usize, Other)>,
}

impl Batch {
    fn clear(&mut self) {
        self.blocks.clear();
        self.new.clear();
        self.unnumbered.clear();
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
            // Each sink filters by its window already.
            windows: vec![],
            switch_ip: *switch_ip,
        };
        let batch = Batch::default();
        let mut collected = [Collector::<S> {
            batch,
            numbers: BlockNumbers::default(),
            given: 0,
            next: 0,
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
        let mut delivery = Delivery { sinks, lane: 0, generation: 0, known: vec![] };
        delivery.renumber();
        for mut batch in batches {
            if !is_done.load(Ordering::Relaxed) {
                delivery.deliver(&batch);
                is_done
                    .store(S::ENDS_EARLY && delivery.sinks.iter().any(SliceSink::is_done), Ordering::Relaxed);
            }
            batch.clear();
            // The other thread may have ended.
            let _ = back.send(batch);
        }
        true
    })
}

/// The sinks, and the blocks that have numbers.
struct Delivery<'s, S> {
    sinks: &'s mut [S],
    /// The lane of the slice.
    lane: usize,
    /// The number of times that the numbers have started at 1.
    generation: u64,
    /// The blocks by their numbers.
    known: Vec<Block>,
}

impl<S: SliceSink> Delivery<'_, S> {
    /// Forgets the blocks' numbers.
    fn renumber(&mut self) {
        self.generation += 1;
        self.known.clear();
        self.sinks.iter_mut().for_each(|sink| sink.numbered(self.generation));
    }

    /// Passes a batch to the sinks.
    fn deliver(&mut self, batch: &Batch) {
        let (mut from, mut new) = (0, batch.new.iter());
        let mut unnumbered = batch.unnumbered.iter();
        for (to, other) in &batch.others {
            self.pass_blocks(batch, from..*to, &mut new, &mut unnumbered);
            from = *to;
            if let (Other::Begins(slice), true) = (other, self.sinks.len() > 1) {
                self.lane = slice.lane;
            }
            if let Other::Renumbered = other {
                self.renumber();
            }
            let Some(sink) = self.sinks.get_mut(self.lane) else { continue };
            match other {
                Other::Begins(slice) => sink.begins(slice),
                Other::Stops(end) => sink.stops(*end),
                Other::Event(event) => sink.event(event),
                Other::Lost(lost) => sink.lost(lost),
                Other::Reached(offset) => sink.reached(*offset),
                Other::Renumbered => {}
            }
        }
        self.pass_blocks(batch, from..batch.blocks.len(), &mut new, &mut unnumbered);
    }

    fn pass_blocks(
        &mut self,
        batch: &Batch,
        numbers: Range<usize>,
        new: &mut Iter<'_, Block>,
        unnumbered: &mut Iter<'_, Block>,
    ) {
        let Self { sinks, lane, known, .. } = self;
        let mut spans = batch.spans.get(numbers.clone()).unwrap_or_default().iter();
        let mut sink = sinks.get_mut(*lane);
        for &number in &batch.blocks[numbers] {
            let place = (number as usize).wrapping_sub(1);
            if place == known.len() {
                known.extend(new.next());
            }
            let block = if number == 0 { unnumbered.next() } else { known.get(place) };
            let (Some(sink), Some(block)) = (sink.as_deref_mut(), block) else { continue };
            if S::SPANS
                && let Some(span) = spans.next()
            {
                sink.span(*span);
            }
            if !S::NUMBERS || sink.passes(number) {
                sink.block(block);
            }
        }
    }
}

/// A sink that collects batches for sinks of another kind.
struct Collector<'d, S> {
    batch: Batch,
    /// The numbers of blocks by those of the block caches, and the last one that was given.
    numbers: BlockNumbers,
    given: usize,
    /// The number of the next block in its cache.
    next: u32,
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

    #[inline]
    fn add_block(&mut self, number: u32) {
        self.batch.blocks.push(number);
        if S::SPANS {
            self.batch.spans.push(self.span);
        }
        if self.batch.blocks.len() >= BATCH {
            self.pass_on();
        }
    }
}

impl<S: SliceSink> SliceSink for Collector<'_, S> {
    const ENDS_EARLY: bool = S::ENDS_EARLY;

    fn turn_to_cache(&mut self, cache: usize) {
        self.numbers.turn_to(cache);
    }

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
    const NUMBERS: bool = true;
    const SPANS: bool = S::SPANS;

    #[inline]
    fn span(&mut self, span: Span) {
        self.span = span;
    }

    fn numbered(&mut self, generation: u64) {
        self.numbers.numbered(generation);
    }

    #[inline]
    fn passes(&mut self, number: u32) -> bool {
        let given = self.numbers.given(number);
        if given == 0 {
            self.next = number;
            return true;
        }
        self.add_block(given);
        false
    }

    fn block(&mut self, block: &Block) {
        let next = std::mem::take(&mut self.next);
        if next == 0 {
            self.batch.unnumbered.push(*block);
            return self.add_block(0);
        }
        if self.given >= NUMBERED {
            self.numbers.clear();
            self.given = 0;
            self.add(Other::Renumbered);
        }
        self.given += 1;
        self.batch.new.push(*block);
        self.numbers.give(next, self.given as u32);
        self.add_block(self.given as u32);
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
