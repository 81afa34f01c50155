//! Walks through a trace block by block.
//!
//! The calls and returns of a block and of each transition are computed on first sight; mostly there are none. From
//! then on they are replayed, and the instructions only counted. Instructions are looked at one by one only after
//! something other than a block, or where the visitor tells some of them apart.

use super::{
    State, TraceClock, TraceTimes, Unit, Visitor,
    steps::{StepBefore, StepWay, WalkStep},
};
use crate::pugmark::{
    known_blocks::{BlockChain, BlockNotes, ExecutedBlocks, KnownBlocks, NO_BLOCK, interrupted_at},
    progress::Progress,
};
use crate::session::{Session, SliceEnd, SliceSink, TraceSlice};
use pugmark_decoder_core::{
    block::{Block, Insns},
    block_cache::ExecutionSink,
    event::Event,
    flow::ExecutedInsn,
    insn::Insn,
    resume::Lost,
    time::Span,
};
use std::cell::RefCell;

/// A state at the end, and the executed blocks if they are counted.
pub(super) type Walked<'v, V> = (State<'v, V>, Option<ExecutedBlocks>);

/// Walks through all of a session, with a state for each lane.
pub(super) fn walk<'v, V: Visitor + ?Sized>(
    session: &Session<'_>,
    clock: TraceClock,
    counts: bool,
    progress: &mut Progress,
    states: Vec<State<'v, V>>,
) -> Vec<Walked<'v, V>> {
    match clock.unit {
        Unit::Instructions => walk_timed::<V, false>(session, clock, counts, progress, states),
        _ => walk_timed::<V, true>(session, clock, counts, progress, states),
    }
}

fn walk_timed<'v, V: Visitor + ?Sized, const TIMED: bool>(
    session: &Session<'_>,
    clock: TraceClock,
    counts: bool,
    progress: &mut Progress,
    states: Vec<State<'v, V>>,
) -> Vec<Walked<'v, V>> {
    let progress = RefCell::new(progress);
    let walk = |(lane, state)| BlockWalk::<V, TIMED>::new(session, lane, clock, &progress, state);
    let mut walks: Vec<_> = states.into_iter().enumerate().map(walk).collect();
    session.follow(&mut walks);
    walks.into_iter().map(|walk| walk.end(counts)).collect()
}

/// Per-block data.
#[derive(Default)]
pub(super) struct WalkedBlock {
    /// The instructions at which something may happen: the first and the last one, branches and the instructions after
    /// them, the last one of a function and the first one of the next, and those that the visitor tells from the one
    /// before.
    places: Box<[Place]>,
    /// The steps within the block.
    steps: Box<[InnerStep]>,
    /// True if the visitor tells instructions within the block apart.
    is_told_apart: bool,
    insns: u32,
    /// The addresses of the first instruction, the last one and after it.
    ip: u64,
    last_ip: u64,
    next_ip: u64,
}

/// An instruction at which something may happen, and the number of instructions of its block before it.
struct Place {
    insn: ExecutedInsn,
    before: u64,
}

/// A step from one instruction of a block to another, and the number of instructions of the block before the latter.
struct InnerStep {
    step: WalkStep,
    before: u64,
}

/// Per-transition data: what lies between two blocks that follow one another directly, and the number of instructions
/// of the second one.
#[derive(Clone, Copy, Default)]
pub(super) struct WalkedWay {
    passage: Passage,
    insns: u32,
}

#[derive(Clone, Copy, Default)]
enum Passage {
    /// Not known: the places of the next block must be looked at one by one.
    #[default]
    Unknown,
    /// This step, or none; the next block has only its own steps.
    Known(Option<StepWay>),
    /// Nothing happens on the way to the next block and within it.
    Silent,
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
    type Way = WalkedWay;

