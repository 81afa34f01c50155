//! The query decoder: events, and the outcomes in TNT packets one by one.

use super::{BranchEvent, Pending, QueryError};
use crate::{
    config::Config,
    error::Error,
    event::{Counters, Event, EventDecoder, EventKind, Stamp},
    keeper::{Keeper, Own},
    packet::{Packets, Tnt, before_psb},
};

/// Answers a caller's queries for the outcomes of branches and the events between them.
///
/// Decoding starts at a PSB: call [`sync_forward`](Self::sync_forward) first, and again after each error in the
/// trace.
#[derive(Debug)]
pub struct QueryDecoder<'a, K: Keeper = Own> {
    pub(super) events: EventDecoder<'a, K>,
    /// Outcomes that were not taken yet; the oldest is in bit `len - 1`. They precede `next`.
    pub(super) tnt: Tnt,
    /// The event after the outcomes, if it was read.
    pub(super) next: Option<Event>,
    /// The time of the last branch event.
    pub(super) when: Stamp,
}

const NO_OUTCOMES: Tnt = Tnt { bits: 0, len: 0 };

impl<'a> QueryDecoder<'a> {
    /// Creates a decoder at the start of `trace`, not synchronised.
    #[must_use]
    pub fn new(trace: &'a [u8]) -> Self {
        Self::with_config(trace, Config::new())
    }

    /// Creates a decoder at the start of `trace`, not synchronised.
    #[must_use]
    pub fn with_config(trace: &'a [u8], config: Config<'a>) -> Self {
        Self {
            events: EventDecoder::with_config(trace, config),
            tnt: NO_OUTCOMES,
            next: None,
            when: Stamp::default(),
        }
    }
}

impl Clone for QueryDecoder<'_> {
    fn clone(&self) -> Self {
        let Self { events, tnt, next, when } = self;
        Self { events: events.clone(), tnt: *tnt, next: *next, when: *when }
    }
}

/// The part of a decoder's state that is not the events'. It borrows nothing, and is small.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenBranchEvent {
    tnt: Tnt,
    next: Option<Event>,
    when: Stamp,
}

impl OpenBranchEvent {
    /// Nothing was read.
    pub(crate) const NONE: Self = Self { tnt: NO_OUTCOMES, next: None, when: Stamp::UNKNOWN };

    /// Returns the time of the last branch event.
    pub(crate) const fn time(&self) -> Option<u64> {
        self.when.tsc
    }
}

impl<'a, K: Keeper> QueryDecoder<'a, K> {
    /// Creates a decoder that continues with these events.
    pub(crate) const fn with_state(events: EventDecoder<'a, K>, open: OpenBranchEvent) -> Self {
        let OpenBranchEvent { tnt, next, when } = open;
        Self { events, tnt, next, when }
    }

