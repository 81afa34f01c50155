//! Looking ahead in the trace: the next outcomes and the event after them, and errors with their offset.

use super::walker::Walker;
use crate::{
    error::{Error, ErrorKind},
    event::{Branch, Event, EventKind},
    packet::Tnt,
};

impl Walker<'_> {
    /// Reads what comes next in the trace, an outcome or an event, if it is not known yet; `false` at the end of the
    /// trace.
    #[inline]
    pub(super) fn look(&mut self) -> Result<bool, Error> {
        while self.tnt.is_empty() {
            if !matches!(self.event, None | Some(Event { kind: EventKind::Tnt(_), .. })) {
                break;
            }
            match self.next_event()? {
                Some(event @ Event { kind: EventKind::Tnt(tnt), .. }) => {
                    if self.config().flags.ticks {
                        // Whether time has advanced is checked at the TNT's first outcome.
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

    /// Checks with the fast path whether the trace has a branch next, before any event; `false` if that is not
    /// certain. Only for use without ticks.
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

    /// Whether the trace has a target next.
    #[inline(always)]
    pub(crate) fn sees_target(&mut self) -> bool {
        self.tnt.is_empty() && self.sees_branch() && self.awaits_target
    }

    /// The next outcomes that have been read, at most `most`; see [`Outcomes::peek`].
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

    /// Reads the target that was seen, as an event.
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

    /// Reads the next event when only one outcome is left. An error is kept until the outcome was used.
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

    /// The next event, if no outcomes come before it.
    #[inline]
    pub(super) fn event_if_next(&self) -> Option<&Event> {
        self.event.as_ref().filter(|_| self.tnt.is_empty())
    }

    /// Whether a branch has been read from the trace, with no event before it.
    #[inline]
    pub(crate) fn awaits_branch(&self) -> bool {
        !self.tnt.is_empty() || matches!(self.event, Some(Event { kind: EventKind::Tip, status: false, .. }))
    }

    /// Gives back the outcomes that are not from the packet with the next outcome.
    #[cold]
    pub(super) fn give_back(&mut self) {
        self.give_back_behind(0);
    }

    /// Gives back the outcomes that are not from the packet with the next outcome, or with the one `before` positions
    /// earlier.
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

    /// An error at the packet with the last outcome taken.
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
