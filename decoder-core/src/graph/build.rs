//! Adds blocks to a graph: decodes code up to a branch that the trace decides.

use super::{
    context::CodeContext,
    node::{BlockEnd, Body, halves},
    store::{Graph, Segment},
};
use crate::{
    block::{is_truncated, section_of},
    flow::{Continuation, fetch},
    image::{Image, Window},
};

/// The most blocks in a row that end without a branch.
const OPEN_BLOCKS: u32 = 16;
/// The most segments of a block, which excludes endless loops, and the most calls in it.
const SEGMENTS: usize = 255;
const CALLS: usize = 16;
/// The most lengths in a segment.
const LENGTHS: u32 = 16;

/// The code that a graph is of.
#[derive(Clone, Debug)]
pub(super) struct Code<'a> {
    pub(super) image: Image<'a>,
    pub(super) context: CodeContext,
    /// The part of the image that the last instruction came from, and its section.
    window: Window<'a>,
    section: u32,
}

/// Why there is no block to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoBlock {
    /// The memory is full.
    Full,
    /// The code there cannot be walked by the graph, or not at all.
    Slow,
}

/// A block while it is decoded.
struct Draft {
    body: Body,
    segments: usize,
    returns: [u64; CALLS],
    end: BlockEnd,
}

const fn segment_of(ip: u64, lengths: u64) -> Segment {
    let ([a, b], [c, d]) = (halves(ip), halves(lengths));
    [a, b, c, d]
}

impl<'a> Code<'a> {
    pub(super) const fn new(image: Image<'a>, context: CodeContext) -> Self {
        Self { image, context, window: Window { base: 0, bytes: &[] }, section: u32::MAX }
    }
}

