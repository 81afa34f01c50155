//! Errata that only the code under the trace shows, as the instruction flow allows for them.

use super::BlockDecoder;
use crate::{
    error::Error,
    event::{Event, EventKind},
    insn::{self, Class, Insn, Op},
};

/// How many instructions to look ahead for the place of an abort.
const STEPS: usize = 256;

impl BlockDecoder<'_> {
    /// BDM64: the branch that was left went to the place of the abort that comes next, if nothing else leads there.
    #[cold]
    pub(super) fn jump_by_bdm64(&mut self) -> Result<(), Error> {
        self.look()?;
        if let Some(Event { kind: EventKind::Tsx { aborted: true, .. }, ip: Some(ip), .. }) = self.event
            && self.tnt.is_empty()
            && !self.reaches(ip)
        {
            self.ip = ip;
        }
        Ok(())
    }

    /// Whether the code leads to `target` by itself.
    fn reaches(&self, target: u64) -> bool {
        let mut ip = self.ip;
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

    /// SKD022: what looks like an asynchronous end in front of a VM entry is the VM entry's own.
    pub(super) fn is_entry_by_skd022(&mut self, event: &Event) -> bool {
        let EventKind::AsyncDisabled { at } = event.kind else { return false };
        if !self.config.errata.skd022 || at != self.ip {
            return false;
        }
        let enters = self.peek(at).is_some_and(|insn| insn.op == Op::VmEntry);
        if enters {
            self.event = Some(Event { kind: EventKind::Disabled, ..*event });
        }
        enters
    }

    /// SKL014: the end of tracing that comes next, which has no IP, is that of a direct branch out of the filter's
    /// ranges.
    pub(super) fn leads_out_by_skl014(&self, insn: &Insn, next: &Event) -> bool {
        let events = &self.config;
        events.errata.skl014
            && next.kind == EventKind::Disabled
            && next.ip.is_none()
            && matches!(insn.class, Class::NearJump | Class::NearCall)
            && insn.target.is_some_and(|target| !events.filter.contains(target))
    }

    /// The instruction at `ip`, without going there.
    fn peek(&self, ip: u64) -> Option<Insn> {
        let mut bytes = [0; insn::MAX_LEN];
        let len = self.image.read(ip, self.cr3, &mut bytes);
        insn::decode(bytes.get(..len)?, self.mode?, ip).ok()
    }
}
