//! The instruction flow decoder: walks the code one instruction at a time.

use super::{FlowItem, Placed, Recovered, Upcoming, Walker, verbs::walker_verbs};
use crate::{
    config::Config,
    error::{Error, ErrorKind},
    image::Image,
    time::Span,
};

/// The decoder of the instructions of a trace and the events between them, in order.
///
/// Decoding starts at a PSB: call [`sync_forward`](Self::sync_forward) first, and again after each error.
#[derive(Clone, Debug)]
pub struct InsnDecoder<'a> {
    walker: Walker<'a>,
}

walker_verbs!(InsnDecoder);

impl<'a> InsnDecoder<'a> {
    /// Creates a decoder at the start of `trace`, not synchronised.
    #[must_use]
    pub fn new(trace: &'a [u8], image: Image<'a>) -> Self {
        Self::with_config(trace, image, Config::new())
    }

    /// Creates a decoder at the start of `trace`, not synchronised.
    #[must_use]
    pub fn with_config(trace: &'a [u8], image: Image<'a>, config: Config<'a>) -> Self {
        Self { walker: Walker::new(trace, image, config) }
    }

    /// Goes to the next PSB and returns its offset; `None` when none follows.
    ///
    /// The decoder forgets all state except the counters. It reads ahead: a PSB that it has read before an error
    /// counts as passed. [`resync`](Self::resync) loses less.
    pub fn sync_forward(&mut self) -> Option<u64> {
        self.walker.sync_forward()
    }

    /// Goes to the first PSB after which nothing was reported yet and returns its offset; `None` when there is none.
    ///
    /// This is the next PSB, or the last one read if an error preceded the first instruction or event after it.
    pub fn resync(&mut self) -> Option<u64> {
        self.walker.resync()
    }

    /// Goes to the last PSB before the current position and returns its offset; `None` when there is none.
    pub fn sync_backward(&mut self) -> Option<u64> {
        self.walker.sync_backward()
    }

    /// Goes to the PSB at `offset`, even if the decoder was there before. Returns `false` and changes nothing if there
    /// is none.
    ///
    /// In a run of PSBs without a gap, goes to the last one.
    pub fn sync_at(&mut self, offset: u64) -> bool {
        self.walker.sync_at(offset)
    }

    /// Looks for the next event that gives the decoder's place, after an error, and continues there.
    ///
    /// The part of the trace in between is lost. If that part holds a PSB+, decoding restarts there.
    ///
    /// # Errors
    /// When there is an error before such an event. Only [`sync_forward`](Self::sync_forward) can continue from
    /// there.
    pub fn recover(&mut self) -> Result<Recovered, Error> {
        self.walker.recover()
    }

    /// Returns the packets between which the last reported instruction was executed.
    ///
    /// A [`Timeline`](crate::time::Timeline) of the trace converts the span to a time. The time of an event is that of
    /// its own packet, at [`Event::offset`](crate::event::Event::offset).
    #[must_use]
    pub fn span(&self) -> Span {
        self.walker.span()
    }

    /// Returns the place of the last reported event.
    #[must_use]
    pub fn placed(&self) -> Placed {
        self.walker.at.placed
    }

    /// Replaces the image, from the next instruction on.
    pub fn set_image(&mut self, image: Image<'a>) {
        self.walker.set_image(image);
    }

    /// Returns the next instruction or event, or `None` at the end of the trace.
    ///
    /// Status updates, TIPs and TNTs are consumed here and not reported.
    ///
    /// # Errors
    /// Holds the offset of the packet that is wrong or does not fit the code. After an error, only
    /// [`ErrorKind::OutOfSync`] follows until [`sync_forward`](Self::sync_forward).
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot tell its end from an error by `?`")]
    pub fn next(&mut self) -> Result<Option<FlowItem>, Error> {
        if self.walker.at.failed {
            return Err(self.walker.fail(ErrorKind::OutOfSync));
        }
        let next = self.advance();
        match next {
            Err(error) if error.kind != ErrorKind::EndOfSlice => self.walker.give_up(error),
            _ => {}
        }
        next
    }

    #[inline]
    fn advance(&mut self) -> Result<Option<FlowItem>, Error> {
        match self.walker.advance(false)? {
            Upcoming::Insn => Ok(self.walker.execute_if(|_, _, _| true)?.map(FlowItem::Insn)),
            Upcoming::Event => Ok(self.walker.at.taken.take().map(FlowItem::Event)),
            Upcoming::Held | Upcoming::End => Ok(None),
        }
    }
}