    /// Returns the place in the trace.
    pub(crate) const fn packets(&self) -> &Packets<'a> {
        self.events.packets()
    }

    /// Returns the state apart from the events and the place in the trace.
    pub(crate) const fn open_branch_event(&self) -> OpenBranchEvent {
        let Self { tnt, next, when, .. } = *self;
        OpenBranchEvent { tnt, next, when }
    }

    /// Goes to the next PSB and returns its offset; `None` when none follows.
    ///
    /// The decoder forgets all state except the counters.
    pub fn sync_forward(&mut self) -> Option<u64> {
        self.forget();
        self.events.sync_forward()
    }

    /// Goes to the last PSB before the current position and returns its offset; `None` when there is none.
    pub fn sync_backward(&mut self) -> Option<u64> {
        self.forget();
        self.events.sync_backward()
    }

    /// Goes to the PSB at `offset`, even if the decoder was there before. Returns `false` and changes nothing if there
    /// is none.
    ///
    /// In a run of PSBs without a gap, goes to the last one.
    pub fn sync_at(&mut self, offset: u64) -> bool {
        let found = self.events.sync_at(offset);
        if found {
            self.forget();
        }
        found
    }

    /// Returns the offset before which the trace is not needed any more.
    pub(crate) fn keep_from(&self) -> u64 {
        before_psb(self.events.offset())
    }

    fn forget(&mut self) {
        self.tnt = NO_OUTCOMES;
        self.next = None;
        self.when = Stamp::default();
    }

    /// Returns the IP at which tracing continues by the PSB+ that was synchronised onto; `None` if tracing is off
    /// there, and at the end of the trace. This is the IP of the first event, which is not consumed.
    ///
    /// # Errors
    /// As [`pending`](Self::pending).
    pub fn start(&mut self) -> Result<Option<u64>, Error> {
        self.look()?;
        Ok(self.next.filter(|event| event.status).and_then(|event| event.ip))
    }

    /// Returns the offset of the packet that completed the next event, if that was read; otherwise of the next packet,
    /// or the end of the trace.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.next.map_or_else(|| self.events.offset(), |event| event.offset)
    }

    /// Returns the offset of the PSB that was synchronised onto last.
    #[must_use]
    pub fn sync_offset(&self) -> Option<u64> {
        self.events.sync_offset()
    }

    /// Returns the trace.
    #[must_use]
    pub fn trace(&self) -> &'a [u8] {
        self.events.trace()
    }

    /// Returns the configuration that the trace is read with.
    #[must_use]
    pub fn config(&self) -> &Config<'a> {
        self.events.config()
    }

    /// Returns the time of the last branch event: the estimated TSC, 56 bits; `None` before the first TSC packet.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        self.when.tsc
    }

    /// Returns how many MTC packets [`time`](Self::time) excludes because their clock ran too far.
    #[must_use]
    pub fn lost_mtc(&self) -> u32 {
        self.when.lost_mtc
    }

    /// Returns how many CYC packets [`time`](Self::time) excludes because no ratio was known.
    #[must_use]
    pub fn lost_cyc(&self) -> u32 {
        self.when.lost_cyc
    }

    /// Returns the ratio of core clock to bus clock at that time; `None` before the first CBR packet.
    #[must_use]
    pub fn core_bus_ratio(&self) -> Option<u8> {
        self.when.core_bus_ratio
    }

    /// Returns counts of the packets read so far, over all synchronisations.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.events.counters()
    }

    /// Returns the kind of the next branch event, or `None` at the end of the trace.
    ///
    /// # Errors
    /// An error in the trace. After one, only [`OutOfSync`](crate::ErrorKind::OutOfSync) follows until the next
    /// synchronisation.
    #[inline]
    pub fn pending(&mut self) -> Result<Option<Pending>, Error> {
        if self.tnt.len > 0 {
            return Ok(Some(Pending::Conditional));
        }
        self.look()?;
        Ok(match self.next {
            _ if self.tnt.len > 0 => Some(Pending::Conditional),
            Some(Event { kind: EventKind::Tip, .. }) => Some(Pending::Indirect),
            Some(_) => Some(Pending::Event),
            None => None,
        })
    }

    /// Takes the next branch event, of any kind; `None` at the end of the trace.
    ///
    /// # Errors
    /// As [`pending`](Self::pending).
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot tell its end from an error by `?`")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<BranchEvent>, Error> {
        Ok(match self.pending()? {
            None => None,
            Some(Pending::Conditional) => self.take_outcome().map(BranchEvent::Conditional),
            Some(Pending::Indirect) => self.take().map(|event| BranchEvent::Indirect(event.ip)),
            Some(Pending::Event) => self.take().map(BranchEvent::Event),
        })
    }

    /// Returns true if the next conditional branch was taken, or the next return is compressed. `None` at the end of
    /// the trace.
    ///
    /// # Errors
    /// An error in the trace, or [`QueryError::Other`] if the next branch event is of another kind; it is not consumed.
    #[inline]
    pub fn conditional(&mut self) -> Result<Option<bool>, QueryError> {
        match self.pending()? {
            None => Ok(None),
            Some(Pending::Conditional) => Ok(self.take_outcome()),
            Some(pending) => Err(self.other(pending)),
        }
    }

    /// Returns the target of the next indirect branch; `Some(None)` if the trace omits it, `None` at the trace's end.
    ///
    /// Processors may send a TIP after the outcomes of later branches. This function does not find such a deferred TIP,
    /// because only the code distinguishes a deferred TIP from a caller's error: [`deferred`](Self::deferred) finds it.
    ///
    /// # Errors
    /// As [`conditional`](Self::conditional).
    #[inline]
    pub fn indirect(&mut self) -> Result<Option<Option<u64>>, QueryError> {
        match self.pending()? {
            None => Ok(None),
            Some(Pending::Indirect) => Ok(self.take().map(|event| event.ip)),
            Some(pending) => Err(self.other(pending)),
        }
    }

    /// Accepts the same as [`indirect`](Self::indirect), and a TIP after outcomes that belong to later branches.
    ///
    /// # Errors
    /// As [`indirect`](Self::indirect), if the next event is no TIP.
    pub fn deferred(&mut self) -> Result<Option<Option<u64>>, QueryError> {
        if self.tnt.len == 0 {
            return self.indirect();
        }
        if self.next.is_none() {
            self.next = self.events.next()?;
        }
        match self.next {
            None => Ok(None),
            Some(Event { kind: EventKind::Tip, .. }) => Ok(self.take().map(|event| event.ip)),
            Some(Event { kind: EventKind::Tnt(_), .. }) => Err(self.other(Pending::Conditional)),
            Some(_) => Err(self.other(Pending::Event)),
        }
    }

    /// Returns the next event; `None` at the end of the trace.
    ///
    /// # Errors
    /// As [`conditional`](Self::conditional).
    #[inline]
    pub fn event(&mut self) -> Result<Option<Event>, QueryError> {
        match self.pending()? {
            None => Ok(None),
            Some(Pending::Event) => Ok(self.take()),
            Some(pending) => Err(self.other(pending)),
        }
    }

    #[cold]
    fn other(&self, pending: Pending) -> QueryError {
        QueryError::Other { offset: self.offset(), pending }
    }

    /// Reads the next event. There must be no outcomes left.
    #[inline]
    fn look(&mut self) -> Result<(), Error> {
        match self.next {
            Some(Event { kind: EventKind::Tnt(_), .. }) => {}
            Some(_) => return Ok(()),
            None => self.events.next_into(&mut self.next)?,
        }
        if let Some(Event { kind: EventKind::Tnt(tnt), when, .. }) = self.next {
            self.next = None;
            (self.tnt, self.when) = (tnt, when);
        }
        Ok(())
    }

    #[inline]
    fn take(&mut self) -> Option<Event> {
        let event = self.next.take()?;
        self.when = event.when;
        Some(event)
    }

    #[inline]
    fn take_outcome(&mut self) -> Option<bool> {
        self.tnt.len = self.tnt.len.checked_sub(1)?;
        Some(self.tnt.bits >> (self.tnt.len & 63) & 1 != 0)
    }
}
