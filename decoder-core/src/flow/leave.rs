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
        Ok(())
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
            self.event = self.events.next()?;
        }
        let Some(Event { kind: EventKind::Tip, ip, .. }) = self.event else {
            return Err(self.mismatch());
        };
        let ip = ip.ok_or_else(|| self.fail(ErrorKind::IpSuppressed("TIP")))?;
        self.event = None;
        self.walk.anchor();
        Ok(ip)
    }

    fn mismatch(&self) -> Error {
        self.fail(ErrorKind::TraceMismatch { ip: self.ip })
    }
}
