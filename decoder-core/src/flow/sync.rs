//! Synchronisation: a walk starts at a PSB, with the status updates after it.

use super::{place::Tracing, walker::Walker};
use crate::{
    error::Error,
    event::{Event, EventKind},
    keeper::Keeper,
};

impl<K: Keeper> Walker<'_, K> {
    /// Goes to the next PSB and returns its offset; `None` when none follows.
    pub(crate) fn sync_forward(&mut self) -> Option<u64> {
        self.forget();
        self.events.sync_forward()
    }

    /// Goes to the first PSB after which nothing was reported yet and returns its offset; `None` when there is none.
    pub(crate) fn resync(&mut self) -> Option<u64> {
        if let Some(psb) = self.at.psb {
            self.events.rewind(psb);
        }
        self.sync_forward()
    }

    /// Goes to the last PSB before the current position and returns its offset; `None` when there is none.
    pub(crate) fn sync_backward(&mut self) -> Option<u64> {
        self.forget();
        self.events.sync_backward()
    }

    /// Goes to the PSB at `offset`, even if the walk was there before. Returns `false` and changes nothing if none is
    /// there.
    pub(crate) fn sync_at(&mut self, offset: u64) -> bool {
        let found = self.events.sync_at(offset);
        if found {
            self.forget();
        }
        found
    }

    pub(crate) fn sync_offset(&self) -> Option<u64> {
        self.events.sync_offset()
    }

    /// Returns the offset of the packet that the decoder holds: the first one that is not an event yet, see
    /// [`Event::held`]; the end of the trace when everything was used.
    pub(super) fn held(&self) -> u64 {
        let held = self.ahead.event.map(|event| event.held).or(self.ahead.deferred_tip);
        held.unwrap_or_else(|| self.events.held_next())
    }

    /// Goes to the next PSB as libipt does, and returns its offset. A PSB that the decoder holds is skipped.
    pub(super) fn sync_forward_from_held(&mut self) -> Option<u64> {
        if self.at.failed {
            self.events.pass_psb(self.held());
        }
        self.sync_forward()
    }

    /// Applies and returns the next status update of the PSB+ that was synchronised onto; `None` after the last one,
    /// or if the trace ends in the PSB+.
    pub(super) fn next_status(&mut self) -> Result<Option<Event>, Error> {
        let event = match core::mem::replace(&mut self.ahead.started, true) {
            false => self.events.next()?,
            true => match self.events.next_status()? {
                None if self.at.tracing != Tracing::On && self.config().dialect.starts_at_next_event() => {
                    let offset = self.ahead.status_end;
                    self.events.next().map_err(|error| {
                        self.events.rewind(offset);
                        Error { offset, ..error }
                    })?
                }
                event => event,
            },
        };
        match event {
            Some(event) if event.status => {
                self.ahead.status_end = event.held;
                self.ahead.event = Some(event);
                self.apply(&mut { event }).map_err(|kind| Error { offset: event.offset, kind })?;
                self.ahead.event = None;
                Ok(Some(event))
            }
            other => {
                self.ahead.event = other;
                Ok(None)
            }
        }
    }

    /// Returns the next event, if it is no branch and no outcome or target comes before it.
    pub(super) fn awaited(&self) -> Option<&Event> {
        self.event_if_next().filter(|event| !matches!(event.kind, EventKind::Tip | EventKind::Tnt(_)))
    }
}
