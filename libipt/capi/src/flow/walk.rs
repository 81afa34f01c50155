//! Walks over code to the end of a block, and stores the distance to the next decision in the block cache.
//!
//! A block's contents depend on the cache: the class of its last instruction is unknown where an entry leads to an
//! indirect branch, and a block may stop at one entry and not at another one for the same code. So libipt's rules for
//! filling its cache decide answers, too.

use super::{base::Flow, block::PtBlock, node::Nodes};
use crate::{
    config::PtConfig,
    error::Code,
    image::{
        Mapped,
        block_cache::{BlockCache, BlockCacheEntry, Decision},
        code::{Extra, decode},
        insn::{PtInsn, class, flag},
        section::Mapping,
    },
    query::decoder::{Answer, status},
};
use std::ffi::c_int;

/// The same layout as in `pt_insn`.
const TRUNCATED: u16 = flag::TRUNCATED as u16;

/// The maximum number of cache entries that one walk adds.
const STEPS: usize = 0x400;

/// `struct pt_block_decoder`.
#[derive(Debug)]
pub struct BlockDecoder {
    pub(crate) flow: Flow,
    pub(super) nodes: Nodes,
    end_on_call: bool,
    end_on_jump: bool,
}

/// An instruction, with its internal fields.
pub(super) type DecodedInsn = (PtInsn, Extra);

pub(super) const NOTHING: DecodedInsn = (PtInsn::EMPTY, Extra::NONE);

/// A mapped section, and the block cache of its code.
struct MappedCode<'a> {
    mapped: &'a Mapped,
    mapping: &'a Mapping,
    block_cache: &'a BlockCache,
}

impl MappedCode<'_> {
    fn get(&self, offset: u64) -> Answer<Option<BlockCacheEntry>> {
        self.block_cache.get(offset).ok_or(Code::Internal.status())
    }

    fn set(&self, offset: u64, entry: BlockCacheEntry) -> Answer<()> {
        self.block_cache.set(offset, entry).ok_or(Code::Internal.status())
    }

    /// Adds an entry of length 0: the instruction at `offset` has to be decoded.
    fn set_decode(&self, offset: u64, mode: u8) -> Answer<()> {
        self.set(
            offset,
            BlockCacheEntry { displacement: 0, insns: 1, mode, decision: Decision::Decode, size: 0 },
        )
    }

    /// Adds an entry that leads to the next instruction only, whose own entry leads on.
    fn set_again(&self, offset: u64, next: u64, mode: u8) -> Answer<()> {
        match i16::try_from(next.wrapping_sub(offset).cast_signed()) {
            Ok(displacement) => self.set(
                offset,
                BlockCacheEntry { displacement, insns: 1, mode, decision: Decision::Again, size: 0 },
            ),
            Err(_) => self.set_decode(offset, mode),
        }
    }

    /// Returns the displacement of the conditional branch that an entry leads to.
    #[inline]
    fn displacement(&self, ip: u64, entry: BlockCacheEntry) -> Answer<i64> {
        // Of two bytes the second is the displacement; of six without a prefix the last four are.
        match (entry.size, self.mapped.bytes(self.mapping, ip)) {
            (2, [_, by, ..]) => Ok(by.cast_signed().into()),
            (6, &[0x0f, _, a, b, c, d, ..]) => Ok(i32::from_le_bytes([a, b, c, d]).into()),
            _ => {
                let (_, extra) = self.decode(ip, entry.mode).map_err(Code::status)?;
                Ok(extra.displacement.unwrap_or(0).into())
            }
        }
    }

    /// Decodes an instruction in the section.
    fn decode(&self, ip: u64, mode: u8) -> Result<DecodedInsn, Code> {
        let mut insn = PtInsn { ip, mode: mode.into(), ..PtInsn::EMPTY };
        // At most 15.
        insn.size = self.mapped.read(self.mapping, &mut insn.raw, ip)? as u8;
        let extra = decode(&mut insn)?;
        self.mapping.remember(self.mapped.offset_of(ip), &insn, &extra);
        Ok((insn, extra))
    }
}

