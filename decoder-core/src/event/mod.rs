//! Packets to events, with the address of each.
//!
//! Many packets have a meaning only together: a MODE.TSX with the FUP (flow update: an address) after it, or a FUP, a
//! PIP (CR3 was written) and a TIP (target IP) for an interrupt that changes CR3. This layer combines them to events;
//! the [instruction flow](crate::flow) then finds the place of each event in the code. Packets that need a later
//! packet wait in one list, in order. A packet that no processor sends at its place is an error.
//!
//! ```
//! use pugmark_decoder_core::event::{EventDecoder, EventKind};
//!
//! let trace = b"\
//!     \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
//!     \x3d\x02\x10\x2d\0\x20";
//! let mut events = EventDecoder::new(trace);
//! events.sync_forward();
//! let mut seen = vec![];
//! while let Some(event) = events.next()? {
//!     seen.push((event.offset, event.status, event.ip, event.kind));
//! }
//! # use pugmark_decoder_core::mode::ExecMode;
//! assert_eq!(seen, [
//!     (0x00, true, Some(0x1000), EventKind::Enabled { resumed: false }),
//!     (0x10, true, None, EventKind::ExecMode(Some(ExecMode::Bits64))),
//!     (0x1e, false, Some(0x2000), EventKind::AsyncBranch { from: 0x1002 }),
//! ]);
//! # Ok::<(), pugmark_decoder_core::Error>(())
//! ```

mod branch;
mod branch_place;
mod branches;
mod clock;
mod control;
mod counters;
mod decoder;
mod errata;
mod fup;
mod kinds;
mod mode;
mod order;
mod overflow;
mod packet_place;
mod power;
mod psb;
mod ready;
mod sync;
#[cfg(test)]
mod tests;
mod waiting;

pub use counters::Counters;
pub use decoder::EventDecoder;

pub(crate) use branches::{BranchSink, Mark, ReadAhead};
pub(crate) use decoder::{EventState, Snapshot};
pub(crate) use kinds::{is_aside, is_state};
pub(crate) use packet_place::PacketPlace;

use crate::{
    mode::ExecMode,
    packet::{Mwait, Pip, PtwPayload, Pwre, Pwrx, Tnt, Vmcs},
};

/// An event, from one packet or several that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// The kind of event.
    pub kind: EventKind,
    /// The address of the event, or its target for [`AsyncBranch`](EventKind::AsyncBranch), [`Tip`](EventKind::Tip) and
    /// the disabling kinds; `None` if the packets have no IP.
    pub ip: Option<u64>,
    /// The time of the event.
    pub when: Stamp,
    /// The offset of the packet that completed the event.
    pub offset: u64,
    /// True if the event is from a PSB+ (the packets from PSB to PSBEND): it repeats state that a decoder already knows
    /// unless it has just synchronised.
    pub status: bool,
}

/// The time of an event, as far as the trace gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The estimated TSC, 56 bits; `None` before the first TSC packet.
    ///
    /// [`Config::clocks`](crate::config::Config::clocks) has the parameters that convert the timing packets after a TSC
    /// to time.
    pub tsc: Option<u64>,
    /// The same, except before the first TSC packet: there it is the time since the synchronisation.
    pub time: u64,
    /// The number of MTC packets since the last TSC that the time excludes because their clock ran too far.
    pub lost_mtc: u32,
    /// The number of CYC packets since the last TSC or MTC that the time excludes because no ratio was known.
    pub lost_cyc: u32,
    /// The ratio of core clock to bus clock; `None` before the first CBR packet.
    pub core_bus_ratio: Option<u8>,
}

impl Stamp {
    /// Before the first timing packet.
    pub(crate) const UNKNOWN: Self =
        Self { tsc: None, time: 0, lost_mtc: 0, lost_cyc: 0, core_bus_ratio: None };
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// Packet generation was enabled and continues at the IP.
    Enabled {
        /// True if it continues where it stopped before, as far as the instruction flow decoder knows. Always `false`
        /// from the event decoder.
        resumed: bool,
    },
    /// An instruction disabled packet generation. The IP, if there is one, is the instruction's target.
    Disabled,
    /// Packet generation was disabled between two instructions.
    AsyncDisabled {
        /// The first instruction that was not executed.
        at: u64,
    },
    /// An interrupt, an exception or a similar event transferred control.
    AsyncBranch {
        /// The first instruction that was not executed.
        from: u64,
    },
    /// An instruction wrote CR3.
    Paging(Pip),
    /// An asynchronous branch to the IP wrote CR3.
    AsyncPaging(Pip),
    /// An instruction changed the VMCS pointer.
    Vmcs(Vmcs),
    /// An asynchronous branch to the IP changed the VMCS pointer.
    AsyncVmcs(Vmcs),
    /// Packets were lost. With an IP, tracing continues there; without one, tracing is off.
    Overflow,
    /// The execution mode changed; `None` for a combination of bits that is no mode.
    ExecMode(Option<ExecMode>),
    /// RFLAGS.IF changed.
    Iflags {
        /// True if interrupts are enabled now.
        enabled: bool,
    },
    /// The transactional state changed.
    Tsx {
        /// True if in a transaction now.
        speculative: bool,
        /// True if a transaction aborted.
        aborted: bool,
    },
    /// A TraceStop region was entered.
    Stop,
    /// Execution stopped temporarily.
    Exstop,
    /// An MWAIT was executed.
    Mwait(Mwait),
    /// A C-state was entered.
    Pwre(Pwre),
    /// A C-state was left.
    Pwrx(Pwrx),
    /// A PTWRITE was executed.
    Ptwrite(PtwPayload),
    /// Time advanced at a branch. Only the instruction flow decoder reports ticks, and only if configured to.
    Tick,
    /// The ratio of core clock to bus clock.
    Cbr {
        /// The ratio.
        ratio: u8,
    },
    /// An MNT packet, whose meaning depends on the processor's model.
    Mnt {
        /// The payload.
        payload: u64,
    },
    /// An interrupt or exception was delivered.
    Interrupt {
        /// Its vector.
        vector: u8,
        /// The address that faulted, for a page fault.
        cr2: Option<u64>,
    },
    /// IRET or a similar instruction.
    Iret,
    /// A system management interrupt.
    Smi,
    /// A return from system management mode.
    Rsm,
    /// A startup IPI.
    Sipi {
        /// Its vector.
        vector: u8,
    },
    /// INIT.
    Init,
    /// A VM entry.
    Vmentry,
    /// A VM exit.
    Vmexit {
        /// The vector of the event that caused it.
        vector: Option<u8>,
        /// The exit reason.
        reason: Option<u64>,
        /// The exit qualification.
        qualification: Option<u64>,
    },
    /// Shutdown.
    Shutdown,
    /// A user interrupt.
    Uintr {
        /// Its vector.
        vector: u8,
    },
    /// UIRET.
    Uiret,
    /// INT n.
    Swintr {
        /// Its vector.
        vector: u8,
    },
    /// SYSCALL or SYSENTER.
    Syscall,
    /// A trigger fired.
    Trigger {
        /// The triggers that fired: the trigger bit vector.
        trbv: u8,
        /// The number of instructions since the last place that the trace names; only if there is no IP.
        icnt: Option<u16>,
        /// True if more than one trigger fired.
        mult: bool,
    },
    /// The target of an indirect branch or of an uncompressed return. The instruction flow decoder consumes it.
    Tip,
    /// Outcomes of conditional branches and compressed returns. The instruction flow decoder consumes them.
    Tnt(Tnt),
}
