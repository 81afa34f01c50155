//! What a walker gives to a faster walk, and takes back from it.

use super::{
    tnt::Outcomes,
    walker::{Tracing, Walker},
};
use crate::{
    config::Dialect,
    event::{BranchSink, Event, EventKind, Mark, ReadAhead, Stamp},
    ret_stack::ReturnStack,
};

/// The place in the trace before branches were read ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    mark: Mark,
    tnt: Outcomes,
    outcomes_at: u64,
    located: u64,
    when: Stamp,
}

impl Walker<'_> {
    /// Whether branches may come next, and the walk may go on at an instruction without an event before it.
    pub(crate) fn may_read_ahead(&self) -> bool {
        self.executed.is_none()
            && !self.failed
            && self.tracing == Tracing::On
            && self.mode.is_some()
            && self.event.is_none()
            && self.deferred.is_none()
            && self.deferred_tip.is_none()
            && self.tick.is_none()
    }

    /// Whether a return whose target the trace names takes an address from the stack. By the manual every return
    /// does; in libipt only returns without a TIP.
    pub(crate) fn named_returns_pop(&self) -> bool {
        self.config().dialect == Dialect::Manual
    }

    /// How much of the trace was used.
    pub(crate) fn used(&self) -> (u64, u8) {
        (self.events.offset(), self.tnt.len())
    }

    /// The place in the trace.
    pub(crate) fn start(&self) -> Start {
        let Self { tnt, outcomes_at, located, when, .. } = *self;
        Start { mark: self.events.mark(), tnt, outcomes_at, located, when }
    }

    /// Reads branches ahead, as if all of them were used.
    #[inline(always)]
    pub(crate) fn read_ahead<B: BranchSink>(&mut self, into: &mut B) {
        let mut read = ReadAhead { when: self.when, outcomes_at: self.outcomes_at, located: self.located };
        if !self.tnt.is_empty() {
            into.long(self.outcomes_at, self.tnt.left());
        }
        self.events.read_branches(into, &mut read);
        if read.outcomes_at != self.outcomes_at || !self.tnt.is_empty() {
            self.tnt.use_up();
        }
        (self.when, self.located, self.outcomes_at) = (read.when, read.located, read.outcomes_at);
    }

    /// Returns to `start`.
    pub(crate) fn return_to(&mut self, start: &Start) {
        self.events.reset(&start.mark);
        (self.tnt, self.outcomes_at, self.located) = (start.tnt, start.outcomes_at, start.located);
        self.when = start.when;
    }

    /// Uses the next `outcomes` outcomes and `targets` targets, in the order of the trace.
    pub(crate) fn use_branches(&mut self, mut outcomes: usize, mut targets: usize) {
        // They were read before, so no error and no other event comes.
        while outcomes > 0 || targets > 0 {
            if !self.sees_branch() {
                return;
            }
            if self.tnt.take().is_some() {
                outcomes = outcomes.saturating_sub(1);
            } else {
                targets = targets.saturating_sub(1);
                let _ = self.take_tip();
            }
        }
    }

    /// Reads what comes next in the trace; `false` if that is no branch.
    pub(crate) fn sees_branch(&mut self) -> bool {
        self.look().is_ok_and(|more| more)
            && (!self.tnt.is_empty()
                || matches!(self.event, Some(Event { kind: EventKind::Tip, status: false, .. })))
    }

    /// Notes that instructions were executed, and if `used` that they used the trace.
    pub(crate) fn has_walked(&mut self, used: bool) {
        self.psb = None;
        if used {
            self.walk.anchor();
        }
    }

    pub(crate) fn take_returns(&mut self) -> ReturnStack {
        self.returns.clone()
    }

    pub(crate) fn put_returns(&mut self, returns: ReturnStack) {
        self.returns = returns;
    }
}
