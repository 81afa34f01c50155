//! Packets to events: what happened, with the address where it happened.
//!
//! Many packets say something only together: MODE.TSX and the FUP behind it, FUP and TIP around a PIP. This layer
//! puts them together; the [instruction flow](crate::flow) then finds the place of each event in the code. Packets
//! that wait for another wait in one list, in their order. Those that no processor sends where they stand are errors,
//! in libipt's [dialect](crate::config::Dialect) only those that it refuses.
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
mod power;
mod psb;
mod ready;
mod sync;
#[cfg(test)]
mod tests;
mod text;
mod waiting;

pub use counters::Counters;
pub use decoder::EventDecoder;
pub use text::Text;

pub(crate) use branches::Branch;
pub(crate) use kinds::{is_aside, is_state};

use crate::{
    mode::ExecMode,
    packet::{Mwait, Pip, PtwPayload, Pwre, Pwrx, Tnt, Vmcs},
};

/// Something that happened, from one packet or from several that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// Where, or where to for [`AsyncBranch`](EventKind::AsyncBranch), [`Tip`](EventKind::Tip) and the disabling
    /// kinds; `None` where the packets have no IP.
    pub ip: Option<u64>,
    /// When.
    pub when: Stamp,
    /// The offset of the packet that completed the event.
    pub offset: u64,
    /// The offset of the packet that a decoder with this event in its hand holds: the one that completed the event, as
    /// long as it may complete others, or the one behind it.
    pub held: u64,
    /// From a PSB+: repeats state that a decoder which was there all along knows already.
    pub status: bool,
}

/// When something happened, as far as the trace says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// The estimated TSC, 56 bits; `None` before the first TSC packet.
    ///
    /// What makes time of the packets behind a TSC is in [`Config::clocks`](crate::config::Config::clocks).
    pub tsc: Option<u64>,
    /// The same, but before the first TSC packet the time since the synchronisation.
    pub time: u64,
    /// How many MTC packets since the last TSC are not in the time, because their clock ran too far.
    pub lost_mtc: u32,
    /// How many CYC packets since the last TSC or MTC are not in the time, because no ratio was known.
    pub lost_cyc: u32,
    /// The ratio of core clock to bus clock; `None` before the first CBR packet.
    pub core_bus_ratio: Option<u8>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// Packet generation was enabled and goes on at the IP.
    Enabled {
        /// Where it stopped before, as far as the instruction flow decoder knows. Always `false` from the event
        /// decoder.
        resumed: bool,
    },
    /// An instruction disabled packet generation; with an IP, that is where it led to.
    Disabled,
    /// Packet generation was disabled between two instructions.
    AsyncDisabled {
        /// The first instruction that was not executed any more.
        at: u64,
    },
    /// An interrupt, an exception or the like went from one place to another.
    AsyncBranch {
        /// The first instruction that was not executed any more.
        from: u64,
    },
    /// An instruction wrote CR3.
    Paging(Pip),
    /// CR3 was written by an asynchronous branch to the IP.
    AsyncPaging(Pip),
    /// An instruction changed the VMCS pointer.
    Vmcs(Vmcs),
    /// The VMCS pointer was changed by an asynchronous branch to the IP.
    AsyncVmcs(Vmcs),
    /// Packets were lost. With an IP, tracing goes on there; without, it is off.
    Overflow,
    /// The execution mode changed; `None` for a combination of bits that is no mode.
    ExecMode(Option<ExecMode>),
    /// RFLAGS.IF changed.
    Iflags {
        /// Interrupts are enabled now.
        enabled: bool,
    },
    /// The transactional state changed.
    Tsx {
        /// In a transaction now.
        speculative: bool,
        /// A transaction aborted.
        aborted: bool,
    },
    /// A TraceStop region was entered.
    Stop,
    /// Execution stopped for a while.
    Exstop,
    /// MWAIT.
    Mwait(Mwait),
    /// A C-state was entered.
    Pwre(Pwre),
    /// A C-state was left.
    Pwrx(Pwrx),
    /// PTWRITE.
    Ptwrite(PtwPayload),
    /// Time went on at a branch. Only the instruction flow decoder makes them, if asked to.
    Tick,
    /// The ratio of core clock to bus clock.
    Cbr {
        /// The ratio.
        ratio: u8,
    },
    /// Model-specific.
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
    /// IRET and its kin.
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
        /// Which.
        trbv: u8,
        /// How many instructions behind the last place that the trace names; only where there is no IP.
        icnt: Option<u16>,
        /// More than one.
        mult: bool,
    },
    /// The target of an indirect branch or of an uncompressed return. The instruction flow decoder uses it up.
    Tip,
    /// Outcomes of conditional branches and compressed returns. The instruction flow decoder uses them up.
    Tnt(Tnt),
}
