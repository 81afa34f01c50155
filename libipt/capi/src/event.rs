//! The queues of events that wait for a packet.

pub(crate) use pugmark_ipt::event::{PtEvent, flag, kind};
use std::ffi::c_int;

/// The packet that the events of a queue wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    PsbEnd,
    Tip,
    Fup,
}

/// The maximum number of events that wait for one packet.
const MOST: usize = 6;

/// A ring of events. As in libipt two of its places are never used, so it is full with six events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    events: [PtEvent; 8],
    begin: usize,
    len: usize,
}

impl Queue {
    pub(crate) const EMPTY: Self = Self { events: [PtEvent::EMPTY; 8], begin: 0, len: 0 };

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) const fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds an event at the end; `None` if there is no room.
    pub(crate) fn push(&mut self, event: PtEvent) -> Option<()> {
        if self.len == MOST {
            return None;
        }
        self.events[(self.begin + self.len) % 8] = event;
        self.len += 1;
        Some(())
    }

    /// Takes the first event.
    pub(crate) fn pop(&mut self) -> Option<PtEvent> {
        self.len = self.len.checked_sub(1)?;
        let event = self.events[self.begin];
        self.begin = (self.begin + 1) % 8;
        Some(event)
    }

    /// Returns the index of the first event of a kind.
    fn at(&self, kind: c_int) -> Option<usize> {
        (0..self.len).map(|at| (self.begin + at) % 8).find(|&at| self.events[at].kind == kind)
    }

    /// Returns the first event of a kind.
    pub(crate) fn find(&self, kind: c_int) -> Option<&PtEvent> {
        Some(&self.events[self.at(kind)?])
    }

    /// Returns the first event of a kind, to be changed.
    pub(crate) fn find_mut(&mut self, kind: c_int) -> Option<&mut PtEvent> {
        Some(&mut self.events[self.at(kind)?])
    }
}
