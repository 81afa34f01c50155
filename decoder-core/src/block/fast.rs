//! The fast path: runs of cached code, while no event comes before the next branch.

use super::{Block, BlockDecoder, Item, decoder::NO_BLOCK, run::Run};
use crate::{error::Error, flow::Way, mode::ExecMode};

impl BlockDecoder<'_> {
    /// Walks to the next branch that the trace decides, and over it. What comes next in the trace must be known and
    /// must not be an event with a place in the code.
    #[inline(never)]
    pub(super) fn run(&mut self, mode: ExecMode) -> Result<Option<Item>, Error> {
        // In registers, not in `self.block`: reading memory as a whole right after writing it field by field stalls
        // the processor.
        let mut block = if self.block.insns == 0 {
            self.begin();
            NO_BLOCK
        } else {
            self.take_block()
        };
        loop {
            let ip = self.walker.ip;
            let run = match self.cache.get(ip, mode) {
                Some(run) => *run,
                None => match self.decode_run(ip, mode) {
                    Ok(run) => run,
                    Err(error) => return self.keep(block, error),
                },
            };
            if !block.begin(ip, mode, self.walker.speculative, run.section) {
                return Ok(Some(Item::Block(block)));
            }
            let last = ip.wrapping_add(u64::from(run.last));
            let next = ip.wrapping_add(u64::from(run.span));
            block.end_ip = last;
            block.insns = block.insns.saturating_add(u32::from(run.insns));
            block.truncated = run.truncated;
            self.walker.psb = None;
            // The walk's place if there is an error at the end of the run.
            self.walker.ip = last;
            self.walker.walk.step(u64::from(run.insns));
            if let Err(error) = self.walker.go(run.end, run.target, next) {
                return self.keep(block, error);
            }
            let ends = match run.end {
                Way::On => false,
                Way::Jump => self.walker.config().flags.end_on_jump,
                Way::Call | Way::CallNext => self.walker.config().flags.end_on_call,
                Way::Cond | Way::Return | Way::IndirectCall | Way::Indirect => {
                    self.decided = true;
                    if self.walker.config().errata.bdm64
                        && let Err(error) = self.walker.jump_by_bdm64()
                    {
                        return self.keep(block, error);
                    }
                    true
                }
            };
            if ends {
                return Ok(Some(Item::Block(block)));
            }
        }
    }

    /// Keeps the block, because it is reported before the error.
    #[cold]
    fn keep(&mut self, block: Block, error: Error) -> Result<Option<Item>, Error> {
        self.block = block;
        Err(error)
    }

    #[cold]
    #[inline(never)]
    fn decode_run(&mut self, ip: u64, mode: ExecMode) -> Result<Run, Error> {
        let decoded = Run::decode(self.walker.image, self.walker.space, ip, mode);
        let run = decoded.map_err(|kind| self.walker.fail(kind))?;
        self.cache.insert(ip, run);
        Ok(run)
    }
}
