//! One instruction at a time, where an event may have its place behind each.

use super::{BlockDecoder, Next, Tracing, cache, place};
use crate::{
    error::{Error, ErrorKind},
    event::{Event, EventKind},
    insn::{Class, Insn},
    mode::ExecMode,
};

impl BlockDecoder<'_> {
    /// Walks until something is to be given out.
    #[inline(never)]
    pub(super) fn step(&mut self) -> Result<Next, Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        loop {
            // It is made behind a branch, with which a block ends.
            if let Some(tick) = self.tick.take() {
                return Ok(Next::Event(tick));
            }
            if let Some(executed) = self.executed {
                if !self.look()? {
                    return Ok(self.end());
                }
                let event = self.event.filter(|_| self.tnt.is_empty());
                if let Some(event) = event.filter(|event| place::is_behind(event, &executed, self.ip)) {
                    if self.block.insns != 0 {
                        return Ok(Next::Block);
                    }
                    return Ok(Next::Event(self.apply_behind(event, executed)));
                }
                if let Some(event) = event.filter(|event| self.leads_out_by_skl014(&executed, event)) {
                    if self.block.insns != 0 {
                        return Ok(Next::Block);
                    }
                    return Ok(Next::Event(self.apply_behind(event, executed)));
                }
                // Where packets were lost behind a branch, nothing says where it led.
                let lost = event.is_some_and(|event| event.kind == EventKind::Overflow);
                if !lost {
                    self.leave(executed)?;
                    self.executed = None;
                    if self.config.errata.bdm64 && place::needs_trace(executed.class) {
                        self.jump_by_bdm64()?;
                    }
                }
                self.executed = None;
                if self.block.insns != 0 && (lost || self.ends_block(executed.class)) {
                    return Ok(Next::Block);
                }
            }
            if !self.look()? {
                return Ok(self.end());
            }
            let event = self.event.filter(|event| self.tnt.is_empty() && self.is_here(event));
            if let Some(event) = event {
                if self.block.insns != 0 {
                    return Ok(Next::Block);
                }
                if self.is_entry_by_skd022(&event) {
                    continue;
                }
                let offset = event.offset;
                let applied = self.apply(event).map_err(|kind| Error { offset, kind })?;
                self.event = None;
                if let Some(event) = applied {
                    return Ok(Next::Event(event));
                }
                continue;
            }
            let (Tracing::On, Some(mode)) = (self.tracing, self.mode) else {
                return Err(self.cannot_execute());
            };
            if self.is_bulk() {
                return self.run(mode);
            }
            if !self.execute(mode)? {
                return Ok(Next::Block);
            }
        }
    }

    /// The trace has nothing more to say.
    fn end(&self) -> Next {
        if self.block.insns == 0 { Next::End } else { Next::Block }
    }

    fn ends_block(&self, class: Class) -> bool {
        match class {
            Class::Other | Class::Ptwrite => false,
            Class::NearJump => self.config.flags.end_on_jump,
            Class::NearCall => self.config.flags.end_on_call,
            _ => true,
        }
    }

    /// Appends the instruction at `ip` to the block; `false` when it is of another block.
    fn execute(&mut self, mode: ExecMode) -> Result<bool, Error> {
        let ip = self.ip;
        let fetched = cache::fetch(self.image, self.cr3, self.window, ip, mode);
        let (window, insn, truncated) = fetched.map_err(|kind| self.fail(kind))?;
        if window != self.window {
            self.window = window;
            self.section = cache::section_of(self.image, &window);
        }
        let block = &mut self.block;
        if block.insns != 0 && (block.section != self.section || block.truncated) {
            return Ok(false);
        }
        if block.insns == 0 {
            (block.ip, block.mode) = (ip, mode);
            (block.speculative, block.section) = (self.speculative, self.section);
        }
        block.end_ip = ip;
        block.insns = block.insns.saturating_add(1);
        block.truncated = truncated;
        self.executed = Some(insn);
        self.psb = None;
        self.walk.step(1);
        Ok(true)
    }

    #[cold]
    fn cannot_execute(&mut self) -> Error {
        let ip = self.ip;
        match self.tracing {
            Tracing::On => self.fail(ErrorKind::UnknownMode { ip }),
            // The event decoder lets nothing through that needs code while tracing is off.
            _ => self.fail(ErrorKind::TraceMismatch { ip }),
        }
    }

    /// Goes from `insn`, executed at `ip`, to the instruction that was executed next.
    fn leave(&mut self, insn: Insn) -> Result<(), Error> {
        let next = insn.next(self.ip);
        let outcomes = self.tnt_event.filter(|_| !self.tnt.is_empty());
        self.ip = match insn.class {
            Class::Other | Class::Ptwrite => next,
            Class::NearJump => self.go_to(insn.target)?,
            Class::NearCall => {
                let target = self.go_to(insn.target)?;
                // A call to the next instruction only asks for its own address; it is never returned from.
                if target != next {
                    self.returns.push(next);
                }
                target
            }
            Class::CondJump => match (self.take_outcome(), insn.target) {
                (Some(true), Some(target)) => target,
                (Some(false), _) => next,
                _ => return Err(self.mismatch()),
            },
            Class::NearReturn => match self.take_outcome() {
                Some(true) => {
                    let target = self.returns.pop();
                    target
                        .ok_or_else(|| self.fail_at_outcome(ErrorKind::ReturnWithoutCall { ip: self.ip }))?
                }
                Some(false) => {
                    return Err(self.fail_at_outcome(ErrorKind::BadReturnCompression { ip: self.ip }));
                }
                None => self.take_anchor()?,
            },
            Class::IndirectCall => {
                self.returns.push(next);
                self.take_anchor()?
            }
            Class::IndirectJump | Class::FarJump | Class::FarCall | Class::FarReturn => self.take_anchor()?,
        };
        if let Some(event) = outcomes
            && matches!(insn.class, Class::CondJump | Class::NearReturn)
        {
            self.tnt_event = None;
            self.tick(event, self.ip);
        }
        Ok(())
    }

    /// Makes a tick at `ip` when time has gone on since the last event.
    pub(super) fn tick(&mut self, event: Event, ip: u64) {
        if self.config.flags.ticks && event.time != self.time {
            self.time = event.time;
            self.tick = Some(Event { kind: EventKind::Tick, ip: Some(ip), ..event });
        }
    }

    fn go_to(&mut self, target: Option<u64>) -> Result<u64, Error> {
        let Some(target) = target else { return Err(self.mismatch()) };
        if self.walk.jump(target) {
            Ok(target)
        } else {
            Err(self.fail(ErrorKind::EndlessLoop { ip: self.ip }))
        }
    }

    fn take_outcome(&mut self) -> Option<bool> {
        let outcome = self.tnt.take()?;
        self.walk.anchor();
        Some(outcome)
    }

    fn take_anchor(&mut self) -> Result<u64, Error> {
        let ip = self.take_tip()?;
        self.walk.anchor();
        Ok(ip)
    }
}
