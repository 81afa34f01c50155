//! Restricts a walk to a window of each lane: a range of its instructions, by their numbers.
//!
//! An instruction lies in the window or outside, and a block in which the window begins or ends is split there. What
//! happens between two instructions goes with the first one, so two windows that meet lack nothing and share nothing.

use super::{BlockNumbers, Session, SliceEnd, SliceSink, TraceSlice};
use pugmark_decoder_core::{
    block::{Block, Insns},
    block_cache::{ExecutionSink, InstructionRun},
    event::{Event, EventKind},
    image::{Asid, Image},
    resume::Lost,
    time::Span,
};
use std::{ops::Range, rc::Rc};

/// The range of all instructions of a lane.
const ALL: Range<u64> = 0..u64::MAX;

impl Session<'_> {
    /// Returns the window of a lane: the numbers of the instructions that are wanted.
    #[must_use]
    pub fn window(&self, lane: usize) -> Range<u64> {
        self.windows.get(lane).cloned().unwrap_or(ALL)
    }
}

impl<'a> Session<'a> {
    /// Follows traces, and passes on what lies in the windows.
    pub(super) fn follow_windows<S: SliceSink>(&self, traces: Range<usize>, sinks: &mut [S]) {
        match (S::INSNS, S::SPANS) {
            (false, false) => self.follow_windows_of::<S, false, false>(traces, sinks),
            (false, true) => self.follow_windows_of::<S, false, true>(traces, sinks),
            (true, false) => self.follow_windows_of::<S, true, false>(traces, sinks),
            (true, true) => self.follow_windows_of::<S, true, true>(traces, sinks),
        }
    }

    fn follow_windows_of<S: SliceSink, const INSNS: bool, const SPANS: bool>(
        &self,
        traces: Range<usize>,
        sinks: &mut [S],
    ) {
        let mut windowed: Vec<_> =
            sinks.iter_mut().map(|sink| WindowedSink::<INSNS, SPANS>::new(self, sink)).collect();
        self.follow_all(traces, &mut windowed);
    }
}

/// The calls and the constants of a [`SliceSink`] whose type is not known: the decoder is compiled once for each type
/// of sink that it knows.
trait AnySink {
    /// Returns [`ExecutionSink::BLOCKS`], [`ExecutionSink::NUMBERS`] and [`SliceSink::SEES_OUTSIDE`].
    fn wants(&self) -> (bool, bool, bool);
    fn turn_to_cache(&mut self, cache: usize);
    fn begins(&mut self, slice: &TraceSlice);
    fn stops(&mut self, end: SliceEnd);
    fn turns(&mut self, is_inside: bool, ip: u64);
    fn loses_outside(&mut self);
    fn is_done(&self) -> bool;
    fn numbered(&mut self, generation: u64);
    fn insns(&mut self, insns: InstructionRun);
    fn span(&mut self, span: Span);
    fn passes(&mut self, number: u32) -> bool;
    fn block(&mut self, block: &Block);
    fn event(&mut self, event: &Event);
    fn lost(&mut self, lost: &Lost);
    fn reached(&mut self, offset: u64);
}

impl<S: SliceSink> AnySink for S {
    fn wants(&self) -> (bool, bool, bool) {
        (S::BLOCKS, S::NUMBERS, S::SEES_OUTSIDE)
    }

    fn turn_to_cache(&mut self, cache: usize) {
        SliceSink::turn_to_cache(self, cache);
    }

    fn begins(&mut self, slice: &TraceSlice) {
        SliceSink::begins(self, slice);
    }

    fn stops(&mut self, end: SliceEnd) {
        SliceSink::stops(self, end);
    }

    fn turns(&mut self, is_inside: bool, ip: u64) {
        SliceSink::turns(self, is_inside, ip);
    }

    fn loses_outside(&mut self) {
        SliceSink::loses_outside(self);
    }

    fn is_done(&self) -> bool {
        SliceSink::is_done(self)
    }

    fn numbered(&mut self, generation: u64) {
        ExecutionSink::numbered(self, generation);
    }

    fn insns(&mut self, insns: InstructionRun) {
        ExecutionSink::insns(self, insns);
    }

    fn span(&mut self, span: Span) {
        ExecutionSink::span(self, span);
    }

