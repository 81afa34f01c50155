//! The hot path: run after run of remembered code, while no event is due before the next branch.

use super::{
    BlockDecoder, Next,
    cache::{End, Run},
};
use crate::{
    error::{Error, ErrorKind},
    event::{Event, EventKind},
    mode::ExecMode,
};

impl BlockDecoder<'_> {
    /// Walks to the next branch that the trace decides, and over it. Something is known of the trace, and it is not an
    /// event that has its place in the code.
    #[inline]
    pub(super) fn run(&mut self, mode: ExecMode) -> Result<Next, Error> {
        loop {
            let ip = self.ip;
            let run = match self.cache.get(ip, mode) {
                Some(run) => *run,
                None => self.decode_run(ip, mode)?,
            };
            if self.block.insns != 0 && (self.block.section != run.section || self.block.truncated) {
                return Ok(Next::Block);
            }
            if self.block.insns == 0 {
                self.block.ip = ip;
                self.block.mode = mode;
                self.block.speculative = self.speculative;
                self.block.section = run.section;
            }
            let last = ip.wrapping_add(u64::from(run.last));
            let next = ip.wrapping_add(u64::from(run.span));
            self.block.end_ip = last;
            self.block.insns = self.block.insns.saturating_add(u32::from(run.insns));
            self.block.truncated = run.truncated;
            self.psb = None;
            // Where the walk is when something is wrong at its end.
            self.ip = last;
            match run.end {
                End::None => {
                    self.walk.step(u64::from(run.insns));
                    self.ip = next;
                    continue;
                }
                End::Jump | End::Call | End::CallNext => {
                    self.walk.step(u64::from(run.insns));
                    if !self.walk.jump(run.target) {
                        return Err(self.fail(ErrorKind::EndlessLoop { ip: last }));
                    }
                    if run.end == End::Call {
                        self.returns.push(next);
                    }
                    self.ip = run.target;
                    let ends = if run.end == End::Jump {
                        self.config.flags.end_on_jump
                    } else {
                        self.config.flags.end_on_call
                    };
                    if ends {
                        return Ok(Next::Block);
                    }
                    continue;
                }
                End::Cond => match self.tnt.take() {
                    Some(taken) => self.ip = if taken { run.target } else { next },
                    None => return Err(self.mismatch()),
                },
                End::Return => match self.tnt.take() {
                    Some(true) => match self.returns.pop() {
                        Some(target) => self.ip = target,
                        None => return Err(self.fail_at_outcome(ErrorKind::ReturnWithoutCall { ip: last })),
                    },
                    Some(false) => {
                        return Err(self.fail_at_outcome(ErrorKind::BadReturnCompression { ip: last }));
                    }
                    None => self.ip = self.take_tip()?,
                },
                End::IndirectCall => {
                    self.returns.push(next);
                    self.ip = self.take_tip()?;
                }
                End::Indirect => self.ip = self.take_tip()?,
            }
            self.walk.anchor();
            if self.config.errata.bdm64 {
                self.jump_by_bdm64()?;
            }
            return Ok(Next::Block);
        }
    }

    /// Takes the next TIP. With outcomes left, that is a deferred one behind them.
    pub(super) fn take_tip(&mut self) -> Result<u64, Error> {
        if self.event.is_none() {
            self.give_back();
            self.event = self.events.next()?;
        }
        let Some(event @ Event { kind: EventKind::Tip, ip, .. }) = self.event else {
            return Err(self.mismatch());
        };
        let ip = ip.ok_or_else(|| self.fail(ErrorKind::IpSuppressed("TIP")))?;
        self.event = None;
        // A deferred one says nothing about when.
        if self.tnt.is_empty() {
            self.tick(event, self.ip);
        }
        Ok(ip)
    }

    #[cold]
    #[inline(never)]
    fn decode_run(&mut self, ip: u64, mode: ExecMode) -> Result<Run, Error> {
        let run = Run::decode(self.image, self.cr3, ip, mode).map_err(|kind| self.fail(kind))?;
        self.cache.insert(ip, run);
        Ok(run)
    }
}
