//! MWAIT, PWRE, EXSTOP and PWRX: the processor enters a C-state (sleep state) and leaves it.
//!
//! An MWAIT is reported at the place of the EXSTOP after it. A PWRE is reported when its PWRX has arrived.

use super::{
    EventDecoder, EventKind,
    waiting::{Partner, Waiter},
};
use crate::{
    error::ErrorKind,
    keeper::Keeper,
    packet::{Exstop, Mwait, Pwre, Pwrx},
};

impl<K: Keeper> EventDecoder<'_, K> {
    pub(super) fn mwait(&mut self, mwait: Mwait) -> Result<(), ErrorKind> {
        self.state.waiting.push(Partner::Exstop, Some(EventKind::Mwait(mwait)), "MWAIT")
    }

    pub(super) fn exstop(&mut self, offset: u64, exstop: Exstop) -> Result<(), ErrorKind> {
        if exstop.ip {
            if let Some(mwait) = self.state.waiting.take_for(Partner::Exstop) {
                self.state.waiting.push(Partner::OwnFup, mwait.kind, "EXSTOP")?;
            }
            return self.state.waiting.push(Partner::OwnFup, Some(EventKind::Exstop), "EXSTOP");
        }
        self.publish_for(Partner::Exstop, offset)?;
        self.publish(offset, None, EventKind::Exstop)
    }

    pub(super) fn pwre(&mut self, pwre: Pwre) -> Result<(), ErrorKind> {
        let when = Some(self.state.clock.now());
        self.state
            .waiting
            .push_with(Waiter { partner: Partner::Pwrx, kind: Some(EventKind::Pwre(pwre)), when }, "PWRE")
    }

    pub(super) fn pwrx(&mut self, offset: u64, pwrx: Pwrx) -> Result<(), ErrorKind> {
        self.publish_for(Partner::Pwrx, offset)?;
        self.publish(offset, None, EventKind::Pwrx(pwrx))
    }

    /// Publishes the events that wait for the current packet.
    fn publish_for(&mut self, partner: Partner, offset: u64) -> Result<(), ErrorKind> {
        while let Some(waiter) = self.state.waiting.take_for(partner) {
            self.publish_waiter(offset, None, waiter)?;
        }
        Ok(())
    }
}
