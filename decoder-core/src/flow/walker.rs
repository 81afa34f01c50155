//! The walk that both decoders build on: from event to event, one instruction after the other.
//!
//! [`InsnDecoder`](super::InsnDecoder) reports each step. [`BlockDecoder`](crate::block::BlockDecoder) takes many
//! steps at a time while only branches can come next, and single steps otherwise.

use super::{Insn, fetch, place, tnt::Outcomes, walk::Walk};
use crate::{
    config::{Config, Dialect},
    error::{Error, ErrorKind},
    event::{Counters, Event, EventDecoder, EventKind, Stamp},
    image::{Asid, Image, Window},
    insn::{self, InsnError},
    mode::ExecMode,
    ret_stack::ReturnStack,
};

/// The state of a walk, and what it has read ahead.
#[derive(Clone, Debug)]
pub(crate) struct Walker<'a> {
    pub(super) events: EventDecoder<'a>,
    pub(crate) image: Image<'a>,
    /// The part of the image that the last instruction came from.
    pub(crate) window: Window<'a>,
    /// Outcomes that were not used yet. They come before `event`.
    pub(super) tnt: Outcomes,
    /// The offset of the outcomes' packet.
    pub(super) outcomes_at: u64,
    /// The offset of the last other packet that gives the walk's place.
    pub(super) located: u64,
    /// The next event.
    pub(super) event: Option<Event>,
    /// The address of the instruction in `executed`, or else of the next one.
    pub(crate) ip: u64,
    /// The instruction executed last, until the walk leaves it.
    pub(crate) executed: Option<insn::Insn>,
    /// The kinds of events that were bound to it, as bits of [`place::binding`].
    pub(super) bound: u8,
    pub(crate) tracing: Tracing,
    pub(crate) mode: Option<ExecMode>,
    /// Packets were lost, perhaps a MODE.Exec: the next PSB+ gives the mode.
    pub(super) mode_lost: bool,
    pub(crate) speculative: bool,
    pub(crate) space: Asid,
    /// Where packet generation was disabled; 0 if that is unknown.
    pub(super) stopped_at: u64,
    pub(super) returns: ReturnStack,
    pub(crate) walk: Walk,
    /// The last PSB, if no instruction was executed since.
    pub(crate) psb: Option<u64>,
    /// A tick at the branch that was left last.
    pub(super) tick: Option<Event>,
    /// The TNT whose outcomes are in `tnt`, until the first of them is used; only for ticks.
    pub(super) tnt_event: Option<Event>,
    /// An error that comes after the outcomes that are left.
    pub(super) deferred: Option<Error>,
    /// The offset of a deferred TIP that was taken, until the next event is read: libipt still holds it.
    pub(super) deferred_tip: Option<u64>,
    /// The error that ended the last run.
    pub(super) error: Option<Error>,
    /// Reading the status updates of the PSB+ that was synchronised onto has begun.
    pub(super) started: bool,
    /// The packet held with the last status update: the end of the PSB+.
    pub(super) status_end: u64,
    /// The last PSB+ that gave an address at which tracing is on, and that address.
    pub(super) status_at: Option<(u64, u64)>,
    /// The time of the last packet used.
    pub(crate) when: Stamp,
    /// Nothing is reported until a synchronisation or a recovery.
    pub(crate) failed: bool,
    /// The place of the last reported event.
    pub(super) placed: Placed,
    /// The event at whose place the last recovery continued.
    pub(super) recovered_at: Option<Event>,
}

/// The place of an event, and of the decoder when it reports the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placed {
    /// Before the next instruction.
    Here,
    /// After the instruction executed last, where the decoder still is.
    Behind,
    /// After the instruction executed last, which the decoder has left for the next one; only in libipt's
    /// [dialect](crate::config::Dialect).
    Left,
}

/// Whether packet generation is on, as far as the walk has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracing {
    Unknown,
    Off,
    On,
}

/// What comes next in the walk.
pub(crate) enum Due {
    /// The instruction at `ip`.
    Insn,
    /// This event, which was applied.
    Event(Event),
    /// An event, which the caller asked not to take.
    Held,
    /// The end of the trace.
    End,
}

impl<'a> Walker<'a> {
    /// A walk at the start of `trace`.
    pub(crate) fn new(trace: &'a [u8], image: Image<'a>, config: Config<'a>) -> Self {
        Self {
            events: EventDecoder::with_config(trace, config),
            image,
            window: Window::default(),
            tnt: Outcomes::new(),
            outcomes_at: 0,
            located: 0,
            event: None,
            ip: 0,
            executed: None,
            bound: 0,
            tracing: Tracing::Unknown,
            mode: None,
            mode_lost: false,
            speculative: false,
            space: Asid::default(),
            stopped_at: 0,
            returns: ReturnStack::new(),
            walk: Walk::new(),
            psb: None,
            tick: None,
            tnt_event: None,
            deferred: None,
            deferred_tip: None,
            error: None,
            started: false,
            status_end: 0,
            status_at: None,
            when: Stamp::default(),
            failed: false,
            placed: Placed::Here,
            recovered_at: None,
        }
    }

