//! The walk through the cache: the loop that takes almost all decoding time.
//!
//! [`BlockDecoder::visit`] walks as long as only branches come next in the trace. Everything else, including what does
//! not fit the code, goes through [`BlockDecoder::next`], which is exact and slow.

use super::{
    BlockCache, ExecutionSink, InstructionRun,
    branches::{BranchCursor, BranchOffsets, BranchesAhead, NoOffsets, Target},
    build::{Code, NoBlock},
    calls::{CachedCalls, Top},
    context::CodeContext,
    edges,
    node::{BLOCK_WORDS, BlockEnd, NO_PAIR, Node, whole},
    scratch::{LastPart, Scratch},
    sequences::{self, CountedSequences},
    sink::takes_numbers,
    store::View,
};
use crate::{
    block::{Block, BlockDecoder, BlockStep},
    error::{Error, ErrorKind},
    flow::Continuation,
    keeper::Keeper,
    time::Span,
};

const COND: u32 = BlockEnd::Cond as u32;
const RETURN: u32 = BlockEnd::Return as u32;
const CALL: u32 = BlockEnd::Call as u32;
const INDIRECT: u32 = BlockEnd::Indirect as u32;
const OPEN: u32 = BlockEnd::Open as u32;

/// The reason why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// All branches were used; the walk is at the block.
    Used,
    /// The sink is full; the walk is at the block.
    SinkFull,
    /// The walk is at this address, which has no block in the cache, or one that only the exact decoder can execute.
    NoBlock(u64),
    /// The block was executed, but the branch at its end does not match the trace, or needs the exact decoder.
    Misfit,
}

/// The reason why the loop must change the cache, or ends.
enum Miss {
    /// The block after the conditional branch, or after the end without a branch, is unknown.
    Link(u8),
    /// The block after these two outcomes, from a plain block through another one, is unknown.
    Pair(u8, u8),
    /// The block that the popped call returns to is unknown. The value is the block with the call, or 0.
    Return(u32),
    /// There is no block at the target.
    Target(u64),
    /// The block ends without a branch, and the block with the next branch is unknown.
    Open,
    Stop(Stop),
}

/// The place of a walk through the cache.
pub(super) struct CacheWalk {
    /// The block that the walk is at.
    pub(super) block: u32,
    /// Half the edge-map place of the previous block, for the next edge.
    pub(super) before: u16,
    pub(super) top: Top,
    /// The branches read ahead that were used, and those that were used before the last block.
    cursor: BranchCursor,
    before_last: BranchCursor,
    /// True if a block was executed since the branches were read; only for sinks that fill.
    executed: bool,
    /// The offset of the last packet used; only for sinks that take spans.
    after: u64,
}

