//! Goes through the code: to an address, to an instruction, to a branch that needs the trace, and past that branch.

use super::{
    block::{Block, BlockInsn},
    decoder::BlockDecoder,
    known::Reached,
    loops::Loops,
};
use crate::{
    code::{Answer, Code},
    event::{flag, kind},
};
use pugmark_decoder_core::insn::{Class, Insn};
use std::ffi::c_int;

/// The reason why a walk without the trace ends before its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The last instruction is a branch that needs the trace.
    NeedsTrace,
    /// The block is full, or its section ends, or the caller wants it to end.
    BlockEnds,
    /// An error.
    Failed(c_int),
}

impl From<Code> for Stop {
    fn from(code: Code) -> Self {
        Self::Failed(code.status())
    }
}

impl From<c_int> for Stop {
    fn from(status: c_int) -> Self {
        Self::Failed(status)
    }
}

impl Stop {
    /// Converts a walk's result: reached or not. Here the trace does not say where a branch leads.
    pub(super) fn reached(result: Result<(), Self>) -> Answer<bool> {
        match result {
            Ok(()) => Ok(true),
            Err(Self::BlockEnds) => Ok(false),
            Err(Self::NeedsTrace) => Err(Code::BadQuery.status()),
            Err(Self::Failed(status)) => Err(status),
        }
    }
}

