//! Events to blocks of instructions: the instruction flow, many instructions at a time.
//!
//! A block is a stretch of the walk that the code alone decides: instructions one behind the other, over direct jumps
//! and calls, up to a branch that the trace decides or to an event. The blocks of a trace hold the same instructions as
//! [`InsnDecoder`](crate::flow::InsnDecoder) gives, and lie between the same events.
//!
//! Code is decoded once: what was found is kept in memory that the caller hands in, as many [`Slot`]s as there are to
//! spare. Without any, every block is decoded anew.
//!
//! ```
//! use pugmark_decoder_core::block::{BlockDecoder, Item, Slot};
//! use pugmark_decoder_core::image::{AddressSpace, Image, Section};
//!
//! // 1000: xor eax, eax; 1002: jz 1005; 1004: hlt; 1005: nop; 1006: jmp 1000
//! let code = [0x31, 0xc0, 0x74, 0x01, 0xf4, 0x90, 0xeb, 0xf8];
//! let sections = [Section { base: 0x1000, bytes: &code, space: AddressSpace::Any }];
//! // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, taken)
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x0e";
//!
//! let mut memory = [Slot::default(); 64];
//! let mut blocks = BlockDecoder::new(trace, Image::new(&sections), &mut memory);
//! blocks.sync_forward();
//! let mut seen = vec![];
//! while let Some(item) = blocks.next()? {
//!     if let Item::Block(block) = item {
//!         seen.push((block.ip, block.end_ip, block.insns));
//!         let addresses: Vec<_> = blocks.insns(&block).map(|(ip, _)| ip).collect();
//!         assert_eq!(addresses.len(), block.insns as usize);
//!     }
//! }
//! assert_eq!(seen, [(0x1000, 0x1002, 2), (0x1005, 0x1002, 4)]);
//! # Ok::<(), pugmark_decoder_core::Error>(())
//! ```

mod cache;
mod errata;
mod fast;
mod insns;
mod place;
mod slow;
mod tnt;
mod walk;

pub use cache::Slot;
pub use insns::Insns;

use crate::{
    config::Config,
    error::{Error, ErrorKind},
    event::{Counters, Event, EventDecoder, EventKind},
    image::{Image, Window},
    insn,
    mode::ExecMode,
    ret_stack::ReturnStack,
};
use cache::Cache;
use tnt::Outcomes;
use walk::Walk;

/// Instructions that were executed one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The address of the first instruction.
    pub ip: u64,
    /// The address of the last instruction.
    pub end_ip: u64,
    /// How many there are; those behind the first follow by the code, direct jumps and calls included.
    pub insns: u32,
    /// The section that they are in, by its place in [`Image::sections`]; `u32::MAX` where that number is too small.
    pub section: u32,
    /// In what mode they were executed.
    pub mode: ExecMode,
    /// In a transaction.
    pub speculative: bool,
    /// The last instruction's bytes are not all in the section, but partly in others.
    pub truncated: bool,
}

/// What happened next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// Instructions were executed.
    Block(Block),
    /// Something else happened.
    Event(Event),
}

/// Gives the blocks of a trace and the events between them, in order.
///
/// It begins at a PSB: [`sync_forward`](Self::sync_forward) first, and again after each error.
#[derive(Debug)]
pub struct BlockDecoder<'a> {
    events: EventDecoder<'a>,
    image: Image<'a>,
    cache: Cache<'a>,
    config: Config<'a>,
    /// Packets that were read without the event decoder.
    packets: u64,
    /// Outcomes that were not used yet. While there are some, `event` is behind them.
    tnt: Outcomes,
    /// The next event.
    event: Option<Event>,
    /// Where the decoder is: the instruction in `executed`, or else the one that comes next.
    ip: u64,
    /// The instruction that was executed last, as long as the walk has not left it.
    executed: Option<insn::Insn>,
    /// What was executed and not given out; nothing when its count is 0.
    block: Block,
    /// What comes behind `block`.
    failed: Option<Error>,
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
    /// The last PSB, when no instruction was executed since.
    psb: Option<u64>,
    /// The part of the image that the last single instruction came from, and its section.
    window: Window<'a>,
    section: u32,
    /// A tick at the branch that was left last.
    tick: Option<Event>,
    /// The TNT whose outcomes are in `tnt`, until the first of them is used; only for ticks.
    tnt_event: Option<Event>,
    /// The time of the last event.
    time: u64,
}