    /// Goes to the start of another trace of the same image.
    pub(crate) fn set_trace(&mut self, trace: &'a [u8]) {
        self.forget();
        self.events = EventDecoder::with_config(trace, *self.config());
    }

    /// Continues with another image.
    pub(crate) fn set_image(&mut self, image: Image<'a>) {
        self.image = image;
        self.window = Window::default();
    }

    pub(super) fn forget(&mut self) {
        self.window = Window::default();
        self.tnt.clear();
        self.outcomes_at = 0;
        self.located = 0;
        self.event = None;
        self.ip = 0;
        self.executed = None;
        self.tracing = Tracing::Unknown;
        self.mode = None;
        self.mode_lost = false;
        self.speculative = false;
        self.space = Asid::default();
        self.stopped_at = 0;
        self.returns.clear();
        self.walk = Walk::new();
        self.tick = None;
        self.tnt_event = None;
        self.deferred = None;
        self.deferred_tip = None;
        self.error = None;
        self.started = false;
        self.status_end = 0;
        self.status_at = None;
        self.when = Stamp::default();
        self.failed = false;
        self.placed = Placed::Here;
        self.recovered_at = None;
        self.psb = None;
    }

    /// The offset of the packet that completed the next event, or of the packet that comes next when no event is
    /// known, or where the trace ends.
    pub(crate) fn offset(&self) -> u64 {
        self.event.map_or_else(|| self.events.offset(), |event| event.offset)
    }

