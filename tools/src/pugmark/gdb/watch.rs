//! The sink of a walk over a recording: it looks at everything once, or at some instructions of one thread.

use crate::session::{BlockNumbers, SliceSink, TraceSlice};
use pugmark_decoder_core::{
    block::{Block, Insns},
    block_cache::ExecutionSink,
    event::{Event, EventKind},
    image::{Asid, Image},
    resume::Lost,
    time::Span,
};
use rustc_hash::FxHashSet;
use std::{ops::Range, rc::Rc};

/// A place in a lane where something is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HistoryGap {
    /// The number of the lane.
    pub(super) lane: usize,
    /// The number of the first instruction after it.
    pub(super) before: u64,
    /// The cause.
    pub(super) cause: String,
}

/// A block of a lane, and where it is from.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneBlock {
    /// The number of its first instruction.
    pub(super) from: u64,
    pub(super) block: Block,
    /// The numbers of its image and of its trace.
    pub(super) image: usize,
    pub(super) trace: usize,
    /// The packets between which it was executed.
    pub(super) span: Span,
}

impl LaneBlock {
    /// Returns the number of the first instruction after it.
    pub(super) fn end(&self) -> u64 {
        self.from + u64::from(self.block.insns)
    }

    /// Returns the addresses of its instructions.
    pub(super) fn ips<'a>(&'a self, image: Image<'a>) -> impl Iterator<Item = u64> + 'a {
        Insns::new(image, Asid::default(), &self.block).map(|(ip, _)| ip)
    }
}

/// The part of a walk that is wanted.
#[derive(Debug)]
pub(super) enum Wanted<'w> {
    /// The gaps and ends of all lanes.
    Index {
        /// At most as many as [`MOST_GAPS`].
        gaps: Vec<HistoryGap>,
        /// The number of all gaps.
        count: usize,
        /// For each lane: the address at which it was interrupted last, and the number of instructions before.
        interrupted: Vec<Option<(u64, u64)>>,
    },
    /// The blocks with these instructions.
    Blocks {
        /// The blocks so far.
        found: Vec<LaneBlock>,
    },
    /// The first or the last instruction at one of these addresses.
    Hit {
        addresses: &'w FxHashSet<u64>,
        is_first: bool,
        /// Its number.
        found: Option<u64>,
    },
}

/// The most gaps that are kept.
const MOST_GAPS: usize = 1 << 16;

