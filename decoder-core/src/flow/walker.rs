//! The walk that both decoders build on: from event to event, one instruction after the other.
//!
//! [`InsnDecoder`](super::InsnDecoder) reports each step. [`BlockDecoder`](crate::block::BlockDecoder) takes many
//! steps at a time while only branches can come next, and single steps otherwise.

use super::{
    ExecutedInsn,
    ahead::Ahead,
    fetch,
    loops::WalkLimit,
    place,
    place::{Place, Placed, Tracing},
};
use crate::{
    config::Config,
    error::{Error, ErrorKind},
    event::{Counters, Event, EventDecoder, EventKind, EventState, Stamp},
    image::{Asid, Image, Window},
    insn::{self, InsnError},
    keeper::{Keeper, Lent, Own, Owned},
    mode::ExecMode,
    packet::{Packets, before_psb},
};

/// The state of a walk, and the part of the trace that was read ahead.
#[derive(Debug)]
pub(crate) struct Walker<'a, K: Keeper = Own> {
    pub(super) events: EventDecoder<'a, K>,
    pub(crate) image: Image<'a>,
    /// The part of the image that the last instruction came from.
    pub(crate) window: Window<'a>,
    /// The part of the trace that was read ahead and is not used yet.
    pub(super) ahead: K::Of<Ahead>,
    limit: K::Of<WalkLimit>,
    /// The walk's place in the code.
    pub(crate) at: K::Of<Place>,
}

/// The next item of a walk. It does not contain the event, because it passes through many functions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Upcoming {
    /// The instruction at `ip`.
    Insn,
    /// An event, which was applied and is in [`Place::taken`].
    Event,
    /// An event, which the caller asked to hold.
    Held,
    /// The end of the trace.
    End,
}

impl<'a> Walker<'a> {
    /// Creates a walk at the start of `trace`.
    pub(crate) fn new(trace: &'a [u8], image: Image<'a>, config: Config<'a>) -> Self {
        Self {
            events: EventDecoder::with_config(trace, config),
            image,
            window: Window::default(),
            ahead: Owned(Ahead::NOTHING),
            limit: Owned(WalkLimit::NEW),
            at: Owned(Place::UNKNOWN),
        }
    }

    /// Goes to the start of another trace of the same image.
    pub(crate) fn set_trace(&mut self, trace: &'a [u8]) {
        self.forget();
        *self.limit = WalkLimit::NEW;
        self.events = EventDecoder::with_config(trace, *self.config());
    }
}

/// The state of a walk, apart from its place in the trace.
#[derive(Clone, Debug)]
pub(crate) struct WalkState {
    events: EventState,
    ahead: Ahead,
    limit: WalkLimit,
    at: Place,
}

impl Clone for Walker<'_> {
    fn clone(&self) -> Self {
        let Self { events, image, window, ahead, limit, at } = self;
        let (ahead, limit, at) = (ahead.clone(), limit.clone(), at.clone());
        Self { events: events.clone(), image: *image, window: *window, ahead, limit, at }
    }
}

impl WalkState {
    /// Returns the address of the next instruction, or of the one executed last; `None` while tracing is off.
    pub(crate) fn place(&self) -> Option<u64> {
        (self.at.tracing == Tracing::On).then_some(self.at.ip)
    }

    /// Returns the address space.
    pub(crate) const fn space(&self) -> Asid {
        self.at.space
    }

    /// Returns the time of the last packet used.
    pub(crate) const fn when(&self) -> Stamp {
        self.at.when
    }

    /// Returns counts of the packets read so far.
    pub(crate) const fn counters(&self) -> Counters {
        self.events.counters()
    }

    /// Returns the state of the event layer below.
    pub(crate) const fn events(&mut self) -> &mut EventState {
        &mut self.events
    }

    /// Forgets everything, including the counters.
    pub(crate) fn clear(&mut self) {
        self.events.clear();
        (self.ahead, self.limit, self.at) = (Ahead::NOTHING, WalkLimit::NEW, Place::UNKNOWN);
    }

    /// Returns the state before any packet.
    pub(crate) const fn new() -> Self {
        Self { events: EventState::new(), ahead: Ahead::NOTHING, limit: WalkLimit::NEW, at: Place::UNKNOWN }
    }
}

impl<'a, 's> Walker<'a, Lent<'s>> {
    /// Returns the walk with this state.
    pub(crate) fn with_state(packets: Packets<'a>, image: Image<'a>, state: &'s mut WalkState) -> Self {
        let WalkState { events, ahead, limit, at } = state;
        Self {
            events: EventDecoder::with_state(packets, events),
            image,
            window: Window::default(),
            ahead,
            limit,
            at,
        }
    }

