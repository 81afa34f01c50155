//! Recovery: continues after an error at the next event that gives the decoder's place, without waiting for a PSB.

use super::{
    place::{Placed, Tracing},
    walker::Walker,
};
use crate::{
    error::{Error, ErrorKind},
    event::{Event, EventKind},
    keeper::Keeper,
};

/// The result of [`InsnDecoder::recover`](super::InsnDecoder::recover).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recovered {
    /// A place to continue was found; tracing may be off there.
    Place,
    /// The end of the trace.
    End,
    /// An event whose place is unknown comes first. The next call continues the search.
    Event(Event),
}

impl<K: Keeper> Walker<'_, K> {
    /// Looks for the next event that gives the walk's place, after an error, and continues there.
    pub(crate) fn recover(&mut self) -> Result<Recovered, Error> {
        self.at.executed = None;
        self.at.landed = false;
        self.at.tick = None;
        self.at.loops.consumed();
        self.at.failed = false;
        self.at.placed = Placed::Here;
        let recovered = self.search();
        match recovered {
            Ok(Recovered::Place) => self.at.error = None,
            Ok(Recovered::Event(_)) => {}
            Ok(Recovered::End) => self.at.failed = true,
            Err(error) => {
                self.at.error = Some(error);
                self.at.failed = true;
            }
        }
        recovered
    }

    fn search(&mut self) -> Result<Recovered, Error> {
        loop {
            let event = match self.ahead.event.take() {
                // The last recovery was at this event, and failed again.
                Some(event) if self.at.recovered_at == Some(event) => continue,
                Some(event) => event,
                None if !self.events.is_synced() => {
                    return Err(self.at.error.unwrap_or_else(|| self.fail(ErrorKind::OutOfSync)));
                }
                None => match self.next_event()? {
                    Some(event) => event,
                    None => {
                        self.ahead.tnt.clear();
                        return Ok(Recovered::End);
                    }
                },
            };
            self.ahead.tnt.clear();
            self.ahead.tnt_event = None;
            if let Some(recovered) = self.place_of(event)? {
                return Ok(recovered);
            }
        }
    }

    /// Continues at the place that `event` gives; `None` if it gives none.
    fn place_of(&mut self, event: Event) -> Result<Option<Recovered>, Error> {
        if event.status {
            self.ahead.event = Some(event);
            return self.start_over().map(Some);
        }
        let pending = match (event.kind, event.ip) {
            (EventKind::Enabled { .. }, _) => {
                self.stop(self.at.ip);
                true
            }
            (EventKind::Disabled, _) => {
                self.stop(event.ip.unwrap_or(0));
                false
            }
            (EventKind::AsyncDisabled { at: from } | EventKind::AsyncBranch { from }, _) => {
                self.resume_at(from);
                true
            }
            (EventKind::Overflow, _) => true,
            (EventKind::Tip, Some(ip)) => {
                self.resume_at(ip);
                false
            }
            (EventKind::Tip, None) => {
                return Err(Error { offset: event.offset, kind: ErrorKind::IpSuppressed("TIP") });
            }
            (
                EventKind::ExecMode(_)
                | EventKind::Tsx { .. }
                | EventKind::Iflags { .. }
                | EventKind::Interrupt { .. },
                None,
            ) => {
                self.stop(0);
                true
            }
            (EventKind::Ptwrite(_), None) => return Ok(Some(Recovered::Event(event))),
            (EventKind::Paging(_) | EventKind::Vmcs(_), _)
            | (EventKind::AsyncPaging(_) | EventKind::AsyncVmcs(_), None) => {
                self.apply_context(event.kind);
                return Ok(None);
            }
            (
                EventKind::Stop
                | EventKind::Pwre(_)
                | EventKind::Pwrx(_)
                | EventKind::Cbr { .. }
                | EventKind::Mnt { .. }
                | EventKind::Tnt(_)
                | EventKind::Trigger { .. }
                | EventKind::Sipi { .. },
                _,
            ) => return Ok(None),
            (_, Some(ip)) => {
                self.resume_at(ip);
                true
            }
            (_, None) => return Ok(None),
        };
        self.ahead.event = pending.then_some(event);
        self.at.recovered_at = self.ahead.event;
        if !pending {
            self.at.loops.anchor();
        }
        Ok(Some(Recovered::Place))
    }

    /// Restarts at the PSB+ of the current status update.
    fn start_over(&mut self) -> Result<Recovered, Error> {
        let psb = self.events.status_psb();
        self.forget();
        if !self.events.sync_at(psb) {
            return Ok(Recovered::End);
        }
        while self.next_status()?.is_some() {}
        let known = self.at.tracing != Tracing::Unknown || self.ahead.event.is_some();
        Ok(if known { Recovered::Place } else { Recovered::End })
    }
}
