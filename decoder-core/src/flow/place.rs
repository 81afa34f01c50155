//! Where in the code events happened.

use super::walker::{Tracing, Walker};
use crate::{
    event::{Event, EventKind},
    insn::{Class, Insn, Op},
};

impl Walker<'_> {
    /// Whether `event` happened before the instruction at `ip`, behind all that was executed.
    #[inline]
    pub(super) fn is_here(&self, event: &Event) -> bool {
        if event.status {
            return true;
        }
        if self.tracing != Tracing::On {
            return !matches!(event.kind, EventKind::Tip | EventKind::Tnt(_));
        }
        match event.kind {
            EventKind::AsyncBranch { from: at } | EventKind::AsyncDisabled { at } => at == self.ip,
            EventKind::Disabled | EventKind::Iret | EventKind::Syscall => event.ip == Some(self.ip),
            EventKind::Tip
            | EventKind::Tnt(_)
            | EventKind::Paging(_)
            | EventKind::Vmcs(_)
            | EventKind::Ptwrite(_)
            | EventKind::Vmentry
            | EventKind::Uiret => false,
            EventKind::Overflow | EventKind::Enabled { .. } => true,
            EventKind::Trigger { icnt: Some(icnt), .. } => u64::from(icnt) == self.walk.insns(),
            _ => event.ip.is_none_or(|ip| ip == self.ip),
        }
    }
}

/// Whether `event` was caused by `insn`, which was executed at `ip`.
#[inline]
pub(super) fn is_behind(event: &Event, insn: &Insn, ip: u64) -> bool {
    let named_or = |caused: bool| event.ip.map_or(caused, |named| named == ip);
    match event.kind {
        _ if event.status => false,
        EventKind::Disabled => needs_trace(insn.class) || event.ip.is_none() && insn.op == Op::MovToCr3,
        EventKind::Paging(_) => insn.can_write_cr3(),
        EventKind::Vmcs(_) => insn.can_change_vmcs(),
        // One for each: the second of two that follow each other is of the next time.
        EventKind::Ptwrite(_) => {
            (insn.op == Op::Ptwrite || insn.class != Class::Ptwrite) && named_or(insn.op == Op::Ptwrite)
        }
        EventKind::Vmentry => named_or(insn.op == Op::VmEntry),
        EventKind::Uiret => named_or(insn.op == Op::Uiret),
        EventKind::Iret => event.ip.is_none() && matches!(insn.op, Op::Iret | Op::Eret),
        // They can only come to be next here behind another event of the same instruction.
        EventKind::Cbr { .. } | EventKind::Mnt { .. } | EventKind::Pwre(_) | EventKind::Pwrx(_) => true,
        EventKind::Syscall => event.ip.is_none() && matches!(insn.op, Op::Syscall | Op::Sysenter),
        _ => false,
    }
}

/// Whether the code alone does not say what comes behind the instruction.
pub(crate) const fn needs_trace(class: Class) -> bool {
    !matches!(class, Class::Other | Class::Ptwrite | Class::NearJump | Class::NearCall)
}
