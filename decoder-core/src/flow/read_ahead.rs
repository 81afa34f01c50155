//! Branches that the block cache's walk reads ahead: the walker counts those that were used; the others are read again.

use super::{
    ahead::Ahead,
    loops::LoopDetector,
    place::{Place, Tracing},
    tnt::UnusedOutcomes,
    walker::Walker,
};
use crate::{
    event::{BranchSink, Event, EventKind, Mark, PacketPlace, ReadAhead, Snapshot, Stamp},
    keeper::Keeper,
    packet::Packets,
    ret_stack::ReturnStack,
};

/// The place in the trace before branches were read ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    mark: Mark,
    tnt: UnusedOutcomes,
    outcomes_at: u64,
    located: u64,
    when: Stamp,
}

/// The place of a walk before it looked back at branches.
#[derive(Debug)]
pub(crate) struct LookingBack<'a> {
    events: (Packets<'a>, Snapshot),
    ahead: Ahead,
    located: u64,
    when: Stamp,
    loops: LoopDetector,
}

impl Start {
    /// An unknown place.
    pub(crate) const UNKNOWN: Self = Self {
        mark: Mark::UNKNOWN,
        tnt: UnusedOutcomes::new(),
        outcomes_at: 0,
        located: 0,
        when: Stamp::UNKNOWN,
    };
}

impl<'a, K: Keeper> Walker<'a, K> {
    /// Returns true if branches may come next and the next instruction has no event before it.
    pub(crate) fn may_read_ahead(&self) -> bool {
        self.at.executed.is_none()
            && !self.at.failed
            && self.at.tracing == Tracing::On
            && self.at.mode.is_some()
            && self.ahead.event.is_none()
            && !self.ahead.deferred_tip
            && self.at.tick.is_none()
    }

    /// Returns the part of the trace used: the offset of the next packet, and the number of outcomes left before it.
    pub(crate) fn used(&self) -> (u64, u8) {
        (self.events.offset(), self.ahead.tnt.len())
    }

    /// Returns the place in the trace, to come back to.
    pub(crate) fn start(&self) -> Start {
        let (Ahead { tnt, outcomes_at, .. }, Place { located, when, .. }) = (&*self.ahead, &*self.at);
        Start {
            mark: self.events.mark(),
            tnt: *tnt,
            outcomes_at: *outcomes_at,
            located: *located,
            when: *when,
        }
    }

    /// Returns the bytes at hand and the place of the next packet, if no outcome or event before that packet is left.
    pub(crate) fn whole_packets(&self) -> Option<(&'a [u8], PacketPlace)> {
        if !self.ahead.tnt.is_empty() {
            return None;
        }
        self.events.whole_packets(self.ahead.outcomes_at, self.at.located)
    }

    /// Goes to a place that only TNT and TIP packets precede, as if all of them were used.
    pub(crate) fn go_to(&mut self, place: &PacketPlace) {
        self.at.when = self.events.go_to(place);
        if place.outcomes_at != self.ahead.outcomes_at {
            self.ahead.tnt.use_up();
        }
        (self.at.located, self.ahead.outcomes_at) = (place.target_at, place.outcomes_at);
    }

    /// Reads branches ahead, as if all of them were used. Stops at the offset `until` if only branches follow.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn read_ahead<B: BranchSink>(&mut self, into: &mut B, until: Option<u64>) {
        let mut read =
            ReadAhead { when: self.at.when, outcomes_at: self.ahead.outcomes_at, target_at: self.at.located };
        if !self.ahead.tnt.is_empty() {
            into.packet_at(self.ahead.outcomes_at);
            into.long(self.ahead.tnt.left());
        }
        self.events.read_branches(into, &mut read, until);
        if read.outcomes_at != self.ahead.outcomes_at || !self.ahead.tnt.is_empty() {
            self.ahead.tnt.use_up();
        }
        (self.at.when, self.at.located, self.ahead.outcomes_at) =
            (read.when, read.target_at, read.outcomes_at);
    }

    /// Returns to `start`.
    pub(crate) fn return_to(&mut self, start: &Start) {
        self.events.reset(&start.mark);
        (self.ahead.tnt, self.ahead.outcomes_at, self.at.located) =
            (start.tnt, start.outcomes_at, start.located);
        self.at.when = start.when;
    }

    /// Returns to `start` from an event after the branches.
    pub(crate) fn return_from_event(&mut self, start: &Start) {
        (self.ahead.event, self.ahead.deferred_tip) = (None, false);
        self.events.drop_events();
        self.return_to(start);
    }

    /// Returns the state that a look back at branches changes, to restore it later.
    pub(crate) fn look_back(&self) -> LookingBack<'a> {
        let Place { located, when, loops, .. } = &*self.at;
        LookingBack {
            events: self.events.leave(),
            ahead: self.ahead.clone(),
            located: *located,
            when: *when,
            loops: *loops,
        }
    }

    /// Restores that state after branches were read again, after [`return_from_event`](Self::return_from_event).
    pub(crate) fn come_back(&mut self, here: &LookingBack<'a>) {
        let LookingBack { events, ahead, located, when, loops } = here;
        self.events.come_back(events);
        self.ahead.clone_from(ahead);
        (self.at.located, self.at.when, self.at.loops) = (*located, *when, *loops);
    }

    /// Uses the next `outcomes` outcomes and `targets` targets, in the order of the trace.
    pub(crate) fn use_branches(&mut self, mut outcomes: usize, mut targets: usize) {
        // They were read before, so no error and no other event comes.
        while outcomes > 0 || targets > 0 {
            if !self.sees_branch() {
                return;
            }
            if self.ahead.tnt.take().is_some() {
                outcomes = outcomes.saturating_sub(1);
            } else {
                targets = targets.saturating_sub(1);
                let _ = self.take_tip();
            }
        }
    }

    /// Reads the next item of the trace; returns `false` if that is no branch.
    pub(crate) fn sees_branch(&mut self) -> bool {
        self.look().is_ok_and(|more| more)
            && (!self.ahead.tnt.is_empty()
                || matches!(self.ahead.event, Some(Event { kind: EventKind::Tip, status: false, .. })))
    }

    /// Notes that instructions were executed, and that they used the trace if `used`.
    pub(crate) fn has_walked(&mut self, used: bool) {
        self.at.psb = None;
        // As after a branch, `jump_by_bdm64` checks if an abort comes next. After other code it finds a branch and does
        // nothing.
        self.at.landed = self.config().errata.bdm64;
        if used {
            self.at.loops.anchor();
        }
    }

    /// Returns the calls that have not returned.
    pub(crate) fn returns(&mut self) -> &mut ReturnStack {
        &mut self.at.returns
    }
}
