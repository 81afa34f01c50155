//! Intel PT packets: bytes to values and back.
//!
//! A file a family of packets: the type, its parse and its emit side by side. Bits that the manual reserves and says
//! nothing about are not looked at and emitted as zero, so what parses re-emits to an equal packet, though not always
//! to equal bytes. Fields wider than their place in the packet are cut down to it when emitted, as their docs say.
//!
//! Source for all of them: SDM vol. 3, Intel Processor Trace, "Packet Definitions".
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
mod event_trace;
mod ip;
mod mode;
mod power;
mod ptw;
mod stream;
#[cfg(test)]
mod tests;
mod timing;
mod tnt;
mod trig;
mod unknown;

pub use block::{Bbp, Bep, Bip, BipValue, BlockItemSize};
pub use context::Context;
pub use context_state::{Pip, Vmcs};
pub use cursor::Packets;
pub use event_trace::{Cfe, Evd};
pub use ip::Ip;
pub use mode::{ModeExec, ModeTsx};
pub use power::{Exstop, Mwait, Pwre, Pwrx};
pub use ptw::{Ptw, PtwPayload};
pub use stream::{Mnt, PSB};
pub use timing::{Cbr, Cyc, Mtc, Tma, Tsc};
pub use tnt::Tnt;
pub use trig::Trig;
pub use unknown::Unknown;

use crate::{
    config::{Config, Dialect, Position},
    error::ErrorKind,
};
use core::fmt;

/// A value and how many bytes it took, or `None` where the bytes end within the packet.
type Parsed<T> = Result<Option<(T, usize)>, ErrorKind>;

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packet {
    /// Nothing; fills space.
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
    /// Target IP of an indirect branch, an exception, an interrupt.
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
    /// A TMA with reserved bits set, by erratum SKZ84: to be ignored. Only where [`Config::errata`] has it.
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
    /// A packet that [`Config::unknown`] knows.
    Unknown(Unknown),
}

impl Packet {
    /// The most bytes a packet has (a PSB's).
    pub const MAX_LEN: usize = PSB.len();

