//! Events to answers: for a walk over the code that somebody else does.
//!
//! Who has the code, or something better than the code, asks where each branch went: conditional branches and indirect
//! ones, in the order of the walk. Between them the trace has events; while one is pending it has to be taken before
//! the next branch. [`pending`](QueryDecoder::pending) says what comes next.
//!
//! ```
//! use pugmark_decoder_core::event::EventKind;
//! use pugmark_decoder_core::query::{Pending, QueryDecoder};
//!
//! // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, not taken), TIP (2000)
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
//!     \x0c\x2d\0\x20";
//! let mut query = QueryDecoder::new(trace);
//! query.sync_forward();
//! let event = query.event()?.unwrap();
//! assert_eq!((event.kind, event.ip), (EventKind::Enabled { resumed: false }, Some(0x1000)));
//! while query.pending()? == Some(Pending::Event) {
//!     query.event()?;
//! }
//! assert_eq!(query.conditional()?, Some(true));
//! assert!(query.indirect().is_err(), "there is another outcome before it");
//! assert_eq!(query.conditional()?, Some(false));
//! assert_eq!(query.indirect()?, Some(Some(0x2000)));
//! assert_eq!(query.conditional()?, None);
//! # Ok::<(), pugmark_decoder_core::query::QueryError>(())
//! ```

mod error;

pub use error::QueryError;

use crate::{
    config::Config,
    error::Error,
    event::{Counters, Event, EventDecoder, EventKind},
    packet::{PSB, Tnt},
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
    sync: Option<u64>,
    tsc: Option<u64>,
    lost_cyc: u64,
    core_bus_ratio: Option<u8>,
    /// What was seen before the last synchronisation at an offset.
    earlier: Counters,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pending {
    /// An event: [`event`](QueryDecoder::event).
    Event,
    /// The outcome of a conditional branch or of a compressed return: [`conditional`](QueryDecoder::conditional).
    Conditional,
    /// The target of an indirect branch: [`indirect`](QueryDecoder::indirect).
    Indirect,
}

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// An event.
    Event(Event),
    /// Whether a conditional branch was taken.
    Conditional(bool),
    /// Where an indirect branch went; `None` where the trace does not say, because it was not traced.
    Indirect(Option<u64>),
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
            sync: None,
            tsc: None,
            lost_cyc: 0,
            core_bus_ratio: None,
            earlier: Counters::default(),
        }
    }

    /// Goes to the next PSB and returns its offset; `None` when none follows.
    ///
    /// Everything that was known is forgotten, except the counters.
    pub fn sync_forward(&mut self) -> Option<u64> {
        self.forget();
        let psb = self.events.sync_forward();
        self.sync = psb.or(self.sync);
        psb
    }

    /// Goes to the last PSB before the current position and returns its offset; `None` when there is none.
    pub fn sync_backward(&mut self) -> Option<u64> {
        self.forget();
        let psb = self.events.sync_backward();
        self.sync = psb.or(self.sync);
        psb
    }

    /// Goes to the PSB at `offset`, also to one that it was at before; `false`, and nothing changes, when there is none.
    pub fn sync_at(&mut self, offset: u64) -> bool {
        let trace = self.events.trace();
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        if trace.get(at..).and_then(|rest| rest.get(..PSB.len())) != Some(&PSB[..]) {
            return false;
        }
        let mut events = EventDecoder::with_config(trace, *self.events.config());
        events.rewind(offset);
        // In a run of PSBs without a gap the last one counts.
        let Some(psb) = events.sync_forward() else { return false };
        self.forget();
        self.earlier = self.counters();
        self.events = events;
        self.sync = Some(psb);
        true
    }

    fn forget(&mut self) {
        self.tnt = NO_OUTCOMES;
        self.next = None;
        self.tsc = None;
        self.lost_cyc = 0;
        self.core_bus_ratio = None;
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
        self.sync
    }

    /// The trace.
    #[must_use]
    pub fn trace(&self) -> &'a [u8] {
        self.events.trace()
    }

    /// The time of what was given out last: the estimated TSC, 56 bits; `None` before the first TSC packet.
    ///
    /// What makes time of the packets behind a TSC is in [`Config::clocks`].
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        self.tsc
    }

    /// How many CYC packets are not in the [`time`](Self::time), because no ratio was known.
    #[must_use]
    pub fn lost_cyc(&self) -> u64 {
        self.lost_cyc
    }

    /// The ratio of core clock to bus clock by the last CBR event that was given out.
    #[must_use]
    pub fn core_bus_ratio(&self) -> Option<u8> {
        self.core_bus_ratio
    }

    /// What was seen of the trace so far, over all synchronisations.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let (earlier, now) = (self.earlier, self.events.counters());
        Counters {
            packets: earlier.packets + now.packets,
            psbs: earlier.psbs + now.psbs,
            overflows: earlier.overflows + now.overflows,
            stops: earlier.stops + now.stops,
        }
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
                Some(Event { kind: EventKind::Tnt(tnt), tsc, lost_cyc, .. }) => {
                    (self.tsc, self.lost_cyc) = (tsc, lost_cyc);
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
        (self.tsc, self.lost_cyc) = (event.tsc, event.lost_cyc);
        if let EventKind::Cbr { ratio } = event.kind {
            self.core_bus_ratio = Some(ratio);
        }
        Some(event)
    }

    #[inline]
    fn take_outcome(&mut self) -> Option<bool> {
        self.tnt.len = self.tnt.len.checked_sub(1)?;
        Some(self.tnt.bits >> (self.tnt.len & 63) & 1 != 0)
    }
}
