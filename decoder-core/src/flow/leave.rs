//! From one instruction to the next.

use super::InsnDecoder;
use crate::{
    error::{Error, ErrorKind},
    event::{Event, EventKind},
    insn::{Class, Insn},
};

impl InsnDecoder<'_> {
    /// Goes from `insn`, executed at `ip`, to the instruction that was executed next.
    #[inline]
    pub(super) fn leave(&mut self, insn: Insn) -> Result<(), Error> {
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
                    target.ok_or_else(|| self.fail(ErrorKind::ReturnWithoutCall { ip: self.ip }))?
                }
                Some(false) => return Err(self.fail(ErrorKind::BadReturnCompression { ip: self.ip })),
                None => self.take_tip()?,
            },
            Class::IndirectCall => {
                self.returns.push(next);
                self.take_tip()?
            }
            Class::IndirectJump | Class::FarJump | Class::FarCall | Class::FarReturn => self.take_tip()?,
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
    fn tick(&mut self, event: Event, ip: u64) {
        if self.config.flags.ticks && event.time != self.time {
            self.time = event.time;
            self.tick = Some(Event { kind: EventKind::Tick, ip: Some(ip), ..event });
        }
    }

    fn go_to(&mut self, target: Option<u64>) -> Result<u64, Error> {
        let target = target.ok_or_else(|| self.mismatch())?;
        if self.walk.jump(target) {
            Ok(target)
        } else {
            Err(self.fail(ErrorKind::EndlessLoop { ip: self.ip }))
        }
    }

    #[inline]
    fn take_outcome(&mut self) -> Option<bool> {
        let outcome = self.tnt.take()?;
        self.walk.anchor();
        Some(outcome)
    }

    /// Takes the next TIP. With outcomes left, that is a deferred one behind them.
    fn take_tip(&mut self) -> Result<u64, Error> {
        if self.event.is_none() {
            self.event = self.next_event()?;
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
        self.walk.anchor();
        Ok(ip)
    }

    fn mismatch(&self) -> Error {
        self.fail(ErrorKind::TraceMismatch { ip: self.ip })
    }
}