impl Graph<'_> {
    /// The block at `ip`, which is decoded if there is none yet.
    #[inline(always)]
    pub(super) fn at(&mut self, code: &mut Code<'_>, ip: u64) -> Result<u32, NoBlock> {
        match self.find(ip) {
            Ok(number) if self.view().node(number).ends() != BlockEnd::None as u32 => Ok(number),
            Ok(_) => Err(NoBlock::Slow),
            Err(_) => self.build(code, ip),
        }
    }

    #[cold]
    #[inline(never)]
    fn build(&mut self, code: &mut Code<'_>, ip: u64) -> Result<u32, NoBlock> {
        let Err(place) = self.find(ip) else { return Err(NoBlock::Slow) };
        if self.used >= self.nodes.len() {
            return Err(NoBlock::Full);
        }
        let first = self.used_segments;
        let draft = match self.draft(code, ip) {
            // In an empty graph there is no more room to be had.
            Err(NoBlock::Full) if first > 0 => return Err(NoBlock::Full),
            draft => draft.ok(),
        };
        // A block that cannot be walked is remembered too.
        let number = self.add(place, ip).ok_or(NoBlock::Full)?;
        let Draft { body, segments, returns, end } = draft.ok_or(NoBlock::Slow)?;
        self.used_segments = first + segments + usize::from(body.calls);
        let calls = returns.iter().take(body.calls.into());
        for (to, segment) in calls.zip(self.segments.iter_mut().skip(first + segments)) {
            *segment = segment_of(*to, 0);
        }
        if let Some(words) = self.bodies.get_mut(number as usize) {
            *words = body.words();
        }
        self.change(number, |node| {
            node.end_with(end);
            node.set_calls(body.calls);
        });
        Ok(number)
    }

    /// Decodes the block at `ip`. Its segments are written where there is room, but do not count yet.
    fn draft(&mut self, code: &mut Code<'_>, ip: u64) -> Result<Draft, NoBlock> {
        let first = self.used_segments;
        let mut body = Body {
            ip,
            end_ip: ip,
            insns: 0,
            section: u32::MAX,
            segment: u32::try_from(first).map_err(|_| NoBlock::Full)?,
            segments: 0,
            calls: 0,
            size: 0,
        };
        let (mut returns, mut calls) = ([0; CALLS], 0);
        let (mut segments, mut filled) = (0, 0);
        let (mut segment, mut lengths) = (ip, 0_u64);
        let mut at = ip;
        let end = loop {
            let CodeContext { mode, space, .. } = code.context;
            let Ok((window, insn)) = fetch(code.image, space, code.window, at, mode) else {
                // The slow way finds the error when it comes here.
                return Err(NoBlock::Slow);
            };
            if is_truncated(&window, at, &insn) {
                return Err(NoBlock::Slow);
            }
            if (window.base, window.bytes.as_ptr_range())
                != (code.window.base, code.window.bytes.as_ptr_range())
            {
                (code.window, code.section) = (window, section_of(code.image, &window));
            }
            if body.insns == 0 {
                body.section = code.section;
            } else if body.section != code.section {
                break BlockEnd::Open;
            }
            lengths |= u64::from(insn.len) << (4 * filled);
            filled += 1;
            body.insns += 1;
            (body.end_ip, body.size) = (at, insn.len);
            let next = insn.next(at);
            let (goes_to, end) = match Continuation::after(&insn, next) {
                Continuation::On => (next, None),
                way @ (Continuation::Jump | Continuation::Call | Continuation::CallNext) => {
                    if way == Continuation::Call {
                        *returns.get_mut(calls).ok_or(NoBlock::Slow)? = next;
                        calls += 1;
                    }
                    (insn.target.ok_or(NoBlock::Slow)?, None)
                }
                Continuation::Cond => (next, Some(BlockEnd::Cond)),
                Continuation::Return => (next, Some(BlockEnd::Return)),
                Continuation::IndirectCall => {
                    *returns.get_mut(calls).ok_or(NoBlock::Slow)? = next;
                    calls += 1;
                    (next, Some(BlockEnd::Call))
                }
                Continuation::Indirect => (next, Some(BlockEnd::Indirect)),
            };
            at = goes_to;
            if end.is_some() || goes_to != next || filled == LENGTHS {
                *self.segments.get_mut(first + segments).ok_or(NoBlock::Full)? = segment_of(segment, lengths);
                segments += 1;
                if segments == SEGMENTS {
                    return Err(NoBlock::Slow);
                }
                (segment, lengths, filled) = (at, 0, 0);
            }
            if let Some(end) = end {
                break end;
            }
        };
        if filled > 0 {
            *self.segments.get_mut(first + segments).ok_or(NoBlock::Full)? = segment_of(segment, lengths);
            segments += 1;
        }
        if first + segments + calls > self.segments.len() {
            return Err(NoBlock::Full);
        }
        (body.segments, body.calls) = (segments as u8, calls as u8);
        Ok(Draft { body, segments, returns, end })
    }

    /// Where the conditional branch at the end of a block leads, or what follows a block without a branch. Found for
    /// the first time, and remembered.
    #[cold]
    #[inline(never)]
    pub(super) fn link(
        &mut self,
        code: &mut Code<'_>,
        number: u32,
        taken: u8,
    ) -> (Result<u32, NoBlock>, u64) {
        let body = self.view().body(number);
        let mut ip = body.next();
        // What the code's bytes are needed for is the branch's target.
        if taken != 0 || self.view().node(number).ends() == BlockEnd::Open as u32 {
            let CodeContext { mode, space, .. } = code.context;
            let last = fetch(code.image, space, code.window, body.end_ip, mode);
            ip = last.ok().and_then(|(_, insn)| insn.target).unwrap_or(ip);
        }
        let next = self.at(code, ip);
        if let Ok(next) = next {
            self.change(number, |node| node.set_next(taken, next));
        }
        (next, ip)
    }

    /// Finds the blocks after one that ends without a branch, up to one with a branch. Returns the block itself.
    ///
    /// The walk takes such blocks only together, because an endless loop of them has no branch.
    #[cold]
    pub(super) fn close(&mut self, code: &mut Code<'_>, number: u32) -> Result<u32, NoBlock> {
        let mut at = number;
        for _ in 0..OPEN_BLOCKS {
            at = match self.view().node(at).next(0) {
                0 => self.link(code, at, 0).0?,
                next => next,
            };
            if self.view().node(at).ends() != BlockEnd::Open as u32 {
                self.change(number, |node| node.set_closed());
                return Ok(number);
            }
        }
        Err(NoBlock::Slow)
    }
}
