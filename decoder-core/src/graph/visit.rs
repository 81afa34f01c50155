//! The walk through the graph: the loop that almost all decoding time goes into.
//!
//! [`BlockDecoder::visit`] walks wherever only branches come next in the trace. Everything else, and whatever does not
//! fit the code, goes through [`BlockDecoder::next`], which is exact and slow.

use super::{
    ExecutionSink, Graph, Straight,
    branches::{BranchCursor, BranchOffsets, BranchesAhead, NoOffsets, Target},
    build::{Code, NoBlock},
    calls::{GraphCalls, Top},
    context::CodeContext,
    edges,
    node::{BlockEnd, NO_PAIR, Node, whole},
    repeat::{self, Repeated},
    store::View,
};
use crate::{
    block::{Block, BlockDecoder, BlockItem},
    error::{Error, ErrorKind},
    flow::{Continuation, Start},
    time::Span,
};

const COND: u32 = BlockEnd::Cond as u32;
const RETURN: u32 = BlockEnd::Return as u32;
const CALL: u32 = BlockEnd::Call as u32;
const INDIRECT: u32 = BlockEnd::Indirect as u32;
const OPEN: u32 = BlockEnd::Open as u32;

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// All branches were used; the walk is at the block.
    Used,
    /// The sink is full; the walk is at the block.
    SinkFull,
    /// The walk is at this address, where no block is in the graph, or one that the exact decoder has to execute.
    NoBlock(u64),
    /// The block was executed, but the branch at its end does not match the trace, or needs the exact decoder.
    Misfit,
}

/// Why the loop needs to change the graph, or ends.
enum Miss {
    /// It is not known where the conditional branch leads, or the end without a branch.
    Link(u8),
    /// It is not known whether these two outcomes lead from the plain block through another one.
    Pair(u8, u8),
    /// It is not known where the call that was popped returns to. The block with the call, or 0.
    Return(u32),
    /// There is no block at the target.
    Target(u64),
    /// The block ends without a branch, and it is not known whether one follows.
    Open,
    Stop(Stop),
}

/// A walk through the graph: where it is.
pub(super) struct GraphWalk {
    /// The block that the walk is at.
    pub(super) block: u32,
    /// What remains of the block before, for the next edge.
    pub(super) before: u16,
    pub(super) top: Top,
    /// What was used of the branches that were read ahead, and what was used before the last block.
    cursor: BranchCursor,
    before_last: BranchCursor,
    /// Whether a block was executed since the branches were read; only for sinks that fill.
    executed: bool,
    /// Whether a return whose target the trace names takes an address from the stack.
    pops: bool,
    /// The offset of the last packet that was used; only for sinks that take spans.
    after: u64,
}

/// A batch of branches that was used up: where it began, and its ends without and with the last branch.
struct LastPart {
    start: Start,
    before_last: BranchCursor,
    cursor: BranchCursor,
}

