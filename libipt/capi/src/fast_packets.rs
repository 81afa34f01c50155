//! The most common packets, read faster than by the decoder's general code.

use crate::packet::{PtPacket, field, kind};
use pugmark_decoder_core::packet::{Cyc, Ip};

/// Size of a packet's address in bytes, by the three bits of IPBytes; `None` where the decoder has to look.
const SIZES: [Option<u8>; 8] = [Some(0), Some(2), Some(4), Some(6), Some(6), None, Some(8), None];

/// Returns a packet with an address: the three bits, the address's bytes as a number, and its own size.
#[inline(always)]
fn address(bytes: &[u8; 9]) -> Option<(u8, u64, u32)> {
    let [first, rest @ ..] = *bytes;
    let form = first >> 5;
    let size = SIZES[usize::from(form)]?;
    let mask = u64::MAX.checked_shr(64 - 8 * u32::from(size)).unwrap_or(0);
    Some((form, u64::from_le_bytes(rest) & mask, 1 + u32::from(size)))
}

/// Returns the address of a packet that is known to have one and does not suppress it: its three bits, its bytes as a
/// number, and the packet's size. `None`: the decoder has to look.
#[inline(always)]
pub(crate) fn given_ip(bytes: &[u8]) -> Option<(u8, u64, usize)> {
    let (form, payload, size) = address(bytes.first_chunk()?)?;
    (form != 0).then_some((form, payload, size as usize))
}

/// Returns the address of a packet that is known to have one, and the packet's size. `None`: the decoder has to look.
#[inline]
pub(crate) fn ip(bytes: &[u8]) -> Option<(Ip, usize)> {
    let (form, payload, size) = address(bytes.first_chunk()?)?;
    let ip = match form {
        0 => Ip::Suppressed,
        1 => Ip::Update16(payload),
        2 => Ip::Update32(payload),
        3 => Ip::SignExtend48(payload),
        4 => Ip::Update48(payload),
        _ => Ip::Full(payload),
    };
    Some((ip, size as usize))
}

/// Number of outcomes in a short TNT packet, by its byte; zero for other bytes. On some processors an instruction for
/// the highest set bit takes longer.
pub(crate) const TNT_LEN: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 4;
    while byte < 256 {
        table[byte] = (byte >> 1).ilog2() as u8;
        byte += 2;
    }
    table
};

/// Returns the outcomes of a short TNT packet, and their number.
#[inline(always)]
pub(crate) const fn outcomes_of(byte: u8) -> (u64, u8) {
    let len = TNT_LEN[byte as usize];
    // The highest set bit marks the end of the outcomes.
    ((byte >> 1) as u64 ^ 1 << len, len)
}

/// Returns the number in a CYC of one or two bytes, and the packet's size.
#[inline]
fn cycles(first: u8, second: u8) -> Option<(u64, u32)> {
    let low = u64::from(first >> 3);
    // Bit 2 says that another byte follows; bit 0 of that byte says the same of the next one.
    match (first & 4, second & 1) {
        (0, _) => Some((low, 1)),
        (_, 0) => Some((low | u64::from(second >> 1) << 5, 2)),
        _ => None,
    }
}

/// Returns the CYC at the start of the bytes, and its size. `None`: the decoder has to look.
#[inline]
pub(crate) fn cyc(bytes: &[u8]) -> Option<(Cyc, usize)> {
    let (cycles, size) = cycles(*bytes.first()?, *bytes.get(1)?)?;
    Some((Cyc { cycles }, size as usize))
}

/// Returns the packet at the start of the bytes: a short TNT, one with an address, an MTC, or a CYC of one or two
/// bytes. `None`: it is another one, or near the end, so the decoder has to look.
#[inline(always)]
pub(crate) fn packet(bytes: &[u8]) -> Option<PtPacket> {
    let bytes: &[u8; 9] = bytes.first_chunk()?;
    let [first, second, ..] = *bytes;
    if first & 1 == 0 {
        // 0 is a PAD, 2 the first byte of other packets. The highest set bit ends the outcomes.
        let outcomes = u64::from(first >> 1);
        let len = TNT_LEN[usize::from(first)];
        if len == 0 {
            return None;
        }
        let packet = PtPacket { size: 1, ..PtPacket::new(kind::TNT_8) };
        return Some(
            packet.with(field::TNT_BIT_SIZE, len.into()).with(field::TNT_PAYLOAD, outcomes & !(1 << len)),
        );
    }
    if first & 3 == 3 {
        let (cycles, size) = cycles(first, second)?;
        return Some(PtPacket { size, ..PtPacket::new(kind::CYC) }.with(field::CYC_VALUE, cycles));
    }
    let kind = match first & 0x1f {
        0x0d => kind::TIP,
        0x1d => kind::FUP,
        0x11 => kind::TIP_PGE,
        0x01 => kind::TIP_PGD,
        _ if first == 0x59 => {
            let packet = PtPacket { size: 2, ..PtPacket::new(kind::MTC) };
            return Some(packet.with(field::MTC_CTC, second.into()));
        }
        _ => return None,
    };
    let (form, payload, size) = address(bytes)?;
    let packet = PtPacket { size, ..PtPacket::new(kind) };
    Some(packet.with(field::IP_IPC, form.into()).with(field::IP_IP, payload))
}