    /// Returns the place in the trace.
    pub(crate) const fn packets(&self) -> &Packets<'a> {
        self.events.packets()
    }
}

impl<'a, K: Keeper> Walker<'a, K> {
    /// Forgets everything but the counters, and continues at `offset`.
    pub(crate) fn restart(&mut self, offset: u64) {
        self.forget();
        self.events.restart(offset);
    }

    /// Continues with another image. Addresses may hold other code now, so endless-loop detection restarts.
    pub(crate) fn set_image(&mut self, image: Image<'a>) {
        self.image = image;
        self.at.loops.consumed();
        self.window = Window::default();
    }

    pub(super) fn forget(&mut self) {
        self.window = Window::default();
        *self.ahead = Ahead::NOTHING;
        *self.at = Place::UNKNOWN;
    }

    /// Returns the offset of the packet that completed the next event, or of the next packet when no event is known, or
    /// the end of the trace.
    pub(crate) fn offset(&self) -> u64 {
        self.ahead.event.map_or_else(|| self.events.offset(), |event| event.offset)
    }

    #[inline]
    pub(crate) fn config(&self) -> &Config<'a> {
        self.events.config()
    }

    pub(crate) fn trace(&self) -> &'a [u8] {
        self.events.trace()
    }

    /// Returns the address of the next instruction, or of the one executed last; `None` while tracing is off.
    pub(crate) fn place(&self) -> Option<u64> {
        (self.at.tracing == Tracing::On).then_some(self.at.ip)
    }

    pub(crate) fn counters(&self) -> Counters {
        self.events.counters()
    }

    /// Leaves the instruction that was executed last and goes to the next item. With `hold`, stops before an event.
    pub(crate) fn advance(&mut self, hold: bool) -> Result<Upcoming, Error> {
        match self.depart(hold)? {
            Some(upcoming) => Ok(upcoming),
            None => self.arrive(hold),
        }
    }

    /// Leaves the instruction that was executed last. Returns `None` unless the walk stays there, for an event of the
    /// instruction or at the end of the trace.
    ///
    /// An event after an instruction is applied before the walk leaves the instruction. So the state of the walk stays
    /// at the instruction while the event is held.
    pub(crate) fn depart(&mut self, hold: bool) -> Result<Option<Upcoming>, Error> {
        let Some(executed) = self.at.executed else { return Ok(None) };
        if !self.look()? {
            return Ok(Some(self.end()));
        }
        if let Some(event) = self.event_if_next() {
            if self.is_after(event, &executed) || self.leads_out_by_skl014(&executed, event) {
                return if hold { Ok(Some(Upcoming::Held)) } else { self.take_after(executed).map(Some) };
            }
            // If packets were lost after a branch, its target is unknown.
            if matches!(event.kind, EventKind::Overflow) {
                self.at.executed = None;
            }
        }
        match self.at.executed {
            Some(_) => self.leave_for_good(executed).map(|()| None),
            None => Ok(None),
        }
    }

    /// Goes to the next instruction or event, when no executed instruction is left to leave.
    pub(crate) fn arrive(&mut self, hold: bool) -> Result<Upcoming, Error> {
        if self.at.landed {
            self.land()?;
        }
        if self.at.tick.is_some() {
            return Ok(if hold { Upcoming::Held } else { self.take_tick() });
        }
        while self.look()? {
            match self.event_if_next() {
                Some(event) if self.is_here(event) => {}
                _ => return Ok(Upcoming::Insn),
            }
            if hold {
                return Ok(Upcoming::Held);
            }
            if self.take_here()? {
                return Ok(Upcoming::Event);
            }
        }
        Ok(self.end())
    }

    /// Ends the walk: `resync` has nothing to return to.
    #[cold]
    fn end(&mut self) -> Upcoming {
        self.at.psb = None;
        Upcoming::End
    }

    /// Leaves `insn` for the next instruction.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn leave_for_good(&mut self, insn: insn::Insn) -> Result<(), Error> {
        self.leave(insn)?;
        self.at.executed = None;
        self.at.landed = place::needs_trace(insn.class) && self.config().errata.bdm64;
        Ok(())
    }

    /// Applies BDM64 after a branch.
    #[cold]
    fn land(&mut self) -> Result<(), Error> {
        self.jump_by_bdm64()?;
        self.at.landed = false;
        Ok(())
    }

    #[cold]
    fn take_tick(&mut self) -> Upcoming {
        self.at.taken = self.at.tick.take();
        Upcoming::Event
    }

    /// Applies the next event, whose place is after `insn`.
    #[cold]
    fn take_after(&mut self, insn: insn::Insn) -> Result<Upcoming, Error> {
        let Some(event) = self.ahead.event.take() else { return Ok(Upcoming::Held) };
        self.apply_after(&event, insn);
        self.at.taken = Some(event);
        self.at.psb = None;
        self.at.placed = Placed::After;
        Ok(Upcoming::Event)
    }

    /// Applies the next event, whose place is here; returns `false` if it is not to be reported.
    #[cold]
    fn take_here(&mut self) -> Result<bool, Error> {
        let Some(mut event) = self.ahead.event else { return Ok(false) };
        if self.is_entry_by_skd022(&event) {
            return Ok(false);
        }
        self.at.placed = Placed::Here;
        let reported = self.apply(&mut event).map_err(|kind| Error { offset: event.offset, kind })?;
        self.ahead.event = None;
        if !event.status {
            self.at.psb = None;
        }
        self.at.taken = Some(event);
        Ok(reported)
    }

    /// Executes the instruction at `ip` if `accept` returns true for it.
    #[inline]
    pub(crate) fn execute_if(
        &mut self,
        accept: impl FnOnce(&Self, &insn::Insn, ExecMode) -> bool,
    ) -> Result<Option<ExecutedInsn>, Error> {
        let ip = self.at.ip;
        let mode = match (self.at.tracing, self.at.mode) {
            (Tracing::On, Some(mode)) => mode,
            _ => return Err(self.no_mode()),
        };
        let insn = match insn::decode(self.window.from(ip), mode, ip) {
            Ok(insn) => insn,
            Err(error) => self.fetch_elsewhere(error, mode)?,
        };
        if !accept(self, &insn, mode) {
            return Ok(None);
        }
        self.at.executed = Some(insn);
        self.at.bound = 0;
        self.at.psb = None;
        if self.at.loops.step() {
            self.check_length()?;
        }
        Ok(Some(ExecutedInsn {
            ip,
            len: insn.len,
            class: insn.class,
            mode,
            speculative: self.at.speculative,
        }))
    }

    /// Fails if the walk has become longer than its limit.
    #[cold]
    fn check_length(&mut self) -> Result<(), Error> {
        let insns = self.at.loops.unused();
        if self.limit.allows(insns, &self.image, self.offset()) {
            return Ok(());
        }
        self.limit.waste(insns);
        Err(self.fail(ErrorKind::EndlessCode { ip: self.at.ip, insns }))
    }

    /// Returns the error of a walk that came back to an instruction, and counts its instructions as wasted.
    #[cold]
    pub(super) fn endless_loop(&mut self) -> Error {
        self.limit.waste(self.at.loops.unused());
        self.fail(ErrorKind::EndlessLoop { ip: self.at.ip })
    }

    #[cold]
    fn fetch_elsewhere(&mut self, error: InsnError, mode: ExecMode) -> Result<insn::Insn, Error> {
        match fetch::fetch_elsewhere(error, self.image, self.at.space, self.at.ip, mode) {
            Ok((window, insn)) => {
                self.window = window;
                Ok(insn)
            }
            Err(kind) => Err(self.fail(kind)),
        }
    }

    /// Returns the error of code in no known mode.
    #[cold]
    fn no_mode(&self) -> Error {
        let ip = self.at.ip;
        self.fail(match self.at.tracing {
            Tracing::On if !self.image.has(ip, self.at.space) => ErrorKind::NoMemory { ip },
            Tracing::On => ErrorKind::UnknownMode { ip },
            // While tracing is off the event decoder reports nothing that needs code.
            _ => ErrorKind::TraceMismatch { ip },
        })
    }

    /// Reports nothing more until the next synchronisation or recovery.
    #[cold]
    pub(crate) fn give_up(&mut self, error: Error) {
        self.at.error = Some(error);
        if let Some(Event {
            kind: EventKind::Enabled { .. } | EventKind::Disabled,
            status: true,
            offset,
            ..
        }) = self.ahead.event
        {
            self.at.psb = Some(offset);
        }
        self.at.failed = true;
        // When a trace comes in slices, only `reach` bytes are kept to return to.
        let reach = self.events.reach();
        self.at.psb = self.at.psb.filter(|psb| error.offset.saturating_sub(*psb) <= reach);
    }

    /// Returns the offset before which the trace is not needed any more.
    pub(crate) fn keep_from(&self) -> u64 {
        let offset = self.events.offset();
        let psb = self.at.psb.filter(|psb| offset.saturating_sub(*psb) <= self.events.reach());
        before_psb(psb.unwrap_or(offset))
    }

    /// Sets the instruction at `ip` as the one executed last, which the walk has not left.
    #[cold]
    pub(crate) fn return_to_insn(&mut self, ip: u64) {
        self.at.ip = ip;
        self.at.bound = 0;
        self.at.executed = self.peek(ip);
    }
}
