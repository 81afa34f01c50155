//! What libipt reads otherwise than the manual, in one place: a question for each rule in which they differ.
//!
//! The decoder reads by the manual. Where a user of libipt must get the same answers (`ptdump`, `ptxed`, and whoever
//! replaces one by the other), it reads as libipt 2.3 does, including what libipt does not know and what it says too
//! late. No other file compares dialects. Each question has one answer for a configuration and is asked only where its
//! rule applies, so that a trace without the case costs nothing.

use crate::{error::ErrorKind, mode::ExecMode};

/// Whose reading of a trace to use, where they differ: of the packets' formats, of the order of packets, and of the
/// place of events in the code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The SDM's.
    #[default]
    Manual,
    /// libipt 2.3's: no block packets (their opcodes are unknown), PWRE.HW is bit 3 of byte 2 instead of bit 7,
    /// EVD.Type has five bits instead of six. Packets out of place are errors only where libipt refuses them, and
    /// errors have libipt's offsets.
    Libipt,
}

/// Packets.
impl Dialect {
    /// Whether BBP, BIP and BEP are known. libipt is older than they are: their opcodes are unknown to it.
    pub(crate) const fn has_block_packets(self) -> bool {
        self.is_manual()
    }

    /// PWRE.HW in byte 2: bit 7 in the manual's figure, bit 3 in libipt.
    pub(crate) const fn pwre_hw(self) -> u8 {
        match self {
            Self::Manual => 1 << 7,
            Self::Libipt => 1 << 3,
        }
    }

    /// The bits of EVD.Type: six in the manual, five in libipt.
    pub(crate) const fn evd_types(self) -> u8 {
        match self {
            Self::Manual => 0x3f,
            Self::Libipt => 0x1f,
        }
    }
}

/// Events.
impl Dialect {
    /// Whether a packet that no processor sends at its place is an error. libipt accepts some of them.
    pub(crate) const fn refuses_packets_out_of_place(self) -> bool {
        self.is_manual()
    }

    /// Whether a FUP or TIP.PGE without an IP is an error itself. For libipt it is one only if the IP is used.
    pub(crate) const fn needs_ip_at_once(self) -> bool {
        self.is_manual()
    }

    /// Whether a PSB may come while the processor sleeps, between a PWRE and its PWRX. libipt does not expect that.
    pub(crate) const fn expects_psb_in_sleep(self) -> bool {
        self.is_manual()
    }

    /// Whether erratum SKL168 is allowed for at a PSB. libipt's event decoder does not.
    pub(crate) const fn allows_for_skl168(self) -> bool {
        self.is_manual()
    }

    /// Whether an overflow forgets the last IP. By the manual, IPs after an OVF are compressed against the last IP
    /// before it.
    pub(crate) const fn forgets_last_ip_at_overflow(self) -> bool {
        self.is_libipt()
    }

    /// Whether an error in the packets after an OVF is reported at the OVF, from where libipt looks ahead.
    pub(crate) const fn blames_overflow(self) -> bool {
        self.is_libipt()
    }

    /// Whether the packet that the decoder holds is the first one after padding.
    pub(crate) const fn passes_over_padding(self) -> bool {
        self.is_libipt()
    }

    /// Whether a change of the mode is reported before the TIP.PGD that completes it: libipt reports it at the
    /// instruction that changes it.
    pub(crate) const fn reports_mode_before_disabling(self) -> bool {
        self.is_libipt()
    }

    /// Whether a TIP.PGD completes a change of RFLAGS.IF alone. For libipt it does not.
    pub(crate) const fn disabling_completes_iflags(self) -> bool {
        self.is_manual()
    }
}

/// The walk over the code.
impl Dialect {
    /// Whether a return whose target the trace names takes an address from the stack of calls. By the manual every
    /// return does; in libipt only returns without a TIP.
    pub(crate) const fn named_returns_pop(self) -> bool {
        self.is_manual()
    }

    /// Whether what was read to find a deferred TIP is read again if it is another event. libipt looks, and goes back.
    pub(crate) const fn looks_and_goes_back(self) -> bool {
        self.is_libipt()
    }

    /// Whether a branch is left before its last event is reported. libipt does so, and without a target it reports no
    /// event.
    pub(crate) const fn leaves_before_last_event(self) -> bool {
        self.is_libipt()
    }

    /// Whether a misplaced TRIG is reported in place of the event before it.
    pub(crate) const fn refuses_triggers_early(self) -> bool {
        self.is_libipt()
    }

    /// Whether a TRIG with a FUP belongs to the place where the walk is. For libipt one whose FUP names a place ahead
    /// is an error; by the manual it waits until the walk is there.
    pub(crate) const fn triggers_are_here(self) -> bool {
        self.is_libipt()
    }

    /// Whether an error in an event is at the packet that the decoder [holds](crate::event::Event::held), not at the
    /// event's.
    pub(crate) const fn blames_held_packet(self) -> bool {
        self.is_libipt()
    }

    /// The mode of code for which the trace has given none: libipt reads it like 16-bit code, and by the manual it
    /// cannot be read.
    pub(crate) const fn unknown_mode(self) -> Option<ExecMode> {
        match self {
            Self::Manual => None,
            Self::Libipt => Some(ExecMode::Bits16),
        }
    }

    /// Whether the state in a PSB+ applies at the address that the PSB+ gives, except for the fact that tracing is on.
    pub(crate) const fn applies_state_at_its_address(self) -> bool {
        self.is_libipt()
    }

    /// Whether CBR, MNT, PWRE and PWRX belong to the next instruction, and so do all events after them.
    pub(crate) const fn events_without_insn_are_of_the_next(self) -> bool {
        self.is_libipt()
    }

    /// Whether a MOV to CR3 that has sent a PIP may also be what disabled packet generation.
    pub(crate) const fn disabling_follows_paging(self) -> bool {
        self.is_libipt()
    }

    /// Whether the next event gives the place to start if a PSB+ gives none.
    pub(crate) const fn starts_at_next_event(self) -> bool {
        self.is_libipt()
    }

    /// Whether an overflow forgets the calls and the mode. libipt keeps them.
    pub(crate) const fn forgets_calls_at_overflow(self) -> bool {
        self.is_manual()
    }

    /// Where tracing may continue after a MOV to CR3 at `ip` that disabled packet generation. The MOV is no branch, so
    /// at `next`; libipt does not handle it, and stays at the MOV.
    pub(crate) const fn after_disabling_paging(self, ip: u64, next: u64) -> u64 {
        match self {
            Self::Manual => next,
            Self::Libipt => ip,
        }
    }

    /// Whether a call that disables packet generation is one that its return goes back to.
    pub(crate) const fn remembers_disabling_calls(self) -> bool {
        self.is_libipt()
    }

    /// The error for a TIP without the IP at which a walk continues. libipt treats this as an internal error.
    pub(crate) const fn no_place(self) -> ErrorKind {
        match self {
            Self::Manual => ErrorKind::IpSuppressed("TIP"),
            Self::Libipt => ErrorKind::NoTarget("TIP"),
        }
    }

    /// The error for a TIP without the target of an indirect branch. libipt treats this as a malformed packet.
    pub(crate) const fn no_target(self) -> ErrorKind {
        match self {
            Self::Manual => ErrorKind::IpSuppressed("TIP"),
            Self::Libipt => ErrorKind::MalformedPacket { packet: "TIP", value: 0 },
        }
    }
}

impl Dialect {
    const fn is_manual(self) -> bool {
        matches!(self, Self::Manual)
    }

    const fn is_libipt(self) -> bool {
        matches!(self, Self::Libipt)
    }
}
