//! The state of a block decoder, and synchronisation.

use super::{
    block::{Block, BlockInsn, FlowStatus},
    insns::Memory,
    known::KnownCode,
    loops::Loops,
};
use crate::{
    EventDecoder, EventOptions, Returns,
    code::{Answer, Code},
    event::{PtEvent, flag, kind},
};
use pugmark_decoder_core::{
    config::AddressFilter,
    image::{Asid, Image},
    mode::ExecMode,
};
use std::ffi::c_int;

/// The processor, and the caller's choices.
#[derive(Clone, Copy, Debug)]
pub struct BlockOptions {
    /// The options of the event decoder.
    pub events: EventOptions,
    /// The ranges of code that were traced, for erratum SKL014.
    pub filter: AddressFilter,
    /// True to report a tick event where time advances at a branch.
    pub ticks: bool,
    /// True to end blocks after direct calls.
    pub end_on_call: bool,
    /// True to end blocks after direct jumps.
    pub end_on_jump: bool,
}

/// `struct pt_block_decoder`, as 2.3 has it.
#[derive(Clone, Debug)]
pub struct BlockDecoder<'a> {
    pub(super) options: BlockOptions,
    pub(super) events: EventDecoder<&'a [u8]>,
    pub(super) memory: Memory<'a>,
    /// The next event; of no kind after an error.
    pub(super) event: PtEvent,
    /// The error of the event decoder in place of an event.
    pub(super) error: Option<c_int>,
    /// The time of the last event, in ticks of the TSC.
    pub(super) tsc: u64,
    /// The number of instructions since the last address that the trace gave, which TRIG packets count from.
    pub(super) since_anchor: Option<u32>,
    pub(super) mode: Option<ExecMode>,
    pub(super) ip: u64,
    /// True while tracing is enabled.
    pub(super) enabled: bool,
    pub(super) speculative: bool,
    /// An instruction that the walk has not gone past, because more events may bind to it.
    pub(super) postponed: Option<BlockInsn>,
    /// The kinds of events that have bound to it, as bits.
    pub(super) bound: u64,
    pub(super) returns: Returns,
    pub(super) known: KnownCode,
    pub(super) loops: Loops,
}

/// The event after an error of the event decoder.
pub(super) const NO_EVENT: PtEvent = PtEvent { kind: kind::IGNORED, ..PtEvent::EMPTY };

impl<'a> BlockDecoder<'a> {
    /// Starts without a position.
    #[must_use]
    pub fn new(trace: &'a [u8], image: Image<'a>, options: BlockOptions) -> Self {
        Self {
            options,
            events: EventDecoder::new(trace, options.events),
            memory: Memory::new(image),
            event: NO_EVENT,
            error: Some(Code::NoSync.status()),
            tsc: 0,
            since_anchor: None,
            mode: None,
            ip: 0,
            enabled: false,
            speculative: false,
            postponed: None,
            bound: 0,
            returns: Returns::new(),
            known: KnownCode::default(),
            loops: Loops::NEW,
        }
    }

    /// Forgets all but the position in the trace, and the code that is known.
    fn reset(&mut self) {
        self.event = NO_EVENT;
        self.error = Some(Code::NoSync.status());
        self.tsc = 0;
        self.since_anchor = None;
        self.mode = None;
        self.ip = 0;
        self.enabled = false;
        self.speculative = false;
        self.clear_postponed();
        self.returns.clear();
        self.memory.set_space(Asid::default());
        self.loops = Loops::NEW;
    }

    /// Goes to the next PSB.
    ///
    /// # Errors
    /// [`Code::EndOfStream`] if there is none, and errors of the PSB+.
    pub fn sync_forward(&mut self) -> Answer<FlowStatus> {
        self.reset();
        self.events.sync_forward()?;
        self.start()
    }

    /// Goes to the PSB at `offset`.
    pub(super) fn sync_set(&mut self, offset: u64) -> Answer<FlowStatus> {
        self.reset();
        self.events.sync_set(offset)?;
        self.start()
    }

    /// Starts with the events of a PSB+, which says where the walk begins.
    fn start(&mut self) -> Answer<FlowStatus> {
        let mut ahead = self.events.clone();
        let position = ahead.position();
        // When the event decoder moves on, the PSB+ ends; another one may follow.
        while ahead.position() == position {
            let event = match ahead.next() {
                Ok(event) => event,
                Err(error) if error == Code::EndOfStream.status() => break,
                Err(error) => return Err(error),
            };
            if !event.has(flag::STATUS_UPDATE) {
                break;
            }
            if event.kind == kind::ENABLED {
                self.enabled = true;
                self.ip = event.variant[0];
                break;
            }
        }
        self.read_event();
        self.trailing_event(None)
    }

    /// Reads the next event. An error is kept until the walk gets there.
    pub(super) fn read_event(&mut self) {
        (self.event, self.error) = match self.events.next() {
            Ok(event) => (event, None),
            Err(error) => (NO_EVENT, Some(error)),
        };
        self.loops = Loops::NEW;
    }

    /// Goes on by a block, and returns the status after it. A block that ends with an error has the instructions before
    /// the error.
    ///
    /// # Errors
    /// The trace does not fit the code, or the code cannot be read.
    pub fn next(&mut self, block: &mut Block) -> Answer<FlowStatus> {
        block.begin(self.ip, self.mode, self.speculative);
        match (self.error, self.event.kind) {
            // After the end of the trace the walk goes on as far as it needs none.
            (Some(error), _) if error == Code::EndOfStream.status() && self.enabled => {
                self.run(block)?;
                Ok(FlowStatus { end: true, ..FlowStatus::default() })
            }
            (Some(error), _) => Err(error),
            (None, kind::TNT | kind::TIP) if !self.enabled => Err(Code::NoEnable.status()),
            (None, kind::TNT | kind::TIP) => {
                self.run(block)?;
                self.trailing_event(Some(block))
            }
            (None, _) => self.event_ahead(block),
        }
    }

    /// Returns the status after an answer.
    pub(super) fn status(&self, event_pending: bool) -> FlowStatus {
        let end = self.error == Some(Code::EndOfStream.status());
        FlowStatus { event_pending, ip_suppressed: !self.enabled, end }
    }

    /// Forgets the instruction that was postponed.
    pub(super) fn clear_postponed(&mut self) {
        (self.postponed, self.bound) = (None, 0);
    }

    /// Returns the offset of the packet that the event decoder is at; `None` before the first synchronisation.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        self.events.offset()
    }

    /// Returns the offset of the first packet that the walk has not used: that of the next event, or of the error in
    /// its place, or the one after a TNT. Unlike at [`offset`](Self::offset), the event decoder may have gone past it.
    #[must_use]
    pub fn unused_offset(&self) -> Option<u64> {
        let (start, end) = self.events.event_at().or(self.offset().map(|offset| (offset, offset)))?;
        Some(if self.event.kind == kind::TNT { end } else { start })
    }

    /// Returns the address space.
    #[must_use]
    pub fn space(&self) -> Asid {
        self.memory.space()
    }

    /// Returns the image.
    #[must_use]
    pub fn image(&self) -> Image<'a> {
        self.memory.image()
    }

    /// Goes on with another image.
    pub fn set_image(&mut self, image: Image<'a>) {
        self.memory.set_image(image);
        self.loops = Loops::NEW;
    }
}
