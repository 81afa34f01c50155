//! Finds the place of events in the code.

use super::{loops::LoopDetector, walker::Walker};
use crate::{
    error::Error,
    event::{Event, EventKind, Stamp},
    image::Asid,
    insn::{Class, Insn, Op},
    keeper::Keeper,
    mode::ExecMode,
    ret_stack::ReturnStack,
};

/// The place of a walk in the code, and its state there.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The address of the instruction in `executed`, or else of the next one.
    pub(crate) ip: u64,
    /// The instruction executed last, until the walk leaves it.
    pub(crate) executed: Option<Insn>,
    /// The kinds of events that are bound to `executed`, as bits of [`binding`].
    pub(super) bound: u8,
    pub(crate) tracing: Tracing,
    pub(crate) mode: Option<ExecMode>,
    /// True if packets were lost, perhaps a MODE.Exec: the next PSB+ gives the mode.
    pub(super) mode_lost: bool,
    pub(crate) speculative: bool,
    pub(crate) space: Asid,
    /// The address where packet generation was disabled; 0 if unknown.
    pub(super) stopped_at: u64,
    pub(super) returns: ReturnStack,
    pub(crate) loops: LoopDetector,
    /// The offset of the last packet, other than outcomes, that gives the place.
    pub(super) located: u64,
    /// The last PSB, if no instruction was executed and no event reported since.
    pub(crate) psb: Option<u64>,
    /// The time of the last packet used.
    pub(crate) when: Stamp,
    /// A tick at the branch that was left last.
    pub(super) tick: Option<Event>,
    /// The event that was applied last, until it is reported.
    pub(crate) taken: Option<Event>,
    /// True if [`jump_by_bdm64`](Walker::jump_by_bdm64) must run before the walk continues after a branch.
    pub(super) landed: bool,
    /// The place of the last reported event.
    pub(super) placed: Placed,
    /// The event at whose place the last recovery continued.
    pub(super) recovered_at: Option<Event>,
    /// The error that ended the last run.
    pub(super) error: Option<Error>,
    /// True after an error: nothing is reported until a synchronisation or a recovery.
    pub(crate) failed: bool,
}

impl Place {
    /// The place before a synchronisation.
    pub(super) const UNKNOWN: Self = Self {
        ip: 0,
        executed: None,
        bound: 0,
        tracing: Tracing::Unknown,
        mode: None,
        mode_lost: false,
        speculative: false,
        space: Asid { cr3: None, vmcs: None },
        stopped_at: 0,
        returns: ReturnStack::new(),
        loops: LoopDetector::new(),
        located: 0,
        psb: None,
        when: Stamp::UNKNOWN,
        tick: None,
        taken: None,
        landed: false,
        placed: Placed::Here,
        recovered_at: None,
        error: None,
        failed: false,
    };
}

/// The place of an event, and of the decoder when it reports the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placed {
    /// Before the next instruction.
    Here,
    /// After the instruction executed last, where the decoder still is.
    After,
}

/// The state of packet generation at the walk's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracing {
    Unknown,
    Off,
    On,
}

impl<K: Keeper> Walker<'_, K> {
    /// Returns true if `event` happened before the instruction at `ip` and after all executed instructions.
    #[inline]
    pub(super) fn is_here(&self, event: &Event) -> bool {
        if event.status {
            return true;
        }
        if self.at.tracing != Tracing::On {
            return !matches!(event.kind, EventKind::Tip | EventKind::Tnt(_));
        }
        match event.kind {
            EventKind::AsyncBranch { from: at } | EventKind::AsyncDisabled { at } => at == self.at.ip,
            EventKind::Disabled | EventKind::Syscall => event.ip == Some(self.at.ip),
            // After a recovery at this event, the event comes at once.
            EventKind::Iret => self.at.recovered_at == Some(*event),
            EventKind::Tip
            | EventKind::Tnt(_)
            | EventKind::Paging(_)
            | EventKind::Vmcs(_)
            | EventKind::Ptwrite(_)
            | EventKind::Vmentry
            | EventKind::Uiret => false,
            EventKind::Overflow | EventKind::Enabled { .. } => true,
            EventKind::Trigger { icnt: Some(icnt), .. } => {
                u64::from(icnt) <= self.at.loops.insns_since_anchor()
            }
            _ => event.ip.is_none_or(|ip| ip == self.at.ip),
        }
    }

    /// Returns true if `insn`, executed at `ip`, caused `event`.
    #[inline]
    pub(super) fn is_after(&self, event: &Event, insn: &Insn) -> bool {
        let named_or = |caused: bool| event.ip.map_or(caused, |named| named == self.at.ip);
        let caused = match event.kind {
            _ if event.status => false,
            // These events can be next here only after another event of the same instruction.
            EventKind::Cbr { .. } | EventKind::Mnt { .. } | EventKind::Pwre(_) | EventKind::Pwrx(_) => true,
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
        caused && self.at.bound & binding(event.kind) == 0
    }

    /// Returns true if an executed MOV to CR3 may have disabled packet generation.
    ///
    /// A MOV that disables packet generation has no PIP (cases 5c and 5d of the table "Packet Generation under
    /// Different Enable Conditions"). So a TIP.PGD without an IP after a MOV's PIP belongs to a later instruction.
    fn may_disable(&self) -> bool {
        self.at.bound & PAGING == 0
    }
}

const PAGING: u8 = 1 << 0;

/// Returns one bit per event kind that an instruction can cause at most once.
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

/// Returns true if the trace, and not the code alone, determines what follows the instruction.
pub(crate) const fn needs_trace(class: Class) -> bool {
    !matches!(class, Class::Other | Class::Ptwrite | Class::NearJump | Class::NearCall)
}