impl<K: Keeper> BlockDecoder<'_, K> {
    /// Passes everything up to the end of the trace or an error to `sink`: the items of [`next`](Self::next), but
    /// faster. Returns early when the sink is full.
    ///
    /// # Errors
    /// Those of [`next`](Self::next), after everything before the error was passed on.
    pub fn visit<S: ExecutionSink>(&mut self, cache: &mut BlockCache<'_>, sink: &mut S) -> Result<(), Error> {
        let key = self.image_key();
        cache.enter_image(self.walker.image, key);
        if takes_numbers::<S>() {
            sink.numbered(cache.generation);
        }
        let end = self.visit_all(cache, sink);
        if sequences::wanted::<S>() {
            cache.sequences.tell(|edge, times| sink.edges(edge, times));
        }
        end
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn visit_all<S: ExecutionSink>(&mut self, cache: &mut BlockCache<'_>, sink: &mut S) -> Result<(), Error> {
        // The last block is in the last part of the branches, but its place in that part is unknown.
        let mut unplaced = false;
        loop {
            if S::FILLS && sink.is_full() {
                return Ok(());
            }
            if self.may_walk() && self.walk(cache, sink, &mut unplaced)? {
                continue;
            }
            if !self.visit_next(sink, &mut unplaced)? {
                return Ok(());
            }
        }
    }

    /// Passes on the next item, which the exact decoder finds; returns `false` at the end. Not inlined, to save stack:
    /// items are large, and a walk needs none.
    #[inline(never)]
    fn visit_next<S: ExecutionSink>(&mut self, sink: &mut S, unplaced: &mut bool) -> Result<bool, Error> {
        let step = self.next_step();
        if *unplaced && matches!(step, Ok(BlockStep::End) | Err(_)) {
            self.find_last_block();
        }
        match step? {
            BlockStep::Block => {
                *unplaced = false;
                self.pass_block(sink);
            }
            BlockStep::Event => {
                let Some(event) = &self.walker.at.taken else { return Ok(true) };
                if edges::breaks(event) {
                    self.edge_before = 0;
                }
                sink.event(event);
            }
            BlockStep::End => return Ok(false),
        }
        Ok(true)
    }

    /// Passes on the block that the exact decoder has found.
    #[inline(never)]
    fn pass_block<S: ExecutionSink>(&mut self, sink: &mut S) {
        let block = self.take_block();
        if takes_spans::<S>() {
            sink.span(self.span());
        }
        if S::INSNS {
            for (ip, insn) in self.insns(&block) {
                sink.insns(InstructionRun { ip, lengths: insn.len.into() });
            }
        }
        if S::BLOCKS && (!takes_numbers::<S>() || sink.passes(0)) {
            sink.block(&block);
        }
        if S::EDGES {
            let (edge, before) = edges::edge(self.edge_before, edges::place(block.ip));
            self.edge_before = before;
            sink.edge(edge);
        }
    }

    /// Walks as long as only branches come next; returns `false` if nothing was executed. Sets `unplaced` if the
    /// decoder does not know where in the last part of the branches the last block is.
    #[inline(never)]
    fn walk<S: ExecutionSink>(
        &mut self,
        cache: &mut BlockCache<'_>,
        sink: &mut S,
        unplaced: &mut bool,
    ) -> Result<bool, Error> {
        let Some(mode) = self.walker.at.mode else { return Ok(false) };
        let context =
            CodeContext { mode, speculative: self.walker.at.speculative, space: self.walker.at.space };
        let mut code = Code::new(self.walker.image, context);
        let Some(block) = enter(cache, &mut code, self.walker.at.ip, sink) else { return Ok(false) };
        let mut walk = CacheWalk {
            block,
            before: self.edge_before,
            top: self.scratch.calls.enter(self.walker.returns()),
            cursor: BranchCursor::default(),
            before_last: BranchCursor::default(),
            executed: false,
            after: 0,
        };
        let (mut executed, mut used) = (false, false);
        // The offset where sequences ended, if they were executed last.
        let mut sequences = None;
        let stop = loop {
            let mut until = None;
            if sequences::wanted::<S>() && cache.sequences.allow_attempt() {
                let CountedSequences { end, until: next } = self.take_sequences(cache, &mut walk, sink);
                if end.is_some() {
                    sequences = end;
                    (executed, used) = (true, true);
                }
                until = next;
            }
            self.read_part::<S>(&mut walk, until);
            if self.scratch.ahead.is_empty() {
                break Stop::Used;
            }
            let Scratch { ahead, offsets, calls, .. } = &mut *self.scratch;
            find_targets(cache, ahead, 0);
            let stop = walk.go(cache, &mut code, calls, sink, ahead, offsets);
            if walk.executed || walk.cursor != BranchCursor::default() || stop == Stop::Misfit {
                used |= walk.cursor != BranchCursor::default();
                executed = true;
                self.scratch.note_last(&mut walk, stop == Stop::Misfit, S::FILLS);
                sequences = None;
            }
            if stop != Stop::Used {
                break stop;
            }
            sink.reached(self.walker.used().0);
        };
        if let Some(end) = sequences {
            self.place_sequences(end);
        }
        // If everything read was used, only callers that stop here need the exact place.
        if stop != Stop::Used || executed && S::FILLS {
            self.return_to_last(executed);
            *unplaced &= !executed;
        } else {
            *unplaced |= executed;
        }
        self.scratch.calls.settle(walk.top, cache.view(), self.walker.returns());
        self.edge_before = walk.before;
        if executed {
            self.walker.has_walked(used);
        }
        match stop {
            Stop::Used | Stop::SinkFull => self.walker.at.ip = cache.view().ip(walk.block),
            Stop::NoBlock(ip) => self.walker.at.ip = ip,
            Stop::Misfit => self.leave_block(cache.view(), walk.block)?,
        }
        Ok(executed)
    }

    /// Reads the next part of the branches ahead, and notes its start.
    #[inline(never)]
    fn read_part<S: ExecutionSink>(&mut self, walk: &mut CacheWalk, until: Option<u64>) {
        self.scratch.start = self.walker.start();
        (walk.cursor, walk.before_last) = (BranchCursor::default(), BranchCursor::default());
        walk.executed = false;
        if takes_spans::<S>() {
            walk.after = self.walker.after();
            self.read_ahead_with_offsets();
        } else {
            self.read_ahead(until);
        }
    }

    /// Reads branches ahead. Not inlined, because its loop needs all registers.
    #[inline(never)]
    pub(super) fn read_ahead(&mut self, until: Option<u64>) {
        let Self { walker, scratch, .. } = self;
        scratch.ahead.fill(NoOffsets, |writer| walker.read_ahead(writer, until));
    }

    /// Does the same, with the offsets of the branches' packets.
    #[inline(never)]
    fn read_ahead_with_offsets(&mut self) {
        let Self { walker, scratch, .. } = self;
        let Scratch { ahead, offsets, .. } = &mut **scratch;
        ahead.fill(offsets, |writer| walker.read_ahead(writer, None));
    }

    /// Returns to the last part of the branches and uses it up to the last block. If nothing was executed, returns to
    /// the start of the branches read ahead.
    #[inline(never)]
    fn return_to_last(&mut self, executed: bool) {
        let Self { walker, scratch, .. } = self;
        let LastPart { start, before_last, cursor } = &scratch.last;
        if executed {
            walker.return_to(start);
            let (before_last, cursor) = (*before_last, *cursor);
            self.use_branches(before_last, cursor);
        } else {
            walker.return_to(&scratch.start);
        }
    }

    /// Finds the packet span of the last block when the visit ends with an event.
    #[cold]
    #[inline(never)]
    fn find_last_block(&mut self) {
        // The place of an open block is known.
        if self.block.insns == 0 {
            let here = self.walker.look_back();
            let LastPart { start, before_last, cursor } = &self.scratch.last;
            self.walker.return_from_event(start);
            let (before_last, cursor) = (*before_last, *cursor);
            self.use_branches(before_last, cursor);
            self.walker.come_back(&here);
        }
    }

    /// Uses the branches before the cursor, of which those after `before_last` belong to the last block.
    fn use_branches(&mut self, before_last: BranchCursor, cursor: BranchCursor) {
        self.walker.use_branches(before_last.outcomes, before_last.targets);
        self.begin();
        self.decided = cursor != before_last;
        self.walker
            .use_branches(cursor.outcomes - before_last.outcomes, cursor.targets - before_last.targets);
        if !self.decided {
            // The branch that ends the next block is at hand.
            self.walker.sees_branch();
        }
    }

    /// Goes from a block that was executed to the next item, if that is not simple.
    #[cold]
    fn leave_block(&mut self, view: View<'_>, block: u32) -> Result<(), Error> {
        let body = view.body(block);
        let way = match view.node(block).ends() {
            COND => Continuation::Cond,
            RETURN => Continuation::Return,
            CALL => Continuation::IndirectCall,
            _ => Continuation::Indirect,
        };
        // The branch that does not fit must be at hand.
        self.walker.sees_branch();
        self.begin();
        self.walker.at.ip = body.end_ip;
        let gone = self.walker.go(way, body.next(), body.next());
        self.decided = gone.is_ok();
        gone.inspect_err(|error| match error.kind {
            ErrorKind::EndOfSlice => self.walker.return_to_insn(body.end_ip),
            _ => self.walker.give_up(*error),
        })
    }
}

