//! Looking ahead in the trace: the next outcomes, and the event after them.

use super::{tnt::UnusedOutcomes, walker::Walker};
use crate::{
    error::{Error, ErrorKind},
    event::{Event, EventKind},
    keeper::Keeper,
};

/// The part of the trace that was read ahead and is not used yet.
#[derive(Clone, Debug)]
pub(super) struct Ahead {
    /// The outcomes that come before `event`.
    pub(super) tnt: UnusedOutcomes,
    /// The offset of the outcomes' packet.
    pub(super) outcomes_at: u64,
    /// The event of their TNT packet, until the first outcome is used; only ticks need it.
    pub(super) tnt_event: Option<Event>,
    /// The next event.
    pub(super) event: Option<Event>,
    /// True if a deferred TIP was taken, until the next event is read.
    pub(super) deferred_tip: bool,
    /// True once the status updates of the PSB+ that was synchronised onto are being read.
    pub(super) started: bool,
}

impl Ahead {
    pub(super) const NOTHING: Self = Self {
        tnt: UnusedOutcomes::new(),
        outcomes_at: 0,
        tnt_event: None,
        event: None,
        deferred_tip: false,
        started: false,
    };
}

impl<K: Keeper> Walker<'_, K> {
    /// Reads the next outcome or event, if it is not known yet. Returns `false` at the end of the trace.
    #[inline]
    pub(super) fn look(&mut self) -> Result<bool, Error> {
        while self.ahead.tnt.is_empty() {
            if !matches!(self.ahead.event, None | Some(Event { kind: EventKind::Tnt(_), .. })) {
                break;
            }
            self.read_event()?;
            match self.ahead.event {
                Some(Event { kind: EventKind::Tnt(tnt), when, offset, .. }) => {
                    if self.config().flags.ticks {
                        // The first outcome of the TNT makes the tick.
                        self.ahead.tnt_event = self.ahead.event;
                    } else {
                        self.at.when = when;
                    }
                    self.ahead.event = None;
                    self.at.located = self.after();
                    self.ahead.outcomes_at = offset;
                    self.ahead.tnt = UnusedOutcomes::of(tnt);
                }
                Some(_) => {}
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Reads the next event into `ahead.event` unless it is there already. The end of the trace leaves `None` there.
    #[inline]
    pub(super) fn read_event(&mut self) -> Result<(), Error> {
        self.ahead.deferred_tip = false;
        if self.ahead.event.is_some() { Ok(()) } else { self.events.next_into(&mut self.ahead.event) }
    }

    /// Returns the next event, which may have been read already.
    pub(super) fn next_event(&mut self) -> Result<Option<Event>, Error> {
        self.read_event()?;
        Ok(self.ahead.event.take())
    }

    /// Returns the next event, if no outcomes come before it.
    #[inline]
    pub(super) fn event_if_next(&self) -> Option<&Event> {
        self.ahead.event.as_ref().filter(|_| self.ahead.tnt.is_empty())
    }

    /// Returns an error of this kind at the next event or packet.
    #[cold]
    pub(crate) fn fail(&self, kind: ErrorKind) -> Error {
        Error { offset: self.offset(), kind }
    }

    #[cold]
    pub(super) fn mismatch(&self) -> Error {
        self.fail(ErrorKind::TraceMismatch { ip: self.at.ip })
    }
}
