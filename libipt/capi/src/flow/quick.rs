//! The fast path: blocks over known code while no event is pending, which are most blocks.
//!
//! It takes the steps of `walk` as long as the block cache has entries. It returns before any other step; `walk`
//! continues from there.

use super::{block::PtBlock, node::Node, walk::BlockDecoder};
use crate::{
    image::{
        block_cache::Decision,
        insn::{class, flag},
        known_code::KnownCode,
    },
    query::decoder::Answer,
};
use std::ffi::c_int;

/// Returns the displacement of the conditional branch that decides, if it is easy to find. The code does not branch on
/// the size (two are possible), because that branch would be mispredicted.
#[inline(always)]
fn displacement(code: &KnownCode, at: u64, size: u64) -> Option<i64> {
    let [first] = *code.bytes(at)?;
    let is_short = size == 2;
    if !is_short & !((size == 6) & (first == 0x0f)) {
        return None;
    }
    let last = i32::from_le_bytes(*code.bytes(at.wrapping_add(size).wrapping_sub(4))?);
    // Of two bytes the second is the displacement; of six without a prefix the last four are.
    Some((last >> (if is_short { 24 } else { 0 })).into())
}

/// Returns the class, the end and the target of a direct branch.
#[inline(always)]
fn direct(code: &KnownCode, at: u64, mode: c_int) -> Option<(c_int, u64, u64)> {
    let (shape, bytes) = code.shape(at, mode)?;
    let end = at.wrapping_add(shape.size().into());
    match shape.class() {
        class @ (class::CALL | class::JUMP) => {
            Some((class, end, end.wrapping_add_signed(shape.displacement(bytes)?.into())))
        }
        _ => None,
    }
}

/// The end of a block.
enum End {
    Conditional {
        end: u64,
        target: u64,
    },
    IndirectCall {
        end: u64,
    },
    Indirect,
    Return,
    /// The end of the section: the next code is outside.
    Outside,
    /// No end yet: the next step is none of the fast ones.
    Open,
}

