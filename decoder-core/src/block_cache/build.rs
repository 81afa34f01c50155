//! Adds blocks to a block cache: decodes code up to a branch that the trace decides.

use super::{
    context::CodeContext,
    node::{BlockEnd, Body, halves},
    store::{BlockCache, Segment},
};
use crate::{
    block::{is_truncated, section_of},
    flow::{Continuation, fetch},
    image::{Image, Window},
};

/// Maximum number of consecutive blocks that end without a branch.
const OPEN_BLOCKS: u32 = 16;
/// Maximum number of segments of a block, which excludes endless loops, and of calls in it.
const SEGMENTS: usize = 255;
const CALLS: usize = 16;
/// Maximum number of lengths in a segment.
const LENGTHS: u32 = 16;

/// The code that a block cache describes.
#[derive(Clone, Debug)]
pub(super) struct Code<'a> {
    pub(super) image: Image<'a>,
    pub(super) context: CodeContext,
    /// The part of the image that the last instruction came from, and its section.
    window: Window<'a>,
    section: u32,
}

/// The reason why there is no block to continue with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoBlock {
    /// The memory is full.
    Full,
    /// The cache cannot walk the code there, or the code cannot be decoded.
    Slow,
}

/// A block that is being decoded.
struct Draft {
    body: Body,
    segments: usize,
    returns: [u64; CALLS],
    end: BlockEnd,
}