/// Returns true if a sink receives the packets around each block.
const fn takes_spans<S: ExecutionSink>() -> bool {
    S::SPANS && !S::FILLS
}

/// Returns the block at `ip`, at which a walk begins.
#[inline(never)]
fn enter<S: ExecutionSink>(
    cache: &mut BlockCache<'_>,
    code: &mut Code<'_>,
    ip: u64,
    sink: &mut S,
) -> Option<u32> {
    cache.enter(code.context, sink);
    match cache.at(code, ip) {
        Err(NoBlock::Full) => {
            cache.flush(sink);
            cache.at(code, ip).ok()
        }
        found => found.ok(),
    }
}

/// Looks up the blocks at the targets from that number on. The lookups do not wait for each other.
#[cfg_attr(not(debug_assertions), inline(always))]
fn find_targets(cache: &mut BlockCache<'_>, ahead: &mut BranchesAhead, from: usize) {
    for target in ahead.targets_mut(from) {
        target.block = cache.find_target(target.ip);
    }
}

/// Returns the block after the next one, if both are plain; 0 or [`NO_PAIR`] as [`Node::pair`] does.
///
/// A sink that takes blocks or instructions works while the processor waits for the read, and with the node's address
/// at hand the code has fewer instructions. Any other walk is limited by the chain of reads from number to number, so
/// it uses the number alone.
#[cfg_attr(not(debug_assertions), inline(always))]
fn next_but_one<S: ExecutionSink>(view: &View<'_>, block: u32, node: Node<'_>, first: u8, second: u8) -> u32 {
    if S::INSNS || S::BLOCKS { node.pair(first, second) } else { view.pair(block, first, second) }
}

