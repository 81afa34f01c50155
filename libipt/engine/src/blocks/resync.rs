//! Goes on after an error, at the next event that gives a place.

use super::{block::FlowStatus, decoder::BlockDecoder};
use crate::{
    code::{Answer, Code},
    event::{flag, kind},
};

/// The use of an event as a place.
enum Place {
    /// The walk goes on here, and the event is pending (true) or comes after the instruction here.
    Pending(bool),
    /// The walk goes on after the event.
    After,
    /// None: go to the next event.
    No,
}

impl BlockDecoder<'_> {
    /// Looks for a place to go on after an error.
    ///
    /// # Errors
    /// [`Code::EventIgnored`]: the next event has to be taken with [`event`](Self::event) first. Others end the search.
    pub fn resync(&mut self) -> Answer<FlowStatus> {
        self.clear_postponed();
        loop {
            if let Some(error) = self.error {
                return Err(error);
            }
            if self.event.has(flag::STATUS_UPDATE) {
                // In the middle of a PSB+: start at its begin.
                let offset = self.events.sync_offset().ok_or(Code::NoSync.status())?;
                return self.sync_set(offset);
            }
            match self.place_of_event()? {
                Place::Pending(event) => return Ok(self.status(event)),
                Place::After => {
                    self.next_event()?;
                    return self.trailing_event(None);
                }
                Place::No => self.next_event()?,
            }
        }
    }

    fn place_of_event(&mut self) -> Answer<Place> {
        let event = self.event;
        let ip = event.ip();
        match event.kind {
            kind::ENABLED => self.enabled = false,
            kind::DISABLED => {
                (self.enabled, self.ip, self.since_anchor) = (false, 0, self.since_anchor.map(|_| 0));
                return Ok(Place::After);
            }
            kind::ASYNC_DISABLED => {
                self.ip = event.variant[0];
                if self.is_vm_entry_by_skd022() {
                    return Ok(Place::No);
                }
            }
            kind::ASYNC_BRANCH => self.ip = event.variant[0],
            kind::OVERFLOW => {}
            kind::EXEC_MODE | kind::TSX | kind::IFLAGS | kind::INTERRUPT => {
                self.enabled = ip.is_some();
                self.ip = ip.unwrap_or(self.ip);
            }
            kind::TIP => {
                self.ip = event.variant[0];
                return Ok(Place::After);
            }
            // It binds to an instruction, which only a walk can find.
            kind::PTWRITE if ip.is_none() => return Err(Code::EventIgnored.status()),
            kind::TRIG => return Ok(Place::No),
            kind::PAGING | kind::VMCS => {
                self.change_space(&event);
                return Ok(Place::No);
            }
            _ => {
                let Some(ip) = ip else {
                    if matches!(event.kind, kind::ASYNC_PAGING | kind::ASYNC_VMCS) {
                        self.change_space(&event);
                    }
                    return Ok(Place::No);
                };
                self.ip = ip;
                // These are reported after their instruction.
                return Ok(Place::Pending(!matches!(
                    event.kind,
                    kind::PTWRITE | kind::VMENTRY | kind::UIRET
                )));
            }
        }
        Ok(Place::Pending(true))
    }
}
