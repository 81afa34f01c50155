//! The queue of complete events that the caller has not taken yet.

use super::Event;

/// A queue of fixed size. It holds more than one event only when one packet completes several.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    events: [Option<Event>; Self::CAPACITY],
    first: usize,
    len: usize,
}

impl Ready {
    /// Enough for all events that can wait at one time: PWREs, MWAIT, and MODE.Execs with two events each.
    const CAPACITY: usize = 18;

    pub(super) const fn new() -> Self {
        Self { events: [None; Self::CAPACITY], first: 0, len: 0 }
    }

    pub(super) const fn clear(&mut self) {
        self.len = 0;
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Undoes a [`clear`](Self::clear) of `len` events, after which none was appended; drops all if `len` is 0.
    pub(super) const fn restore(&mut self, len: usize) {
        self.len = len;
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends an event; returns `false` if there is no room.
    pub(super) fn push(&mut self, event: Event) -> bool {
        if self.len == Self::CAPACITY {
            return false;
        }
        self.events[(self.first + self.len) % Self::CAPACITY] = Some(event);
        self.len += 1;
        true
    }

    /// Moves the oldest event to `event`, if there is one.
    pub(super) fn pop_into(&mut self, event: &mut Option<Event>) {
        if self.len == 0 {
            return;
        }
        *event = self.events[self.first].take();
        self.first = (self.first + 1) % Self::CAPACITY;
        self.len -= 1;
    }
}