/// Whether packet generation is on, as far as the walk has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tracing {
    Unknown,
    Off,
    On,
}

const NO_BLOCK: Block = Block {
    ip: 0,
    end_ip: 0,
    insns: 0,
    section: u32::MAX,
    mode: ExecMode::Bits64,
    speculative: false,
    truncated: false,
};

impl<'a> BlockDecoder<'a> {
    /// A decoder in front of `trace`, not synchronised. Of `memory` the largest power of two is used.
    #[must_use]
    pub fn new(trace: &'a [u8], image: Image<'a>, memory: &'a mut [Slot]) -> Self {
        Self::with_config(trace, image, memory, Config::new())
    }

    /// A decoder in front of `trace`, not synchronised. Of `memory` the largest power of two is used.
    #[must_use]
    pub fn with_config(
        trace: &'a [u8],
        image: Image<'a>,
        memory: &'a mut [Slot],
        config: Config<'a>,
    ) -> Self {
        Self {
            events: EventDecoder::with_config(trace, config),
            image,
            cache: Cache::new(memory, image),
            config,
            packets: 0,
            tnt: Outcomes::new(),
            event: None,
            ip: 0,
            executed: None,
            block: NO_BLOCK,
            failed: None,
            tracing: Tracing::Unknown,
            mode: None,
            mode_lost: false,
            speculative: false,
            cr3: None,
            stopped_at: 0,
            returns: ReturnStack::new(),
            walk: Walk::new(),
            psb: None,
            window: Window::default(),
            section: u32::MAX,
            tick: None,
            tnt_event: None,
            time: 0,
        }
    }

    /// Goes in front of another trace of the same image, with everything forgotten but the code.
    pub fn set_trace(&mut self, trace: &'a [u8]) {
        self.forget();
        self.psb = None;
        self.packets = 0;
        self.events = EventDecoder::with_config(trace, self.config);
    }

