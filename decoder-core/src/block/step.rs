//! The walk to the next block or event, one instruction at a time, because an event may follow each.

use super::{
    BlockDecoder,
    section::{is_truncated, section_of},
};
use crate::{
    error::{Error, ErrorKind},
    flow::{Upcoming, needs_trace},
    insn::Class,
    keeper::Keeper,
};

/// The next item of a walk. It does not contain the block or the event, because it passes through many functions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BlockStep {
    /// A block, to be [taken](BlockDecoder::take_block).
    Block,
    /// An event, which the walk has [taken](crate::flow::Walker::at).
    Event,
    /// The end of the trace.
    End,
}

impl<K: Keeper> BlockDecoder<'_, K> {
    /// Walks until there is something to report.
    #[inline(never)]
    pub(super) fn step(&mut self) -> Result<BlockStep, Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.walker.at.failed {
            return Err(self.walker.fail(ErrorKind::OutOfSync));
        }
        loop {
            // A block ends before an event, so that the decoder's accessors describe the block.
            let open = self.block.insns != 0;
            let ends = open && self.walker.at.executed.is_some_and(|insn| self.ends_block(insn.class));
            let decided = self.walker.at.executed.is_some_and(|insn| needs_trace(insn.class));
            let upcoming = match self.walker.depart(open) {
                Ok(None) if ends => {
                    self.decided = decided;
                    return Ok(BlockStep::Block);
                }
                Ok(None) => self.walker.arrive(open),
                Ok(Some(upcoming)) => Ok(upcoming),
                Err(error) => Err(error),
            };
            let executed = match upcoming {
                Ok(Upcoming::Insn) => self.execute(),
                Ok(Upcoming::Event) => return Ok(BlockStep::Event),
                Ok(Upcoming::Held | Upcoming::End) if !open => return Ok(BlockStep::End),
                Ok(Upcoming::Held | Upcoming::End) => return Ok(BlockStep::Block),
                Err(error) => Err(error),
            };
            match executed {
                Ok(true) => {}
                executed => return executed.map(|_| BlockStep::Block),
            }
        }
    }

    fn ends_block(&self, class: Class) -> bool {
        match class {
            Class::Other | Class::Ptwrite => false,
            Class::NearJump => self.walker.config().flags.end_on_jump,
            Class::NearCall => self.walker.config().flags.end_on_call,
            _ => true,
        }
    }

    /// Appends the instruction at `ip` to the block. Returns `false` if the instruction belongs to another block.
    fn execute(&mut self) -> Result<bool, Error> {
        self.begin();
        let Self { walker, block, window, section, .. } = self;
        let executed = walker.execute_if(|walker, insn, mode| {
            // The addresses are compared, because the bytes are many.
            if (window.base, window.bytes.as_ptr_range())
                != (walker.window.base, walker.window.bytes.as_ptr_range())
            {
                *window = walker.window;
                *section = section_of(walker.image, window);
            }
            let begun = block.begin(walker.at.ip, mode, walker.at.speculative, *section);
            if begun {
                block.truncated = is_truncated(window, walker.at.ip, insn);
            }
            begun
        })?;
        if let Some(insn) = executed {
            block.end_ip = insn.ip;
            block.insns = block.insns.saturating_add(1);
        }
        Ok(executed.is_some())
    }
}
