//! Errata that can be detected only with the traced code.
//!
//! Source: the specification updates of the 5th generation Intel Core processors (BDM64, "An Incorrect LBR or Intel
//! Processor Trace Packet May Be Recorded Following a Transactional Abort") and of the 6th (SKD022, "VM Entry That
//! Clears TraceEn May Generate a FUP"; SKL014, "Intel PT TIP.PGD May Not Have Target IP Payload").

use super::{fetch::fetch, walker::Walker};
use crate::{
    error::Error,
    event::{Event, EventKind},
    insn::{Class, Insn, Op},
    keeper::Keeper,
};

/// Maximum number of instructions to check for the place of an abort.
const STEPS: usize = 256;

impl<K: Keeper> Walker<'_, K> {
    /// Jumps by BDM64: an abort at a place that the code does not reach means that the last branch led to that place.
    pub(crate) fn jump_by_bdm64(&mut self) -> Result<(), Error> {
        self.look()?;
        let aborted_at = match self.event_if_next() {
            Some(Event { kind: EventKind::Tsx { aborted: true, .. }, ip, .. }) => *ip,
            _ => None,
        };
        if let Some(ip) = aborted_at.filter(|ip| !self.reaches(*ip)) {
            self.at.ip = ip;
        }
        Ok(())
    }

    /// Returns true if the code reaches `target` without the trace.
    fn reaches(&self, target: u64) -> bool {
        let mut ip = self.at.ip;
        for _ in 0..STEPS {
            if ip == target {
                return true;
            }
            let Some(insn) = self.peek(ip) else { return false };
            ip = match (insn.class, insn.target) {
                (Class::Other | Class::Ptwrite, _) => insn.next(ip),
                (Class::NearJump | Class::NearCall, Some(target)) => target,
                _ => return false,
            };
        }
        false
    }

    /// Returns true if, by SKD022, an apparent asynchronous end of tracing belongs to the VM entry at its place.
    pub(super) fn is_entry_by_skd022(&mut self, event: &Event) -> bool {
        let EventKind::AsyncDisabled { at } = event.kind else { return false };
        if !self.config().errata.skd022 || at != self.at.ip {
            return false;
        }
        let enters = self.peek(at).is_some_and(|insn| insn.op == Op::VmEntry);
        if enters {
            self.ahead.event = Some(Event { kind: EventKind::Disabled, ..*event });
        }
        enters
    }

    /// Returns true if, by SKL014, the next event, an end of tracing without an IP, belongs to a direct branch out of
    /// the filter's ranges.
    pub(super) fn leads_out_by_skl014(&self, insn: &Insn, next: &Event) -> bool {
        self.config().errata.skl014
            && matches!(next.kind, EventKind::Disabled)
            && next.ip.is_none()
            && matches!(insn.class, Class::NearJump | Class::NearCall)
            && insn.target.is_some_and(|target| !self.config().filter.contains(target))
    }

    /// Decodes the instruction at `ip` without moving there.
    pub(super) fn peek(&self, ip: u64) -> Option<Insn> {
        fetch(self.image, self.at.space, self.window, ip, self.at.mode?).ok().map(|(_, insn)| insn)
    }
}
