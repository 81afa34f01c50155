//! All branch events at once, for callers that need no walk over the code to take them.

use super::{BranchEvent, QueryDecoder};
use crate::{
    error::Error,
    event::{BranchSink, Event, ReadAhead},
    keeper::Keeper,
    lost::Lost,
    packet::Tnt,
};

/// A receiver of the branch events of a trace, in order.
pub trait BranchEventSink {
    /// Receives outcomes of conditional branches and of compressed returns: those of a packet, or the rest of them.
    fn outcomes(&mut self, outcomes: Tnt);

    /// Receives the target of an indirect branch; `None` if the trace omits it.
    fn target(&mut self, ip: Option<u64>);

    /// Receives an event.
    fn event(&mut self, event: &Event);

    /// Receives a loss at this place; only streams of slices report one, see [`resume`](crate::resume).
    #[inline]
    fn lost(&mut self, lost: &Lost) {
        let _ = lost;
    }

    /// Receives the offset of the trace that the decoder has reached. Called occasionally, to show progress.
    #[inline(always)]
    fn reached(&mut self, offset: u64) {
        let _ = offset;
    }
}

/// A sink that passes branches on as branch events.
struct Passing<'a, A>(&'a mut A);

impl<A: BranchEventSink> BranchSink for Passing<'_, A> {
    const PLACES: bool = false;

    #[inline(always)]
    fn short(&mut self, packet: u8) {
        self.0.outcomes(Tnt::of_short(packet));
    }

    #[inline(always)]
    fn long(&mut self, outcomes: Tnt) {
        self.0.outcomes(outcomes);
    }

    #[inline(always)]
    fn target(&mut self, ip: u64) {
        self.0.target(Some(ip));
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        false
    }
}

impl<K: Keeper> QueryDecoder<'_, K> {
    /// Passes all branch events up to the end of the trace or an error to `events`: those of [`next`](Self::next), but
    /// faster.
    ///
    /// # Errors
    /// Those of [`next`](Self::next), after everything before the error was passed on.
    ///
    /// ```
    /// use pugmark_decoder_core::event::Event;
    /// use pugmark_decoder_core::packet::Tnt;
    /// use pugmark_decoder_core::query::{BranchEventSink, QueryDecoder};
    ///
    /// #[derive(Default)]
    /// struct Count(u64, u64);
    ///
    /// impl BranchEventSink for Count {
    ///     fn outcomes(&mut self, outcomes: Tnt) {
    ///         self.0 += u64::from(outcomes.len);
    ///     }
    ///
    ///     fn target(&mut self, _: Option<u64>) {
    ///         self.1 += 1;
    ///     }
    ///
    ///     fn event(&mut self, _: &Event) {}
    /// }
    ///
    /// // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, not taken), TIP (2000)
    /// let trace = b"\
    ///     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
    ///     \x0c\x2d\0\x20";
    /// let mut query = QueryDecoder::new(trace);
    /// query.sync_forward();
    /// let mut count = Count::default();
    /// query.visit(&mut count)?;
    /// assert_eq!((count.0, count.1), (2, 1));
    /// # Ok::<(), pugmark_decoder_core::Error>(())
    /// ```
    pub fn visit<A: BranchEventSink>(&mut self, answers: &mut A) -> Result<(), Error> {
        loop {
            if self.tnt.len > 0 {
                let len = self.tnt.len.min(63);
                answers.outcomes(Tnt { bits: self.tnt.bits & !(!0 << len), len });
                self.tnt.len = 0;
            }
            if self.next.is_none() {
                let mut read = ReadAhead { when: self.when, outcomes_at: 0, target_at: 0 };
                self.events.read_branches(&mut Passing(answers), &mut read, None);
                self.when = read.when;
                answers.reached(self.events.offset());
            }
            match self.next()? {
                Some(BranchEvent::Conditional(taken)) => answers.outcomes(Tnt { bits: taken.into(), len: 1 }),
                Some(BranchEvent::Indirect(ip)) => answers.target(ip),
                Some(BranchEvent::Event(event)) => answers.event(&event),
                None => return Ok(()),
            }
        }
    }
}
