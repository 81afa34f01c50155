//! The hot path: run after run of remembered code, while no event is due before the next branch.

use super::{BlockDecoder, decoder::Next, run::Run};
use crate::{error::Error, flow::Way, mode::ExecMode};

impl BlockDecoder<'_> {
    /// Walks to the next branch that the trace decides, and over it. Something is known of the trace, and it is not an
    /// event that has its place in the code.
    #[inline]
    pub(super) fn run(&mut self, mode: ExecMode) -> Result<Next, Error> {
        loop {
            let ip = self.walker.ip;
            let run = match self.cache.get(ip, mode) {
                Some(run) => *run,
                None => self.decode_run(ip, mode)?,
            };
            self.begin();
            if !self.block.begin(ip, mode, self.walker.speculative, run.section) {
                return Ok(Next::Block);
            }
            let last = ip.wrapping_add(u64::from(run.last));
            let next = ip.wrapping_add(u64::from(run.span));
            self.block.end_ip = last;
            self.block.insns = self.block.insns.saturating_add(u32::from(run.insns));
            self.block.truncated = run.truncated;
            self.walker.psb = None;
            // Where the walk is when something is wrong at its end.
            self.walker.ip = last;
            self.walker.walk.step(u64::from(run.insns));
            self.walker.go(run.end, run.target, next)?;
            let ends = match run.end {
                Way::On => false,
                Way::Jump => self.walker.config().flags.end_on_jump,
                Way::Call | Way::CallNext => self.walker.config().flags.end_on_call,
                Way::Cond | Way::Return | Way::IndirectCall | Way::Indirect => {
                    self.decided = true;
                    if self.walker.config().errata.bdm64 {
                        self.walker.jump_by_bdm64()?;
                    }
                    true
                }
            };
            if ends {
                return Ok(Next::Block);
            }
        }
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
