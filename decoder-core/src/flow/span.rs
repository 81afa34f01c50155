//! The packets around the walk's place, from which the [timeline](crate::time::Timeline) gets the time.

use super::walker::Walker;
use crate::{
    event::{Event, EventKind},
    keeper::Keeper,
    time::Span,
};

impl<K: Keeper> Walker<'_, K> {
    /// Returns the last packet that gives the walk's place: the instructions that follow happened after it.
    ///
    /// A packet that is not bound to the code, such as PSB+ or CBR, does not count: the walk may not have reached the
    /// place where it was sent.
    #[inline]
    pub(crate) fn after(&self) -> u64 {
        if self.ahead.tnt.is_untouched() {
            self.at.located
        } else {
            self.at.located.max(self.ahead.outcomes_at)
        }
    }

    /// Returns the next packet that gives the walk's place.
    pub(crate) fn before(&self) -> u64 {
        if self.ahead.tnt.is_empty() { self.offset() } else { self.ahead.outcomes_at }
    }

    /// Returns the packets around the next instruction, or the one executed last.
    pub(super) fn span(&self) -> Span {
        Span { after: self.after(), before: self.before() }
    }

    /// Returns true if the last branch may have used a deferred TIP, one after outcomes that are not used yet. If so,
    /// no packet before those outcomes was used.
    pub(crate) fn may_be_deferred(&self) -> bool {
        self.ahead.deferred_tip && self.ahead.tnt.is_untouched()
    }

    /// Notes that the walk has reached the place where `event` was sent.
    pub(super) fn locate(&mut self, event: &Event) {
        let is_bound = match event.kind {
            // The walk begins at the PSB+ that was synchronised onto.
            _ if event.status => return self.at.located = self.events.offset(),
            EventKind::Disabled
            | EventKind::Paging(_)
            | EventKind::Vmcs(_)
            | EventKind::Ptwrite(_)
            | EventKind::Vmentry
            | EventKind::Uiret
            | EventKind::Iret
            | EventKind::Syscall => true,
            _ => event.ip.is_some(),
        };
        if is_bound {
            self.at.located = self.after().max(event.offset);
        }
    }
}
