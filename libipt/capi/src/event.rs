//! `struct pt_event`, and the queues of events that wait for a packet.

use std::ffi::c_int;

/// `struct pt_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtEvent {
    pub(crate) kind: c_int,
    pub(crate) flags: u32,
    pub(crate) tsc: u64,
    pub(crate) lost_mtc: u32,
    pub(crate) lost_cyc: u32,
    pub(crate) reserved: [u64; 2],
    /// The union. The tests in `layout` list the fields of each word.
    pub(crate) variant: [u64; 4],
}

/// `enum pt_event_type`.
pub(crate) mod kind {
    use std::ffi::c_int;

    pub(crate) const ENABLED: c_int = 0;
    pub(crate) const DISABLED: c_int = 1;
    pub(crate) const ASYNC_DISABLED: c_int = 2;
    pub(crate) const ASYNC_BRANCH: c_int = 3;
    pub(crate) const PAGING: c_int = 4;
    pub(crate) const ASYNC_PAGING: c_int = 5;
    pub(crate) const OVERFLOW: c_int = 6;
    pub(crate) const EXEC_MODE: c_int = 7;
    pub(crate) const TSX: c_int = 8;
    pub(crate) const STOP: c_int = 9;
    pub(crate) const VMCS: c_int = 10;
    pub(crate) const ASYNC_VMCS: c_int = 11;
    pub(crate) const EXSTOP: c_int = 12;
    pub(crate) const MWAIT: c_int = 13;
    pub(crate) const PWRE: c_int = 14;
    pub(crate) const PWRX: c_int = 15;
    pub(crate) const PTWRITE: c_int = 16;
    pub(crate) const TICK: c_int = 17;
    pub(crate) const CBR: c_int = 18;
    pub(crate) const MNT: c_int = 19;
    // Since 2.1.
    pub(crate) const TIP: c_int = 20;
    pub(crate) const TNT: c_int = 21;
    pub(crate) const IFLAGS: c_int = 22;
    pub(crate) const INTERRUPT: c_int = 23;
    pub(crate) const IRET: c_int = 24;
    pub(crate) const SMI: c_int = 25;
    pub(crate) const RSM: c_int = 26;
    pub(crate) const SIPI: c_int = 27;
    pub(crate) const INIT: c_int = 28;
    pub(crate) const VMENTRY: c_int = 29;
    pub(crate) const VMEXIT: c_int = 30;
    pub(crate) const SHUTDOWN: c_int = 31;
    pub(crate) const UINTR: c_int = 32;
    pub(crate) const UIRET: c_int = 33;
    /// Internal, never given to a caller: its packet takes part in a FUP or TIP.
    pub(crate) const IGNORED: c_int = -1;
}

/// The flags of an event, and those in its union.
pub(crate) mod flag {
    pub(crate) const IP_SUPPRESSED: u32 = 1 << 0;
    pub(crate) const STATUS_UPDATE: u32 = 1 << 1;
    pub(crate) const HAS_TSC: u32 = 1 << 2;
    /// Internal: the event's FUP begins an asynchronous branch, too.
    pub(crate) const SHARES_FUP: u32 = 1 << 31;

    pub(crate) const RESUMED: u64 = 1 << 0;
    pub(crate) const SPECULATIVE: u64 = 1 << 0;
    pub(crate) const ABORTED: u64 = 1 << 1;
    pub(crate) const PWRE_HW: u64 = 1 << 16;
    pub(crate) const PWRX_INTERRUPT: u64 = 1 << 16;
    pub(crate) const PWRX_STORE: u64 = 1 << 17;
    pub(crate) const PWRX_AUTONOMOUS: u64 = 1 << 18;
    pub(crate) const INTERRUPT_HAS_CR2: u64 = 1 << 0;
    pub(crate) const VMEXIT_HAS_VECTOR: u64 = 1 << 0;
    pub(crate) const VMEXIT_HAS_REASON: u64 = 1 << 1;
    pub(crate) const VMEXIT_HAS_QUALIFICATION: u64 = 1 << 2;
}

impl PtEvent {
    pub(crate) const EMPTY: Self =
        Self { kind: 0, flags: 0, tsc: 0, lost_mtc: 0, lost_cyc: 0, reserved: [0; 2], variant: [0; 4] };

    pub(crate) const fn new(kind: c_int, [first, second, third]: [u64; 3]) -> Self {
        Self { kind, variant: [first, second, third, 0], ..Self::EMPTY }
    }

    /// Returns whether only Event Trace has events of this kind.
    pub(crate) const fn is_of_event_trace(&self) -> bool {
        matches!(self.kind, kind::IFLAGS..=kind::UIRET)
    }

    /// Returns the index of the union's word with the address at which the event takes effect, if packets give such an
    /// address.
    pub(crate) const fn ip_word(&self) -> Option<usize> {
        match self.kind {
            kind::ENABLED
            | kind::DISABLED
            | kind::OVERFLOW
            | kind::TSX
            | kind::EXSTOP
            | kind::MWAIT
            | kind::PTWRITE
            | kind::TICK
            | kind::TIP
            | kind::IRET
            | kind::SMI
            | kind::INIT
            | kind::VMENTRY
            | kind::SHUTDOWN
            | kind::UIRET => Some(0),
            kind::ASYNC_DISABLED
            | kind::ASYNC_BRANCH
            | kind::EXEC_MODE
            | kind::ASYNC_VMCS
            | kind::IFLAGS
            | kind::UINTR => Some(1),
            kind::ASYNC_PAGING | kind::INTERRUPT => Some(2),
            kind::VMEXIT => Some(3),
            _ => None,
        }
    }
}

/// The packet that the events of a queue wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    PsbEnd,
    Tip,
    Fup,
}

/// The maximum number of events that wait for one packet.
const MOST: usize = 6;

/// A ring of events. As in libipt two of its places are never used, so it is full with six events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    events: [PtEvent; 8],
    begin: usize,
    len: usize,
}

impl Queue {
    pub(crate) const EMPTY: Self = Self { events: [PtEvent::EMPTY; 8], begin: 0, len: 0 };

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) const fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds an event at the end; `None` if there is no room.
    pub(crate) fn push(&mut self, event: PtEvent) -> Option<()> {
        if self.len == MOST {
            return None;
        }
        self.events[(self.begin + self.len) % 8] = event;
        self.len += 1;
        Some(())
    }

    /// Takes the first event.
    pub(crate) fn pop(&mut self) -> Option<PtEvent> {
        self.len = self.len.checked_sub(1)?;
        let event = self.events[self.begin];
        self.begin = (self.begin + 1) % 8;
        Some(event)
    }

    /// Returns the index of the first event of a kind.
    fn at(&self, kind: c_int) -> Option<usize> {
        (0..self.len).map(|at| (self.begin + at) % 8).find(|&at| self.events[at].kind == kind)
    }

    /// Returns the first event of a kind.
    pub(crate) fn find(&self, kind: c_int) -> Option<&PtEvent> {
        Some(&self.events[self.at(kind)?])
    }

    /// Returns the first event of a kind, to be changed.
    pub(crate) fn find_mut(&mut self, kind: c_int) -> Option<&mut PtEvent> {
        Some(&mut self.events[self.at(kind)?])
    }
}
