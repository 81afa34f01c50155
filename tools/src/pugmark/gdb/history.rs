//! The history of a session's threads: which instruction each executed, by its number, forwards and backwards.
//!
//! Only some places of the walk are kept: from the last one before an instruction it is decoded again, up to it and
//! beyond by some ten thousand instructions, which are kept until others are needed. Memory is limited, however long
//! the recording is.

use super::watch::{HistoryGap, LaneBlock, Wanted, Watch};
use crate::pugmark::{
    progress::{Progress, Size},
    visitors::{TraceClock, TraceTimes},
};
use crate::session::{BlockCaches, Session, WalkPlace};
use pugmark_decoder_core::image::Asid;
use rustc_hash::FxHashSet;
use std::ops::Range;

/// The instructions before and after the one that is asked for that are kept with it.
const WINDOW: u64 = if cfg!(test) { 1 << 6 } else { 1 << 16 };
/// The fewest instructions between two places.
const LEAST_APART: u64 = if cfg!(test) { 1 << 7 } else { 1 << 16 };
/// The most memory that places take, in bytes.
const MOST_MEMORY: usize = 1 << 26;

/// A place of the walk, and how many instructions each lane has executed before.
#[derive(Debug)]
struct Checkpoint<'a> {
    place: WalkPlace<'a>,
    executed: Vec<u64>,
}

impl Checkpoint<'_> {
    fn size(&self) -> usize {
        self.place.size() + self.executed.len() * size_of::<u64>()
    }
}

/// All instructions of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LaneHistory {
    /// Their number.
    pub(super) count: u64,
    /// The instruction before which the lane ended, if it was interrupted: a fault, or the end of recording.
    pub(super) end: Option<u64>,
}

impl LaneHistory {
    /// Returns the last position: the number of instructions before it.
    pub(super) fn last(&self) -> u64 {
        if self.end.is_some() { self.count } else { self.count.saturating_sub(1) }
    }
}

/// A part of a lane that is decoded.
#[derive(Debug, Default)]
struct HistoryWindow {
    lane: usize,
    blocks: Vec<LaneBlock>,
    /// The addresses of the instructions of one of the blocks, and the number of the first of them.
    ips: (u64, Vec<u64>),
}

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Searched {
    /// The number of an instruction.
    Found(u64),
    Nothing,
    /// The search was interrupted, and has come to this instruction.
    Interrupted(u64),
}

/// The history of a session.
pub(super) struct History<'a> {
    session: Session<'a>,
    times: TraceTimes<'a>,
    checkpoints: Vec<Checkpoint<'a>>,
    pub(super) lanes: Vec<LaneHistory>,
    /// The places where something is missing, in the order of the session, and the number of all of them.
    pub(super) gaps: Vec<HistoryGap>,
    pub(super) gap_count: usize,
    window: HistoryWindow,
}

impl<'a> History<'a> {
    /// Decodes all of a session once.
    pub(super) fn new(
        session: Session<'a>,
        clock: TraceClock,
        caches: &mut BlockCaches<'_>,
        progress: &mut Progress,
    ) -> Self {
        progress.begin("decoding", Size::Bytes(session.size()));
        let lanes = session.lanes.len().max(1);
        let wanted = Wanted::Index { gaps: vec![], count: 0, interrupted: vec![None; lanes] };
        let none = vec![0; lanes];
        let mut watch =
            Watch::<false>::new(session.images.clone(), &none, lanes, 0..u64::MAX).wanting(wanted);
        let mut checkpoints = vec![Checkpoint { place: WalkPlace::default(), executed: none }];
        let (mut apart, mut total, mut memory) = (LEAST_APART, 0, 0);
        session.follow_from(&WalkPlace::default(), caches, &mut watch, |watch, place| {
            progress.at(watch.bytes);
            if watch.total - total < apart {
                return;
            }
            let Some(place) = place() else { return };
            total = watch.total;
            checkpoints.push(Checkpoint { place, executed: watch.executed.clone() });
            memory += checkpoints.last().map_or(0, Checkpoint::size);
            if memory > MOST_MEMORY {
                let mut is_kept = false;
                checkpoints.retain(|_| {
                    is_kept = !is_kept;
                    is_kept
                });
                (apart, memory) = (apart * 2, checkpoints.iter().map(Checkpoint::size).sum());
            }
        });
        progress.end();
        let executed = watch.executed;
        let (gaps, gap_count, interrupted) = match watch.wanted {
            Wanted::Index { gaps, count, interrupted } => (gaps, count, interrupted),
            Wanted::Blocks { .. } | Wanted::Hit { .. } => Default::default(),
        };
        let lanes = executed.into_iter().zip(interrupted).map(|(count, interrupted)| {
            let end = interrupted.filter(|(_, before)| *before == count).map(|(at, _)| at);
            LaneHistory { count, end }
        });
        let (lanes, times) = (lanes.collect(), TraceTimes::new(&session, clock));
        let window = HistoryWindow::default();
        Self { session, times, checkpoints, lanes, gaps, gap_count, window }
    }