    #[inline]
    pub(crate) fn config(&self) -> &Config<'a> {
        self.events.config()
    }

    pub(crate) fn trace(&self) -> &'a [u8] {
        self.events.trace()
    }

    /// The address of the next instruction, or of the one executed last; `None` while tracing is off.
    pub(crate) fn place(&self) -> Option<u64> {
        (self.tracing == Tracing::On).then_some(self.ip)
    }

    pub(crate) fn counters(&self) -> Counters {
        self.events.counters()
    }

    /// Leaves the instruction that was executed last and goes to what comes next. With `hold` it stops before an
    /// event.
    pub(crate) fn advance(&mut self, hold: bool) -> Result<Due, Error> {
        match self.depart(hold)? {
            Some(due) => Ok(due),
            None => self.arrive(hold),
        }
    }

    /// Leaves the instruction that was executed last. `None` if nothing keeps the walk there: no event of the
    /// instruction, and not the end of the trace.
    ///
    /// An event after an instruction is applied before the walk leaves the instruction. So while the event is held,
    /// the walk's state is that of the instruction.
    pub(crate) fn depart(&mut self, hold: bool) -> Result<Option<Due>, Error> {
        let Some(executed) = self.executed else { return Ok(None) };
        if !self.look()? {
            return Ok(Some(Due::End));
        }
        if let Some(event) = self.event_if_next() {
            if self.is_behind(event, &executed) || self.leads_out_by_skl014(&executed, event) {
                return Ok(Some(if hold { Due::Held } else { self.take_behind(executed)? }));
            }
            // If packets were lost after a branch, its target is unknown.
            if event.kind == EventKind::Overflow {
                self.executed = None;
            }
        }
        if self.executed.is_some() {
            self.leave_for_good(executed)?;
        }
        Ok(None)
    }

    /// Goes to the next instruction or event, from no instruction.
    pub(crate) fn arrive(&mut self, hold: bool) -> Result<Due, Error> {
        if self.tick.is_some() {
            return Ok(if hold { Due::Held } else { self.take_tick() });
        }
        while self.look()? {
            match self.event_if_next() {
                Some(event) if self.is_here(event) => {}
                _ => return Ok(Due::Insn),
            }
            if hold {
                return Ok(Due::Held);
            }
            if let Some(event) = self.take_here()? {
                self.check_next()?;
                return Ok(Due::Event(event));
            }
        }
        Ok(Due::End)
    }

    /// Leaves `insn` for the next instruction.
    #[inline(always)]
    fn leave_for_good(&mut self, insn: insn::Insn) -> Result<(), Error> {
        self.leave(insn)?;
        self.executed = None;
        if place::needs_trace(insn.class) && self.config().errata.bdm64 {
            self.jump_by_bdm64()?;
        }
        Ok(())
    }

    #[cold]
    fn take_tick(&mut self) -> Due {
        self.tick.take().map_or(Due::Held, Due::Event)
    }

    /// Applies the next event, whose place is after `insn`.
    #[cold]
    fn take_behind(&mut self, insn: insn::Insn) -> Result<Due, Error> {
        let Some(event) = self.event.take() else { return Ok(Due::Held) };
        let event = self.apply_behind(event, insn);
        self.placed = Placed::Behind;
        if self.config().dialect == Dialect::Libipt
            && self.executed.is_some()
            && place::needs_trace(insn.class)
        {
            self.leave_before_event(insn)?;
        }
        self.check_next()?;
        Ok(Due::Event(event))
    }

    /// In libipt's dialect, checks the next event: libipt reports a misplaced TRIG in place of the event before it.
    #[cold]
    pub(super) fn check_next(&mut self) -> Result<(), Error> {
        if self.config().dialect == Dialect::Manual || self.tracing != Tracing::On {
            return Ok(());
        }
        if let Err(error) = self.look() {
            self.deferred = Some(error);
        }
        match self.event_if_next() {
            Some(&event @ Event { kind: EventKind::Trigger { .. }, .. }) => {
                // A TRIG does not belong to an instruction that has another event.
                let here = self.executed.map_or(self.ip, |insn| insn.next(self.ip));
                self.refuse(&event, here)
            }
            _ => Ok(()),
        }
    }

    /// Fails if the next event contradicts the walk's state at `here`.
    fn refuse(&self, event: &Event, here: u64) -> Result<(), Error> {
        self.check(event, here).map_err(|kind| Error { offset: self.blamed(event), kind })
    }

    /// Leaves `insn` before its last event is reported, as libipt does: without a target it reports no event.
    fn leave_before_event(&mut self, insn: insn::Insn) -> Result<(), Error> {
        match self.look() {
            Ok(true) => {}
            Ok(false) => return Err(self.mismatch()),
            Err(error) => {
                self.deferred = Some(error);
                return Err(self.mismatch());
            }
        }
        if self.event_if_next().is_some_and(|next| self.is_behind(next, &insn)) {
            return Ok(());
        }
        self.placed = Placed::Left;
        self.leave_for_good(insn)
    }

    /// The offset of an error in an event. libipt reports the packet that it holds.
    fn blamed(&self, event: &Event) -> u64 {
        if self.config().dialect == Dialect::Libipt { event.held } else { event.offset }
    }

    /// Applies the next event, whose place is here, and returns it if it is to be reported.
    #[cold]
    fn take_here(&mut self) -> Result<Option<Event>, Error> {
        let Some(event) = self.event else { return Ok(None) };
        if self.is_entry_by_skd022(&event) {
            return Ok(None);
        }
        self.placed = Placed::Here;
        let applied = self.apply(event).map_err(|kind| Error { offset: self.blamed(&event), kind })?;
        self.event = None;
        Ok(applied)
    }

    /// Executes the instruction at `ip` if `accept` returns true for it.
    #[inline]
    pub(crate) fn execute_if(
        &mut self,
        accept: impl FnOnce(&Self, &insn::Insn, ExecMode) -> bool,
    ) -> Result<Option<Insn>, Error> {
        let ip = self.ip;
        let mode = match (self.tracing, self.mode) {
            (Tracing::On, Some(mode)) => mode,
            _ => self.guess_mode()?,
        };
        let insn = match insn::decode(self.window.from(ip), mode, ip) {
            Ok(insn) => insn,
            Err(error) => self.fetch_elsewhere(error, mode)?,
        };
        if !accept(self, &insn, mode) {
            return Ok(None);
        }
        self.executed = Some(insn);
        self.bound = 0;
        self.psb = None;
        self.walk.step(1);
        Ok(Some(Insn { ip, len: insn.len, class: insn.class, mode, speculative: self.speculative }))
    }

    #[cold]
    fn fetch_elsewhere(&mut self, error: InsnError, mode: ExecMode) -> Result<insn::Insn, Error> {
        match fetch::fetch_elsewhere(error, self.image, self.space, self.ip, mode) {
            Ok((window, insn)) => {
                self.window = window;
                Ok(insn)
            }
            Err(kind) => Err(self.fail(kind)),
        }
    }

    /// The mode to execute in when the trace has not given one. libipt treats code of an unknown mode like 16-bit
    /// code.
    #[cold]
    fn guess_mode(&mut self) -> Result<ExecMode, Error> {
        let ip = self.ip;
        match (self.tracing, self.config().dialect) {
            (Tracing::On, Dialect::Libipt) => Ok(ExecMode::Bits16),
            (Tracing::On, _) if !self.image.has(ip, self.space) => Err(self.fail(ErrorKind::NoMemory { ip })),
            (Tracing::On, _) => Err(self.fail(ErrorKind::UnknownMode { ip })),
            // The event decoder reports nothing that needs code while tracing is off.
            _ => Err(self.fail(ErrorKind::TraceMismatch { ip })),
        }
    }

    /// Reports nothing more until the next synchronisation or recovery.
    #[cold]
    pub(crate) fn give_up(&mut self, error: Error) {
        self.error = Some(error);
        if let Some(Event {
            kind: EventKind::Enabled { .. } | EventKind::Disabled,
            status: true,
            offset,
            ..
        }) = self.event
        {
            self.psb = Some(offset);
        }
        self.failed = true;
    }
}
