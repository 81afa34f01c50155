//! Events to instructions: walks over the code of an [`Image`] as the trace says it was executed.
//!
//! Between events the walk follows the code: direct jumps and calls by themselves, conditional jumps by TNT bits,
//! indirect branches by TIPs, returns by either. An event has its place in the walk: at an address, behind the
//! instruction that causes it, or where the walk is. In front of an instruction the next event is always known, so
//! the walk ends where the trace does, with the last thing the trace says.
//!
//! ```
//! use pugmark_decoder_core::flow::{InsnDecoder, Item};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//!
//! // 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000
//! let code = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];
//! let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
//! // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken)
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x06";
//!
//! let mut flow = InsnDecoder::new(trace, Image::new(&sections));
//! flow.sync_forward();
//! let mut seen = vec![];
//! while let Some(item) = flow.next()? {
//!     if let Item::Insn(insn) = item {
//!         seen.push(insn.ip);
//!     }
//! }
//! assert_eq!(seen, [0x1000, 0x1002]);
//! # Ok::<(), pugmark_decoder_core::Error>(())
//! ```

mod apply;
mod errata;
mod leave;
mod pieces;
mod place;
mod recover;
#[cfg(test)]
mod tests;
mod tnt;
mod walk;

pub use pieces::{After, Piece, Pieces};
pub use recover::Recovered;

use crate::{
    config::Config,
    error::{Error, ErrorKind},
    event::{Counters, Event, EventDecoder, EventKind},
    image::{Image, Window},
    insn::{self, Class, InsnError},
    mode::ExecMode,
    ret_stack::ReturnStack,
};
use tnt::TntBuffer;
use walk::Walk;

/// Gives the instructions of a trace and the events between them, in order.
///
/// It begins at a PSB: [`sync_forward`](Self::sync_forward) first, and again after each error.
#[derive(Clone, Debug)]
pub struct InsnDecoder<'a> {
    events: EventDecoder<'a>,
    image: Image<'a>,
    /// The part of the image that the last instruction came from.
    window: Window<'a>,
    /// Outcomes that were not used yet. While there are some, `event` is behind them.
    tnt: TntBuffer,
    /// The next event.
    event: Option<Event>,
    /// Where the decoder is: the instruction in `executed`, or else the one that comes next.
    ip: u64,
    /// The instruction that was given out last, as long as the walk has not left it.
    executed: Option<insn::Insn>,
    tracing: Tracing,
    mode: Option<ExecMode>,
    /// Packets were lost and a MODE.Exec may have been among them: the next PSB+ says what mode it is.
    mode_lost: bool,
    speculative: bool,
    cr3: Option<u64>,
    /// Where packet generation was disabled; 0 where that is not known.
    stopped_at: u64,
    returns: ReturnStack,
    walk: Walk,
    /// The last PSB, when no instruction was given out since.
    psb: Option<u64>,
    config: Config<'a>,
    /// A tick at the branch that was left last.
    tick: Option<Event>,
    /// The TNT whose outcomes are in `tnt`, until the first of them is used.
    tnt_event: Option<Event>,
    /// An error that comes behind the outcomes that are left.
    deferred: Option<Error>,
    /// What ended the last run.
    error: Option<Error>,
    /// The status updates of the PSB+ synchronised onto were given out.
    started: bool,
    /// The time of the last event.
    time: u64,
    /// Nothing more until a synchronisation or a recovery.
    failed: bool,
}

/// Whether packet generation is on, as far as the walk has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tracing {
    Unknown,
    Off,
    On,
}

/// What happened next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// An instruction was executed.
    Insn(Insn),
    /// Something else happened.
    Event(Event),
}

/// An instruction that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Insn {
    /// Its address.
    pub ip: u64,
    /// Its length in bytes.
    pub len: u8,
    /// How it changes the flow.
    pub class: Class,
    /// In what mode it was executed.
    pub mode: ExecMode,
    /// In a transaction.
    pub speculative: bool,
}

impl<'a> InsnDecoder<'a> {
    /// A decoder in front of `trace`, not synchronised.
    #[must_use]
    pub fn new(trace: &'a [u8], image: Image<'a>) -> Self {
        Self::with_config(trace, image, Config::new())
    }

    /// A decoder in front of `trace`, not synchronised.
    #[must_use]
    pub fn with_config(trace: &'a [u8], image: Image<'a>, config: Config<'a>) -> Self {
        Self {
            events: EventDecoder::with_config(trace, config),
            config,
            tick: None,
            tnt_event: None,
            deferred: None,
            error: None,
            started: false,
            time: 0,
            failed: false,
            image,
            window: Window::default(),
            tnt: TntBuffer::new(),
            event: None,
            ip: 0,
            executed: None,
            tracing: Tracing::Unknown,
            mode: None,
            mode_lost: false,
            speculative: false,
            cr3: None,
            stopped_at: 0,
            returns: ReturnStack::new(),
            walk: Walk::new(),
            psb: None,
        }
    }