    /// Returns the address of the instruction that comes next at a position of a lane, if it is known.
    pub(super) fn ip(&mut self, caches: &mut BlockCaches<'_>, lane: usize, at: u64) -> Option<u64> {
        let history = self.lanes.get(lane)?;
        if at >= history.count {
            return history.end.filter(|_| at == history.count);
        }
        let block = self.block(caches, lane, at)?;
        let (from, ips) = &mut self.window.ips;
        if *from != block.from || ips.is_empty() {
            let image = self.session.image(block.image);
            (*from, *ips) = (block.from, block.ips(image).collect());
        }
        ips.get(usize::try_from(at - *from).ok()?).copied()
    }

    /// Returns the time at a position of a lane, if there is one.
    pub(super) fn time(&mut self, caches: &mut BlockCaches<'_>, lane: usize, at: u64) -> Option<u64> {
        let last = self.lanes.get(lane)?.count.checked_sub(1)?;
        let at = at.min(last);
        let blocks = self.decode::<true>(caches, lane, at, at..at + 1);
        let block = blocks.first()?;
        self.times.turn_to(block.trace);
        let time = self.times.moment(block.span, at).map(|(time, _)| time);
        if let Some(mapped) = self.session.mapped(block.trace) {
            mapped.forget(0..self.session.traces[block.trace].len());
        }
        time
    }

    /// Reads code that the lane has at a position, and returns the number of bytes.
    pub(super) fn read(
        &mut self,
        caches: &mut BlockCaches<'_>,
        (lane, at): (usize, u64),
        address: u64,
        bytes: &mut [u8],
    ) -> usize {
        let last = self.lanes.get(lane).and_then(|lane| lane.count.checked_sub(1));
        let block = last.and_then(|last| self.block(caches, lane, at.min(last)));
        block.map_or(0, |block| self.session.image(block.image).read(address, Asid::default(), bytes))
    }