impl BlockDecoder {
    /// Makes the next block if no event is pending and the code is known. `None`: nothing was done.
    ///
    /// # Safety
    /// `out` is writable.
    #[inline]
    pub(crate) unsafe fn quick(&mut self, out: *mut PtBlock) -> Option<c_int> {
        let (ends_on_call, ends_on_jump) = (self.ends_with(class::CALL), self.ends_with(class::JUMP));
        let Self { flow, nodes, .. } = self;
        if !flow.enabled || flow.may_have_event() || flow.postponed.insn.is_some() {
            return None;
        }
        let flags = if flow.speculative { flag::SPECULATIVE as u16 } else { 0 };
        let ip = flow.ip;
        let (window, returns) = flow.known_code()?;
        let (code, begin, isid, number) = (&window.code, window.begin, window.isid, window.number);
        if let Some(Node { target, branch, insns, mode, size, .. }) = nodes.get(ip, number) {
            let end_ip = ip.wrapping_add_signed(branch.into());
            flow.ip = end_ip;
            let (mode, class) = (mode.into(), class::COND_JUMP);
            let block = PtBlock { ip, end_ip, isid, mode, class, insns, flags, ..PtBlock::EMPTY };
            let answer = self.quick_conditional(end_ip.wrapping_add(size.into()), target);
            // SAFETY: by contract.
            return Some(unsafe { self.finish(block, answer, out) });
        }
        let mut has_calls = false;
        // From here to the end, addresses are offsets in the section.
        let mut at = ip.wrapping_sub(begin);
        let (mut last, mut insns, mut mode, mut class) = (0, 0_u16, 0, class::ERROR);
        let end = loop {
            let entry = code.entry(at);
            let to = at.wrapping_add_signed(entry.displacement());
            let Some(more) = insns.checked_add(entry.insns()) else { break End::Open };
            if !entry.is_known() || !code.has(to) {
                break End::Open;
            }
            let after = to.wrapping_add(entry.size());
            let end = match entry.decision() {
                Some(Decision::Conditional) => {
                    let Some(by) = displacement(code, to, entry.size()) else { break End::Open };
                    class = class::COND_JUMP;
                    End::Conditional { end: after, target: after.wrapping_add_signed(by) }
                }
                Some(Decision::Decode) => {
                    let Some((which, after, target)) = direct(code, to, entry.mode()) else {
                        break End::Open;
                    };
                    class = which;
                    (at, last, insns, mode) = (target, to, more, entry.mode());
                    has_calls |= which == class::CALL;
                    if which == class::CALL && target != after {
                        returns.push(begin.wrapping_add(after));
                    }
                    let ends = if which == class::CALL { ends_on_call } else { ends_on_jump };
                    if ends || !code.has(target) {
                        break End::Outside;
                    }
                    continue;
                }
                Some(Decision::Again) => {
                    class = class::ERROR;
                    (at, last, insns, mode) = (to, to, more, entry.mode());
                    continue;
                }
                Some(Decision::IndirectCall) if entry.size() != 0 => {
                    class = class::CALL;
                    End::IndirectCall { end: after }
                }
                Some(Decision::Return) => {
                    class = class::RETURN;
                    End::Return
                }
                Some(Decision::Indirect) => {
                    class = class::ERROR;
                    End::Indirect
                }
                _ => break End::Open,
            };
            (at, last, insns, mode) = (to, to, more, entry.mode());
            break end;
        };
        if insns == 0 {
            return None;
        }
        let end_ip = begin.wrapping_add(last);
        flow.ip = begin.wrapping_add(at);
        let block = PtBlock { ip, end_ip, isid, mode, class, insns, flags, ..PtBlock::EMPTY };
        let answer = match end {
            End::Conditional { end, target } => {
                let (end, target) = (begin.wrapping_add(end), begin.wrapping_add(target));
                if !has_calls && let Ok(branch) = i32::try_from(end_ip.wrapping_sub(ip).cast_signed()) {
                    // It has 2 or 6 bytes, and the mode is at most 3.
                    let (mode, size) = (mode as u8, end.wrapping_sub(end_ip) as u8);
                    nodes.add(Node { ip, target, window: number, branch, insns, mode, size });
                }
                self.quick_conditional(end, target)
            }
            End::IndirectCall { end } => {
                flow.returns.push(begin.wrapping_add(end));
                self.quick_indirect()
            }
            End::Indirect => self.quick_indirect(),
            End::Return => self.returns(),
            End::Outside => Ok(()),
            // SAFETY: by contract.
            End::Open => return Some(unsafe { self.walk_on(block, out) }),
        };
        // SAFETY: by contract.
        Some(unsafe { self.finish(block, answer, out) })
    }

    /// Ends a block.
    ///
    /// # Safety
    /// `out` is writable.
    #[inline(always)]
    unsafe fn finish(&mut self, block: PtBlock, answer: Answer<()>, out: *mut PtBlock) -> c_int {
        // SAFETY: by contract.
        unsafe { block.write_whole(out) };
        match answer {
            Ok(()) if self.flow.may_have_event() => self.event_after(block),
            Ok(()) => self.flow.status(0),
            Err(error) => error,
        }
    }

    /// Continues a block that is not complete.
    ///
    /// # Safety
    /// `out` is writable.
    #[cold]
    unsafe fn walk_on(&mut self, mut block: PtBlock, out: *mut PtBlock) -> c_int {
        let answer = self.no_event(&mut block);
        // SAFETY: by contract.
        unsafe { out.write_unaligned(block) };
        let answer = answer.and_then(|()| self.trailing(Some(&block)));
        self.flow.done(answer)
    }

    #[inline(never)]
    fn event_after(&mut self, block: PtBlock) -> c_int {
        let answer = self.trailing(Some(&block));
        self.flow.done(answer)
    }

    #[inline(always)]
    fn quick_conditional(&mut self, end: u64, target: u64) -> Answer<()> {
        let (taken, status) = self.flow.cond_branch()?;
        self.flow.status = status;
        self.flow.ip = if taken { target } else { end };
        Ok(())
    }

    #[inline(always)]
    fn quick_indirect(&mut self) -> Answer<()> {
        self.flow.status = self.flow.indirect_branch()?;
        Ok(())
    }
}