    /// Goes to the next PSB and returns its offset; `None` when none follows.
    ///
    /// Everything that was known is forgotten, except the counters. The decoder looks ahead: a PSB that it has read
    /// before it came to an error counts as passed, as it does for libipt. [`resync`](Self::resync) loses less.
    pub fn sync_forward(&mut self) -> Option<u64> {
        self.forget();
        self.psb = None;
        self.events.sync_forward()
    }

    /// Goes to the PSB from which on nothing was given out yet and returns its offset; `None` when there is none.
    ///
    /// That is the next PSB, or the last one that was read when there was an error before any instruction behind it.
    pub fn resync(&mut self) -> Option<u64> {
        if let Some(psb) = self.psb {
            self.events.rewind(psb);
        }
        self.sync_forward()
    }

    /// Goes to the last PSB before the current position and returns its offset; `None` when there is none.
    pub fn sync_backward(&mut self) -> Option<u64> {
        self.forget();
        self.events.sync_backward()
    }

    fn forget(&mut self) {
        self.window = Window::default();
        self.tnt.clear();
        self.event = None;
        self.ip = 0;
        self.executed = None;
        self.tracing = Tracing::Unknown;
        self.mode = None;
        self.mode_lost = false;
        self.speculative = false;
        self.cr3 = None;
        self.stopped_at = 0;
        self.tick = None;
        self.tnt_event = None;
        self.deferred = None;
        self.error = None;
        self.started = false;
        self.time = 0;
        self.failed = false;
        self.returns.clear();
        self.walk = Walk::new();
    }

