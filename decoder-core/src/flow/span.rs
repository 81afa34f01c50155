//! Between which packets the walk is: what the [timeline](crate::time::Timeline) tells the time by.

use super::walker::Walker;
use crate::{
    event::{Event, EventKind},
    time::Span,
};

impl Walker<'_> {
    /// The last packet that says where the walk is: what comes now happened behind it.
    ///
    /// A packet that is not bound to the code, as PSB+ and CBR, does not count: the walk may not have come to where it
    /// was made.
    #[inline]
    pub(crate) fn behind(&self) -> u64 {
        if self.tnt.is_untouched() { self.located } else { self.located.max(self.outcomes_at) }
    }

    /// What [`behind`](Self::behind) is when so many more outcomes are taken.
    pub(crate) fn behind_with(&self, outcomes: u8) -> u64 {
        if outcomes == 0 { self.behind() } else { self.located.max(self.outcomes_at) }
    }

    /// The next packet that says where the walk is.
    pub(crate) fn before(&self) -> u64 {
        if self.tnt.is_empty() { self.offset() } else { self.outcomes_at }
    }

    /// The packets around the instruction that comes next, or was executed last.
    pub(super) fn span(&self) -> Span {
        Span { behind: self.behind(), before: self.before() }
    }

    /// Whether the last branch may have had its target from a deferred TIP, one that follows outcomes which are not used
    /// yet. In that case no packet before those outcomes was used.
    pub(crate) fn may_be_deferred(&self) -> bool {
        self.deferred_tip.is_some() && self.tnt.is_untouched()
    }

    /// The walk comes to where `event` was made.
    pub(super) fn locate(&mut self, event: &Event) {
        let is_bound = match event.kind {
            // At the PSB+ synchronised onto the walk begins.
            _ if event.status => return self.located = self.events.offset(),
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
            self.located = self.behind().max(event.offset);
        }
    }
}
