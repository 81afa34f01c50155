//! Finds the place of events in the code.

use super::walker::{Tracing, Walker};
use crate::{
    config::Dialect,
    event::{Event, EventKind},
    insn::{Class, Insn, Op},
};

impl Walker<'_> {
    /// Whether `event` happened before the instruction at `ip` and after all executed instructions.
    #[inline]
    pub(super) fn is_here(&self, event: &Event) -> bool {
        if event.status {
            return !self.is_before_psb(event.kind);
        }
        if self.tracing != Tracing::On {
            return !matches!(event.kind, EventKind::Tip | EventKind::Tnt(_));
        }
        match event.kind {
            EventKind::AsyncBranch { from: at } | EventKind::AsyncDisabled { at } => at == self.ip,
            EventKind::Disabled | EventKind::Syscall => event.ip == Some(self.ip),
            // After a recovery at this event's place, the event comes at once.
            EventKind::Iret => self.recovered_at == Some(*event),
            EventKind::Tip
            | EventKind::Tnt(_)
            | EventKind::Paging(_)
            | EventKind::Vmcs(_)
            | EventKind::Ptwrite(_)
            | EventKind::Vmentry
            | EventKind::Uiret => false,
            EventKind::Overflow | EventKind::Enabled { .. } => true,
            // A trigger whose place was passed is an error. For libipt, a trigger whose FUP names a place ahead is an
            // error, too.
            EventKind::Trigger { icnt: None, .. } if self.config().dialect == Dialect::Libipt => true,
            EventKind::Trigger { icnt: Some(icnt), .. } => u64::from(icnt) <= self.walk.insns(),
            _ => event.ip.is_none_or(|ip| ip == self.ip),
        }
    }

    /// Whether the walk has not yet come to the address at which the last PSB+ says tracing is on. libipt applies the
    /// state in the PSB+ at that address, except for the fact that tracing is on.
    #[cold]
    fn is_before_psb(&self, kind: EventKind) -> bool {
        let is_state = matches!(
            kind,
            EventKind::ExecMode(_)
                | EventKind::Iflags { .. }
                | EventKind::Tsx { .. }
                | EventKind::Paging(_)
                | EventKind::Vmcs(_)
        );
        is_state
            && self.config().dialect == Dialect::Libipt
            && self.tracing == Tracing::On
            && self.status_at.is_some_and(|(psb, ip)| psb == self.events.status_psb() && ip != self.ip)
    }

    /// Whether `event` was caused by `insn`, which was executed at `ip`.
    #[inline]
    pub(super) fn is_behind(&self, event: &Event, insn: &Insn) -> bool {
        let named_or = |caused: bool| event.ip.map_or(caused, |named| named == self.ip);
        let caused = match event.kind {
            _ if event.status => false,
            // These events can be next here only after another event of the same instruction.
            EventKind::Cbr { .. } | EventKind::Mnt { .. } | EventKind::Pwre(_) | EventKind::Pwrx(_) => true,
            // For libipt these events belong to the next instruction, and so do all that follow.
            _ if self.bound & NO_INSN != 0 && self.config().dialect == Dialect::Libipt => false,
            EventKind::Disabled => {
                needs_trace(insn.class) || event.ip.is_none() && insn.op == Op::MovToCr3 && self.may_disable()
            }
            EventKind::Paging(_) => insn.can_write_cr3(),
            EventKind::Vmcs(_) => insn.can_change_vmcs(),
            EventKind::Ptwrite(_) => named_or(insn.op == Op::Ptwrite),
            EventKind::Iret => named_or(insn.can_be_iret()),
            EventKind::Vmentry => named_or(insn.op == Op::VmEntry),
            EventKind::Uiret => named_or(insn.op == Op::Uiret),
            EventKind::Syscall => event.ip.is_none() && matches!(insn.op, Op::Syscall | Op::Sysenter),
            _ => false,
        };
        caused && self.bound & binding(event.kind) == 0
    }

    /// Whether a MOV to CR3 that was executed may be what disabled packet generation.
    ///
    /// A MOV that does has no PIP (cases 5c and 5d of the table "Packet Generation under Different Enable
    /// Conditions"). So a TIP.PGD without an IP after a MOV's PIP belongs to a later instruction. libipt assigns it
    /// to the MOV.
    fn may_disable(&self) -> bool {
        self.config().dialect == Dialect::Libipt || self.bound & PAGING == 0
    }
}

const PAGING: u8 = 1 << 0;
/// An event that no instruction causes.
pub(super) const NO_INSN: u8 = 1 << 7;

/// One bit per event kind that an instruction can cause at most once.
pub(super) const fn binding(kind: EventKind) -> u8 {
    match kind {
        EventKind::Paging(_) => PAGING,
        EventKind::Vmcs(_) => 1 << 1,
        EventKind::Ptwrite(_) => 1 << 2,
        EventKind::Iret => 1 << 3,
        EventKind::Vmentry => 1 << 4,
        EventKind::Uiret => 1 << 5,
        EventKind::Syscall => 1 << 6,
        _ => 0,
    }
}

/// Whether the trace, and not the code alone, decides what follows the instruction.
pub(crate) const fn needs_trace(class: Class) -> bool {
    !matches!(class, Class::Other | Class::Ptwrite | Class::NearJump | Class::NearCall)
}
