//! `struct pt_event`, as 2.1.2 has it, with the kinds of 2.3.

use std::ffi::c_int;

/// `struct pt_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtEvent {
    /// Its kind, of [`kind`].
    pub kind: c_int,
    /// Its flags, of [`flag`].
    pub flags: u32,
    /// The time in ticks of the TSC; without a TSC packet before it, the ticks since the last synchronisation.
    pub tsc: u64,
    /// The number of MTC packets that were lost since the time was exact.
    pub lost_mtc: u32,
    /// The number of CYC packets that were lost since the time was exact.
    pub lost_cyc: u32,
    /// Zeros.
    pub reserved: [u64; 2],
    /// The union. For the kinds that a C program knows, the library's tests list the fields of each word.
    pub variant: [u64; 4],
}

/// `enum pt_event_type`, with the names of libipt's header in short.
#[allow(missing_docs, reason = "each is a name of the header's")]
pub mod kind {
    use std::ffi::c_int;

    pub const ENABLED: c_int = 0;
    pub const DISABLED: c_int = 1;
    pub const ASYNC_DISABLED: c_int = 2;
    pub const ASYNC_BRANCH: c_int = 3;
    pub const PAGING: c_int = 4;
    pub const ASYNC_PAGING: c_int = 5;
    pub const OVERFLOW: c_int = 6;
    pub const EXEC_MODE: c_int = 7;
    pub const TSX: c_int = 8;
    pub const STOP: c_int = 9;
    pub const VMCS: c_int = 10;
    pub const ASYNC_VMCS: c_int = 11;
    pub const EXSTOP: c_int = 12;
    pub const MWAIT: c_int = 13;
    pub const PWRE: c_int = 14;
    pub const PWRX: c_int = 15;
    pub const PTWRITE: c_int = 16;
    pub const TICK: c_int = 17;
    pub const CBR: c_int = 18;
    pub const MNT: c_int = 19;
    // Since 2.1.
    pub const TIP: c_int = 20;
    pub const TNT: c_int = 21;
    pub const IFLAGS: c_int = 22;
    pub const INTERRUPT: c_int = 23;
    pub const IRET: c_int = 24;
    pub const SMI: c_int = 25;
    pub const RSM: c_int = 26;
    pub const SIPI: c_int = 27;
    pub const INIT: c_int = 28;
    pub const VMENTRY: c_int = 29;
    pub const VMEXIT: c_int = 30;
    pub const SHUTDOWN: c_int = 31;
    pub const UINTR: c_int = 32;
    pub const UIRET: c_int = 33;
    // Since 2.2.
    pub const TRIG: c_int = 34;
    pub const SWINTR: c_int = 35;
    pub const SYSCALL: c_int = 36;
    /// Internal, never given to a caller: its packet takes part in a FUP or TIP.
    pub const IGNORED: c_int = -1;
}

/// The flags of an event, and those in its union.
#[allow(missing_docs, reason = "each is a name of the header's")]
pub mod flag {
    pub const IP_SUPPRESSED: u32 = 1 << 0;
    pub const STATUS_UPDATE: u32 = 1 << 1;
    pub const HAS_TSC: u32 = 1 << 2;
    /// Internal: the event's FUP begins an asynchronous branch, too.
    pub const SHARES_FUP: u32 = 1 << 31;

    pub const RESUMED: u64 = 1 << 0;
    pub const SPECULATIVE: u64 = 1 << 0;
    pub const ABORTED: u64 = 1 << 1;
    pub const PWRE_HW: u64 = 1 << 16;
    pub const PWRX_INTERRUPT: u64 = 1 << 16;
    pub const PWRX_STORE: u64 = 1 << 17;
    pub const PWRX_AUTONOMOUS: u64 = 1 << 18;
    pub const INTERRUPT_HAS_CR2: u64 = 1 << 0;
    pub const VMEXIT_HAS_VECTOR: u64 = 1 << 0;
    pub const VMEXIT_HAS_REASON: u64 = 1 << 1;
    pub const VMEXIT_HAS_QUALIFICATION: u64 = 1 << 2;
}

impl PtEvent {
    /// An event of zeros.
    pub const EMPTY: Self =
        Self { kind: 0, flags: 0, tsc: 0, lost_mtc: 0, lost_cyc: 0, reserved: [0; 2], variant: [0; 4] };

    /// Returns an event of a kind with the first words of its union.
    #[must_use]
    pub const fn new(kind: c_int, [first, second, third]: [u64; 3]) -> Self {
        Self { kind, variant: [first, second, third, 0], ..Self::EMPTY }
    }

    /// Returns whether only Event Trace has events of this kind.
    #[must_use]
    pub const fn is_of_event_trace(&self) -> bool {
        matches!(self.kind, kind::IFLAGS..=kind::UIRET)
    }

    /// Returns the index of the union's word with the address at which the event takes effect, if packets give such an
    /// address.
    #[must_use]
    pub const fn ip_word(&self) -> Option<usize> {
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
            | kind::UIRET
            | kind::SYSCALL => Some(0),
            kind::ASYNC_DISABLED
            | kind::ASYNC_BRANCH
            | kind::EXEC_MODE
            | kind::ASYNC_VMCS
            | kind::IFLAGS
            | kind::UINTR
            | kind::TRIG
            | kind::SWINTR => Some(1),
            kind::ASYNC_PAGING | kind::INTERRUPT => Some(2),
            kind::VMEXIT => Some(3),
            _ => None,
        }
    }

    /// Returns the address at which the event takes effect, if it has one.
    #[must_use]
    pub fn ip(&self) -> Option<u64> {
        let word = self.ip_word().filter(|_| !self.has(flag::IP_SUPPRESSED))?;
        self.variant.get(word).copied()
    }

    /// Returns true if the event has a flag.
    #[must_use]
    pub const fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}
