//! The instruction flow decoder: the walk, step by step.

use super::{Due, Item, Placed, Recovered, Walker, verbs::walker_verbs};
use crate::{
    config::Config,
    error::{Error, ErrorKind},
    event::Event,
    image::Image,
    time::Span,
};

/// Gives the instructions of a trace and the events between them, in order.
///
/// It begins at a PSB: [`sync_forward`](Self::sync_forward) first, and again after each error.
#[derive(Clone, Debug)]
pub struct InsnDecoder<'a> {
    walker: Walker<'a>,
}

walker_verbs!(InsnDecoder);

impl<'a> InsnDecoder<'a> {
    /// A decoder in front of `trace`, not synchronised.
    #[must_use]
    pub fn new(trace: &'a [u8], image: Image<'a>) -> Self {
        Self::with_config(trace, image, Config::new())
    }

    /// A decoder in front of `trace`, not synchronised.
    #[must_use]
    pub fn with_config(trace: &'a [u8], image: Image<'a>, config: Config<'a>) -> Self {
        Self { walker: Walker::new(trace, image, config, false) }
    }

    /// Goes to the next PSB and returns its offset; `None` when none follows.
    ///
    /// Everything that was known is forgotten, except the counters. The decoder looks ahead: a PSB that it has read
    /// before it came to an error counts as passed, as it does for libipt. [`resync`](Self::resync) loses less.
    pub fn sync_forward(&mut self) -> Option<u64> {
        self.walker.sync_forward()
    }

    /// Goes to the PSB from which on nothing was given out yet and returns its offset; `None` when there is none.
    ///
    /// That is the next PSB, or the last one that was read when there was an error before any instruction behind it.
    pub fn resync(&mut self) -> Option<u64> {
        self.walker.resync()
    }

    /// Goes to the last PSB before the current position and returns its offset; `None` when there is none.
    pub fn sync_backward(&mut self) -> Option<u64> {
        self.walker.sync_backward()
    }

    /// Goes to the PSB at `offset`, also to one that it was at before; `false`, and nothing changes, when there is none.
    ///
    /// In a run of PSBs without a gap it goes to the last one.
    pub fn sync_at(&mut self, offset: u64) -> bool {
        self.walker.sync_at(offset)
    }

    /// Goes to the next PSB as libipt does, and returns its offset: a PSB that is the packet which the decoder holds is
    /// not found.
    pub fn sync_forward_from_held(&mut self) -> Option<u64> {
        self.walker.sync_forward_from_held()
    }

    /// The next status update of the PSB+ that the decoder has synchronised onto, applied; `None` behind the last, or
    /// where the trace ends in it.
    ///
    /// [`next`](Self::next) applies them as well; this tells the errors in them from those behind.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn sync_status(&mut self) -> Result<Option<Event>, Error> {
        self.walker.next_status().inspect_err(|error| self.walker.give_up(*error))
    }

    /// Behind an error, looks for the next event that says where the decoder is, to go on from there.
    ///
    /// What lies between is lost. A PSB+ among it is begun with anew.
    ///
    /// # Errors
    /// When there is an error before such an event. Then [`sync_forward`](Self::sync_forward) is left.
    pub fn recover(&mut self) -> Result<Recovered, Error> {
        self.walker.recover()
    }

    /// The packets between which the instruction given out last was executed.
    ///
    /// A [`Timeline`](crate::time::Timeline) of the trace tells when that was. An event was when its own packet was
    /// made, [`Event::offset`].
    #[must_use]
    pub fn span(&self) -> Span {
        self.walker.span()
    }

    /// Where the event given out last had its place.
    #[must_use]
    pub fn placed(&self) -> Placed {
        self.walker.placed
    }

    /// The offset of the packet that the decoder holds: the first one that is not an event yet, see [`Event::held`];
    /// where the trace ends once everything was used.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.walker.held()
    }

    /// Reads on to the next event already when one outcome is left, as libipt's instruction decoder does; an error in it
    /// is kept until it is its turn. Only [`held`](Self::held) tells the difference.
    pub fn look_ahead(&mut self) {
        self.walker.look_ahead();
    }

    /// The next event, where it has its place on the way and no outcome or target comes before it.
    #[must_use]
    pub fn awaited(&self) -> Option<&Event> {
        self.walker.awaited()
    }

    /// Decodes from another image from here on: the instruction that comes next is the first of it.
    pub fn set_image(&mut self, image: Image<'a>) {
        self.walker.set_image(image);
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
        if self.walker.failed {
            return Err(self.walker.fail(ErrorKind::OutOfSync));
        }
        let next = self.advance();
        if let Err(error) = next {
            self.walker.give_up(error);
        }
        next
    }

    #[inline]
    fn advance(&mut self) -> Result<Option<Item>, Error> {
        match self.walker.advance(false)? {
            Due::Insn => Ok(self.walker.execute_if(|_, _, _| true)?.map(Item::Insn)),
            Due::Event(event) => Ok(Some(Item::Event(event))),
            Due::Held | Due::End => Ok(None),
        }
    }
}
