//! The blocks that a trace has executed, each once with a number, and the count of each transition between two blocks.

use super::transitions::Transitions;
use crate::session::{BlockNumbers, Session};
use pugmark_decoder_core::{
    block::{Block, Insns},
    event::{Event, EventKind},
    image::{Asid, Image},
    insn::Insn,
    mode::ExecMode,
    resume::Lost,
};
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Per-block and per-transition data, computed on first sight.
pub(super) trait BlockNotes {
    /// Per-block data; the default is that of no block.
    type Block: Default;
    /// Per-transition data.
    type Way: Copy + Default;

    /// Computes the data of a block, which comes after the block with the data `before`.
    fn block(&mut self, before: &Self::Block, block: &Block, insns: Insns<'_>) -> Self::Block;

    /// Computes the data of the transition between two blocks.
    fn way(&mut self, from: &Self::Block, to: &Self::Block) -> Self::Way;
}

/// No data.
pub(super) struct NoNotes;

impl BlockNotes for NoNotes {
    type Block = ();
    type Way = ();

    fn block(&mut self, (): &(), _: &Block, _: Insns<'_>) {}

    fn way(&mut self, (): &(), (): &()) {}
}

/// The blocks that were executed.
///
/// A block that a cache holds is known by its number there, without a look at the block itself.
pub(super) struct KnownBlocks<'a, N: BlockNotes> {
    /// All code, and the number of the code that is executed now.
    images: Rc<[Image<'a>]>,
    now: u32,
    blocks: Vec<KnownBlock<N>>,
    by_key: FxHashMap<BlockKey, u32>,
    /// The numbers by those of the caches, and the number there of the next block.
    numbers: BlockNumbers,
    next: u32,
    transitions: Transitions<N::Way>,
}

struct KnownBlock<N: BlockNotes> {
    block: Block,
    /// The number of its code.
    image: u32,
    notes: N::Block,
}

/// The number that stands for no block.
pub(super) const NO_BLOCK: u32 = 0;

impl<'a, N: BlockNotes> KnownBlocks<'a, N> {
    /// Makes an empty set of blocks of these images. Until [`turn_to`](Self::turn_to) is called, blocks are of `first`.
    pub(super) fn new(images: Rc<[Image<'a>]>, first: usize) -> Self {
        // A block has at least one instruction.
        let none = Block {
            ip: 0,
            end_ip: 0,
            insns: 0,
            section: 0,
            mode: ExecMode::Bits64,
            speculative: false,
            truncated: false,
        };
        let mut known = Self {
            images,
            now: first as u32,
            blocks: vec![],
            by_key: FxHashMap::default(),
            numbers: BlockNumbers::default(),
            next: 0,
            transitions: Transitions::new(),
        };
        known.add(&none, N::Block::default());
        known
    }

    /// Makes the same for a session's lane, with the code that the lane begins with.
    pub(super) fn of_lane(session: &Session<'a>, lane: usize) -> Self {
        Self::new(session.images.clone(), session.lanes.get(lane).copied().unwrap_or(0))
    }

    /// Turns to the code with this number, which the next blocks are of.
    pub(super) fn turn_to(&mut self, image: usize) {
        self.now = image as u32;
    }

    /// Turns to the cache that holds the next blocks.
    pub(super) fn turn_to_cache(&mut self, cache: usize) {
        self.numbers.turn_to(cache);
    }

    /// Notes how often the cache has forgotten its blocks.
    pub(super) fn numbered(&mut self, generation: u64) {
        self.numbers.numbered(generation);
    }

    /// Returns the number of the block that has this number in the cache; `None` if [`learn`](Self::learn) must be told
    /// the block.
    #[inline]
    pub(super) fn find(&mut self, number: u32) -> Option<u32> {
        let known = self.numbers.given(number);
        if known == NO_BLOCK {
            self.next = number;
            return None;
        }
        Some(known)
    }

    /// Returns the number of the block that was asked for last, which comes after the block with the number `before`.
    #[inline(never)]
    pub(super) fn learn(&mut self, before: u32, block: &Block, notes: &mut N) -> u32 {
        let known = self.by_key.get(&key(block, self.now));
        let known = known.copied().unwrap_or_else(|| {
            let before = &self.blocks[before as usize].notes;
            let noted = notes.block(before, block, self.insns_of(block, self.now));
            self.add(block, noted)
        });
        self.numbers.give(std::mem::take(&mut self.next), known);
        known
    }

    /// Counts the transition to the block `to` from the block `before`, or from [`NO_BLOCK`] if none leads to it, this
    /// many `times`: 0 or 1. Returns the transition's data.
    #[inline]
    pub(super) fn count(&mut self, before: u32, to: u32, times: u64, notes: &mut N) -> N::Way {
        match self.transitions.count(before, to, times) {
            Some(way) => way,
            None => self.count_new(before, to, times, notes),
        }
    }

    #[inline(never)]
    fn count_new(&mut self, before: u32, to: u32, times: u64, notes: &mut N) -> N::Way {
        let way = notes.way(&self.blocks[before as usize].notes, &self.blocks[to as usize].notes);
        self.transitions.add(before, to, times, way);
        way
    }

    fn add(&mut self, block: &Block, notes: N::Block) -> u32 {
        let number = u32::try_from(self.blocks.len()).expect("more blocks than fit into memory");
        let image = self.now;
        self.by_key.insert(key(block, image), number);
        self.blocks.push(KnownBlock { block: *block, image, notes });
        number
    }

    /// Returns the data of a block.
    #[inline]
    pub(super) fn notes(&self, number: u32) -> &N::Block {
        &self.blocks[number as usize].notes
    }

    fn insns_of(&self, block: &Block, image: u32) -> Insns<'a> {
        let image = self.images.get(image as usize).copied().unwrap_or(Image::new(&[]));
        Insns::new(image, Asid::default(), block)
    }