/// A sink that counts the instructions of all lanes, and looks for what is wanted. With `SPANS` it knows where in the
/// trace blocks are.
#[derive(Debug)]
pub(super) struct Watch<'a, 'w, const SPANS: bool> {
    pub(super) wanted: Wanted<'w>,
    /// The number of instructions of each lane so far, and of all.
    pub(super) executed: Vec<u64>,
    pub(super) total: u64,
    /// The number of bytes of the traces so far, about.
    pub(super) bytes: u64,
    /// True if the walk is to end.
    pub(super) is_stopped: bool,
    /// The lane that is looked at, and the numbers of the wanted instructions in it.
    lane: usize,
    range: Range<u64>,
    images: Rc<[Image<'a>]>,
    /// The slice that is followed.
    now: (usize, usize, usize),
    /// The offset in the trace.
    reached: u64,
    /// The numbers of instructions of the blocks that need not be looked at for the addresses in them.
    lengths: BlockNumbers,
    /// The number in its cache of the next block, and its span.
    next: u32,
    span: Span,
}

impl<'a, 'w, const SPANS: bool> Watch<'a, 'w, SPANS> {
    /// Creates a sink for a walk before which lanes had executed as many instructions.
    pub(super) fn new(images: Rc<[Image<'a>]>, executed: &[u64], lane: usize, range: Range<u64>) -> Self {
        Self {
            wanted: Wanted::Blocks { found: vec![] },
            executed: executed.to_vec(),
            total: 0,
            bytes: 0,
            reached: 0,
            is_stopped: false,
            lane,
            range,
            images,
            now: (0, 0, 0),
            lengths: BlockNumbers::default(),
            next: 0,
            span: Span::default(),
        }
    }

    /// Sets the wanted part.
    pub(super) fn wanting(self, wanted: Wanted<'w>) -> Self {
        Self { wanted, ..self }
    }

    /// Returns true if instructions of the current block, with numbers from `from` to `to`, are wanted.
    fn wants(&self, from: u64, to: u64) -> bool {
        let is_there = self.now.0 == self.lane && from < self.range.end && to > self.range.start;
        matches!(self.wanted, Wanted::Blocks { .. }) && is_there
    }

    fn add(&mut self, insns: u64) {
        self.total += insns;
        if let Some(executed) = self.executed.get_mut(self.now.0) {
            *executed += insns;
        }
    }

    fn at(&self) -> u64 {
        self.executed.get(self.now.0).copied().unwrap_or(0)
    }

    /// Looks at the block that begins at the instruction with the number `from`. Returns true if blocks of its kind
    /// need not be looked at again.
    fn look(&mut self, from: u64, block: &Block) -> bool {
        let (lane, image, trace) = self.now;
        let block = LaneBlock { from, block: *block, image, trace, span: self.span };
        let wants = self.wants(from, block.end());
        match &mut self.wanted {
            Wanted::Index { .. } => true,
            Wanted::Blocks { found } => {
                if wants {
                    found.push(block);
                }
                true
            }
            Wanted::Hit { addresses, is_first, found } => {
                let image = self.images.get(image).copied().unwrap_or(Image::new(&[]));
                let mut is_known = true;
                for (number, _) in (from..).zip(block.ips(image)).filter(|(_, ip)| addresses.contains(ip)) {
                    is_known = false;
                    if lane == self.lane && self.range.contains(&number) && !(*is_first && found.is_some()) {
                        *found = Some(number);
                    }
                }
                is_known
            }
        }
    }

    fn gap(&mut self, cause: &str) {
        let (lane, at) = (self.now.0, self.at());
        if let Wanted::Index { gaps, count, .. } = &mut self.wanted {
            *count += 1;
            if gaps.len() < MOST_GAPS {
                gaps.push(HistoryGap { lane, before: at, cause: cause.into() });
            }
        }
    }
}

impl<const SPANS: bool> SliceSink for Watch<'_, '_, SPANS> {
    const ENDS_EARLY: bool = true;

    fn turn_to_cache(&mut self, cache: usize) {
        self.lengths.turn_to(cache);
    }

    fn begins(&mut self, slice: &TraceSlice) {
        self.now = (slice.lane, slice.image, slice.trace);
    }

    fn is_done(&self) -> bool {
        let is_found = matches!(self.wanted, Wanted::Hit { is_first: true, found: Some(_), .. });
        self.is_stopped || is_found || self.executed.get(self.lane).is_some_and(|at| *at >= self.range.end)
    }
}

impl<const SPANS: bool> ExecutionSink for Watch<'_, '_, SPANS> {
    const BLOCKS: bool = true;
    const NUMBERS: bool = true;
    const SPANS: bool = SPANS;

    fn numbered(&mut self, generation: u64) {
        self.lengths.numbered(generation);
    }

    #[inline]
    fn span(&mut self, span: Span) {
        self.span = span;
    }

    #[inline]
    fn passes(&mut self, number: u32) -> bool {
        let (length, at) = (u64::from(self.lengths.given(number)), self.at());
        if length == 0 || self.wants(at, at + length) {
            self.next = number;
            return true;
        }
        self.add(length);
        false
    }

    fn block(&mut self, block: &Block) {
        let (from, number) = (self.at(), std::mem::take(&mut self.next));
        if self.look(from, block) {
            self.lengths.give(number, block.insns);
        }
        self.add(block.insns.into());
    }

    fn event(&mut self, event: &Event) {
        let (lane, executed) = (self.now.0, self.at());
        match event.kind {
            EventKind::Overflow if !event.status => self.gap("the processor lost packets"),
            EventKind::AsyncDisabled { at } if !event.status => {
                if let Wanted::Index { interrupted, .. } = &mut self.wanted
                    && let Some(interrupted) = interrupted.get_mut(lane)
                {
                    *interrupted = Some((at, executed));
                }
            }
            _ => {}
        }
    }

    fn reached(&mut self, offset: u64) {
        let before = std::mem::replace(&mut self.reached, offset);
        self.bytes += offset.saturating_sub(before);
    }

    fn lost(&mut self, lost: &Lost) {
        match lost {
            Lost::Error(error) => self.gap(&format!("the trace cannot be decoded: {error}")),
            Lost::Gap { .. } => self.gap("bytes of the trace are missing"),
        }
    }
}