    fn block(&mut self, before: &WalkedBlock, block: &Block, insns: Insns<'_>) -> WalkedBlock {
        let Block { mode, speculative, .. } = *block;
        let executed = |(ip, insn): (u64, Insn)| ExecutedInsn {
            ip,
            len: insn.len,
            class: insn.class,
            mode,
            speculative,
        };
        let insns: Vec<_> = insns.map(executed).collect();
        for (caller, called) in before
            .last()
            .into_iter()
            .chain(&insns)
            .zip(insns.iter().skip(usize::from(before.last().is_none())))
        {
            self.sees_branch(caller, called.ip);
        }
        let (mut is_place, mut steps, mut is_told_apart) = (vec![false; insns.len()], vec![], false);
        for (number, (insn, next)) in insns.iter().zip(&insns[1.min(insns.len())..]).enumerate() {
            let is_apart = self.visitor.tells_apart(insn.ip, next.ip);
            let step = StepBefore::Insn(*insn).step(next.ip, &mut self.stacks.functions);
            is_place[number] |= step.is_some() || insn.class.is_branch();
            is_place[number + 1] |= step.is_some() || insn.class.is_branch() || is_apart;
            steps.extend(step.map(|step| InnerStep { step, before: number as u64 + 1 }));
            is_told_apart |= is_apart;
        }
        for end in [0, insns.len().saturating_sub(1)] {
            is_place.get_mut(end).into_iter().for_each(|is_place| *is_place = true);
        }
        let places = insns.iter().zip(0..).zip(is_place).filter(|(_, is_place)| *is_place);
        let places = places.map(|((insn, before), _)| Place { insn: *insn, before }).collect();
        let (last_ip, next_ip) =
            insns.last().map_or((0, 0), |last| (last.ip, last.ip.wrapping_add(last.len.into())));
        let Block { ip, insns, .. } = *block;
        WalkedBlock { places, steps: steps.into(), is_told_apart, insns, ip, last_ip, next_ip }
    }

    fn way(&mut self, from: &WalkedBlock, to: &WalkedBlock) -> WalkedWay {
        let unknown = WalkedWay { passage: Passage::Unknown, insns: to.insns };
        let (Some(from), Some(first)) = (from.last(), to.first()) else { return unknown };
        self.sees_branch(from, first.ip);
        let passage = match StepBefore::Insn(*from).step(first.ip, &mut self.stacks.functions) {
            _ if to.is_told_apart => Passage::Unknown,
            None if self.visitor.tells_apart(from.ip, first.ip) => Passage::Unknown,
            None if to.steps.is_empty() => Passage::Silent,
            step => Passage::Known(step.map(|step| step.way)),
        };
        WalkedWay { passage, ..unknown }
    }
}

struct BlockWalk<'w, 'v, 'a, V: Visitor + ?Sized, const TIMED: bool> {
    state: State<'v, V>,
    progress: &'w RefCell<&'w mut Progress>,
    known: KnownBlocks<'a, State<'v, V>>,
    times: TraceTimes<'a>,
    /// The packet span of the next block, if that is asked for.
    span: Span,
    /// The number of the last block, and of the one that leads to the next.
    last: u32,
    chain: BlockChain,
    /// True if the state's last instruction is stale; only its count is current.
    lags: bool,
    /// True if something else came after the last block.
    disturbed: bool,
}

impl<'w, 'v, 'a, V: Visitor + ?Sized, const TIMED: bool> BlockWalk<'w, 'v, 'a, V, TIMED> {
    fn new(
        session: &Session<'a>,
        lane: usize,
        clock: TraceClock,
        progress: &'w RefCell<&'w mut Progress>,
        mut state: State<'v, V>,
    ) -> Self {
        state.is_inside = session.window(lane).start == 0;
        let mut chain = BlockChain::default();
        chain.is_outside = !state.is_inside;
        let (times, known) = (TraceTimes::new(session, clock), KnownBlocks::of_lane(session, lane));
        Self {
            state,
            progress,
            known,
            times,
            span: Span::at(0),
            last: NO_BLOCK,
            chain,
            lags: false,
            disturbed: true,
        }
    }