    fn passes(&mut self, number: u32) -> bool {
        ExecutionSink::passes(self, number)
    }

    fn block(&mut self, block: &Block) {
        ExecutionSink::block(self, block);
    }

    fn event(&mut self, event: &Event) {
        ExecutionSink::event(self, event);
    }

    fn lost(&mut self, lost: &Lost) {
        ExecutionSink::lost(self, lost);
    }

    fn reached(&mut self, offset: u64) {
        ExecutionSink::reached(self, offset);
    }
}

/// A sink that passes on what lies in the windows.
struct WindowedSink<'s, 'a, const INSNS: bool, const SPANS: bool> {
    sink: &'s mut dyn AnySink,
    takes_blocks: bool,
    takes_numbers: bool,
    sees_outside: bool,
    images: Rc<[Image<'a>]>,
    image: usize,
    lanes: Vec<WindowedLane>,
    lane: usize,
    /// The numbers of instructions of the blocks of the block caches, by the blocks' numbers there.
    lengths: BlockNumbers,
    /// The number in its cache of the block that comes next.
    next: u32,
    /// The sink has asked for the block that comes next.
    is_asked_for: bool,
    /// The instructions of the block that comes next.
    insns: Vec<InstructionRun>,
}

/// The position in a lane.
struct WindowedLane {
    window: Range<u64>,
    executed: u64,
    is_inside: bool,
}

impl WindowedLane {
    /// Returns true if the next instruction enters the window or leaves it.
    fn is_at_edge(&self) -> bool {
        self.window.contains(&self.executed) != self.is_inside
    }

    /// Returns how many instructions come before the next edge of the window.
    fn until_edge(&self) -> u64 {
        let edges = [self.window.start, self.window.end].into_iter();
        edges.filter(|edge| *edge > self.executed).min().map_or(u64::MAX, |edge| edge - self.executed)
    }
}

impl<'s, 'a, const INSNS: bool, const SPANS: bool> WindowedSink<'s, 'a, INSNS, SPANS> {
    fn new(session: &Session<'a>, sink: &'s mut dyn AnySink) -> Self {
        let (takes_blocks, takes_numbers, sees_outside) = sink.wants();
        let lane = |lane| {
            let window = session.window(lane);
            WindowedLane { is_inside: window.start == 0, window, executed: 0 }
        };
        Self {
            sink,
            takes_blocks,
            takes_numbers,
            sees_outside,
            images: session.images.clone(),
            image: 0,
            lanes: (0..session.lanes.len().max(1)).map(lane).collect(),
            lane: 0,
            lengths: BlockNumbers::default(),
            next: 0,
            is_asked_for: false,
            insns: vec![],
        }
    }

    fn is_wanted(&self) -> bool {
        self.sees_outside || self.lanes[self.lane].is_inside
    }

    /// Enters or leaves the window if the next instruction, at `ip`, does.
    fn turn(&mut self, ip: u64) {
        let lane = &mut self.lanes[self.lane];
        if lane.is_at_edge() {
            lane.is_inside = !lane.is_inside;
            self.sink.turns(lane.is_inside, ip);
        }
    }

    /// Passes on a block, or a part of one, that has no edge within.
    fn pass(&mut self, block: &Block, insns: &[InstructionRun], number: u32) {
        self.turn(block.ip);
        self.lanes[self.lane].executed += u64::from(block.insns);
        if !self.is_wanted() {
            return;
        }
        insns.iter().for_each(|insns| self.sink.insns(*insns));
        if self.takes_blocks && (!self.takes_numbers || self.sink.passes(number)) {
            self.sink.block(block);
        }
    }