impl BlockDecoder {
    pub(crate) fn new(config: PtConfig) -> Self {
        let flag = |bit: u32| config.flags[0] & 1 << bit != 0;
        Self {
            flow: Flow::new(config, 1 << 1, 1 << 4),
            nodes: Nodes::default(),
            end_on_call: flag(0),
            end_on_jump: flag(2),
        }
    }

    /// Returns true if the caller wants blocks to end with an instruction of this one's class.
    pub(super) fn ends(&self, insn: &PtInsn) -> bool {
        self.ends_with(insn.class)
    }

    /// Returns true if the caller wants blocks to end with an instruction of a class.
    pub(super) fn ends_with(&self, class: c_int) -> bool {
        self.end_on_call && class == class::CALL || self.end_on_jump && class == class::JUMP
    }

    /// Pushes the return address of a near call.
    fn log_call(&mut self, (insn, extra): &DecodedInsn) {
        if insn.class == class::CALL && extra.displacement != Some(0) {
            self.flow.returns.push(insn.end());
        }
    }

    /// Goes past an instruction whose successor the trace gives.
    pub(super) fn with_trace(&mut self, (insn, extra): &DecodedInsn) -> Answer<()> {
        let flow = &mut self.flow;
        let status = match insn.class {
            class::COND_JUMP => {
                let (taken, status) = flow.cond_branch()?;
                flow.ip = if taken { insn.target(extra).unwrap_or(insn.end()) } else { insn.end() };
                status
            }
            class::RETURN => match flow.cond_branch() {
                Ok((false, _)) => return Err(Code::BadReturn.status()),
                Ok((true, status)) => {
                    flow.ip = flow.returns.pop().ok_or(Code::ReturnWithoutCall.status())?;
                    status
                }
                Err(error) if error == Code::BadQuery.status() => flow.indirect_branch()?,
                Err(error) => return Err(error),
            },
            class::JUMP | class::CALL if extra.displacement.is_some() => return Err(Code::Internal.status()),
            class::OTHER | class::PTWRITE => return Err(Code::Internal.status()),
            class::ERROR => return Err(Code::BadInstruction.status()),
            _ => flow.indirect_branch()?,
        };
        flow.status = status;
        if status & status::IP_SUPPRESSED != 0 {
            return Err(Code::NoIp.status());
        }
        Ok(())
    }

    /// Adds the next instruction to a block. `None`: it does not fit, or is in another section.
    pub(super) fn one(&mut self, block: &mut PtBlock) -> Answer<Option<DecodedInsn>> {
        let Some(insns) = block.insns.checked_add(1) else { return Ok(None) };
        if block.flags & TRUNCATED != 0 {
            return Ok(None);
        }
        let mut insn = PtInsn { ip: self.flow.ip, mode: self.flow.mode, ..PtInsn::EMPTY };
        let extra = self.flow.with_image(|image, _, asid| insn.read(image, asid))?;
        if insn.isid != block.isid {
            if block.insns != 0 {
                return Ok(None);
            }
            block.isid = insn.isid;
        }
        if insn.flags & flag::TRUNCATED != 0 {
            Self::provide(block, &insn);
        }
        let decoded = (insn, extra);
        self.log_call(&decoded);
        (block.class, block.end_ip, block.insns) = (insn.class, insn.ip, insns);
        Ok(Some(decoded))
    }

    /// Gives the caller the bytes of an instruction that is not in one section as a whole.
    fn provide(block: &mut PtBlock, insn: &PtInsn) {
        let size = usize::from(insn.size);
        block.raw[..size].copy_from_slice(&insn.raw[..size]);
        block.size = insn.size;
        block.flags |= TRUNCATED;
    }

    /// Goes to an instruction of a kind, or to one that needs the trace (the error `BadQuery`). `false`: the block ends
    /// before. `last` is the last instruction.
    pub(super) fn go_to_insn(
        &mut self,
        block: &mut PtBlock,
        last: &mut DecodedInsn,
        is_wanted: impl Fn(&DecodedInsn) -> bool,
    ) -> Answer<bool> {
        loop {
            let Some(decoded) = self.one(block)? else { return Ok(false) };
            *last = decoded;
            if is_wanted(last) {
                return Ok(true);
            }
            self.flow.ip = last.0.next_ip(&last.1).map_err(Code::status)?;
            if self.ends(&last.0) {
                return Ok(false);
            }
        }
    }