    /// Returns the counts.
    pub(super) fn counted(self, chain: BlockChain) -> ExecutedBlocks {
        let insns =
            self.blocks.iter().map(|known| self.insns_of(&known.block, known.image).collect()).collect();
        let BlockChain { interrupted, leads_to, errors, .. } = chain;
        ExecutedBlocks { insns, pairs: self.transitions.all().collect(), interrupted, leads_to, errors }
    }
}

/// Counts of blocks and of the transitions between them.
pub(super) struct ExecutedBlocks {
    /// The instructions of each block, by its number.
    pub(super) insns: Vec<Vec<(u64, Insn)>>,
    /// Pairs of blocks that came one after the other, each with its count, in no order.
    pub(super) pairs: Vec<(u32, u32, u64)>,
    /// Counts of interrupts, by the block before and the address at which execution was interrupted. A branch that led
    /// there was executed.
    pub(super) interrupted: FxHashMap<(u32, u64), u64>,
    /// The last block of the window, and the address after it.
    pub(super) leads_to: Option<(u32, u64)>,
    /// The number of errors in the trace, and of places where packets were lost.
    pub(super) errors: usize,
}

/// The block that leads to the next one.
#[derive(Default)]
pub(super) struct BlockChain {
    /// The block before the next one, if the next one is reached from it, by a branch or without one.
    pub(super) before: u32,
    interrupted: FxHashMap<(u32, u64), u64>,
    leads_to: Option<(u32, u64)>,
    errors: usize,
    /// True while nothing is counted but errors.
    pub(super) is_outside: bool,
}

impl BlockChain {
    /// Enters the window, or leaves it: the last block leads to `ip`, and the block there is not counted.
    pub(super) const fn turns(&mut self, is_inside: bool, ip: u64) {
        if !is_inside {
            self.leads_to = Some((self.before, ip));
        }
        (self.is_outside, self.before) = (!is_inside, NO_BLOCK);
    }

    /// Stops: the next block is not reached from the one before.
    pub(super) const fn stops(&mut self) {
        self.before = NO_BLOCK;
    }

    /// Notes an error or lost packets where nothing else is told.
    pub(super) const fn loses_outside(&mut self) {
        self.errors += 1;
    }

    /// Notes a gap in the trace.
    pub(super) fn lost(&mut self, lost: &Lost) {
        self.before = NO_BLOCK;
        self.errors += usize::from(matches!(lost, Lost::Error(_)));
    }

    /// Notes an event before the next block.
    pub(super) fn event(&mut self, event: &Event) {
        if let Some(at) = interrupted_at(event).filter(|_| !self.is_outside) {
            *self.interrupted.entry((self.before, at)).or_default() += 1;
        }
        if breaks(event) {
            self.before = NO_BLOCK;
        }
        self.errors += usize::from(event.kind == EventKind::Overflow);
    }
}

/// Returns the next instruction, if this event interrupted it before it was executed.
pub(super) const fn interrupted_at(event: &Event) -> Option<u64> {
    match event.kind {
        EventKind::AsyncDisabled { at } | EventKind::AsyncBranch { from: at } => Some(at),
        _ => None,
    }
}

/// Returns true if the next instruction after this event was not reached from the last one before it.
pub(super) const fn breaks(event: &Event) -> bool {
    matches!(event.kind, EventKind::Enabled { .. } | EventKind::Overflow | EventKind::AsyncBranch { .. })
}

/// The values that distinguish a block from all others.
type BlockKey = (u64, u64, u32, ExecMode, u32);

#[inline]
const fn key(block: &Block, image: u32) -> BlockKey {
    (block.ip, block.end_ip, block.insns, block.mode, image)
}
