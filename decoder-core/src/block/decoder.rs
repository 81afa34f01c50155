//! The block decoder: walks the code a block at a time.

use super::{Block, BlockItem, BlockStep, Insns};
use crate::{
    block_cache::Scratch,
    config::Config,
    error::{Error, ErrorKind},
    flow::{Recovered, Walker, walker_verbs},
    hash::AddressHash,
    image::{Image, Section, Window},
    keeper::{Keeper, Own, Owned},
    mode::ExecMode,
    time::Span,
};

/// The decoder of the blocks of a trace and the events between them, in order.
///
/// Decoding starts at a PSB: call [`sync_forward`](Self::sync_forward) first, and again after each error.
#[derive(Debug)]
pub struct BlockDecoder<'a, K: Keeper = Own> {
    pub(crate) walker: Walker<'a, K>,
    /// Instructions that were executed but not reported yet; none if the count is 0.
    pub(crate) block: Block,
    /// The error that comes after `block`.
    pub(super) failed: Option<Error>,
    /// The packet after which `block` was executed, and true if it ended with a branch that the trace decided.
    pub(super) after: u64,
    pub(crate) decided: bool,
    /// The part of the image that the last single instruction came from, and its section.
    pub(super) window: Window<'a>,
    pub(super) section: u32,
    /// Half the edge-map place of the previous block, for the next edge of a visit.
    pub(crate) edge_before: u16,
    /// A number that identifies the image, once it was needed.
    image_key: Option<u64>,
    /// The memory that a visit works in.
    pub(crate) scratch: K::Of<Scratch>,
}

pub(super) const NO_BLOCK: Block = Block {
    ip: 0,
    end_ip: 0,
    insns: 0,
    section: u32::MAX,
    mode: ExecMode::Bits64,
    speculative: false,
    truncated: false,
};

impl Block {
    /// Makes the instruction at `ip` the first of the block, if the block is empty. Returns `false` if the instruction
    /// belongs to another block.
    #[inline]
    pub(super) fn begin(&mut self, ip: u64, mode: ExecMode, speculative: bool, section: u32) -> bool {
        if self.insns != 0 {
            return self.section == section && !self.truncated;
        }
        (self.ip, self.mode, self.section, self.speculative) = (ip, mode, section, speculative);
        true
    }
}

walker_verbs!(BlockDecoder<K>);

impl<'a> BlockDecoder<'a> {
    /// Creates a decoder at the start of `trace`, not synchronised.
    #[must_use]
    pub fn new(trace: &'a [u8], image: Image<'a>) -> Self {
        Self::with_config(trace, image, Config::new())
    }

    /// Creates a decoder at the start of `trace`, not synchronised.
    #[must_use]
    pub fn with_config(trace: &'a [u8], image: Image<'a>, config: Config<'a>) -> Self {
        Self {
            walker: Walker::new(trace, image, config),
            block: NO_BLOCK,
            failed: None,
            after: 0,
            decided: false,
            window: Window::default(),
            section: u32::MAX,
            edge_before: 0,
            image_key: None,
            scratch: Owned(Scratch::new()),
        }
    }

    /// Goes to the start of another trace of the same image, and forgets all state.
    pub fn set_trace(&mut self, trace: &'a [u8]) {
        self.forget();
        self.walker.set_trace(trace);
    }
}

/// The part of a decoder's state that is not the walk's. It borrows nothing, and is small.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenBlock {
    block: Block,
    failed: Option<Error>,
    after: u64,
    decided: bool,
    edge_before: u16,
    image_key: Option<u64>,
}

impl OpenBlock {
    /// No block.
    pub(crate) const NONE: Self =
        Self { block: NO_BLOCK, failed: None, after: 0, decided: false, edge_before: 0, image_key: None };

    /// Notes that another image follows.
    pub(crate) const fn forget_image(&mut self) {
        self.image_key = None;
    }
}

impl<'a, K: Keeper> BlockDecoder<'a, K> {
    /// Creates a decoder that continues a walk.
    pub(crate) fn with_state(walker: Walker<'a, K>, scratch: K::Of<Scratch>, open: OpenBlock) -> Self {
        let OpenBlock { block, failed, after, decided, edge_before, image_key } = open;
        let (window, section) = (Window::default(), u32::MAX);
        Self { walker, block, failed, after, decided, window, section, edge_before, image_key, scratch }
    }

    /// Returns the state apart from the walk.
    pub(crate) const fn open_block(&self) -> OpenBlock {
        let Self { block, failed, after, decided, edge_before, image_key, .. } = *self;
        OpenBlock { block, failed, after, decided, edge_before, image_key }
    }

    /// Replaces the image, from the next block on.
    pub fn set_image(&mut self, image: Image<'a>) {
        self.walker.set_image(image);
        self.window = Window::default();
        self.image_key = None;
    }

    /// Goes to the next PSB and returns its offset; `None` when none follows.
    ///
    /// The decoder forgets all state except the counters. It reads ahead: a PSB that it has read before an error counts
    /// as passed. [`resync`](Self::resync) loses less.
    pub fn sync_forward(&mut self) -> Option<u64> {
        self.forget();
        self.walker.sync_forward()
    }