    /// Splits a block after `count` of its instructions.
    fn split(&self, block: &Block, count: u64) -> (Block, Block) {
        let image = self.images.get(self.image).copied().unwrap_or(Image::new(&[]));
        let mut ips = Insns::new(image, Asid::default(), block).map(|(ip, _)| ip).skip(count as usize - 1);
        let end_ip = ips.next().unwrap_or(block.ip);
        let ip = ips.next().unwrap_or(block.end_ip);
        let (before, after) = (count as u32, block.insns - count as u32);
        (Block { end_ip, insns: before, truncated: false, ..*block }, Block { ip, insns: after, ..*block })
    }
}

/// Splits instructions after `count` of them, which are fewer than all.
fn split_insns(all: InstructionRun, count: u64) -> (InstructionRun, InstructionRun) {
    let mut after = all;
    for _ in 0..count {
        after.next();
    }
    let mask = 1_u64.checked_shl(4 * count as u32).map_or(u64::MAX, |end| end - 1);
    let before = InstructionRun { lengths: all.lengths & mask, ..all };
    (before, after)
}

/// Splits a block's instructions after `count` of them.
fn split_runs(all: &[InstructionRun], mut count: u64) -> (Vec<InstructionRun>, Vec<InstructionRun>) {
    let (mut before, mut after) = (vec![], vec![]);
    for run in all {
        let length = run.count() as u64;
        if count == 0 {
            after.push(*run);
        } else if length <= count {
            before.push(*run);
            count -= length;
        } else {
            let (first, rest) = split_insns(*run, std::mem::take(&mut count));
            before.push(first);
            after.push(rest);
        }
    }
    (before, after)
}

impl<const INSNS: bool, const SPANS: bool> SliceSink for WindowedSink<'_, '_, INSNS, SPANS> {
    const ENDS_EARLY: bool = true;

    fn turn_to_cache(&mut self, cache: usize) {
        self.lengths.turn_to(cache);
        self.sink.turn_to_cache(cache);
    }

    fn begins(&mut self, slice: &TraceSlice) {
        (self.lane, self.image) = (slice.lane.min(self.lanes.len() - 1), slice.image);
        self.sink.begins(slice);
    }

    fn stops(&mut self, end: SliceEnd) {
        if self.is_wanted() {
            self.sink.stops(end);
        }
    }

    fn is_done(&self) -> bool {
        self.sink.is_done()
    }
}

impl<const INSNS: bool, const SPANS: bool> ExecutionSink for WindowedSink<'_, '_, INSNS, SPANS> {
    const INSNS: bool = INSNS;
    const BLOCKS: bool = true;
    // Instructions come before the number, so none could be passed over.
    const NUMBERS: bool = !INSNS;
    const SPANS: bool = SPANS;

    fn numbered(&mut self, generation: u64) {
        self.lengths.numbered(generation);
        self.sink.numbered(generation);
    }

    fn insns(&mut self, insns: InstructionRun) {
        self.insns.push(insns);
    }

    fn span(&mut self, span: Span) {
        self.sink.span(span);
    }

    fn passes(&mut self, number: u32) -> bool {
        self.next = number;
        let length = u64::from(self.lengths.given(number));
        let lane = &self.lanes[self.lane];
        if length == 0 || lane.is_at_edge() || length > lane.until_edge() {
            return true;
        }
        if self.is_wanted() && self.takes_blocks && (!self.takes_numbers || self.sink.passes(number)) {
            self.is_asked_for = true;
            return true;
        }
        self.lanes[self.lane].executed += length;
        false
    }

    fn block(&mut self, block: &Block) {
        let number = std::mem::take(&mut self.next);
        self.lengths.give(number, block.insns);
        if std::mem::take(&mut self.is_asked_for) {
            self.lanes[self.lane].executed += u64::from(block.insns);
            return self.sink.block(block);
        }
        let (mut insns, mut rest, mut number) = (std::mem::take(&mut self.insns), *block, number);
        loop {
            let until = self.lanes[self.lane].until_edge();
            if u64::from(rest.insns) <= until {
                return self.pass(&rest, &insns, number);
            }
            let (now, after) = self.split(&rest, until);
            let (before, later) = split_runs(&insns, until);
            // No cache holds parts of blocks.
            self.pass(&now, &before, 0);
            (rest, insns, number) = (after, later, 0);
        }
    }

    fn event(&mut self, event: &Event) {
        if self.is_wanted() {
            self.sink.event(event);
        } else if !event.status && event.kind == EventKind::Overflow {
            self.sink.loses_outside();
        }
    }

    fn lost(&mut self, lost: &Lost) {
        if self.is_wanted() {
            self.sink.lost(lost);
        } else if matches!(lost, Lost::Error(_)) {
            self.sink.loses_outside();
        }
    }

    fn reached(&mut self, offset: u64) {
        self.sink.reached(offset);
    }
}
