//! Intel PT packets: bytes to values and back.
//!
//! A packet is one record of a trace: an opcode and a payload. Each file holds a family of packets: the type, its
//! parser and its emitter side by side. Bits that the manual reserves without a rule are ignored when parsing and
//! emitted as zero. So a parsed packet re-emits to an equal packet, but not always to equal bytes. A field wider than
//! its place in the packet is truncated when emitted, as its docs say.
//!
//! Source for all packets: SDM vol. 3, Intel Processor Trace, "Packet Definitions".
//!
//! ```
//! use pugmark_decoder_core::packet::{Packet, Tsc};
//!
//! let mut bytes = [0; 8];
//! let size = Packet::Tsc(Tsc { tsc: 0x12345 }).emit(&mut bytes).unwrap();
//! assert_eq!((size, &bytes[..3]), (8, &[0x19, 0x45, 0x23][..]));
//! assert_eq!(Packet::parse(&bytes), Ok(Some((Packet::Tsc(Tsc { tsc: 0x12345 }), 8))));
//! // The trace ends within the packet: no error.
//! assert_eq!(Packet::parse(&bytes[..7]), Ok(None));
//! ```

mod block;
mod context;
mod context_state;
mod cursor;
pub(crate) mod cycles;
mod emit;
mod encoder;
mod event_trace;
mod fast;
mod input;
mod ip;
pub(crate) mod last_ip;
mod mode;
mod parse;
mod power;
mod ptw;
mod stream;
#[cfg(test)]
mod tests;
mod timing;
mod tnt;
mod trig;
mod visit;

pub use crate::{
    config::unknown::{BlockItemSize, Context, Unknown},
    psb::PSB,
};
pub use block::{Bbp, Bep, Bip, BipValue};
pub use context_state::{Pip, Vmcs};
pub use cursor::Packets;
pub use emit::EmitError;
pub use encoder::Encoder;
pub use event_trace::{Cfe, Evd};
pub use ip::Ip;
pub use mode::{ModeExec, ModeTsx};
pub use power::{Exstop, Mwait, Pwre, Pwrx};
pub use ptw::{Ptw, PtwPayload};
pub use stream::Mnt;
pub use timing::{Cbr, Cyc, Mtc, Tma, Tsc};
pub use tnt::Tnt;
pub use trig::Trig;
pub use visit::{IpPacket, PacketSink};

pub(crate) use fast::{TIP_16, TIP_32, is_short_tnt, target, target_after};
pub(crate) use input::{Input, LONGEST, before_psb};
pub(crate) use timing::may_be_ovf_by_skd007;

use crate::error::ErrorKind;

/// A value and its size in bytes, or `None` if the bytes end within the packet.
type Parsed<T> = Result<Option<(T, usize)>, ErrorKind>;

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packet {
    /// Padding: fills space, no meaning.
    Pad,
    /// Packet Stream Boundary: sixteen bytes that occur nowhere else, opens a PSB+.
    Psb,
    /// The end of a PSB+.
    PsbEnd,
    /// Packets were lost.
    Ovf,
    /// TraceStop: a TraceStop region was entered.
    TraceStop,
    /// Taken/Not-Taken, in one byte (1 to 6 outcomes).
    TntShort(Tnt),
    /// Taken/Not-Taken, in eight bytes (1 to 47 outcomes).
    TntLong(Tnt),
    /// Target IP of an indirect branch, an exception or an interrupt.
    Tip(Ip),
    /// Packet generation was enabled.
    TipPge(Ip),
    /// Packet generation was disabled.
    TipPgd(Ip),
    /// Flow Update: the source of an asynchronous event, or the IP of the packet before it.
    Fup(Ip),
    /// MODE.Exec: the execution mode.
    ModeExec(ModeExec),
    /// MODE.TSX: the transactional state.
    ModeTsx(ModeTsx),
    /// Paging Information: CR3 was written.
    Pip(Pip),
    /// The VMCS pointer changed.
    Vmcs(Vmcs),
    /// Time-Stamp Counter.
    Tsc(Tsc),
    /// Core:Bus Ratio.
    Cbr(Cbr),
    /// TSC/MTC Alignment.
    Tma(Tma),
    /// A TMA with reserved bits set, by erratum SKZ84: to be ignored. Parsed only if
    /// [`Config::errata`](crate::config::Config::errata) has that erratum.
    DamagedTma([u8; 8]),
    /// Mini Time Counter.
    Mtc(Mtc),
    /// Cycles since the last CYC.
    Cyc(Cyc),
    /// Maintenance: model-specific content.
    Mnt(Mnt),
    /// Execution stopped.
    Exstop(Exstop),
    /// MWAIT to a C-state deeper than C0.
    Mwait(Mwait),
    /// Power entry: a C-state was entered.
    Pwre(Pwre),
    /// Power exit: back in C0.
    Pwrx(Pwrx),
    /// PTWRITE's operand.
    Ptw(Ptw),
    /// Block Begin: a group of block items follows.
    Bbp(Bbp),
    /// Block Item; only between BBP and BEP.
    Bip(Bip),
    /// Block End.
    Bep(Bep),
    /// Control-Flow Event.
    Cfe(Cfe),
    /// Event Data.
    Evd(Evd),
    /// Trigger.
    Trig(Trig),
    /// A packet that [`Config::unknown`](crate::config::Config::unknown) knows.
    Unknown(Unknown),
}

impl Packet {
    /// Returns the manual's name of the packet.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pad => "PAD",
            Self::Psb => "PSB",
            Self::PsbEnd => "PSBEND",
            Self::Ovf => "OVF",
            Self::TraceStop => "TraceStop",
            Self::TntShort(_) | Self::TntLong(_) => "TNT",
            Self::Tip(_) => "TIP",
            Self::TipPge(_) => "TIP.PGE",
            Self::TipPgd(_) => "TIP.PGD",
            Self::Fup(_) => "FUP",
            Self::ModeExec(_) => "MODE.Exec",
            Self::ModeTsx(_) => "MODE.TSX",
            Self::Pip(_) => "PIP",
            Self::Vmcs(_) => "VMCS",
            Self::Tsc(_) => "TSC",
            Self::Cbr(_) => "CBR",
            Self::Tma(_) | Self::DamagedTma(_) => "TMA",
            Self::Mtc(_) => "MTC",
            Self::Cyc(_) => "CYC",
            Self::Mnt(_) => "MNT",
            Self::Exstop(_) => "EXSTOP",
            Self::Mwait(_) => "MWAIT",
            Self::Pwre(_) => "PWRE",
            Self::Pwrx(_) => "PWRX",
            Self::Ptw(_) => "PTW",
            Self::Bbp(_) => "BBP",
            Self::Bip(_) => "BIP",
            Self::Bep(_) => "BEP",
            Self::Cfe(_) => "CFE",
            Self::Evd(_) => "EVD",
            Self::Trig(_) => "TRIG",
            Self::Unknown(_) => "unknown",
        }
    }
}