    /// Goes to the first PSB after which nothing was reported yet and returns its offset; `None` when there is none.
    ///
    /// This is the next PSB, or the last one read if an error preceded the first instruction or event after it.
    pub fn resync(&mut self) -> Option<u64> {
        self.forget();
        self.walker.resync()
    }

    /// Goes to the last PSB before the current position and returns its offset; `None` when there is none.
    pub fn sync_backward(&mut self) -> Option<u64> {
        self.forget();
        self.walker.sync_backward()
    }

    /// Goes to the PSB at `offset`, even if the decoder was there before. Returns `false` and changes nothing if there
    /// is none.
    ///
    /// In a run of PSBs without a gap, goes to the last one.
    pub fn sync_at(&mut self, offset: u64) -> bool {
        let found = self.walker.sync_at(offset);
        if found {
            self.forget();
        }
        found
    }

    /// Looks for the next event that gives the decoder's place, after an error, and continues there.
    ///
    /// The part of the trace in between is lost. If that part holds a PSB+, decoding restarts there.
    ///
    /// # Errors
    /// When there is an error before such an event. Only [`sync_forward`](Self::sync_forward) can continue from
    /// there.
    pub fn recover(&mut self) -> Result<Recovered, Error> {
        self.forget();
        self.walker.recover()
    }

    fn forget(&mut self) {
        self.edge_before = 0;
        self.block = NO_BLOCK;
        (self.after, self.decided) = (0, false);
        self.failed = None;
    }

    /// Returns the packets between which the last reported block was executed.
    ///
    /// A [`Timeline`](crate::time::Timeline) of the trace converts the span to a time and estimates the time of each of
    /// the block's instructions. The time of an event is that of its own packet, at
    /// [`Event::offset`](crate::event::Event::offset).
    #[must_use]
    pub fn span(&self) -> Span {
        let (after, last) = (self.after, self.walker.after());
        // The branch at the block's end used the last packet, which may be the one before the block.
        let used = self.decided && (last > after || !self.walker.may_be_deferred());
        Span { after, before: if used { last } else { self.walker.before() } }
    }

    /// Returns the instructions of the last reported block.
    #[must_use]
    pub fn insns(&self, block: &Block) -> Insns<'a> {
        Insns::new(self.walker.image, self.walker.at.space, block)
    }

    /// Returns the next block or event, or `None` at the end of the trace.
    ///
    /// Status updates, TIPs and TNTs are consumed here and not reported.
    ///
    /// # Errors
    /// Holds the offset of the packet that is wrong or does not fit the code. The instructions before it are reported
    /// first. After an error, only [`ErrorKind::OutOfSync`](crate::ErrorKind::OutOfSync) follows until
    /// [`sync_forward`](Self::sync_forward).
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot tell its end from an error by `?`")]
    pub fn next(&mut self) -> Result<Option<BlockItem>, Error> {
        Ok(match self.next_step()? {
            BlockStep::Block => Some(BlockItem::Block(self.take_block())),
            BlockStep::Event => self.walker.at.taken.take().map(BlockItem::Event),
            BlockStep::End => None,
        })
    }

    /// Does the same as [`next`](Self::next), but leaves the block or the event where the step says.
    #[inline]
    pub(crate) fn next_step(&mut self) -> Result<BlockStep, Error> {
        match self.step() {
            Err(error) if !matches!(error.kind, ErrorKind::EndOfSlice) => self.give_up(error),
            step => step,
        }
    }

    /// Prepares for executing an instruction, which is the first of a block if the block is empty.
    #[inline]
    pub(crate) fn begin(&mut self) {
        if self.block.insns == 0 {
            (self.after, self.decided) = (self.walker.after(), false);
        }
    }

    #[inline]
    pub(crate) fn take_block(&mut self) -> Block {
        let block = self.block;
        self.block.insns = 0;
        block
    }

    #[cold]
    fn give_up(&mut self, error: Error) -> Result<BlockStep, Error> {
        if self.block.insns > 0 {
            self.failed = Some(error);
            return Ok(BlockStep::Block);
        }
        self.walker.give_up(error);
        Err(error)
    }

    /// Returns true if a visit may walk through the block cache from here.
    pub(crate) fn may_walk(&self) -> bool {
        let flags = &self.walker.config().flags;
        self.block.insns == 0
            && self.failed.is_none()
            && !(flags.end_on_call || flags.end_on_jump || flags.ticks)
            && self.walker.may_read_ahead()
    }

    /// Returns a number that identifies the image by the addresses of its sections and of their bytes in memory.
    pub(crate) fn image_key(&mut self) -> u64 {
        if let Some(key) = self.image_key {
            return key;
        }
        let mut key = AddressHash::new();
        for Section { base, bytes, space } in self.walker.image.sections() {
            let place = bytes.as_ptr() as usize;
            for value in [*base, place as u64, bytes.len() as u64] {
                key.add(value);
            }
            for only in [space.vmcs(), space.cr3()] {
                key.add(only.is_some().into());
                key.add(only.unwrap_or_default());
            }
        }
        *self.image_key.insert(key.value())
    }
}