impl Draft {
    /// Creates a draft of the block at `ip`, with nothing decoded.
    const fn new(ip: u64) -> Self {
        let body =
            Body { ip, end_ip: ip, insns: 0, section: u32::MAX, segment: 0, segments: 0, calls: 0, size: 0 };
        Self { body, segments: 0, returns: [0; CALLS], end: BlockEnd::None }
    }
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

impl BlockCache<'_> {
    /// Returns the block at `ip`, and decodes it if it is new.
    #[cfg_attr(not(debug_assertions), inline(always))]
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
        let mut draft = Draft::new(ip);
        let drafted = self.draft(code, &mut draft);
        // An empty block cache cannot make more room.
        if drafted == Err(NoBlock::Full) && first > 0 {
            return drafted.map(|()| 0);
        }
        // The cache also remembers blocks that cannot be walked.
        let Some(number) = self.add(place, ip) else { return Err(NoBlock::Full) };
        if drafted.is_err() {
            return Err(NoBlock::Slow);
        }
        self.finish(number, &draft);
        Ok(number)
    }

    /// Completes a block from its draft, whose segments are written already.
    fn finish(&mut self, number: u32, Draft { body, segments, returns, end }: &Draft) {
        let first = self.used_segments;
        self.used_segments = first + segments + usize::from(body.calls);
        let calls = returns.iter().take(body.calls.into());
        for (number, to) in (first + segments..).zip(calls) {
            if let Some(segment) = self.segments.get_mut(number) {
                *segment = segment_of(*to, 0);
            }
        }
        self.set_body(number, body);
        self.change(number, |node| {
            node.end_with(*end);
            node.set_calls(body.calls);
        });
    }

    /// Decodes the block of a new draft. Writes its segments to free memory, without claiming that memory.
    fn draft(&mut self, code: &mut Code<'_>, draft: &mut Draft) -> Result<(), NoBlock> {
        let first = self.used_segments;
        let Draft { body, segments: all_segments, returns, end: draft_end } = draft;
        body.segment = u32::try_from(first).map_err(|_| NoBlock::Full)?;
        let ip = body.ip;
        let mut calls = 0;
        let (mut segments, mut filled) = (0, 0);
        let (mut segment, mut lengths) = (ip, 0_u64);
        let mut at = ip;
        let end = loop {
            let CodeContext { mode, space, .. } = code.context;
            let Ok((window, insn)) = fetch(code.image, space, code.window, at, mode) else {
                // The exact decoder reports the error when it comes here.
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
            if goes_to != next || filled == LENGTHS {
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
        (*all_segments, *draft_end) = (segments, end);
        Ok(())
    }

    /// Finds and remembers the block after a conditional branch, or after a block that ends without one. Returns its
    /// address too.
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
        // The code's bytes are needed only for the branch's target.
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

    /// Finds the blocks after one that ends without a branch, up to one with a branch. Returns the first block.
    ///
    /// The walk takes such blocks only together, because an endless loop of them would contain no branch.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        block_cache::{node::whole, sink::NoSink},
        image::{AddressSpace, Asid, Section},
        mode::ExecMode,
    };

    extern crate std;
    use std::{vec, vec::Vec};

    /// A block that was built: its last address, the last instruction's length, its end, its segments, and the return
    /// addresses of its calls.
    type Built = (u64, u8, BlockEnd, Vec<(u64, u64)>, Vec<u64>);

    const BASE: u64 = 0xffff_8000_0000_1000;
    /// jmp to the byte after the next one
    const JUMP: [u8; 3] = [0xeb, 0x01, 0xf4];

    /// Builds the block at the first address, of code in consecutive sections. `others`: the cache holds another block,
    /// of the last byte, so that the first segments are not free.
    fn block(parts: &[&[u8]], words: usize, others: bool) -> Result<Built, NoBlock> {
        let mut sections = vec![];
        let mut base = BASE;
        for bytes in parts {
            sections.push(Section { base, bytes, space: AddressSpace::Any });
            base += bytes.len() as u64;
        }
        let context = CodeContext { mode: ExecMode::Bits64, speculative: false, space: Asid::default() };
        let mut code = Code::new(Image::new(&sections), context);
        let mut memory = vec![0; words];
        let mut cache = BlockCache::new(&mut memory);
        cache.enter(context, &mut NoSink);
        if others {
            let _ = cache.at(&mut code, base - 1);
        }
        let number = cache.at(&mut code, BASE)?;
        assert_eq!(cache.at(&mut code, BASE), Ok(number));
        let view = cache.view();
        let (node, body) = (view.node(number), view.body(number));
        let segments: Vec<_> =
            view.straights(&body).map(|[a, b, c, d]| (whole([a, b]), whole([c, d]))).collect();
        let returns = view.returns(&body).collect::<Vec<_>>();
        let insns: u32 = segments.iter().map(|(_, lengths)| 16 - lengths.leading_zeros() / 4).sum();
        assert_eq!((body.ip, body.insns, body.section), (BASE, insns, 0));
        assert_eq!((node.has_calls(), node.has_several_calls()), (!returns.is_empty(), returns.len() > 1));
        let ends = [BlockEnd::Cond, BlockEnd::Return, BlockEnd::Call, BlockEnd::Indirect, BlockEnd::Open];
        let end = ends.into_iter().find(|end| *end as u32 == node.ends()).expect("it ends");
        Ok((body.end_ip, body.size, end, segments, returns))
    }

    #[test]
    fn a_block_is_all_code_up_to_a_branch_that_the_trace_decides() {
        let at = |offset: u64| BASE + offset;
        let nops = [&[0x90; 16][..], &[0xc3]].concat();
        for (parts, end_ip, size, end, segments, returns) in [
            // nop; nop; jmp rax
            (&[&[0x90, 0x90, 0xff, 0xe0][..]][..], 2, 2, BlockEnd::Indirect, &[(0, 0x211)][..], &[][..]),
            // je: only the branch
            (&[&[0x74, 0x00, 0x90]], 0, 2, BlockEnd::Cond, &[(0, 2)], &[]),
            // jmp over a byte; 1003: call rax
            (&[&[0xeb, 0x01, 0xf4, 0xff, 0xd0]], 3, 2, BlockEnd::Call, &[(0, 2), (3, 2)], &[5]),
            // call 1006; 1006: ret
            (&[&[0xe8, 1, 0, 0, 0, 0xf4, 0xc3]], 6, 1, BlockEnd::Return, &[(0, 5), (6, 1)], &[5]),
            // A call of the next instruction is never returned from: call 1005; 1005: pop rax; 1006: ret
            (&[&[0xe8, 0, 0, 0, 0, 0x58, 0xc3]], 6, 1, BlockEnd::Return, &[(0, 0x115)], &[]),
            // call 1006; 1006: call 100c; 100c: call rax
            (
                &[&[0xe8, 1, 0, 0, 0, 0xf4, 0xe8, 1, 0, 0, 0, 0xf4, 0xff, 0xd0]],
                12,
                2,
                BlockEnd::Call,
                &[(0, 5), (6, 5), (12, 2)],
                &[5, 11, 14],
            ),
            // More instructions than a segment has lengths.
            (&[&nops], 16, 1, BlockEnd::Return, &[(0, 0x1111_1111_1111_1111), (16, 1)], &[]),
            (&[&nops[..16], &nops[16..]], 15, 1, BlockEnd::Open, &[(0, 0x1111_1111_1111_1111)], &[]),
            // nop; nop, and je in the next section
            (&[&[0x90, 0x90], &[0x74, 0x00]], 1, 1, BlockEnd::Open, &[(0, 0x11)], &[]),
            // jmp 1003; 1003: nop, and ret in the next section
            (&[&[0xeb, 0x01, 0xf4, 0x90], &[0xc3]], 3, 1, BlockEnd::Open, &[(0, 2), (3, 1)], &[]),
        ] {
            let segments: Vec<_> = segments.iter().map(|(offset, lengths)| (at(*offset), *lengths)).collect();
            let returns: Vec<_> = returns.iter().map(|offset| at(*offset)).collect();
            assert_eq!(
                block(parts, 1_000, true),
                Ok((at(end_ip), size, end, segments, returns)),
                "{parts:x?}"
            );
        }
    }

    #[test]
    fn code_that_the_slow_way_must_take_is_no_block() {
        for parts in [
            // No code after the first instruction; an instruction that continues in the next section; an unknown one;
            // an endless loop.
            &[&[0x90][..]][..],
            &[&[0x90, 0xff], &[0xe0]],
            &[&[0x90, 0x06]],
            &[&[0xeb, 0xfe]],
        ] {
            assert_eq!(block(parts, 1_000, true), Err(NoBlock::Slow), "{parts:x?}");
        }
    }

    #[test]
    fn a_block_has_at_most_255_segments_and_16_calls() {
        let jumps = |number: usize| [&JUMP.repeat(number)[..], &[0xc3]].concat();
        for (number, fits) in [(253, true), (254, true), (255, false)] {
            let found = block(&[&jumps(number)], 10_000, true).map(|(.., segments, _)| segments.len());
            assert_eq!(found, if fits { Ok(number + 1) } else { Err(NoBlock::Slow) }, "{number}");
        }
        // call over one byte
        let calls = |number: usize| [&[0xe8, 1, 0, 0, 0, 0xf4].repeat(number)[..], &[0xc3]].concat();
        for (number, fits) in [(15, true), (16, true), (17, false)] {
            let found = block(&[&calls(number)], 10_000, true).map(|(.., returns)| returns.len());
            assert_eq!(found, if fits { Ok(number) } else { Err(NoBlock::Slow) }, "{number}");
        }
    }

    #[test]
    fn a_block_is_as_large_as_there_is_room() {
        // Four blocks and ten segments, after the eight words of the index.
        let words = 8 + 4 * 16 + 10 * 4;
        let room = |code: &[u8], others| block(&[&[code, &[0xc3]].concat()], words, others).map(|_| ());
        // The return takes a segment, and each call a segment and a return address. The other block has one segment.
        for (insn, fits) in [(&JUMP[..], 8), (&[0xe8, 1, 0, 0, 0, 0xf4], 4)] {
            for number in 1..20 {
                let code = insn.repeat(number);
                let full = if number > fits { Err(NoBlock::Full) } else { Ok(()) };
                assert_eq!(room(&code, true), full, "{number}: {insn:x?}");
                // In an empty block cache there is nothing to forget to make room.
                let most = if insn.len() == 3 { 9 } else { 4 };
                let slow = if number > most { Err(NoBlock::Slow) } else { Ok(()) };
                assert_eq!(room(&code, false), slow, "{number}: {insn:x?}");
            }
        }
    }
}