/// Passes a block on to the sink, with its place in a map of edges.
#[cfg_attr(not(debug_assertions), inline(always))]
fn pass_on<S: ExecutionSink>(
    view: &View<'_>,
    sink: &mut S,
    block: u32,
    place: u16,
    before: &mut u16,
    shown: &mut Block,
) {
    if S::INSNS {
        for [a, b, c, d] in view.straights(&view.body(block)) {
            sink.insns(InstructionRun { ip: whole([a, b]), lengths: whole([c, d]) });
        }
    }
    if S::BLOCKS && (!takes_numbers::<S>() || sink.passes(block / BLOCK_WORDS as u32)) {
        view.body(block).show(shown);
        sink.block(shown);
    }
    if S::EDGES {
        let edge;
        (edge, *before) = edges::edge(*before, place);
        sink.edge(edge);
    }
}

impl Scratch {
    /// Notes which of the branches read ahead the last block used. Only walks for sinks that fill know that already.
    #[inline(never)]
    fn note_last(&mut self, walk: &mut CacheWalk, misfit: bool, fills: bool) {
        if !fills {
            // The last block ended with the last branch, or does not fit the next one.
            walk.before_last = if misfit { walk.cursor } else { self.ahead.before(walk.cursor) };
        }
        self.last.start = self.start;
        (self.last.before_last, self.last.cursor) = (walk.before_last, walk.cursor);
    }
}