impl BlockDecoder<'_> {
    /// Passes everything up to the end of the trace or an error to `sink`: what [`next`](Self::next) would return,
    /// but faster. It ends early when the sink is full.
    ///
    /// # Errors
    /// Those of [`next`](Self::next), after everything before the error was passed on.
    pub fn visit<S: ExecutionSink>(&mut self, graph: &mut Graph<'_>, sink: &mut S) -> Result<(), Error> {
        let key = self.image_key();
        graph.enter_image(self.walker.image, key);
        graph.repeats.enter(self.walker.named_returns_pop());
        let end = self.visit_all(graph, sink);
        if repeat::wanted::<S>() {
            graph.repeats.tell(|edge, times| sink.edges(edge, times));
        }
        end
    }

    #[inline(always)]
    fn visit_all<S: ExecutionSink>(&mut self, graph: &mut Graph<'_>, sink: &mut S) -> Result<(), Error> {
        let mut ahead = BranchesAhead::new();
        let mut offsets = takes_spans::<S>().then(BranchOffsets::new);
        let mut last = None;
        loop {
            if S::FILLS && sink.is_full() {
                return Ok(());
            }
            if self.may_walk() && self.walk(graph, sink, &mut ahead, &mut offsets, &mut last)? {
                continue;
            }
            let next = self.next();
            if let (Ok(None) | Err(_), Some(last)) = (&next, &last) {
                self.find_last_block(last);
            }
            match next? {
                Some(BlockItem::Block(block)) => {
                    last = None;
                    if takes_spans::<S>() {
                        sink.span(self.span());
                    }
                    if S::INSNS {
                        for (ip, insn) in self.insns(&block) {
                            sink.insns(Straight { ip, lengths: insn.len.into() });
                        }
                    }
                    if S::BLOCKS {
                        sink.block(&block);
                    }
                    if S::EDGES {
                        let (edge, before) = edges::edge(self.edge_before, edges::place(block.ip));
                        self.edge_before = before;
                        sink.edge(edge);
                    }
                }
                Some(BlockItem::Event(event)) => {
                    if edges::breaks(&event) {
                        self.edge_before = 0;
                    }
                    sink.event(&event);
                }
                None => return Ok(()),
            }
        }
    }

    /// Walks as long as only branches come next; `false` if nothing was executed. `unplaced` becomes the last part of
    /// the branches if the decoder was not told which of them the last block is between.
    #[inline(never)]
    fn walk<S: ExecutionSink>(
        &mut self,
        graph: &mut Graph<'_>,
        sink: &mut S,
        ahead: &mut BranchesAhead,
        offsets: &mut Option<BranchOffsets>,
        unplaced: &mut Option<LastPart>,
    ) -> Result<bool, Error> {
        let Some(mode) = self.walker.at.mode else { return Ok(false) };
        let context =
            CodeContext { mode, speculative: self.walker.at.speculative, space: self.walker.at.space };
        graph.enter(context, sink);
        let mut code = Code::new(self.walker.image, context);
        let block = match graph.at(&mut code, self.walker.at.ip) {
            Err(NoBlock::Full) => {
                graph.flush(sink);
                graph.at(&mut code, self.walker.at.ip)
            }
            found => found,
        };
        let Ok(block) = block else { return Ok(false) };
        let mut calls = GraphCalls::new(self.walker.take_returns());
        let mut walk = GraphWalk {
            block,
            before: self.edge_before,
            top: calls.top(),
            cursor: BranchCursor::default(),
            before_last: BranchCursor::default(),
            executed: false,
            pops: self.walker.named_returns_pop(),
            after: 0,
        };
        let (mut executed, mut used) = (false, false);
        // The branches that the last block is among, and how they were used.
        let mut last = (self.walker.start(), BranchCursor::default(), BranchCursor::default());
        // If repeats were the last that was executed.
        let mut last_repeats = None;
        let stop = loop {
            let mut until = None;
            if repeat::wanted::<S>() && graph.repeats.allow_attempt() {
                let Repeated { taken, until: next } = self.take_repeats(graph, &mut walk, &mut calls, sink);
                if taken.is_some() {
                    last_repeats = taken;
                    (executed, used) = (true, true);
                }
                until = next;
            }
            let start = self.walker.start();
            match offsets {
                Some(offsets) if takes_spans::<S>() => {
                    walk.after = self.walker.after();
                    self.read_ahead_with_offsets(ahead, offsets);
                }
                _ => self.read_ahead(ahead, until),
            }
            if ahead.is_empty() {
                break Stop::Used;
            }
            (walk.cursor, walk.before_last) = (BranchCursor::default(), BranchCursor::default());
            walk.executed = false;
            find_targets(graph, ahead, 0);
            let stop = walk.go(graph, &mut code, &mut calls, sink, ahead, offsets.as_ref());
            if walk.executed || walk.cursor != BranchCursor::default() || stop == Stop::Misfit {
                used |= walk.cursor != BranchCursor::default();
                executed = true;
                if !S::FILLS {
                    // The last block ended with the last branch, or does not fit what comes next.
                    walk.before_last =
                        if stop == Stop::Misfit { walk.cursor } else { ahead.before(walk.cursor) };
                }
                last = (start, walk.before_last, walk.cursor);
                last_repeats = None;
            }
            if stop != Stop::Used {
                break stop;
            }
            sink.reached(self.walker.used().0);
        };
        if let Some(repeats) = last_repeats {
            last = self.place_repeats(repeats, ahead);
        }
        // If all was read that was used, only callers that stop here need to know how.
        if stop != Stop::Used || executed && S::FILLS {
            let (start, before_last, cursor) = last;
            self.walker.return_to(&start);
            if executed {
                self.use_branches(before_last, cursor);
                *unplaced = None;
            }
        } else if executed {
            let (start, before_last, cursor) = last;
            *unplaced = Some(LastPart { start, before_last, cursor });
        }
        let returns = calls.settle(walk.top, graph.view());
        self.walker.put_returns(returns);
        self.edge_before = walk.before;
        if executed {
            self.walker.has_walked(used);
        }
        match stop {
            Stop::Used | Stop::SinkFull => self.walker.at.ip = graph.view().ip(walk.block),
            Stop::NoBlock(ip) => self.walker.at.ip = ip,
            Stop::Misfit => self.leave_block(graph.view(), walk.block)?,
        }
        Ok(executed)
    }

    /// Reads branches ahead. A function of its own, because its loop needs all registers.
    #[inline(never)]
    pub(super) fn read_ahead(&mut self, ahead: &mut BranchesAhead, until: Option<u64>) {
        ahead.fill(NoOffsets, |writer| self.walker.read_ahead(writer, until));
    }

    /// The same, with the offsets of the branches' packets.
    #[inline(never)]
    fn read_ahead_with_offsets(&mut self, ahead: &mut BranchesAhead, offsets: &mut BranchOffsets) {
        ahead.fill(offsets, |writer| self.walker.read_ahead(writer, None));
    }

    /// Finds out which packets the last block is between, where a visit ends after events, and no block came since.
    #[cold]
    #[inline(never)]
    fn find_last_block(&mut self, last: &LastPart) {
        // A block that is open has its place.
        if self.block.insns == 0 {
            let here = self.walker.clone();
            self.walker.return_from_event(&last.start);
            self.use_branches(last.before_last, last.cursor);
            self.walker = here;
        }
    }

    /// Uses the branches before the cursor, of which those after `before_last` are the last block's.
    fn use_branches(&mut self, before_last: BranchCursor, cursor: BranchCursor) {
        self.walker.use_branches(before_last.outcomes, before_last.targets);
        self.begin();
        self.decided = cursor != before_last;
        self.walker
            .use_branches(cursor.outcomes - before_last.outcomes, cursor.targets - before_last.targets);
        if !self.decided {
            // The branch that the next block ends with is at hand.
            self.walker.sees_branch();
        }
    }

    /// Goes from a block that was executed to what comes next, where that is not simple.
    #[cold]
    fn leave_block(&mut self, view: View<'_>, block: u32) -> Result<(), Error> {
        let body = view.body(block);
        let way = match view.node(block).ends() {
            COND => Continuation::Cond,
            RETURN => Continuation::Return,
            CALL => Continuation::IndirectCall,
            _ => Continuation::Indirect,
        };
        // What does not fit has to be at hand.
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

/// Whether a sink is told the packets around each block.
const fn takes_spans<S: ExecutionSink>() -> bool {
    S::SPANS && !S::FILLS
}

/// Looks up the blocks at the targets from that number on. The lookups do not wait for each other.
#[inline(always)]
fn find_targets(graph: &mut Graph<'_>, ahead: &mut BranchesAhead, from: usize) {
    for target in ahead.targets_mut(from) {
        target.block = graph.find_target(target.ip);
    }
}

/// The block after the next one, if both are plain; 0 or [`NO_PAIR`] as [`Node::pair`] says.
///
/// A sink that takes blocks or instructions works while the processor waits for the read, and with the node's address
/// at hand the code has fewer instructions. Any other walk is as fast as each number leads to the next one: it does
/// without the address.
#[inline(always)]
fn next_but_one<S: ExecutionSink>(view: &View<'_>, block: u32, node: Node<'_>, first: u8, second: u8) -> u32 {
    if S::INSNS || S::BLOCKS { node.pair(first, second) } else { view.pair(block, first, second) }
}

/// Passes a block on to the sink, with its place in a map of edges.
#[inline(always)]
fn pass_on<S: ExecutionSink>(
    view: &View<'_>,
    sink: &mut S,
    block: u32,
    place: u16,
    before: &mut u16,
    shown: &mut Block,
) {
    if S::INSNS || S::BLOCKS {
        let body = view.body(block);
        if S::INSNS {
            for [a, b, c, d] in view.straights(&body) {
                sink.insns(Straight { ip: whole([a, b]), lengths: whole([c, d]) });
            }
        }
        if S::BLOCKS {
            body.show(shown);
            sink.block(shown);
        }
    }
    if S::EDGES {
        let edge;
        (edge, *before) = edges::edge(*before, place);
        sink.edge(edge);
    }
}

impl GraphWalk {
    /// Walks from the cursor on, and adds to the graph what is missing.
    #[inline(always)]
    fn go<S: ExecutionSink>(
        &mut self,
        graph: &mut Graph<'_>,
        code: &mut Code<'_>,
        calls: &mut GraphCalls,
        sink: &mut S,
        ahead: &mut BranchesAhead,
        offsets: Option<&BranchOffsets>,
    ) -> Stop {
        let like = code.context.block();
        let mut flushed = None;
        loop {
            let (next, ip) = match self.run(&graph.view(), calls, sink, ahead, offsets, &like) {
                Miss::Stop(stop) => return stop,
                Miss::Open => {
                    let ip = graph.view().ip(self.block);
                    (graph.close(code, self.block), ip)
                }
                Miss::Pair(first, second) => {
                    let next = graph.view().node(self.block).next(first);
                    let between = graph.view().node(next);
                    let after = if between.is_plain() { between.next(second) } else { NO_PAIR };
                    let edge = between.edge();
                    graph.change(self.block, |node| node.set_pair(first, second, after, edge));
                    self.block = next;
                    continue;
                }
                Miss::Link(taken) => graph.link(code, self.block, taken),
                Miss::Return(caller) => {
                    let ip = calls.popped(self.top);
                    let next = graph.at(code, ip);
                    match next {
                        Ok(site) if caller != 0 => graph.change(caller, |node| node.set_site(site)),
                        _ => {}
                    }
                    (next, ip)
                }
                Miss::Target(ip) => (graph.at(code, ip), ip),
            };
            self.block = match next {
                Ok(next) => next,
                Err(NoBlock::Slow) => return Stop::NoBlock(ip),
                // There is less room than this takes.
                Err(NoBlock::Full) if flushed == Some((ip, self.cursor)) => return Stop::NoBlock(ip),
                Err(NoBlock::Full) => {
                    flushed = Some((ip, self.cursor));
                    calls.forget_blocks(self.top, graph.view());
                    graph.flush(sink);
                    match graph.at(code, ip) {
                        Ok(next) => {
                            find_targets(graph, ahead, self.cursor.targets);
                            next
                        }
                        Err(_) => return Stop::NoBlock(ip),
                    }
                }
            };
        }
    }

    /// Walks from the cursor on, as far as all blocks are known.
    #[inline(never)]
    fn run<S: ExecutionSink>(
        &mut self,
        view: &View<'_>,
        calls: &mut GraphCalls,
        sink: &mut S,
        ahead: &BranchesAhead,
        offsets: Option<&BranchOffsets>,
        like: &Block,
    ) -> Miss {
        let Self { mut block, mut before, mut top, mut after, .. } = *self;
        let mut left = ahead.left(self.cursor);
        // What all blocks have in common is written once.
        let mut shown = *like;
        let miss = loop {
            let Some(mut node) = view.get(block) else { break Miss::Stop(Stop::Misfit) };
            // Two outcomes at a time: the processor waits for half as many reads, each of which needs the one before.
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
            if let Some(offsets) = offsets.filter(|_| takes_spans::<S>()) {
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
                    // It could have been walked over together with the next one.
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
                // The code alone says what follows, and it is known.
                (OPEN, _) => block = node.next(0),
                (RETURN | CALL | INDIRECT, []) => {
                    if ends == RETURN && self.pops {
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