    /// The offset of the packet that completed the next event, or of the packet that comes next when no event is
    /// known, or where the trace ends.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.event.map_or_else(|| self.events.offset(), |event| event.offset)
    }

    /// The offset of the packet that the decoder holds: the first one that is not an event yet, see [`Event::held`];
    /// where the trace ends once everything was used.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.event.map_or_else(|| self.events.held_next(), |event| event.held)
    }

    /// Reads on to the next event already when one outcome is left, as libipt's instruction decoder does; an error in it
    /// is kept until it is its turn. Only [`held`](Self::held) tells the difference.
    pub fn look_ahead(&mut self) {
        if self.tnt.len() == 1 && self.event.is_none() && self.deferred.is_none() {
            match self.events.next() {
                Ok(event) => self.event = event,
                Err(error) => self.deferred = Some(error),
            }
        }
    }

    /// Goes to the next PSB as libipt does, and returns its offset: a PSB that is the packet which the decoder holds is
    /// not found.
    pub fn sync_forward_from_held(&mut self) -> Option<u64> {
        if self.failed {
            self.events.pass_psb(self.held());
        }
        self.sync_forward()
    }

    /// The next status update of the PSB+ that the decoder has synchronised onto, applied; `None` behind the last, or
    /// where the trace ends in it.
    ///
    /// [`next`](Self::next) applies them as well; this tells the errors in them from those behind.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn sync_status(&mut self) -> Result<Option<Event>, Error> {
        let status = self.next_status();
        if let Err(error) = status {
            self.error = Some(error);
            self.failed = true;
        }
        status
    }

    fn next_status(&mut self) -> Result<Option<Event>, Error> {
        let first = !core::mem::replace(&mut self.started, true);
        let event = if first { self.events.next()? } else { self.events.next_status()? };
        match event {
            Some(event) if event.status => {
                self.event = Some(event);
                self.apply(event).map_err(|kind| Error { offset: event.offset, kind })?;
                self.event = None;
                Ok(Some(event))
            }
            Some(Event { kind: EventKind::Tnt(tnt), .. }) => {
                self.tnt.fill(tnt);
                Ok(None)
            }
            other => {
                self.event = other;
                Ok(None)
            }
        }
    }

    /// Whether the next thing in the trace is an event that has its place on the way, not an outcome or a target.
    #[must_use]
    pub fn awaits_event(&self) -> bool {
        self.tnt.is_empty()
            && self.event.is_some_and(|event| !matches!(event.kind, EventKind::Tip | EventKind::Tnt(_)))
    }

    /// Decodes from another image from here on.
    pub fn set_image(&mut self, image: Image<'a>) {
        self.image = image;
        self.window = Window::default();
    }

    /// The trace.
    #[must_use]
    pub fn trace(&self) -> &'a [u8] {
        self.events.trace()
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> Image<'a> {
        self.image
    }

    /// CR3 where the decoder is, if the trace said.
    #[must_use]
    pub fn cr3(&self) -> Option<u64> {
        self.cr3
    }

    /// The address of the instruction that comes next, or was given out last; `None` while tracing is off.
    #[must_use]
    pub fn ip(&self) -> Option<u64> {
        (self.tracing == Tracing::On).then_some(self.ip)
    }

    /// What was seen of the trace so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.events.counters()
    }

    /// The next instruction or event, or `None` at the end of the trace.
    ///
    /// Status updates, TIPs and TNTs are used up inside and not given out.
    ///
    /// # Errors
    /// With the offset of the packet that is wrong, or that the code does not lead to. After one, only
    /// [`ErrorKind::OutOfSync`] follows until [`sync_forward`](Self::sync_forward).
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot tell its end from an error by `?`")]
    pub fn next(&mut self) -> Result<Option<Item>, Error> {
        if self.failed {
            return Err(self.fail(ErrorKind::OutOfSync));
        }
        let next = self.advance();
        if let Err(error) = next {
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
        next
    }

    fn advance(&mut self) -> Result<Option<Item>, Error> {
        if let Some(executed) = self.executed {
            if !self.look()? {
                return Ok(None);
            }
            if let Some(event) = self.event_if_next(|_, event, ip| place::is_behind(event, &executed, ip)) {
                return Ok(Some(Item::Event(self.apply_behind(event, executed))));
            }
            if self.leads_out_by_skl014(&executed) {
                return Ok(self.event.map(|event| Item::Event(self.apply_behind(event, executed))));
            }
            // Where packets were lost behind a branch, nothing says where it led.
            if self.event_if_next(|_, event, _| event.kind == EventKind::Overflow).is_none() {
                self.leave(executed)?;
                self.executed = None;
                if place::needs_trace(executed.class) && self.config.errata.bdm64 {
                    self.jump_by_bdm64()?;
                }
                if let Some(tick) = self.tick.take() {
                    return Ok(Some(Item::Event(tick)));
                }
            }
            self.executed = None;
        }
        while self.look()? {
            let Some(event) = self.event_if_next(|decoder, event, _| decoder.is_here(event)) else {
                return self.execute().map(|insn| Some(Item::Insn(insn)));
            };
            if self.is_entry_by_skd022(&event) {
                continue;
            }
            let offset = event.offset;
            let applied = self.apply(event).map_err(|kind| Error { offset, kind })?;
            self.event = None;
            if let Some(event) = applied {
                return Ok(Some(Item::Event(event)));
            }
        }
        Ok(None)
    }

    /// Makes known what comes next in the trace, an outcome or an event; `false` at the end of the trace.
    #[inline]
    fn look(&mut self) -> Result<bool, Error> {
        while self.tnt.is_empty() {
            if !matches!(self.event, None | Some(Event { kind: EventKind::Tnt(_), .. })) {
                break;
            }
            match self.next_event()? {
                Some(event @ Event { kind: EventKind::Tnt(tnt), .. }) => {
                    self.tnt.fill(tnt);
                    self.tnt_event = self.config.flags.ticks.then_some(event);
                }
                Some(event) => self.event = Some(event),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The next event, which may have been read already.
    #[inline]
    fn next_event(&mut self) -> Result<Option<Event>, Error> {
        match (self.event.take(), self.deferred.take()) {
            (Some(event), _) => Ok(Some(event)),
            (None, Some(error)) => Err(error),
            (None, None) => self.events.next(),
        }
    }

    /// The next event, when no outcomes are before it and `is_due` says that its place is here.
    #[inline]
    fn event_if_next(&self, is_due: impl Fn(&Self, &Event, u64) -> bool) -> Option<Event> {
        let event = self.event.as_ref().filter(|_| self.tnt.is_empty())?;
        is_due(self, event, self.ip).then_some(*event)
    }

    /// Gives out the instruction at `ip`.
    #[inline]
    fn execute(&mut self) -> Result<Insn, Error> {
        let ip = self.ip;
        let (Tracing::On, Some(mode)) = (self.tracing, self.mode) else {
            return Err(self.cannot_execute());
        };
        let insn = match insn::decode(self.window.from(ip), mode, ip) {
            Ok(insn) => insn,
            Err(error) => self.fetch_elsewhere(error, mode).map_err(|kind| self.fail(kind))?,
        };
        self.executed = Some(insn);
        self.psb = None;
        self.walk.step();
        Ok(Insn { ip, len: insn.len, class: insn.class, mode, speculative: self.speculative })
    }

    #[cold]
    fn cannot_execute(&self) -> Error {
        let ip = self.ip;
        match self.tracing {
            Tracing::On => self.fail(ErrorKind::UnknownMode { ip }),
            // The event decoder lets nothing through that needs code while tracing is off.
            _ => self.fail(ErrorKind::TraceMismatch { ip }),
        }
    }

    /// Decodes an instruction that is not as a whole in the part of the image that the last one came from.
    #[cold]
    fn fetch_elsewhere(&mut self, error: InsnError, mode: ExecMode) -> Result<insn::Insn, ErrorKind> {
        let ip = self.ip;
        if error != InsnError::Truncated {
            return Err(ErrorKind::UnknownInstruction { ip });
        }
        self.window = self.image.window(ip, self.cr3).ok_or(ErrorKind::NoMemory { ip })?;
        let mut bytes = [0; insn::MAX_LEN];
        let len = self.image.read(ip, self.cr3, &mut bytes);
        insn::decode(bytes.get(..len).unwrap_or_default(), mode, ip).map_err(|error| match error {
            InsnError::Truncated => ErrorKind::NoMemory { ip },
            _ => ErrorKind::UnknownInstruction { ip },
        })
    }

    /// An error at the packet that the decoder holds.
    fn fail(&self, kind: ErrorKind) -> Error {
        Error { offset: self.offset(), kind }
    }
}