    /// Goes to an address, as [`go_to_insn`](Self::go_to_insn) does.
    pub(super) fn go_to_ip(&mut self, block: &mut PtBlock, last: &mut DecodedInsn, ip: u64) -> Answer<bool> {
        loop {
            if self.flow.ip == ip {
                return Ok(true);
            }
            let Some(decoded) = self.one(block)? else { return Ok(false) };
            *last = decoded;
            self.flow.ip = last.0.next_ip(&last.1).map_err(Code::status)?;
            if self.ends(&last.0) {
                return Ok(self.flow.ip == ip);
            }
        }
    }

    /// Goes to the next decision.
    pub(super) fn no_event(&mut self, block: &mut PtBlock) -> Answer<()> {
        let ip = self.flow.ip;
        match self.flow.with_image(|image, kept, asid| kept.update(image, asid, ip)) {
            // The caller's callback may still have the code.
            Err(Code::NotMapped) => return self.uncached(block),
            Err(error) => return Err(error.status()),
            Ok(isid) if isid != block.isid => {
                if block.insns != 0 {
                    return Ok(());
                }
                block.isid = isid;
            }
            Ok(_) => {}
        }
        let kept = self.flow.kept.take().ok_or(Code::Internal.status())?;
        let (mapped, mapping) = &*kept;
        let answer = match mapped.block_cache(mapping) {
            Some(block_cache) => self.cached(block, &MappedCode { mapped, mapping, block_cache }),
            None => Err(Code::NotSupported.status()),
        };
        self.flow.kept.put_back(kept);
        answer
    }

    fn uncached(&mut self, block: &mut PtBlock) -> Answer<()> {
        let mut last = NOTHING;
        match self.go_to_insn(block, &mut last, |_| false) {
            Err(error) if error == Code::BadQuery.status() => self.with_trace(&last),
            answer => answer.map(|_| ()),
        }
    }

    /// Follows the cache's entries to the next decision.
    fn cached(&mut self, block: &mut PtBlock, section: &MappedCode<'_>) -> Answer<()> {
        loop {
            let offset = section.mapped.offset_of(self.flow.ip);
            let Some(entry) = section.get(offset)? else { return self.fill(block, section, STEPS) };
            let ip = self.flow.ip.wrapping_add_signed(entry.displacement.into());
            if !section.mapped.has(ip) {
                // The section was split.
                return self.uncached(block);
            }
            let Some(insns) = block.insns.checked_add(entry.insns.into()) else { return Ok(()) };
            self.flow.ip = ip;
            (block.end_ip, block.insns, block.mode) = (ip, insns, entry.mode.into());
            match entry.decision {
                Decision::Again => block.class = class::ERROR,
                Decision::Conditional if entry.size != 0 => {
                    block.class = class::COND_JUMP;
                    let (taken, status) = self.flow.cond_branch()?;
                    self.flow.status = status;
                    let mut next = ip.wrapping_add(entry.size.into());
                    if taken {
                        next = next.wrapping_add_signed(section.displacement(ip, entry)?);
                    }
                    self.flow.ip = next;
                    return Ok(());
                }
                Decision::Conditional | Decision::Decode => {
                    if entry.decision == Decision::Conditional {
                        block.class = class::COND_JUMP;
                    }
                    let decoded = match section.decode(ip, entry.mode) {
                        Ok(decoded) => decoded,
                        Err(Code::BadInstruction) => return self.truncated(block),
                        Err(error) => return Err(error.status()),
                    };
                    block.class = decoded.0.class;
                    self.log_call(&decoded);
                    if !self.past(&decoded)? || self.ends(&decoded.0) || !section.mapped.has(self.flow.ip) {
                        return Ok(());
                    }
                }
                Decision::IndirectCall => {
                    block.class = class::CALL;
                    let end = match entry.size {
                        0 => section.decode(ip, entry.mode).map_err(Code::status)?.0.end(),
                        size => ip.wrapping_add(size.into()),
                    };
                    self.flow.returns.push(end);
                    self.flow.status = self.flow.indirect_branch()?;
                    return Ok(());
                }
                Decision::Return => {
                    block.class = class::RETURN;
                    return self.returns();
                }
                Decision::Indirect => {
                    // The cache does not say which instruction it is.
                    block.class = class::ERROR;
                    self.flow.status = self.flow.indirect_branch()?;
                    return Ok(());
                }
            }
        }
    }

