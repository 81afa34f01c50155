//! Moves the walk from one instruction to the next.

use super::walker::Walker;
use crate::{
    error::{Error, ErrorKind},
    event::{Event, EventKind},
    insn::{Class, Insn},
    keeper::Keeper,
};

/// The kinds of control flow after an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Continuation {
    /// No branch: the next instruction follows in memory.
    #[default]
    On,
    Cond,
    Jump,
    Call,
    /// A call to the next instruction: code uses it only to get its own address, and never returns from it.
    CallNext,
    Return,
    IndirectCall,
    /// All other branches: a TIP gives the target.
    Indirect,
}

impl Continuation {
    /// Returns the continuation after `insn`; `next` is the address after it.
    #[inline]
    pub(crate) fn after(insn: &Insn, next: u64) -> Self {
        match insn.class {
            Class::Other | Class::Ptwrite => Self::On,
            Class::CondJump => Self::Cond,
            Class::NearCall if insn.target != Some(next) => Self::Call,
            Class::NearCall => Self::CallNext,
            Class::NearJump => Self::Jump,
            Class::NearReturn => Self::Return,
            Class::IndirectCall => Self::IndirectCall,
            Class::IndirectJump | Class::FarJump | Class::FarCall | Class::FarReturn => Self::Indirect,
        }
    }
}

impl<K: Keeper> Walker<'_, K> {
    /// Goes from `insn`, executed at `ip`, to the instruction that was executed next.
    #[inline]
    pub(super) fn leave(&mut self, insn: Insn) -> Result<(), Error> {
        let next = insn.next(self.at.ip);
        let way = Continuation::after(&insn, next);
        let uses_outcome =
            !self.ahead.tnt.is_empty() && matches!(way, Continuation::Cond | Continuation::Return);
        let has_time = uses_outcome && self.ahead.tnt_event.is_some();
        let gone = self.go(way, insn.target.unwrap_or_default(), next);
        if has_time && gone.is_ok() {
            self.use_time_of_outcomes();
        }
        gone
    }

    /// Applies the time of a TNT when its first outcome is used.
    #[cold]
    fn use_time_of_outcomes(&mut self) {
        if let Some(event) = self.ahead.tnt_event.take() {
            if self.has_tick(&event) {
                self.tick(&event, self.at.ip);
            }
            self.at.when = event.when;
        }
    }

    /// Goes from the instruction at `ip` to the one that was executed next. `target` is the target of a direct
    /// branch, `next` the address after the instruction.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn go(&mut self, way: Continuation, target: u64, next: u64) -> Result<(), Error> {
        self.at.ip = match way {
            Continuation::On => next,
            Continuation::Jump | Continuation::Call | Continuation::CallNext => {
                if !self.at.loops.jump(target) && !self.counts_to_event() {
                    return Err(self.endless_loop());
                }
                if way == Continuation::Call {
                    self.at.returns.push(next);
                }
                target
            }
            Continuation::Cond => match self.take_outcome() {
                Some(true) => target,
                Some(false) => next,
                None => return Err(self.mismatch()),
            },
            Continuation::Return if !self.ahead.tnt.is_empty() => self.return_by_outcome()?,
            Continuation::Return | Continuation::IndirectCall | Continuation::Indirect => {
                if way == Continuation::Return {
                    self.at.returns.pop();
                }
                let target = self.take_tip()?;
                if way == Continuation::IndirectCall {
                    self.at.returns.push(next);
                }
                target
            }
        };
        Ok(())
    }

    /// Takes the target of a compressed return from the stack.
    #[inline]
    fn return_by_outcome(&mut self) -> Result<u64, Error> {
        let ip = self.at.ip;
        match self.take_outcome() {
            Some(true) => self.at.returns.pop().ok_or_else(|| self.fail(ErrorKind::ReturnWithoutCall { ip })),
            _ => Err(self.fail(ErrorKind::BadReturnCompression { ip })),
        }
    }

    /// Returns true if the trace gives the number of instructions to the next event: a loop before that event is not
    /// endless.
    #[cold]
    fn counts_to_event(&self) -> bool {
        match self.event_if_next().map(|event| event.kind) {
            Some(EventKind::Trigger { icnt: Some(icnt), .. }) => {
                u64::from(icnt) >= self.at.loops.insns_since_anchor()
            }
            _ => false,
        }
    }

    #[inline]
    fn take_outcome(&mut self) -> Option<bool> {
        let outcome = self.ahead.tnt.take()?;
        self.at.loops.anchor();
        Some(outcome)
    }

    /// Takes the next TIP. If outcomes are left, it is a deferred TIP after them.
    pub(super) fn take_tip(&mut self) -> Result<u64, Error> {
        // If outcomes are left, a TIP may be deferred.
        if self.ahead.event.is_none() {
            self.read_event()?;
        }
        let Some(Event { kind: EventKind::Tip, ip, when, offset, .. }) = self.ahead.event else {
            return Err(self.mismatch());
        };
        let Some(ip) = ip else { return Err(self.fail(ErrorKind::IpSuppressed("TIP"))) };
        // A deferred TIP does not give the time of its branch.
        if self.ahead.tnt.is_empty() {
            if self.config().flags.ticks {
                self.tick_at_tip();
            }
            self.at.when = when;
            self.at.located = offset;
        } else {
            self.ahead.deferred_tip = true;
        }
        self.ahead.event = None;
        self.at.loops.anchor();
        Ok(ip)
    }

    /// Returns true if the first outcome of a TNT makes a tick. As in libipt, outcomes make no tick before the first
    /// TSC, although a TIP does.
    pub(super) fn has_tick(&self, outcomes: &Event) -> bool {
        outcomes.when.tsc.is_some() && outcomes.when.time != self.at.when.time
    }

    #[cold]
    fn tick_at_tip(&mut self) {
        if let Some(event) = self.ahead.event {
            self.tick(&event, self.at.ip);
        }
    }

    /// Makes a tick at `ip` when time has advanced since the last packet used.
    #[inline]
    fn tick(&mut self, event: &Event, ip: u64) {
        if self.config().flags.ticks && event.when.time != self.at.when.time {
            self.at.tick = Some(Event { kind: EventKind::Tick, ip: Some(ip), ..*event });
        }
    }
}
