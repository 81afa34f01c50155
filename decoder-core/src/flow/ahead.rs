//! Looking ahead in the trace: the next outcomes and the event after them, and errors with their offset.

use super::{tnt::Outcomes, walker::Walker};
use crate::{
    error::{Error, ErrorKind},
    event::{Event, EventKind},
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
                    self.located = self.behind();
                    self.outcomes_at = event.offset;
                    self.tnt = Outcomes::of(tnt);
                }
                Some(event) => self.event = Some(event),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The next event, which may have been read already.
    #[inline]
    pub(super) fn next_event(&mut self) -> Result<Option<Event>, Error> {
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

    /// An error at the packet that the decoder holds.
    #[cold]
    pub(crate) fn fail(&self, kind: ErrorKind) -> Error {
        Error { offset: self.offset(), kind }
    }

    #[cold]
    pub(super) fn mismatch(&self) -> Error {
        self.fail(ErrorKind::TraceMismatch { ip: self.ip })
    }
}
