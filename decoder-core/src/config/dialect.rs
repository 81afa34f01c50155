//! Deviations of libipt from the manual, in one place: a function for each rule in which they differ.
//!
//! The decoder follows the manual. For comparisons with libipt it decodes as libipt 2.3 does, including libipt's gaps
//! and late reports. No other file compares dialects. Each function has one result for a
//! configuration and is called only where its rule applies, so a trace without the case costs nothing.

use crate::{error::ErrorKind, mode::ExecMode};

/// The reading of a trace where the manual and libipt differ: in the order of packets, and in the place of events in
/// the code. Packets are read by the manual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The SDM's reading.
    #[default]
    Manual,
    /// libipt 2.3's reading: packets out of place are errors only if libipt refuses them, and errors have libipt's
    /// offsets.
    Libipt,
}

/// Events.
impl Dialect {
    /// Returns true if a packet that no processor sends at its place is an error. libipt accepts some of them.
    pub(crate) const fn refuses_packets_out_of_place(self) -> bool {
        self.is_manual()
    }

    /// Returns true if a FUP or TIP.PGE without an IP is itself an error. In libipt only the use of the IP is one.
    pub(crate) const fn needs_ip_at_once(self) -> bool {
        self.is_manual()
    }

    /// Returns true if a PSB may come during a sleep, between a PWRE and its PWRX. libipt does not expect that.
    pub(crate) const fn expects_psb_in_sleep(self) -> bool {
        self.is_manual()
    }

    /// Returns true if an overflow resets the last IP. By the manual, IPs after an OVF are compressed against the last
    /// IP before it.
    pub(crate) const fn forgets_last_ip_at_overflow(self) -> bool {
        self.is_libipt()
    }

    /// Returns true if an error in the packets after an OVF is reported at the OVF, from where libipt looks ahead.
    pub(crate) const fn blames_overflow(self) -> bool {
        self.is_libipt()
    }

    /// Returns true if the packet that the decoder holds is the first one after padding.
    pub(crate) const fn passes_over_padding(self) -> bool {
        self.is_libipt()
    }

    /// Returns true if a change of the mode is reported before the TIP.PGD that completes it: libipt reports it at the
    /// instruction that changes it.
    pub(crate) const fn reports_mode_before_disabling(self) -> bool {
        self.is_libipt()
    }

    /// Returns true if a TIP.PGD completes a change of RFLAGS.IF alone. In libipt it does not.
    pub(crate) const fn disabling_completes_iflags(self) -> bool {
        self.is_manual()
    }
}

/// The walk over the code.
impl Dialect {
    /// Returns true if a return with a TIP pops the return stack. By the manual every return does; in libipt only
    /// returns without a TIP.
    pub(crate) const fn named_returns_pop(self) -> bool {
        self.is_manual()
    }

    /// Returns true if an event read while looking for a deferred TIP is read again. libipt looks, and goes back.
    pub(crate) const fn looks_and_goes_back(self) -> bool {
        self.is_libipt()
    }

    /// Returns true if the walk leaves a branch before its last event is reported. libipt does so, and without a target
    /// it reports no event.
    pub(crate) const fn leaves_before_last_event(self) -> bool {
        self.is_libipt()
    }

    /// Returns true if a misplaced TRIG is reported in place of the event before it.
    pub(crate) const fn refuses_triggers_early(self) -> bool {
        self.is_libipt()
    }

    /// Returns true if a TRIG with a FUP belongs to the place where the walk is. In libipt one whose FUP names a place
    /// ahead is an error; by the manual it waits until the walk is there.
    pub(crate) const fn triggers_are_here(self) -> bool {
        self.is_libipt()
    }

    /// Returns true if an error in an event is at the packet that the decoder [holds](crate::event::Event::held), not
    /// at the event's.
    pub(crate) const fn blames_held_packet(self) -> bool {
        self.is_libipt()
    }

    /// Returns the mode of code for which the trace has given none: 16-bit code in libipt; by the manual such code
    /// cannot be decoded.
    pub(crate) const fn unknown_mode(self) -> Option<ExecMode> {
        match self {
            Self::Manual => None,
            Self::Libipt => Some(ExecMode::Bits16),
        }
    }

    /// Returns true if the state in a PSB+, except that tracing is on, applies at the address that the PSB+ gives.
    pub(crate) const fn applies_state_at_its_address(self) -> bool {
        self.is_libipt()
    }

    /// Returns true if CBR, MNT, PWRE and PWRX belong to the next instruction, as all events after them then do.
    pub(crate) const fn events_without_insn_are_of_the_next(self) -> bool {
        self.is_libipt()
    }

    /// Returns true if a MOV to CR3 that has sent a PIP may also have disabled packet generation.
    pub(crate) const fn disabling_follows_paging(self) -> bool {
        self.is_libipt()
    }

    /// Returns true if the next event gives the place to start when a PSB+ gives none.
    pub(crate) const fn starts_at_next_event(self) -> bool {
        self.is_libipt()
    }

    /// Returns true if an overflow resets the calls and the mode. libipt keeps them.
    pub(crate) const fn forgets_calls_at_overflow(self) -> bool {
        self.is_manual()
    }

    /// Returns the address where tracing may resume after a MOV to CR3 at `ip` that disabled packet generation. The MOV
    /// is no branch, so this is `next`; libipt does not handle it, and stays at the MOV.
    pub(crate) const fn after_disabling_paging(self, ip: u64, next: u64) -> u64 {
        match self {
            Self::Manual => next,
            Self::Libipt => ip,
        }
    }

    /// Returns true if a call that disables packet generation is pushed on the return stack.
    pub(crate) const fn remembers_disabling_calls(self) -> bool {
        self.is_libipt()
    }

    /// Returns the error for a TIP without the IP at which a walk continues. libipt treats this as an internal error.
    pub(crate) const fn no_place(self) -> ErrorKind {
        match self {
            Self::Manual => ErrorKind::IpSuppressed("TIP"),
            Self::Libipt => ErrorKind::NoTarget("TIP"),
        }
    }

    /// Returns the error for a TIP without the target of an indirect branch. libipt treats this as a malformed packet.
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