impl CacheWalk {
    /// Walks from the cursor on, and adds missing blocks to the cache.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn go<S: ExecutionSink>(
        &mut self,
        cache: &mut BlockCache<'_>,
        code: &mut Code<'_>,
        calls: &mut CachedCalls,
        sink: &mut S,
        ahead: &mut BranchesAhead,
        offsets: &BranchOffsets,
    ) -> Stop {
        let like = code.context.block();
        let mut flushed = None;
        loop {
            let (next, ip) = match self.run(&cache.view(), calls, sink, ahead, offsets, &like) {
                Miss::Stop(stop) => return stop,
                Miss::Open => {
                    let ip = cache.view().ip(self.block);
                    (cache.close(code, self.block), ip)
                }
                Miss::Pair(first, second) => {
                    let next = cache.view().node(self.block).next(first);
                    let between = cache.view().node(next);
                    let after = if between.is_plain() { between.next(second) } else { NO_PAIR };
                    let edge = between.edge();
                    cache.change(self.block, |node| node.set_pair(first, second, after, edge));
                    self.block = next;
                    continue;
                }
                Miss::Link(taken) => cache.link(code, self.block, taken),
                Miss::Return(caller) => {
                    let ip = calls.popped(self.top);
                    let next = cache.at(code, ip);
                    match next {
                        Ok(site) if caller != 0 => cache.change(caller, |node| node.set_site(site)),
                        _ => {}
                    }
                    (next, ip)
                }
                Miss::Target(ip) => (cache.at(code, ip), ip),
            };
            self.block = match next {
                Ok(next) => next,
                Err(NoBlock::Slow) => return Stop::NoBlock(ip),
                // The cache is too small even when empty.
                Err(NoBlock::Full) if flushed == Some((ip, self.cursor)) => return Stop::NoBlock(ip),
                Err(NoBlock::Full) => {
                    flushed = Some((ip, self.cursor));
                    calls.forget_blocks(self.top, cache.view());
                    cache.flush(sink);
                    match cache.at(code, ip) {
                        Ok(next) => {
                            find_targets(cache, ahead, self.cursor.targets);
                            next
                        }
                        Err(_) => return Stop::NoBlock(ip),
                    }
                }
            };
        }
    }

    /// Walks from the cursor on, as long as all blocks are known.
    #[inline(never)]
    fn run<S: ExecutionSink>(
        &mut self,
        view: &View<'_>,
        calls: &mut CachedCalls,
        sink: &mut S,
        ahead: &BranchesAhead,
        offsets: &BranchOffsets,
        like: &Block,
    ) -> Miss {
        let Self { mut block, mut before, mut top, mut after, .. } = *self;
        let mut left = ahead.left(self.cursor);
        // The fields that all blocks have in common are written once.
        let mut shown = *like;
        let miss = loop {
            let Some(mut node) = view.get(block) else { break Miss::Stop(Stop::Misfit) };
            // Two outcomes at a time: the processor waits for half as many reads, each dependent on the previous one.
            if !S::FILLS && !takes_spans::<S>() {
                while let &[first, second, ref rest @ ..] = left.outcomes {
                    let after = next_but_one::<S>(view, block, node, first, second);
                    if after == 0 {
                        break;
                    }
                    // There is no block NO_PAIR.
                    let Some(after_node) = view.get(after) else { break };
                    pass_on(view, sink, block, node.edge(), &mut before, &mut shown);
                    pass_on(view, sink, node.next(first), node.next_edge(first), &mut before, &mut shown);
                    (block, node, left.outcomes) = (after, after_node, rest);
                }
            }
            if S::FILLS && sink.is_full() {
                break Miss::Stop(Stop::SinkFull);
            }
            if left.is_empty() {
                break Miss::Stop(Stop::Used);
            }
            let ends = node.ends();
            if ends == OPEN && !node.is_closed() {
                break Miss::Open;
            }
            if S::FILLS {
                self.before_last = ahead.cursor(&left);
                self.executed = true;
            }
            if takes_spans::<S>() {
                let has_call = node.has_calls() || !top.is_empty();
                let fits = match (ends, left.outcomes) {
                    (COND | OPEN, [_, ..]) => true,
                    (RETURN, [taken, ..]) => *taken == 1 && has_call,
                    (RETURN | CALL | INDIRECT | OPEN, []) => true,
                    _ => false,
                };
                if !fits {
                    break Miss::Stop(Stop::NoBlock(view.ip(block)));
                }
                let next = offsets.at(ahead.cursor(&left), left.outcomes.is_empty());
                sink.span(Span { after, before: next });
                if ends != OPEN {
                    after = next;
                }
            }
            pass_on(view, sink, block, node.edge(), &mut before, &mut shown);
            if node.has_calls() {
                calls.push(&mut top, view, block, node, ends != CALL || left.outcomes.is_empty());
            }
            match (ends, left.outcomes) {
                (COND, &[taken, ref rest @ ..]) => {
                    left.outcomes = rest;
                    let next = node.next(taken);
                    if next == 0 {
                        break Miss::Link(taken);
                    }
                    // This block and the next one could have been walked over together.
                    match rest {
                        &[second, ..]
                            if !S::FILLS
                                && !takes_spans::<S>()
                                && node.pair(taken, second) == 0
                                && node.is_plain() =>
                        {
                            break Miss::Pair(taken, second);
                        }
                        _ => block = next,
                    }
                }
                (RETURN, &[1, ref rest @ ..]) => {
                    let Some((site, caller)) = calls.pop(&mut top) else { break Miss::Stop(Stop::Misfit) };
                    left.outcomes = rest;
                    if site == 0 {
                        break Miss::Return(caller);
                    }
                    block = site;
                }
                // Only the code decides the next block, and it is known.
                (OPEN, _) => block = node.next(0),
                (RETURN | CALL | INDIRECT, []) => {
                    if ends == RETURN {
                        calls.pop(&mut top);
                    }
                    let Some(Target { ip, block: at_target, .. }) = ahead.take_target(&mut left) else {
                        break Miss::Stop(Stop::Misfit);
                    };
                    if at_target == 0 {
                        break Miss::Target(ip);
                    }
                    block = at_target;
                }
                _ => break Miss::Stop(Stop::Misfit),
            }
        };
        (self.block, self.before, self.top, self.after) = (block, before, top, after);
        self.cursor = ahead.cursor(&left);
        miss
    }
}
