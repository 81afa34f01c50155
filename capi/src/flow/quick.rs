//! Blocks over known code where no event is pending: most of them.
//!
//! It does what `walk` does on known ways, one step after the other. Where anything else is to be done it stops before that
//! step, and the walk goes on from there.

use super::{
    block::{Decision, PtBlock},
    insn::{class, flag},
    walk::BlockDecoder,
};
use crate::{image::Window, query::decoder::Answer};
use std::ffi::c_int;

/// A known way, and what its last instruction does.
struct Step {
    /// Where the last instruction is.
    ip: u64,
    insns: u8,
    mode: u8,
    last: Last,
}

enum Last {
    /// Nothing: another way leads on.
    Again,
    Conditional {
        end: u64,
        target: u64,
    },
    /// A branch that needs no trace.
    Direct {
        class: c_int,
        end: u64,
        target: u64,
    },
    IndirectCall {
        end: u64,
    },
    Return,
    Indirect,
}

impl Step {
    /// The next step. `None`: it is not known, or not one of these.
    #[inline(always)]
    fn find(code: &Window, from: u64) -> Option<Self> {
        let way = code.way(from)?;
        let ip = from.wrapping_add_signed(way.displacement.into());
        if !code.has(ip) {
            return None;
        }
        let end = ip.wrapping_add(way.size.into());
        let last = match way.decision {
            Decision::Again => Last::Again,
            Decision::Conditional => {
                let by: i64 = match way.size {
                    2 => code.bytes::<2>(ip)?[1].cast_signed().into(),
                    6 => match *code.bytes(ip)? {
                        [0x0f, _, a, b, c, d] => i32::from_le_bytes([a, b, c, d]).into(),
                        _ => return None,
                    },
                    _ => return None,
                };
                Last::Conditional { end, target: end.wrapping_add_signed(by) }
            }
            Decision::Decode => {
                let (shape, bytes) = code.shape(ip, way.mode.into())?;
                let end = ip.wrapping_add(shape.size().into());
                let class = shape.class();
                if !matches!(class, class::CALL | class::JUMP) {
                    return None;
                }
                let target = end.wrapping_add_signed(shape.displacement(bytes)?.into());
                Last::Direct { class, end, target }
            }
            Decision::IndirectCall if way.size == 0 => return None,
            Decision::IndirectCall => Last::IndirectCall { end },
            Decision::Return => Last::Return,
            Decision::Indirect => Last::Indirect,
        };
        Some(Self { ip, insns: way.insns, mode: way.mode, last })
    }
}

impl BlockDecoder {
    /// Makes the next block if no event is pending and the code is known. `None`: nothing was done.
    ///
    /// # Safety
    /// `out` is writable.
    #[inline]
    pub(crate) unsafe fn quick(&mut self, out: *mut PtBlock) -> Option<c_int> {
        let flow = &mut self.flow;
        if !flow.enabled || flow.may_have_event() || flow.postponed.insn.is_some() {
            return None;
        }
        let code = flow.known_code()?;
        let mut step = Step::find(code, flow.ip)?;
        let flags = if flow.speculative { flag::SPECULATIVE as u16 } else { 0 };
        let mut block = PtBlock { ip: flow.ip, isid: code.isid, flags, ..PtBlock::EMPTY };
        let answer = loop {
            let Some(insns) = block.insns.checked_add(step.insns.into()) else { break Ok(()) };
            (block.end_ip, block.insns, block.mode) = (step.ip, insns, step.mode.into());
            self.flow.ip = step.ip;
            let goes_on = match step.last {
                Last::Conditional { end, target } => {
                    block.class = class::COND_JUMP;
                    break self.quick_conditional(end, target);
                }
                Last::Direct { class, end, target } => {
                    block.class = class;
                    if class == class::CALL && target != end {
                        self.flow.returns.push(end);
                    }
                    self.flow.ip = target;
                    !self.ends_with(class)
                }
                Last::Again => {
                    block.class = class::ERROR;
                    true
                }
                Last::IndirectCall { end } => {
                    block.class = class::CALL;
                    self.flow.returns.push(end);
                    break self.quick_indirect();
                }
                Last::Return => {
                    block.class = class::RETURN;
                    break self.returns();
                }
                Last::Indirect => {
                    block.class = class::ERROR;
                    break self.quick_indirect();
                }
            };
            let code = self.flow.known_code().filter(|_| goes_on);
            match code.map(|code| code.has(self.flow.ip).then(|| Step::find(code, self.flow.ip))) {
                Some(Some(Some(next))) => step = next,
                // SAFETY: by contract.
                Some(Some(None)) => return Some(unsafe { self.walk_on(block, out) }),
                _ => break Ok(()),
            }
        };
        // SAFETY: by contract.
        unsafe { block.write_whole(out) };
        match answer {
            Ok(()) if self.flow.may_have_event() => Some(self.event_after(block)),
            Ok(()) => Some(self.flow.status(0)),
            Err(error) => Some(error),
        }
    }

    /// Goes on with a block that is not complete.
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