    /// Parses the packet at the front of `bytes`, with nothing known of the processor and outside any block: the packet
    /// and its size.
    ///
    /// `Ok(None)`: the bytes end within the packet. That is the end of the trace, not an error. An opcode that no
    /// packet has, and a reserved value that is already there, are errors also when the bytes end behind them.
    ///
    /// # Errors
    /// An opcode that no packet has, and a value that its packet cannot have.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ErrorKind> {
        Self::parse_with(bytes, &Config::new(), Context::OUTSIDE)
    }

    /// As [`parse`](Self::parse), with what `config` says of the processor, behind packets that made `context`.
    ///
    /// # Errors
    /// As in [`parse`](Self::parse), and what [`Config::unknown`] returns.
    pub fn parse_with(
        bytes: &[u8],
        config: &Config<'_>,
        context: Context,
    ) -> Result<Option<(Self, usize)>, ErrorKind> {
        Self::parse_at(Position { trace: bytes, offset: 0 }, config, context)
    }

    /// Parses the packet at a place in a trace.
    #[inline]
    fn parse_at(
        position: Position<'_>,
        config: &Config<'_>,
        context: Context,
    ) -> Result<Option<(Self, usize)>, ErrorKind> {
        let bytes = position.bytes();
        let Some(&first) = bytes.first() else { return Ok(None) };
        match first {
            _ if first & 0b111 == Bip::OPCODE
                && let Some(size) = context.block =>
            {
                map(Bip::parse(bytes, size), Self::Bip)
            }
            0x00 => Ok(Some((Self::Pad, 1))),
            0x02 => Self::parse_extended(position, config, context),
            _ if first & 1 == 0 => Ok(Some((Self::TntShort(Tnt::parse_short(first)?), 1))),
            _ if first & 0b111 == 0b111 && config.errata.skd007 && timing::is_ovf_by_skd007(bytes) => {
                Ok(Some((Self::Ovf, 3)))
            }
            _ if first & 0b11 == 0b11 => map(Cyc::parse(bytes), Self::Cyc),
            0x19 => map(Tsc::parse(bytes), Self::Tsc),
            0x59 => map(Mtc::parse(bytes), Self::Mtc),
            0x99 => mode::parse(bytes),
            0xd9 => map(Trig::parse(bytes), Self::Trig),
            _ => match first & 0x1f {
                ip::TIP => map(Ip::parse(bytes, "TIP"), Self::Tip),
                ip::FUP => map(Ip::parse(bytes, "FUP"), Self::Fup),
                ip::TIP_PGE => map(Ip::parse(bytes, "TIP.PGE"), Self::TipPge),
                ip::TIP_PGD => map(Ip::parse(bytes, "TIP.PGD"), Self::TipPgd),
                _ => Self::unknown(ErrorKind::UnknownOpcode(first), position, config, context),
            },
        }
    }

    /// Parses a packet whose first byte is `02`.
    fn parse_extended(
        position: Position<'_>,
        config: &Config<'_>,
        context: Context,
    ) -> Result<Option<(Self, usize)>, ErrorKind> {
        let bytes = position.bytes();
        let Some(&second) = bytes.get(1) else { return Ok(None) };
        match second {
            0x82 => map(stream::parse_psb(bytes), |()| Self::Psb),
            0x23 => Ok(Some((Self::PsbEnd, 2))),
            0xf3 => Ok(Some((Self::Ovf, 2))),
            0x83 => Ok(Some((Self::TraceStop, 2))),
            0xa3 => map(Tnt::parse_long(bytes), Self::TntLong),
            0x43 => map(Pip::parse(bytes), Self::Pip),
            0xc8 => map(Vmcs::parse(bytes), Self::Vmcs),
            0x03 => map(Cbr::parse(bytes), Self::Cbr),
            0x73 if config.errata.skz84 && timing::is_damaged_tma(bytes) => {
                Ok(bytes.first_chunk().map(|bytes| (Self::DamagedTma(*bytes), bytes.len())))
            }
            0x73 => map(Tma::parse(bytes), Self::Tma),
            0xc3 => match bytes.get(2) {
                None => Ok(None),
                Some(&Mnt::THIRD) => map(Mnt::parse(bytes), Self::Mnt),
                Some(&third) => {
                    Self::unknown(ErrorKind::UnknownOpcodeAfterC3(third), position, config, context)
                }
            },
            0x62 | 0xe2 => Ok(Some((Self::Exstop(Exstop { ip: second & 1 << 7 != 0 }), 2))),
            0xc2 => map(Mwait::parse(bytes), Self::Mwait),
            0x22 => map(Pwre::parse(bytes, config.dialect), Self::Pwre),
            0xa2 => map(Pwrx::parse(bytes), Self::Pwrx),
            0x13 => map(Cfe::parse(bytes), Self::Cfe),
            0x53 => map(Evd::parse(bytes, config.dialect), Self::Evd),
            0x63 if config.dialect == Dialect::Manual => map(Bbp::parse(bytes), Self::Bbp),
            0x33 | 0xb3 if config.dialect == Dialect::Manual => {
                Ok(Some((Self::Bep(Bep { ip: second & 1 << 7 != 0 }), 2)))
            }
            _ if second & 0x1f == ptw::OPCODE => map(Ptw::parse(bytes), Self::Ptw),
            _ => Self::unknown(ErrorKind::UnknownExtendedOpcode(second), position, config, context),
        }
    }

    /// A packet that is not in the manual: `error` unless the reader knows it.
    #[cold]
    fn unknown(
        error: ErrorKind,
        position: Position<'_>,
        config: &Config<'_>,
        context: Context,
    ) -> Result<Option<(Self, usize)>, ErrorKind> {
        let Some(reader) = config.unknown else { return Err(error) };
        let unknown = reader.ask(config, position, context)?;
        let size = usize::from(unknown.size);
        match size {
            0 => Err(error),
            _ if size > position.bytes().len() => Ok(None),
            _ => Ok(Some((Self::Unknown(unknown), size))),
        }
    }

    /// Writes the packet to the front of `out` and returns its size.
    ///
    /// # Errors
    /// [`Full`] when it does not fit, or when a TNT has more outcomes than the packet can hold. Then nothing is
    /// written.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, Full> {
        match *self {
            Self::Pad => put(out, &[0x00]),
            Self::Psb => put(out, &PSB),
            Self::PsbEnd => put(out, &[0x02, 0x23]),
            Self::Ovf => put(out, &[0x02, 0xf3]),
            Self::TraceStop => put(out, &[0x02, 0x83]),
            Self::TntShort(tnt) => tnt.emit_short(out),
            Self::TntLong(tnt) => tnt.emit_long(out),
            Self::Tip(ip) => ip.emit(ip::TIP, out),
            Self::TipPge(ip) => ip.emit(ip::TIP_PGE, out),
            Self::TipPgd(ip) => ip.emit(ip::TIP_PGD, out),
            Self::Fup(ip) => ip.emit(ip::FUP, out),
            Self::ModeExec(mode) => mode.emit(out),
            Self::ModeTsx(mode) => mode.emit(out),
            Self::Pip(pip) => pip.emit(out),
            Self::Vmcs(vmcs) => vmcs.emit(out),
            Self::Tsc(tsc) => tsc.emit(out),
            Self::Cbr(cbr) => cbr.emit(out),
            Self::Tma(tma) => tma.emit(out),
            Self::DamagedTma(bytes) => put(out, &bytes),
            Self::Mtc(mtc) => mtc.emit(out),
            Self::Cyc(cyc) => cyc.emit(out),
            Self::Mnt(mnt) => mnt.emit(out),
            Self::Exstop(exstop) => exstop.emit(out),
            Self::Mwait(mwait) => mwait.emit(out),
            Self::Pwre(pwre) => pwre.emit(out),
            Self::Pwrx(pwrx) => pwrx.emit(out),
            Self::Ptw(ptw) => ptw.emit(out),
            Self::Bbp(bbp) => bbp.emit(out),
            Self::Bip(bip) => bip.emit(out),
            Self::Bep(bep) => bep.emit(out),
            Self::Cfe(cfe) => cfe.emit(out),
            Self::Evd(evd) => evd.emit(out),
            Self::Trig(trig) => trig.emit(out),
            Self::Unknown(_) => Err(Full),
        }
    }

    /// How many bytes [`emit`](Self::emit) writes; 0 for a TNT that cannot be emitted.
    #[expect(clippy::len_without_is_empty, reason = "no packet is empty")]
    pub fn len(&self) -> usize {
        self.emit(&mut [0; Self::MAX_LEN]).unwrap_or(0)
    }
}

/// A packet does not fit where it was to be emitted; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the packet does not fit")
    }
}

impl core::error::Error for Full {}

/// Puts a parsed payload into its packet.
#[inline]
fn map<T>(parsed: Parsed<T>, packet: impl FnOnce(T) -> Packet) -> Parsed<Packet> {
    Ok(parsed?.map(|(payload, size)| (packet(payload), size)))
}

/// Writes all of `bytes` to the front of `out`, or nothing.
#[inline]
fn put(out: &mut [u8], bytes: &[u8]) -> Result<usize, Full> {
    out.get_mut(..bytes.len()).ok_or(Full)?.copy_from_slice(bytes);
    Ok(bytes.len())
}
