//! Synchronisation: an event decoder starts at a PSB, without any state.

use super::{Counters, Event, EventDecoder, EventState, clock::Clock, decoder::Giving};
use crate::{error::Error, keeper::Keeper};

impl<K: Keeper> EventDecoder<'_, K> {
    /// Goes to the next PSB and returns its offset; `None` when none follows.
    ///
    /// The decoder forgets all state except the counters.
    pub fn sync_forward(&mut self) -> Option<u64> {
        self.forget();
        let psb = self.packets.sync_forward();
        self.begin(psb.is_some());
        psb
    }

    /// Goes to the last PSB before the current position and returns its offset; `None` when there is none.
    pub fn sync_backward(&mut self) -> Option<u64> {
        self.forget();
        let psb = self.packets.sync_backward();
        self.begin(psb.is_some());
        psb
    }

    /// Goes to the PSB at `offset`, even if the decoder was there before. Returns `false` and changes nothing if there
    /// is none.
    ///
    /// In a run of PSBs without a gap, goes to the last one.
    pub fn sync_at(&mut self, offset: u64) -> bool {
        let found = self.packets.sync_at(offset);
        if found {
            self.forget();
            self.begin(true);
        }
        found
    }

    /// Returns the offset of the PSB that was synchronised onto last.
    #[must_use]
    pub fn sync_offset(&self) -> Option<u64> {
        self.packets.sync_offset()
    }

    /// Forgets everything but the counters, and continues at `offset`.
    pub(crate) fn restart(&mut self, offset: u64) {
        self.forget();
        self.packets.restart(offset);
    }

    /// Returns the number of bytes that the decoder may look ahead in a trace that comes in slices.
    pub(crate) fn reach(&self) -> u64 {
        self.packets.input().reach as u64
    }

    /// Goes back to a PSB that was read already, so that the next synchronisation finds it.
    pub(crate) fn rewind(&mut self, psb: u64) {
        self.packets.set_offset(psb);
    }

    /// Returns true if the decoder reports events: it found a PSB and no error was reported since.
    pub(crate) fn is_synced(&self) -> bool {
        !matches!(self.state.giving, Giving::OutOfSync)
    }

    /// Returns the PSB of the last status updates.
    pub(crate) fn status_psb(&self) -> u64 {
        self.state.status_psb
    }

    /// Returns the next status update of the PSB+ whose events are being returned.
    pub(crate) fn next_status(&mut self) -> Result<Option<Event>, Error> {
        let mut event = None;
        if self.state.replay.as_ref().is_some_and(|replay| !replay.maintenance) {
            self.state.ready.pop_into(&mut event);
            if event.is_none() {
                self.replay(&mut event)?;
            }
        }
        Ok(event)
    }

    fn begin(&mut self, found: bool) {
        self.state.giving = if found { Giving::Synced } else { Giving::OutOfSync };
    }

    fn forget(&mut self) {
        self.state.forget();
    }
}

impl EventState {
    /// Forgets everything but the counters.
    fn forget(&mut self) {
        self.giving = Giving::OutOfSync;
        self.last_ip.reset();
        self.tracing = false;
        self.clock = Clock::STOPPED;
        self.ready.clear();
        self.replay = None;
        self.mode = None;
        self.waiting.clear();
    }

    /// Forgets everything, including the counters.
    pub(crate) fn clear(&mut self) {
        self.forget();
        (self.status_psb, self.counters) = (0, Counters::NONE);
    }
}
