//! Synchronisation: a walk starts at a PSB, with the status updates after it.

use super::walker::Walker;
use crate::{error::Error, event::Event, keeper::Keeper};

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

    /// Applies and returns the next status update of the PSB+ that was synchronised onto; `None` after the last one,
    /// or if the trace ends in the PSB+.
    pub(super) fn next_status(&mut self) -> Result<Option<Event>, Error> {
        let event = match core::mem::replace(&mut self.ahead.started, true) {
            false => self.events.next()?,
            true => self.events.next_status()?,
        };
        match event {
            Some(event) if event.status => {
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
}
