//! Walks through a trace block by block.
//!
//! Nothing happens in most blocks, nor on the way to them. Both are found out once, when they come first; afterwards
//! only the instructions of such a block are counted.

use super::{State, TraceClock, Unit, Visitor};
use crate::pugmark::{
    known_blocks::{BlockNotes, KnownBlocks, NO_BLOCK},
    layers::GRAPH_WORDS,
    progress::Progress,
};
use pugmark_decoder_core::{
    block::{Block, BlockDecoder, Insns},
    calls::Calls,
    config::Config,
    event::Event,
    flow::{ExecutedInsn, FlowItem},
    graph::{ExecutionSink, Graph},
    image::Image,
    time::{Span, Timeline},
};

/// Walks through the whole trace.
pub(super) fn walk<V: Visitor + ?Sized>(
    trace: &[u8],
    image: Image<'_>,
    config: Config<'_>,
    clock: TraceClock,
    progress: &mut Progress,
    state: &mut State<'_, V>,
) {
    let decoder = BlockDecoder::with_config(trace, image, config);
    let times = Times { clock, timeline: Timeline::new(trace, config) };
    if clock.unit == Unit::Instructions {
        BlockWalk::<V, false>::new(image, times, progress, state).walk(decoder);
    } else {
        BlockWalk::<V, true>::new(image, times, progress, state).walk(decoder);
    }
}

/// Finds the time of what lies between two packets.
struct Times<'a> {
    clock: TraceClock,
    timeline: Timeline<'a>,
}

impl Times<'_> {
    fn at(&mut self, span: Span, insns: u64) -> Option<u64> {
        self.clock.time(&mut self.timeline, span, insns).map(|(at, _)| at)
    }
}

/// What is noted of a block.
#[derive(Default)]
pub(super) struct WalkedBlock {
    /// The instructions at which something may happen: the first and the last one, those that lead elsewhere and those
    /// that they lead to, and those that the visitor tells from the one before.
    places: Box<[Place]>,
    /// Whether there are others than the first and the last one.
    has_more: bool,
}

/// An instruction at which something may happen, and how many of its block come before it.
struct Place {
    insn: ExecutedInsn,
    before: u64,
}

impl WalkedBlock {
    fn first(&self) -> Option<&ExecutedInsn> {
        self.places.first().map(|place| &place.insn)
    }

    fn last(&self) -> Option<&ExecutedInsn> {
        self.places.last().map(|place| &place.insn)
    }
}

impl<V: Visitor + ?Sized> BlockNotes for State<'_, V> {
    type Block = WalkedBlock;
    /// Whether nothing happens on the way and in the block that it leads to.
    type Way = bool;

    fn block(&mut self, block: &Block, insns: Insns<'_>) -> WalkedBlock {
        let Block { mode, speculative, .. } = *block;
        let mut insns = insns.zip(0..).peekable();
        let (mut places, mut has_more) = (vec![], false);
        let mut before: Option<ExecutedInsn> = None;
        while let Some(((ip, insn), number)) = insns.next() {
            let insn = ExecutedInsn { ip, len: insn.len, class: insn.class, mode, speculative };
            let is_first_or_last = before.is_none() || insns.peek().is_none();
            let is_special = before.is_some_and(|before| {
                before.class.is_branch() || self.visitor.tells_apart(before.ip, insn.ip)
            });
            if is_first_or_last || is_special || insn.class.is_branch() {
                places.push(Place { insn, before: number });
            }
            has_more |= is_special;
            before = Some(insn);
        }
        WalkedBlock { places: places.into(), has_more }
    }

    fn way(&mut self, from: &WalkedBlock, to: &WalkedBlock) -> bool {
        let (Some(from), Some(first)) = (from.last(), to.first()) else { return false };
        let mut calls = Calls::new();
        calls.step(&FlowItem::Insn(*from));
        let step =
            calls.step_with(&FlowItem::Insn(*first), |from, to| self.functions.leads_to_another(from, to));
        step.is_none() && !to.has_more && !self.visitor.tells_apart(from.ip, first.ip)
    }
}

struct BlockWalk<'w, 'v, 'a, V: Visitor + ?Sized, const TIMED: bool> {
    state: &'w mut State<'v, V>,
    progress: &'w mut Progress,
    known: KnownBlocks<'a, State<'v, V>>,
    times: Times<'a>,
    /// Where the next block was executed, if that is asked for.
    span: Span,
    /// The number of the last block.
    last: u32,
    /// Whether the state only knows how many instructions were executed, and not that the last one is this block's.
    lags: bool,
    /// Whether something else came after the last block.
    disturbed: bool,
}

impl<'w, 'v, 'a, V: Visitor + ?Sized, const TIMED: bool> BlockWalk<'w, 'v, 'a, V, TIMED> {
    fn new(
        image: Image<'a>,
        times: Times<'a>,
        progress: &'w mut Progress,
        state: &'w mut State<'v, V>,
    ) -> Self {
        let (known, span) = (KnownBlocks::new(image), Span::at(0));
        Self { state, progress, known, times, span, last: NO_BLOCK, lags: false, disturbed: true }
    }

    fn walk(mut self, mut decoder: BlockDecoder<'_>) {
        let mut memory = vec![0; GRAPH_WORDS];
        let mut graph = Graph::new(&mut memory);
        while decoder.resync().is_some() {
            self.state.synchronized();
            self.disturbed = true;
            // After an error the next round says what is missing.
            let _ = decoder.visit(&mut graph, &mut self);
            self.catch_up();
            // What is open now ends with the last instruction.
            let Span { after, before } = decoder.span();
            let end = decoder.offset();
            let span = Span { after: if before == end { after } else { before }, before: end };
            let at = self.times.at(span, self.state.time.insns);
            self.state.set_time(at);
        }
    }

    /// Tells the state the last instruction.
    fn catch_up(&mut self) {
        if std::mem::take(&mut self.lags)
            && let Some(last) = self.known.notes(self.last).last()
        {
            self.state.calls.forget();
            self.state.calls.step(&FlowItem::Insn(*last));
            (self.state.at, self.state.last) = (Some(last.ip), Some(*last));
        }
    }
}

impl<V: Visitor + ?Sized, const TIMED: bool> ExecutionSink for BlockWalk<'_, '_, '_, V, TIMED> {
    const BLOCKS: bool = true;
    const SPANS: bool = TIMED;

    #[inline]
    fn span(&mut self, span: Span) {
        self.span = span;
    }

    #[inline]
    fn block(&mut self, block: &Block) {
        let (number, nothing_happens) = self.known.count(self.last, block, self.state);
        let first = self.state.time.insns;
        if nothing_happens && !self.disturbed {
            self.lags = true;
        } else {
            self.catch_up();
            self.disturbed = false;
            for Place { insn, before } in &self.known.notes(number).places {
                self.state.time.insns = first + before;
                self.state.comes_to(insn, |insns| self.times.at(self.span, insns));
            }
        }
        self.last = number;
        self.state.time.insns = first + u64::from(block.insns);
    }

    fn event(&mut self, event: &Event) {
        self.catch_up();
        self.disturbed = true;
        self.state.passes(event, |insns| self.times.at(Span::at(event.offset), insns));
    }

    fn reached(&mut self, offset: u64) {
        self.progress.reached(offset);
    }
}

#[cfg(test)]
mod tests;