    fn end(mut self, counts: bool) -> Walked<'v, V> {
        self.catch_up();
        self.state.goes_on_decoding();
        // Its last slice may have ended before its trace.
        let at = self.times.at(self.span, self.state.time.insns);
        self.state.set_time(at);
        let Self { state, known, chain, .. } = self;
        (state, counts.then(|| known.counted(chain)))
    }

    /// Handles the block with this number.
    #[inline]
    fn comes_to(&mut self, number: u32) {
        let WalkedWay { passage, insns } = {
            let times = u64::from(self.state.is_inside);
            self.known.count(self.chain.before, number, times, &mut self.state)
        };
        // Anything else that comes before the block disturbs.
        if matches!(passage, Passage::Silent) && !self.disturbed {
            self.lags = true;
        } else {
            self.comes_by(passage, number);
        }
        (self.last, self.chain.before) = (number, number);
        self.state.time.insns += u64::from(insns);
    }

    /// Handles what happens on the way to a block and within it. The number of instructions is then again that before
    /// the block.
    #[inline(never)]
    fn comes_by(&mut self, passage: Passage, number: u32) {
        self.state.goes_on_decoding();
        let first = self.state.time.insns;
        let notes = self.known.notes(number);
        if let (Passage::Known(step), false) = (passage, self.disturbed) {
            if let Some(way) = step {
                let WalkedBlock { last_ip: from, next_ip: next, .. } = *self.known.notes(self.last);
                let step = WalkStep { way, from, next, to: notes.ip };
                self.state.steps(step, |insns| self.times.at(self.span, insns));
            }
            for InnerStep { step, before } in &notes.steps {
                self.state.time.insns = first + before;
                self.state.steps(*step, |insns| self.times.at(self.span, insns));
            }
            self.lags = true;
        } else {
            self.catch_up();
            self.disturbed = false;
            for Place { insn, before } in &self.known.notes(number).places {
                self.state.time.insns = first + before;
                self.state.watches(insn, |insns| self.times.at(self.span, insns));
            }
        }
        self.state.time.insns = first;
    }

    /// Tells the state the last instruction.
    fn catch_up(&mut self) {
        if std::mem::take(&mut self.lags)
            && let Some(last) = self.known.notes(self.last).last()
        {
            (self.state.at, self.state.before) = (Some(last.ip), StepBefore::Insn(*last));
        }
    }
}

impl<V: Visitor + ?Sized, const TIMED: bool> SliceSink for BlockWalk<'_, '_, '_, V, TIMED> {
    const SEES_OUTSIDE: bool = true;

    fn turn_to_cache(&mut self, cache: usize) {
        self.known.turn_to_cache(cache);
    }

    fn begins(&mut self, slice: &TraceSlice) {
        self.times.turn_to(slice.trace);
        self.catch_up();
        self.known.turn_to(slice.image);
        self.disturbed = true;
    }

    fn stops(&mut self, SliceEnd { span: Span { after, before }, offset: end, .. }: SliceEnd) {
        self.catch_up();
        self.disturbed = true;
        self.chain.stops();
        // Functions still open end with the last instruction.
        let span = Span { after: if before == end { after } else { before }, before: end };
        let at = self.times.at(span, self.state.time.insns);
        self.state.set_time(at);
    }

    fn turns(&mut self, is_inside: bool, ip: u64) {
        self.state.goes_on_decoding();
        self.catch_up();
        self.disturbed = true;
        let at = self.times.at(self.span, self.state.time.insns);
        self.state.set_time(at);
        if let Some(last) = self.known.notes(self.chain.before).last() {
            self.state.sees_branch(last, ip);
        }
        self.chain.turns(is_inside, ip);
        self.state.turns(is_inside);
    }
}

impl<V: Visitor + ?Sized, const TIMED: bool> ExecutionSink for BlockWalk<'_, '_, '_, V, TIMED> {
    const BLOCKS: bool = true;
    const NUMBERS: bool = true;
    const SPANS: bool = TIMED;

    fn numbered(&mut self, generation: u64) {
        self.known.numbered(generation);
    }

    #[inline]
    fn passes(&mut self, number: u32) -> bool {
        let known = self.known.find(number);
        known.into_iter().for_each(|known| self.comes_to(known));
        known.is_none()
    }

    #[inline]
    fn span(&mut self, span: Span) {
        self.span = span;
    }

    fn block(&mut self, block: &Block) {
        let known = self.known.learn(self.chain.before, block, &mut self.state);
        self.comes_to(known);
    }

    fn event(&mut self, event: &Event) {
        self.catch_up();
        self.disturbed = true;
        if let (Some(at), Some(last)) = (interrupted_at(event), self.known.notes(self.chain.before).last()) {
            self.state.sees_branch(last, at);
        }
        self.chain.event(event);
        self.state.goes_on_decoding();
        self.state.passes(event, |insns| self.times.at(Span::at(event.offset), insns));
    }

    fn lost(&mut self, lost: &Lost) {
        self.catch_up();
        self.disturbed = true;
        self.chain.lost(lost);
        if let Lost::Error(_) = lost {
            self.state.damaged = true;
            self.state.errors += 1;
        }
    }

    fn reached(&mut self, offset: u64) {
        self.progress.borrow_mut().reached(offset);
    }
}

#[cfg(test)]
mod tests;
