//! Events that wait for the packet with their address.

use crate::{
    code::{Answer, Code},
    event::PtEvent,
};
use std::ffi::c_int;

/// Packets that events wait for, as bits: an event may wait for the first of several.
pub(super) mod binding {
    pub(in crate::events) const PSBEND: u8 = 1 << 0;
    pub(in crate::events) const TIP: u8 = 1 << 1;
    /// A FUP that begins an asynchronous branch, too.
    pub(in crate::events) const FUP: u8 = 1 << 2;
    /// A FUP that belongs to the event alone.
    pub(in crate::events) const OWN_FUP: u8 = 1 << 3;
    pub(in crate::events) const EXSTOP: u8 = 1 << 4;
    /// A PWRX, with which 2.3 reports the PWRE before it.
    pub(in crate::events) const PWRX: u8 = 1 << 5;
    pub(in crate::events) const ANY: u8 = u8::MAX;
}

/// libipt's maximum: it has sixteen places and leaves two of them empty.
const MOST: usize = 14;

/// The waiting events, in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingEvents {
    events: [(u8, PtEvent); MOST],
    len: usize,
}

impl WaitingEvents {
    pub(super) const NONE: Self = Self { events: [(0, PtEvent::EMPTY); MOST], len: 0 };

    /// Adds an event that waits for one of these packets.
    pub(super) fn push(&mut self, binding: u8, event: PtEvent) -> Answer<()> {
        let place = self.events.get_mut(self.len).ok_or(Code::NoMemory.status())?;
        *place = (binding, event);
        self.len += 1;
        Ok(())
    }

    /// Takes the first event that waits for one of these packets.
    pub(super) fn take(&mut self, bindings: u8) -> Option<PtEvent> {
        let waiting = &mut self.events[..self.len];
        let at = waiting.iter().position(|(binding, _)| binding & bindings != 0)?;
        let (_, event) = waiting[at];
        waiting[at..].rotate_left(1);
        self.len -= 1;
        Some(event)
    }

    /// Returns the first event that waits for one of these packets.
    pub(super) fn first_mut(&mut self, bindings: u8) -> Option<&mut PtEvent> {
        let mut waiting = self.events[..self.len].iter_mut();
        waiting.find(|(binding, _)| binding & bindings != 0).map(|(_, event)| event)
    }

    /// Returns the first event of a kind that waits for one of these packets.
    pub(super) fn find_mut(&mut self, bindings: u8, kind: c_int) -> Option<&mut PtEvent> {
        let mut waiting = self.events[..self.len].iter_mut();
        waiting.find(|(binding, event)| binding & bindings != 0 && event.kind == kind).map(|(_, event)| event)
    }

    /// Returns true if an event waits for one of these packets.
    pub(super) fn has(&mut self, bindings: u8) -> bool {
        self.first_mut(bindings).is_some()
    }
}
