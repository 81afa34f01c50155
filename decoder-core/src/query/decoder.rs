//! The query decoder: events, with TNTs taken apart.

use super::{Answer, Pending, QueryError};
use crate::{
    config::Config,
    error::Error,
    event::{Counters, Event, EventDecoder, EventKind, Stamp},
    packet::Tnt,
};

/// Gives the outcomes of branches and the events between them, each when asked for.
///
/// It begins at a PSB: [`sync_forward`](Self::sync_forward) first, and again after each error of the trace.
#[derive(Clone, Debug)]
pub struct QueryDecoder<'a> {
    events: EventDecoder<'a>,
    /// Outcomes that were not asked for yet; the oldest is in bit `len - 1`. While there are some, `next` is `None`.
    tnt: Tnt,
    /// What comes behind them, if it was looked at.
    next: Option<Event>,
    /// When what was given out last happened.
    when: Stamp,
}

const NO_OUTCOMES: Tnt = Tnt { bits: 0, len: 0 };

impl<'a> QueryDecoder<'a> {
    /// A decoder in front of `trace`, not synchronised.
    #[must_use]
    pub fn new(trace: &'a [u8]) -> Self {
        Self::with_config(trace, Config::new())
    }

    /// A decoder in front of `trace`, not synchronised.
    #[must_use]
    pub fn with_config(trace: &'a [u8], config: Config<'a>) -> Self {
        Self {
            events: EventDecoder::with_config(trace, config),
            tnt: NO_OUTCOMES,
            next: None,
            when: Stamp::default(),
        }
    }

    /// Goes to the next PSB and returns its offset; `None` when none follows.
    ///
    /// Everything that was known is forgotten, except the counters.
    pub fn sync_forward(&mut self) -> Option<u64> {
        self.forget();
        self.events.sync_forward()
    }

    /// Goes to the last PSB before the current position and returns its offset; `None` when there is none.
    pub fn sync_backward(&mut self) -> Option<u64> {
        self.forget();
        self.events.sync_backward()
    }

    /// Goes to the PSB at `offset`, also to one that it was at before; `false`, and nothing changes, when there is none.
    ///
    /// In a run of PSBs without a gap it goes to the last one.
    pub fn sync_at(&mut self, offset: u64) -> bool {
        let found = self.events.sync_at(offset);
        if found {
            self.forget();
        }
        found
    }

    fn forget(&mut self) {
        self.tnt = NO_OUTCOMES;
        self.next = None;
        self.when = Stamp::default();
    }

    /// The IP at which the PSB+ that was synchronised onto says that tracing goes on; `None` when it says that tracing is
    /// off, and at the end of the trace. It is that of the first event, which stays there.
    ///
    /// # Errors
    /// As [`pending`](Self::pending).
    pub fn start(&mut self) -> Result<Option<u64>, Error> {
        self.look()?;
        Ok(self.next.filter(|event| event.status).and_then(|event| event.ip))
    }

    /// The offset of the packet that completed what comes next, if that was looked at, or of the packet that comes next,
    /// or where the trace ends.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.next.map_or_else(|| self.events.offset(), |event| event.offset)
    }

    /// The offset of the PSB synchronised onto last.
    #[must_use]
    pub fn sync_offset(&self) -> Option<u64> {
        self.events.sync_offset()
    }

    /// The trace.
    #[must_use]
    pub fn trace(&self) -> &'a [u8] {
        self.events.trace()
    }

    /// How the trace is read.
    #[must_use]
    pub fn config(&self) -> &Config<'a> {
        self.events.config()
    }

    /// The time of what was given out last: the estimated TSC, 56 bits; `None` before the first TSC packet.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        self.when.tsc
    }

    /// How many MTC packets are not in the [`time`](Self::time), because their clock ran too far.
    #[must_use]
    pub fn lost_mtc(&self) -> u32 {
        self.when.lost_mtc
    }

    /// How many CYC packets are not in the [`time`](Self::time), because no ratio was known.
    #[must_use]
    pub fn lost_cyc(&self) -> u32 {
        self.when.lost_cyc
    }

    /// The ratio of core clock to bus clock then; `None` before the first CBR packet.
    #[must_use]
    pub fn core_bus_ratio(&self) -> Option<u8> {
        self.when.core_bus_ratio
    }

    /// What was seen of the trace so far, over all synchronisations.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.events.counters()
    }

    /// What comes next, or `None` at the end of the trace.
    ///
    /// # Errors
    /// Of the trace. After one, only [`OutOfSync`](crate::ErrorKind::OutOfSync) follows until the next synchronisation.
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

    /// What comes next, whatever it is, or `None` at the end of the trace.
    ///
    /// # Errors
    /// As [`pending`](Self::pending).
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot tell its end from an error by `?`")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Answer>, Error> {
        Ok(match self.pending()? {
            None => None,
            Some(Pending::Conditional) => self.take_outcome().map(Answer::Conditional),
            Some(Pending::Indirect) => self.take().map(|event| Answer::Indirect(event.ip)),
            Some(Pending::Event) => self.take().map(Answer::Event),
        })
    }

    /// Whether the next conditional branch was taken; for a return, whether it is compressed. `None` at the end of the
    /// trace.
    ///
    /// # Errors
    /// Of the trace; and [`QueryError::Other`] when something else comes next, which stays there.
    #[inline]
    pub fn conditional(&mut self) -> Result<Option<bool>, QueryError> {
        match self.pending()? {
            None => Ok(None),
            Some(Pending::Conditional) => Ok(self.take_outcome()),
            Some(pending) => Err(self.other(pending)),
        }
    }

    /// Where the next indirect branch went, `Some(None)` where the trace does not say. `None` at the end of the trace.
    ///
    /// Processors may send a TIP behind outcomes of branches that come after it. Such a deferred TIP is not found here,
    /// because only the code tells it from a wrong question: [`deferred`](Self::deferred) asks for it.
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

    /// As [`indirect`](Self::indirect), also with outcomes in front of the TIP that belong to branches behind this one.
    ///
    /// # Errors
    /// As [`indirect`](Self::indirect), when not a TIP follows.
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

    /// The next event; `None` at the end of the trace.
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

    /// Looks at what comes next, there being no outcome.
    #[inline]
    fn look(&mut self) -> Result<(), Error> {
        loop {
            let event = match self.next {
                Some(Event { kind: EventKind::Tnt(_), .. }) => self.next.take(),
                Some(_) => return Ok(()),
                None => self.events.next()?,
            };
            match event {
                Some(Event { kind: EventKind::Tnt(tnt), when, .. }) => {
                    self.when = when;
                    self.tnt = tnt;
                    if tnt.len > 0 {
                        return Ok(());
                    }
                }
                event => {
                    self.next = event;
                    return Ok(());
                }
            }
        }
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
