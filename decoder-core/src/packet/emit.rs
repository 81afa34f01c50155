//! Packets to bytes.

use super::{PSB, Packet, Unknown, ip};
use core::fmt;

impl Packet {
    /// The size of the longest packet (PSB), in bytes.
    pub const MAX_LEN: usize = PSB.len();

    /// Writes the packet in the manual's format to the start of `out` and returns its size in bytes.
    ///
    /// # Errors
    /// If the packet does not fit, if a TNT has no outcomes or more than the packet can hold, and for an unknown
    /// packet. Then nothing is written.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
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
            Self::Unknown(unknown) => Err(EmitError::Unknown(unknown)),
        }
    }

    /// Returns the number of bytes that [`emit`](Self::emit) writes; 0 for a TNT that cannot be emitted.
    #[expect(clippy::len_without_is_empty, reason = "no packet is empty")]
    pub fn len(&self) -> usize {
        self.emit(&mut [0; Self::MAX_LEN]).unwrap_or(0)
    }
}

/// The reason why a packet was not emitted. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EmitError {
    /// The packet does not fit.
    Full {
        /// The packet's size in bytes.
        size: usize,
        /// The number of bytes available.
        room: usize,
    },
    /// A TNT has this number of outcomes, which is zero or more than the packet can hold.
    Outcomes(u8),
    /// Only the caller's reader knows the bytes of an unknown packet.
    Unknown(Unknown),
    /// A reader with this configuration would not read the bytes as this packet: it does not know the packet, or not at
    /// this place.
    Unreadable(&'static str),
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full { size, room } => write!(f, "no room for a packet of {size} bytes, only for {room}"),
            Self::Outcomes(len) => write!(f, "the TNT packet cannot hold {len} outcomes"),
            Self::Unknown(unknown) => {
                write!(f, "the bytes of an unknown packet with value {:#x} are not known", unknown.value)
            }
            Self::Unreadable(packet) => write!(f, "a reader would not find this {packet} packet here"),
        }
    }
}

impl core::error::Error for EmitError {}

/// Writes all of `bytes` to the start of `out`, or nothing.
#[inline]
pub(super) fn put(out: &mut [u8], bytes: &[u8]) -> Result<usize, EmitError> {
    let (size, room) = (bytes.len(), out.len());
    out.get_mut(..size).ok_or(EmitError::Full { size, room })?.copy_from_slice(bytes);
    Ok(size)
}
