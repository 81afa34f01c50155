//! The instructions before which times are reached.

use crate::pugmark::{
    progress::{Progress, Size},
    visitors::{TraceClock, TraceTimes},
};
use crate::session::{BlockNumbers, Session, SliceSink, TraceSlice};
use pugmark_decoder_core::{block::Block, block_cache::ExecutionSink, event::Event, time::Span};
use std::ops::Range;

/// Returns the instructions of each lane between two times: from the first block at or after the first time to the
/// first one at or after the second.
pub(super) fn windows(
    session: &Session<'_>,
    clock: TraceClock,
    edges: [Option<u64>; 2],
    progress: &mut Progress,
) -> Vec<Range<u64>> {
    progress.begin("decoding", Size::Bytes(session.size()));
    let mut found = TimeEdges {
        edges,
        times: TraceTimes::new(session, clock),
        span: Span::default(),
        lanes: vec![TimedLane::default(); session.lanes.len()],
        lane: 0,
        lengths: BlockNumbers::default(),
        next: 0,
        progress: &mut *progress,
    };
    session.follow(std::slice::from_mut(&mut found));
    let windows = found.lanes.iter().map(|lane| {
        let [from, to] = lane.found.map(|found| found.unwrap_or(u64::MAX));
        if edges[0].is_none() { 0..to } else { from..to }
    });
    let windows = windows.collect();
    progress.end();
    windows
}

/// The state of a lane.
#[derive(Clone, Copy, Debug, Default)]
struct TimedLane {
    executed: u64,
    /// The time. It never goes back.
    at: u64,
    found: [Option<u64>; 2],
}

/// A sink that notes where times are reached.
struct TimeEdges<'a, 'p> {
    edges: [Option<u64>; 2],
    times: TraceTimes<'a>,
    span: Span,
    lanes: Vec<TimedLane>,
    lane: usize,
    /// The numbers of instructions of the blocks of the block caches, by the blocks' numbers there.
    lengths: BlockNumbers,
    /// The number in its cache of the block that comes next.
    next: u32,
    progress: &'p mut Progress,
}

impl TimeEdges<'_, '_> {
    fn executes(&mut self, insns: u32) {
        let Some(lane) = self.lanes.get_mut(self.lane) else { return };
        if let Some((at, _)) = self.times.moment(self.span, lane.executed) {
            lane.at = lane.at.max(at);
        }
        for (edge, found) in self.edges.iter().zip(&mut lane.found) {
            if found.is_none() && edge.is_some_and(|edge| edge <= lane.at) {
                *found = Some(lane.executed);
            }
        }
        lane.executed += u64::from(insns);
    }
}

impl SliceSink for TimeEdges<'_, '_> {
    fn turn_to_cache(&mut self, cache: usize) {
        self.lengths.turn_to(cache);
    }

    fn begins(&mut self, slice: &TraceSlice) {
        self.lane = slice.lane;
        self.times.turn_to(slice.trace);
    }
}

impl ExecutionSink for TimeEdges<'_, '_> {
    const BLOCKS: bool = true;
    const NUMBERS: bool = true;
    const SPANS: bool = true;

    fn numbered(&mut self, generation: u64) {
        self.lengths.numbered(generation);
    }

    fn span(&mut self, span: Span) {
        self.span = span;
    }

    fn passes(&mut self, number: u32) -> bool {
        self.next = number;
        match self.lengths.given(number) {
            0 => true,
            insns => {
                self.executes(insns);
                false
            }
        }
    }

    fn block(&mut self, block: &Block) {
        self.lengths.give(std::mem::take(&mut self.next), block.insns);
        self.executes(block.insns);
    }

    fn event(&mut self, _: &Event) {}

    fn reached(&mut self, offset: u64) {
        self.progress.reached(offset);
    }
}
