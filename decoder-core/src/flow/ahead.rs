//! What comes next in the trace: outcomes and the event behind them, and errors with their place.

use super::walker::Walker;
use crate::{
    error::{Error, ErrorKind},
    event::{Branch, Event, EventKind},
    packet::Tnt,
};

impl Walker<'_> {
    /// Makes known what comes next in the trace, an outcome or an event; `false` at the end of the trace.
    #[inline]
    pub(super) fn look(&mut self) -> Result<bool, Error> {
        while self.tnt.is_empty() {
            if !matches!(self.event, None | Some(Event { kind: EventKind::Tnt(_), .. })) {
                break;
            }
            match self.next_event()? {
                Some(event @ Event { kind: EventKind::Tnt(tnt), .. }) => {
                    if self.config().flags.ticks {
                        // Only its first outcome tells whether time has gone on.
                        self.tnt_event = Some(event);
                    } else {
                        self.when = event.when;
                    }
                    self.take_outcomes(event.offset, tnt);
                }
                Some(event) => self.event = Some(event),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Looks whether a branch is what comes next in the trace, without the events in between; `false` where that cannot
    /// be said so easily. Only without ticks.
    #[inline(always)]
    pub(crate) fn sees_branch(&mut self) -> bool {
        if !self.tnt.is_empty() || self.awaits_target {
            return true;
        }
        if self.event.is_some() || self.deferred.is_some() {
            return self.awaits_branch();
        }
        match self.events.next_branch() {
            Some(Branch::Outcomes(offset, tnt)) => {
                self.when = self.events.now();
                self.take_outcomes(offset, tnt);
                true
            }
            Some(Branch::Target) => {
                self.awaits_target = true;
                true
            }
            None => false,
        }
    }

    /// Whether a target is what comes next in the trace.
    #[inline(always)]
    pub(crate) fn sees_target(&mut self) -> bool {
        self.tnt.is_empty() && self.sees_branch() && self.awaits_target
    }

    /// The outcomes that come next, as far as they are known and at most so many; see [`Outcomes::peek`].
    #[inline]
    pub(crate) fn peek_outcomes(&self, most: u8) -> u8 {
        self.tnt.peek(most)
    }

    #[inline(always)]
    fn take_outcomes(&mut self, offset: u64, tnt: Tnt) {
        self.located = self.behind();
        self.outcomes_at = offset;
        let offset = self.events.offset() as usize;
        let more = self.tnt.fill(tnt, if self.bulk { self.events.trace() } else { &[] }, offset);
        if more > 0 {
            self.packets += more as u64;
            self.events.rewind((offset + more) as u64);
        }
    }

    /// Makes an event of the target that was seen.
    #[cold]
    pub(super) fn read_target(&mut self) {
        if core::mem::take(&mut self.awaits_target)
            && let Ok(event) = self.events.next()
        {
            self.event = event;
        }
    }

    /// The next event, which may have been read already.
    #[inline]
    pub(super) fn next_event(&mut self) -> Result<Option<Event>, Error> {
        self.awaits_target = false;
        self.deferred_tip = None;
        match (self.event.take(), self.deferred.take()) {
            (Some(event), _) => Ok(Some(event)),
            (None, Some(error)) => Err(error),
            (None, None) => self.events.next(),
        }
    }

    /// Reads on to the next event already when one outcome is left; an error in it is kept until it is its turn.
    pub(super) fn look_ahead(&mut self) {
        // A tick comes first.
        let ticks = self.tnt_event.is_some_and(|event| self.has_tick(&event));
        if self.tnt.len() == 1 && self.event.is_none() && self.deferred.is_none() && !ticks {
            self.deferred_tip = None;
            match self.events.next() {
                Ok(event) => self.event = event,
                Err(error) => self.deferred = Some(error),
            }
        }
    }

    /// The next event, when no outcomes are before it.
    #[inline]
    pub(super) fn event_if_next(&self) -> Option<&Event> {
        self.event.as_ref().filter(|_| self.tnt.is_empty())
    }

    /// Whether what is known of the trace is a branch, and no event has its place before that.
    #[inline]
    pub(crate) fn awaits_branch(&self) -> bool {
        !self.tnt.is_empty() || matches!(self.event, Some(Event { kind: EventKind::Tip, status: false, .. }))
    }

    /// Gives the outcomes back that are not of the packet that comes next.
    #[cold]
    pub(super) fn give_back(&mut self) {
        self.give_back_behind(0);
    }

    /// Gives the outcomes back that are not of the packet with the one that comes next, or with one `before` it.
    fn give_back_behind(&mut self, before: u8) {
        if !self.tnt.is_empty()
            && let Some((offset, packets)) = self.tnt.give_back(self.events.trace(), before)
        {
            self.packets -= packets as u64;
            self.events.rewind(offset as u64);
        }
    }

    /// An error at the packet that the decoder holds.
    #[cold]
    pub(crate) fn fail(&mut self, kind: ErrorKind) -> Error {
        self.read_target();
        self.give_back();
        Error { offset: self.offset(), kind }
    }

    /// An error at the packet with the outcome that was taken last.
    #[cold]
    pub(super) fn fail_at_outcome(&mut self, kind: ErrorKind) -> Error {
        self.give_back_behind(1);
        Error { offset: self.offset(), kind }
    }

    #[cold]
    pub(super) fn mismatch(&mut self) -> Error {
        self.fail(ErrorKind::TraceMismatch { ip: self.ip })
    }
}