    /// Goes past an instruction. `false`: the trace was needed, so the block ends.
    fn past(&mut self, decoded: &DecodedInsn) -> Answer<bool> {
        match decoded.0.next_ip(&decoded.1) {
            Ok(ip) => {
                self.flow.ip = ip;
                Ok(true)
            }
            Err(Code::BadQuery) => self.with_trace(decoded).map(|()| false),
            Err(error) => Err(error.status()),
        }
    }

    pub(super) fn returns(&mut self) -> Answer<()> {
        let flow = &mut self.flow;
        match flow.cond_branch() {
            Ok((taken, status)) => {
                flow.status = status;
                if !taken {
                    return Err(Code::BadReturn.status());
                }
                flow.ip = flow.returns.pop().ok_or(Code::ReturnWithoutCall.status())?;
            }
            Err(error) if error == Code::BadQuery.status() => flow.status = flow.indirect_branch()?,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Handles a last instruction that may end in another section.
    fn truncated(&mut self, block: &mut PtBlock) -> Answer<()> {
        let mut insn = PtInsn { ip: self.flow.ip, mode: self.flow.mode, ..PtInsn::EMPTY };
        let extra = self.flow.with_image(|image, _, asid| insn.read(image, asid))?;
        if insn.flags & flag::TRUNCATED == 0 {
            return Err(Code::Internal.status());
        }
        Self::provide(block, &insn);
        block.class = insn.class;
        let decoded = (insn, extra);
        self.log_call(&decoded);
        self.past(&decoded).map(|_| ())
    }

    /// Goes past one instruction, then follows the cache's entries or goes past one more, and adds an entry.
    fn fill(&mut self, block: &mut PtBlock, section: &MappedCode<'_>, steps: usize) -> Answer<()> {
        let Some(decoded) = self.one(block)? else { return Ok(()) };
        let (insn, extra) = &decoded;
        // An instruction was decoded, so it is 1, 2 or 3.
        let mode = insn.mode as u8;
        let offset = section.mapped.offset_of(insn.ip);
        let is_truncated = block.flags & TRUNCATED != 0;
        let next = match insn.next_ip(extra) {
            Ok(next) => next,
            Err(Code::BadQuery) => {
                let decision = match insn.class {
                    _ if is_truncated => Decision::Decode,
                    class::CALL => Decision::IndirectCall,
                    class::RETURN => Decision::Return,
                    class::COND_JUMP => Decision::Conditional,
                    _ => Decision::Indirect,
                };
                let size = if insn.size < 8 { insn.size } else { 0 };
                section.set(offset, BlockCacheEntry { displacement: 0, insns: 1, mode, decision, size })?;
                return self.with_trace(&decoded);
            }
            Err(error) => return Err(error.status()),
        };
        self.flow.ip = next;
        let stops = match insn.class {
            class::CALL => true,
            class::JUMP if extra.displacement.is_some_and(|by| by < 0) || self.end_on_jump => true,
            _ => !section.mapped.has(next) || is_truncated,
        };
        if stops {
            return section.set_decode(offset, mode);
        }
        let next_offset = section.mapped.offset_of(next);
        let mut entry = section.get(next_offset)?;
        if entry.is_none() {
            if steps == 1 {
                return section.set_again(offset, next_offset, mode);
            }
            self.fill(block, section, steps - 1)?;
            entry = section.get(next_offset)?;
        }
        let Some(entry) = entry else { return Ok(()) };
        if entry.mode != mode {
            return Err(Code::Internal.status());
        }
        let decision = next.wrapping_add_signed(entry.displacement.into());
        if !section.mapped.has(decision) {
            return Ok(());
        }
        let displacement = i16::try_from(decision.wrapping_sub(insn.ip).cast_signed());
        match (displacement, entry.insns.checked_add(1)) {
            (Ok(displacement), Some(insns)) => {
                section.set(offset, BlockCacheEntry { displacement, insns, ..entry })
            }
            _ => section.set_again(offset, next_offset, mode),
        }
    }
}
