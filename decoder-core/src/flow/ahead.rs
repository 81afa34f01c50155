//! Looking ahead in the trace: the next outcomes, the event after them, and a deferred error with its offset.

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
    /// An error that comes after the outcomes that are left.
    pub(super) deferred: Option<Error>,
    /// The offset of a deferred TIP that was taken, until the next event is read; libipt holds that packet so long.
    pub(super) deferred_tip: Option<u64>,
    /// True once the status updates of the PSB+ that was synchronised onto are being read.
    pub(super) started: bool,
    /// The packet held with the last status update: the end of the PSB+.
    pub(super) status_end: u64,
}

impl Ahead {
    pub(super) const NOTHING: Self = Self {
        tnt: UnusedOutcomes::new(),
        outcomes_at: 0,
        tnt_event: None,
        event: None,
        deferred: None,
        deferred_tip: None,
        started: false,
        status_end: 0,
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
        self.ahead.deferred_tip = None;
        let deferred = self.ahead.deferred.take();
        match deferred {
            _ if self.ahead.event.is_some() => Ok(()),
            Some(error) => Err(error),
            None => self.events.next_into(&mut self.ahead.event),
        }
    }

    /// Returns the next event, which may have been read already.
    pub(super) fn next_event(&mut self) -> Result<Option<Event>, Error> {
        self.read_event()?;
        Ok(self.ahead.event.take())
    }

    /// Reads the next event when only one outcome is left. An error is deferred until that outcome is used.
    pub(super) fn look_ahead(&mut self) {
        // A tick comes first.
        let ticks = self.ahead.tnt_event.is_some_and(|event| self.has_tick(&event));
        if self.ahead.tnt.len() == 1 && self.ahead.event.is_none() && self.ahead.deferred.is_none() && !ticks
        {
            self.ahead.deferred_tip = None;
            self.ahead.deferred = self.events.next_into(&mut self.ahead.event).err();
        }
    }

    /// Returns the next event, if no outcomes come before it.
    #[inline]
    pub(super) fn event_if_next(&self) -> Option<&Event> {
        self.ahead.event.as_ref().filter(|_| self.ahead.tnt.is_empty())
    }

    /// Returns an error of this kind at the packet that the decoder holds.
    #[cold]
    pub(crate) fn fail(&self, kind: ErrorKind) -> Error {
        Error { offset: self.offset(), kind }
    }

    #[cold]
    pub(super) fn mismatch(&self) -> Error {
        self.fail(ErrorKind::TraceMismatch { ip: self.at.ip })
    }
}