impl BlockDecoder<'_> {
    /// Adds the instruction at the walk's place to the block.
    pub(super) fn one_insn(&mut self, block: &mut Block) -> Result<BlockInsn, Stop> {
        if block.room() == 0 {
            return Err(Stop::BlockEnds);
        }
        let fetched = self.memory.fetch(self.ip, block.mode)?;
        if block.section.is_some_and(|section| section != fetched.section) {
            return Err(Stop::BlockEnds);
        }
        block.section = Some(fetched.section);
        block.truncated = fetched.truncated;
        let insn = BlockInsn { ip: self.ip, insn: fetched.insn };
        if let Some(address) = insn.return_address() {
            self.returns.push(address);
        }
        block.insns.push(insn);
        self.since_anchor = self.since_anchor.map(|insns| insns.saturating_add(1));
        Ok(insn)
    }

    /// Goes past an instruction without the trace.
    fn pass(&mut self, insn: BlockInsn) -> Result<(), Stop> {
        self.ip = insn.next_ip().ok_or(Stop::NeedsTrace)?;
        // libipt would never return.
        if insn.is_direct() && self.loops.closes(self.ip) {
            return Err(Code::BadQuery.into());
        }
        Ok(())
    }

    /// Returns true if the caller wants a block to end after this instruction.
    fn ends_block(&self, insn: BlockInsn) -> bool {
        match insn.insn.class {
            Class::NearCall => self.options.end_on_call,
            Class::NearJump => self.options.end_on_jump,
            _ => false,
        }
    }

    /// Goes to the next instruction of a kind, which becomes the block's last one, and stays there.
    pub(super) fn go_to_insn(
        &mut self,
        block: &mut Block,
        is_wanted: impl Fn(&Insn) -> bool,
    ) -> Result<BlockInsn, Stop> {
        loop {
            let insn = self.one_insn(block)?;
            if is_wanted(&insn.insn) {
                return Ok(insn);
            }
            self.pass(insn)?;
            if self.ends_block(insn) {
                return Err(Stop::BlockEnds);
            }
        }
    }

    /// Goes to an address.
    pub(super) fn go_to_ip(&mut self, block: &mut Block, ip: u64) -> Result<(), Stop> {
        while self.ip != ip {
            let insn = self.one_insn(block)?;
            self.pass(insn)?;
            // The address that it leads to is still reached.
            if self.ends_block(insn) && self.ip != ip {
                return Err(Stop::BlockEnds);
            }
        }
        Ok(())
    }

    /// Goes on by one instruction, without looking for endless loops: the caller counts.
    pub(super) fn count_insn(&mut self, block: &mut Block) -> Result<(), Stop> {
        let insn = self.one_insn(block)?;
        self.ip = insn.next_ip().ok_or(Stop::NeedsTrace)?;
        Ok(())
    }

    /// Goes to the next branch that needs the trace, or as far as the block goes, and past the branch.
    pub(super) fn run(&mut self, block: &mut Block) -> Answer<()> {
        self.known.begin(self.mode);
        match self.run_without_trace(block) {
            Ok(()) | Err(Stop::BlockEnds) => {}
            Err(Stop::NeedsTrace) => {
                self.known.decide();
                if let Some(&branch) = block.last()
                    && let Err(error) = self.pass_with_trace(branch)
                {
                    self.known.fail();
                    return Err(error);
                }
            }
            Err(Stop::Failed(error)) => {
                self.known.fail();
                return Err(error);
            }
        }
        self.known.end();
        Ok(())
    }

    fn run_without_trace(&mut self, block: &mut Block) -> Result<(), Stop> {
        let section = self.memory.window(self.ip)?;
        let address = |ip| section.from(ip).as_ptr().addr();
        loop {
            match self.known.reach(address(self.ip), block.room()) {
                Reached::New => {}
                // libipt takes the mode from its cache, too.
                Reached::Known(mode) => block.mode = Some(mode),
                Reached::BlockEnds => return Ok(()),
                Reached::OtherMode => return Err(Code::Internal.into()),
            }
            let insn = match self.one_insn(block) {
                Ok(insn) => insn,
                Err(stop) => {
                    // The new instructions before a block that is full do not become known.
                    self.known.fail();
                    return Err(stop);
                }
            };
            let is_new = self.known.add(address(insn.ip));
            self.pass(insn)?;
            let stops_when_new = match insn.insn.class {
                Class::NearCall => true,
                Class::NearJump => self.ip < insn.end(),
                _ => false,
            };
            if self.ends_block(insn)
                || is_new && stops_when_new
                || block.truncated
                || section.from(self.ip).is_empty()
                || self.known.is_exhausted(address(self.ip))
            {
                return Ok(());
            }
        }
    }

    /// Goes past a branch that needs the trace.
    pub(super) fn pass_with_trace(&mut self, branch: BlockInsn) -> Answer<()> {
        match branch.insn.class {
            Class::CondJump => {
                let is_taken = self.conditional()?;
                self.ip = branch.insn.target.filter(|_| is_taken).unwrap_or(branch.end());
                return Ok(());
            }
            Class::NearReturn if self.event.kind == kind::TNT => {
                if !self.conditional()? {
                    return Err(Code::BadReturn.status());
                }
                self.ip = self.returns.pop().ok_or(Code::ReturnWithoutCall.status())?;
                return Ok(());
            }
            _ => {}
        }
        self.indirect()
    }

    /// Takes the outcome of a conditional branch.
    fn conditional(&mut self) -> Answer<bool> {
        let [bits, left, ..] = &mut self.event.variant;
        if self.event.kind != kind::TNT {
            return Err(Code::BadQuery.status());
        }
        *left = left.checked_sub(1).ok_or(Code::Internal.status())?;
        let is_taken = *bits >> *left & 1 != 0;
        // The next event is read later: a tick may be made of this one.
        self.loops = Loops::NEW;
        Ok(is_taken)
    }

    /// Goes to the target of an indirect branch.
    fn indirect(&mut self) -> Answer<()> {
        match self.event.kind {
            kind::TIP if self.event.has(flag::IP_SUPPRESSED) => Err(Code::BadPacket.status()),
            kind::TIP => {
                let from = std::mem::replace(&mut self.ip, self.event.variant[0]);
                self.tick_or_next(from)
            }
            kind::TNT => self.deferred(),
            _ => Err(Code::BadQuery.status()),
        }
    }

    /// Goes to the target in a TIP that comes after the rest of a TNT.
    fn deferred(&mut self) -> Answer<()> {
        let before = self.events.clone();
        match self.events.next() {
            Ok(event) if event.kind == kind::TIP => {
                self.ip = event.variant[0];
                self.loops = Loops::NEW;
                Ok(())
            }
            _ => {
                self.events = before;
                Err(Code::BadQuery.status())
            }
        }
    }
}
