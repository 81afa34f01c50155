//! MWAIT, PWRE, EXSTOP, PWRX: into a C-state and out of it.
//!
//! MWAIT happened where the EXSTOP behind it did. A PWRE is reported when the PWRX is there.

use super::{Event, EventDecoder, EventKind, fup::Waiter};
use crate::{
    error::ErrorKind,
    packet::{Exstop, Mwait, Pwre, Pwrx},
};

/// MWAIT without its EXSTOP and PWREs without their PWRX.
#[derive(Clone, Copy, Debug)]
pub(super) struct Power {
    mwait: Option<Event>,
    pwre: [Option<Event>; Self::CAPACITY],
}

impl Power {
    const CAPACITY: usize = 4;

    pub(super) const fn new() -> Self {
        Self { mwait: None, pwre: [None; Self::CAPACITY] }
    }
}

impl EventDecoder<'_> {
    pub(super) fn mwait(&mut self, offset: u64, mwait: Mwait) -> Result<(), ErrorKind> {
        let event = self.event(offset, None, EventKind::Mwait(mwait));
        match self.power.mwait.replace(event) {
            Some(unanswered) => self.publish_as_it_was(unanswered),
            None => Ok(()),
        }
    }

    pub(super) fn exstop(&mut self, offset: u64, exstop: Exstop) -> Result<(), ErrorKind> {
        if !exstop.ip {
            let behind = core::mem::replace(&mut self.held, offset);
            self.publish_mwait()?;
            self.held = behind;
            return self.publish(offset, None, EventKind::Exstop);
        }
        if let Some(mwait) = self.power.mwait.take() {
            self.waiting.push(Waiter::Event(mwait.kind), "EXSTOP")?;
        }
        self.waiting.push(Waiter::Event(EventKind::Exstop), "EXSTOP")
    }

    pub(super) fn pwre(&mut self, pwre: Pwre) -> Result<(), ErrorKind> {
        let event = self.event(0, None, EventKind::Pwre(pwre));
        let free = self.power.pwre.iter_mut().find(|slot| slot.is_none());
        *free.ok_or(ErrorKind::TooManyWaiting("PWRE"))? = Some(event);
        Ok(())
    }

    pub(super) fn pwrx(&mut self, offset: u64, pwrx: Pwrx) -> Result<(), ErrorKind> {
        let behind = core::mem::replace(&mut self.held, offset);
        self.publish_pwres(offset)?;
        self.held = behind;
        self.publish(offset, None, EventKind::Pwrx(pwrx))
    }

    /// Publishes the C-states that were entered, with the time at which they were.
    pub(super) fn publish_pwres(&mut self, offset: u64) -> Result<(), ErrorKind> {
        let pwres = core::mem::take(&mut self.power.pwre);
        for pwre in pwres.into_iter().flatten() {
            self.publish_as_it_was(Event { offset, ..pwre })?;
        }
        Ok(())
    }

    /// Publishes an MWAIT that nothing says the place of.
    pub(super) fn publish_mwait(&mut self) -> Result<(), ErrorKind> {
        self.power.mwait.take().map_or(Ok(()), |mwait| self.publish_as_it_was(mwait))
    }

    fn publish_as_it_was(&mut self, event: Event) -> Result<(), ErrorKind> {
        let event = Event { held: self.held, ..event };
        if self.ready.push(event) { Ok(()) } else { Err(ErrorKind::TooManyWaiting("event")) }
    }
}