    /// Finds the first instruction of a lane at one of the addresses, from the one with the number `from` on.
    pub(super) fn first(
        &mut self,
        caches: &mut BlockCaches<'_>,
        (lane, from): (usize, u64),
        addresses: &FxHashSet<u64>,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Searched {
        let Some(count) = self.lanes.get(lane).map(|lane| lane.count) else { return Searched::Nothing };
        if from >= count || addresses.is_empty() {
            return Searched::Nothing;
        }
        let begin = self.checkpoint(lane, from);
        let wanted = Wanted::Hit { addresses, is_first: true, found: None };
        self.search(caches, begin, (lane, from..count), wanted, is_interrupted)
    }

    /// Finds the last instruction of a lane at one of the addresses, before the one with the number `to`.
    pub(super) fn last(
        &mut self,
        caches: &mut BlockCaches<'_>,
        (lane, to): (usize, u64),
        addresses: &FxHashSet<u64>,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Searched {
        if to == 0 || addresses.is_empty() || lane >= self.lanes.len() {
            return Searched::Nothing;
        }
        let (mut begin, mut end, mut step) = (self.checkpoint(lane, to - 1), to, 1);
        loop {
            let from = self.executed(begin, lane);
            // Other lanes alone were executed from there on.
            if from < end {
                let wanted = Wanted::Hit { addresses, is_first: false, found: None };
                match self.search(caches, begin, (lane, from..end), wanted, is_interrupted) {
                    Searched::Nothing => {}
                    Searched::Interrupted(_) => return Searched::Interrupted(end),
                    found @ Searched::Found(_) => return found,
                }
            }
            if begin == 0 {
                return Searched::Nothing;
            }
            (begin, end, step) = (begin.saturating_sub(step), from, step * 2);
        }
    }

    /// Returns the number of the last place before an instruction.
    fn checkpoint(&self, lane: usize, at: u64) -> usize {
        let is_before = |point: &Checkpoint<'_>| point.executed.get(lane).is_none_or(|from| *from <= at);
        self.checkpoints.partition_point(is_before).saturating_sub(1)
    }

    /// Returns how many instructions a lane has executed before a place.
    fn executed(&self, checkpoint: usize, lane: usize) -> u64 {
        let point = self.checkpoints.get(checkpoint);
        point.and_then(|point| point.executed.get(lane)).copied().unwrap_or(0)
    }

    fn search(
        &self,
        caches: &mut BlockCaches<'_>,
        begin: usize,
        (lane, range): (usize, Range<u64>),
        wanted: Wanted<'_>,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Searched {
        let Some(Checkpoint { place, executed }) = self.checkpoints.get(begin) else {
            return Searched::Nothing;
        };
        let from = range.start;
        let mut watch =
            Watch::<false>::new(self.session.images.clone(), executed, lane, range).wanting(wanted);
        self.session.follow_from(place, caches, &mut watch, |watch, _| watch.is_stopped = is_interrupted());
        match watch.wanted {
            Wanted::Hit { is_first: true, found: Some(found), .. } => Searched::Found(found),
            _ if watch.is_stopped => {
                Searched::Interrupted(watch.executed.get(lane).copied().unwrap_or(0).max(from))
            }
            Wanted::Hit { found: Some(found), .. } => Searched::Found(found),
            _ => Searched::Nothing,
        }
    }

    /// Returns the block of an instruction, decoded again if it is not in the window.
    fn block(&mut self, caches: &mut BlockCaches<'_>, lane: usize, at: u64) -> Option<LaneBlock> {
        if self.window.lane == lane
            && let Some(block) = self.window.find(at)
        {
            return Some(block);
        }
        let range = at.saturating_sub(WINDOW)..at.saturating_add(WINDOW);
        // Without spans, as when instructions were counted: with them, a block may come on the other side of a cut.
        let blocks = self.decode::<false>(caches, lane, at, range);
        self.window = HistoryWindow { lane, blocks, ips: (0, vec![]) };
        self.window.find(at)
    }

    /// Decodes the blocks with a range of instructions again; those from the last place before `at` on.
    fn decode<const SPANS: bool>(
        &self,
        caches: &mut BlockCaches<'_>,
        lane: usize,
        at: u64,
        range: Range<u64>,
    ) -> Vec<LaneBlock> {
        let Some(Checkpoint { place, executed }) = self.checkpoints.get(self.checkpoint(lane, at)) else {
            return vec![];
        };
        let mut watch = Watch::<SPANS>::new(self.session.images.clone(), executed, lane, range);
        self.session.follow_from(place, caches, &mut watch, |_, _| {});
        match watch.wanted {
            Wanted::Blocks { found } => found,
            Wanted::Index { .. } | Wanted::Hit { .. } => vec![],
        }
    }
}

impl HistoryWindow {
    /// Finds the block of an instruction.
    fn find(&self, at: u64) -> Option<LaneBlock> {
        let number = self.blocks.partition_point(|block| block.from <= at).checked_sub(1)?;
        self.blocks.get(number).filter(|block| at < block.end()).copied()
    }
}