    /// Goes to the next PSB and returns its offset; `None` when none follows.
    ///
    /// Everything that was known is forgotten, except the counters and the code. The decoder looks ahead: a PSB that it
    /// has read before it came to an error counts as passed. [`resync`](Self::resync) loses less.
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
        self.tnt.clear();
        self.event = None;
        self.ip = 0;
        self.executed = None;
        self.block = NO_BLOCK;
        self.failed = None;
        self.tracing = Tracing::Unknown;
        self.mode = None;
        self.mode_lost = false;
        self.speculative = false;
        self.cr3 = None;
        self.cache.enter(None);
        self.stopped_at = 0;
        self.returns.clear();
        self.walk = Walk::new();
        self.window = Window::default();
        self.tick = None;
        self.tnt_event = None;
        self.time = 0;
    }

    /// The offset of the packet that completed the next event, or of a packet behind the outcomes that come next when no
    /// event is known, or where the trace ends.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.event.map_or_else(|| self.events.offset(), |event| event.offset)
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

    /// The address of the instruction that comes next, or was executed last; `None` while tracing is off.
    #[must_use]
    pub fn ip(&self) -> Option<u64> {
        (self.tracing == Tracing::On).then_some(self.ip)
    }

    /// What was seen of the trace so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let counters = self.events.counters();
        Counters { packets: counters.packets + self.packets, ..counters }
    }

    /// The instructions of a block that was just given out.
    #[must_use]
    pub fn insns(&self, block: &Block) -> Insns<'a> {
        Insns::new(self.image, self.cr3, block)
    }

    /// The next block or event, or `None` at the end of the trace.
    ///
    /// Status updates, TIPs and TNTs are used up inside and not given out.
    ///
    /// # Errors
    /// With the offset of the packet that is wrong, or that the code does not lead to. The instructions before it are
    /// given out first. After an error, only [`ErrorKind::OutOfSync`] follows until
    /// [`sync_forward`](Self::sync_forward).
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot tell its end from an error by `?`")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Item>, Error> {
        // A block is what mostly comes; everything else is found out from what is left behind.
        match self.advance() {
            Ok(Next::Block) => Ok(Some(Item::Block(self.take_block()))),
            Ok(Next::Event(event)) => Ok(Some(Item::Event(event))),
            Ok(Next::End) => Ok(None),
            Err(error) => self.give_up(error),
        }
    }

    #[inline]
    fn take_block(&mut self) -> Block {
        let block = self.block;
        self.block.insns = 0;
        block
    }

    #[cold]
    fn give_up(&mut self, error: Error) -> Result<Option<Item>, Error> {
        if self.block.insns > 0 {
            self.failed = Some(error);
            return Ok(Some(Item::Block(self.take_block())));
        }
        if let Some(Event {
            kind: EventKind::Enabled { .. } | EventKind::Disabled,
            status: true,
            offset,
            ..
        }) = self.event
        {
            self.psb = Some(offset);
        }
        self.forget();
        self.events.desync();
        Err(error)
    }

    #[inline]
    fn advance(&mut self) -> Result<Next, Error> {
        if self.executed.is_none()
            && self.failed.is_none()
            && self.tracing == Tracing::On
            && let Some(mode) = self.mode
            && self.is_bulk()
        {
            return self.run(mode);
        }
        self.step()
    }

    /// Makes known what comes next in the trace, an outcome or an event; `false` at the end of the trace.
    #[inline]
    fn look(&mut self) -> Result<bool, Error> {
        while self.tnt.is_empty() && self.event.is_none() {
            match self.events.next()? {
                Some(event @ Event { kind: EventKind::Tnt(tnt), .. }) => {
                    let offset = self.events.offset() as usize;
                    // Each TNT has a time of its own.
                    let ticks = self.config.flags.ticks;
                    self.tnt_event = ticks.then_some(event);
                    let more = self.tnt.fill(tnt, if ticks { &[] } else { self.events.trace() }, offset);
                    if more > 0 {
                        self.packets += more as u64;
                        self.events.rewind((offset + more) as u64);
                    }
                }
                Some(event) => self.event = Some(event),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// No event has its place before the next branch that the trace decides, and none is made of it.
    #[inline]
    fn is_bulk(&self) -> bool {
        if self.config.flags.ticks {
            return false;
        }
        !self.tnt.is_empty() || matches!(self.event, Some(Event { kind: EventKind::Tip, status: false, .. }))
    }

    /// Gives the outcomes back that are not of the packet that comes next.
    #[cold]
    fn give_back(&mut self) {
        self.give_back_behind(0);
    }

    /// Gives the outcomes back that are not of the packet with the one that comes next, or with one `before` it.
    fn give_back_behind(&mut self, before: u8) {
        if !self.tnt.is_empty()
            && let Some((offset, packets)) = self.tnt.give_back(self.events.trace(), before)
        {
            self.packets -= packets as u64;
            self.events.rewind(offset as u64);
        }
    }

    /// An error at the packet that the decoder holds.
    #[cold]
    fn fail(&mut self, kind: ErrorKind) -> Error {
        self.give_back();
        Error { offset: self.offset(), kind }
    }

    /// An error at the packet with the outcome that was taken last.
    #[cold]
    fn fail_at_outcome(&mut self, kind: ErrorKind) -> Error {
        self.give_back_behind(1);
        Error { offset: self.offset(), kind }
    }

    fn mismatch(&mut self) -> Error {
        self.fail(ErrorKind::TraceMismatch { ip: self.ip })
    }
}

/// How [`BlockDecoder::advance`] ends.
enum Next {
    /// There is something in `block` that is to be given out.
    Block,
    Event(Event),
    End,
}
