//! A short way for the packets that most of a trace is made of.
//!
//! It has no opinion of its own: what is not plain, and what stands near the end of the trace, goes the long way, and a
//! test holds it against that one.
//!
//! What costs time is a branch that the processor cannot foresee. So sizes come from a table, the IP's form is not
//! branched on (the variants of [`Ip`] are alike in memory), and short TNTs, of which there are runs, have a loop of
//! their own.

use super::{Cyc, Ip, Mtc, Packet, Tnt, Tsc, ip, timing};

const LOW_48: u64 = (1 << 48) - 1;
const LOW_56: u64 = (1 << 56) - 1;

/// Which bits an IP has by IPBytes; those of 5 and 7 are never asked for.
const IP_MASKS: [u64; 8] = [0, 0xffff, 0xffff_ffff, LOW_48, LOW_48, 0, u64::MAX, 0];

/// The sizes of packets by their first byte; 0: the long way. CYCs with more than two bytes are sorted out later.
pub(super) static SIZES: [u8; 256] = sizes(true);
/// The same where erratum SKD007 makes it doubtful what a CYC with a second byte is.
pub(super) static SIZES_SKD007: [u8; 256] = sizes(false);

const fn sizes(long_cycs: bool) -> [u8; 256] {
    let mut sizes = [0; 256];
    let mut first = 0;
    while first < sizes.len() {
        // All of them fit.
        let byte = first as u8;
        sizes[first] = match byte {
            0x00 => 1,
            0x19 => 8,
            0x59 => 2,
            _ if byte & 0b111 == 0b011 => 1,
            _ if byte & 0b111 == 0b111 => 2 * long_cycs as u8,
            _ => match (byte & 0x1f, byte >> 5) {
                (ip::TIP | ip::FUP | ip::TIP_PGE | ip::TIP_PGD, form) => {
                    [1, 3, 5, 7, 7, 0, 9, 0][form as usize]
                }
                _ => 0,
            },
        };
        first += 1;
    }
    sizes
}

/// How many bytes [`parse`] wants to see: as many as the longest of its packets has.
pub(super) const WINDOW: usize = 9;

/// The short TNT that is this byte outside any block, if it is one.
#[inline(always)]
pub(super) fn tnt(byte: u8) -> Option<Packet> {
    if byte & 1 != 0 || byte <= 2 {
        return None;
    }
    // The stop bit is one of bits 7 to 2, above those of the outcomes.
    let stop = 7 - byte.leading_zeros();
    let bits = u64::from(byte >> 1) ^ 1 << (stop - 1);
    Some(Packet::TntShort(Tnt { bits, len: (stop - 1) as u8 }))
}

/// The packet at the begin of `window`, outside any block, and its size; `None`: the long way. Short TNTs are
/// [`tnt`]'s.
///
/// None of these packets opens a block, and none but the CYC means anything else by an erratum.
#[inline(always)]
pub(super) fn parse(window: &[u8; WINDOW], sizes: &[u8; 256]) -> Option<(Packet, usize)> {
    let [first, a, b, c, d, e, f, g, h] = *window;
    let size = sizes[usize::from(first)];
    if size == 0 {
        return None;
    }
    let payload = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let packet = if first & 0b11 == 0b11 {
        // A second byte is there or not about as often, so that guessing would not pay.
        let further = first >> 2 & 1;
        if further & a & 1 != 0 {
            return None;
        }
        let cycles = u64::from(first >> 3) | u64::from((a >> 1) * further) << 5;
        Packet::Cyc(Cyc { cycles })
    } else {
        match first {
            0x00 => Packet::Pad,
            0x59 => Packet::Mtc(Mtc { ctc: a }),
            0x19 => Packet::Tsc(Tsc { tsc: payload & LOW_56 }),
            _ => with_ip(first, payload),
        }
    };
    Some((packet, size.into()))
}

/// The IPBytes field and the payload of the TIP at the begin of `window`, outside any block, and its size; `None` for
/// other packets and for one without an IP.
#[inline(always)]
pub(super) fn target(window: &[u8; WINDOW]) -> Option<(u8, u64, usize)> {
    let [first, payload @ ..] = *window;
    let form = first >> 5;
    let mask = IP_MASKS[usize::from(form)];
    if first & 0x1f != ip::TIP || mask == 0 {
        return None;
    }
    // Of whole bytes, and one for the opcode.
    let size = 9 - mask.leading_zeros() / 8;
    Some((form, u64::from_le_bytes(payload) & mask, size as usize))
}

/// A CYC that [`parse`] leaves.
#[inline(never)]
pub(super) fn cyc(window: &[u8; WINDOW], sizes: &[u8; 256]) -> Option<(Packet, usize)> {
    let skd007 = core::ptr::eq(sizes, &SIZES_SKD007);
    if window[0] & 0b111 != 0b111 || skd007 && timing::is_ovf_by_skd007(window) {
        return None;
    }
    let (cyc, size) = Cyc::parse(window).ok()??;
    Some((Packet::Cyc(cyc), size))
}

/// The packet with an IP that begins with the byte `first`.
#[inline(always)]
fn with_ip(first: u8, payload: u64) -> Packet {
    let form = first >> 5;
    let payload = payload & IP_MASKS[usize::from(form)];
    let ip = match form {
        0 => Ip::Suppressed,
        1 => Ip::Update16(payload),
        2 => Ip::Update32(payload),
        3 => Ip::SignExtend48(payload),
        4 => Ip::Update48(payload),
        _ => Ip::Full(payload),
    };
    match first & 0x1f {
        ip::TIP => Packet::Tip(ip),
        ip::FUP => Packet::Fup(ip),
        ip::TIP_PGE => Packet::TipPge(ip),
        _ => Packet::TipPgd(ip),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Config,
        errata::Errata,
        last_ip::LastIp,
        packet::{Context, tests::random},
    };

    #[test]
    fn reads_what_it_reads_as_the_long_way_does() {
        let mut random = random();
        let mut taken = 0;
        for skd007 in [false, true] {
            let sizes = if skd007 { &SIZES_SKD007 } else { &SIZES };
            let config = Config { errata: Errata { skd007, ..Errata::NONE }, ..Config::new() };
            for round in 0..256 {
                for first in 0..=255 {
                    let mut window = [0; WINDOW];
                    if round > 0 {
                        window[1..].copy_from_slice(&random().to_le_bytes());
                    }
                    if round < 16 {
                        window[1..3].copy_from_slice(&[0x02, 0xf3]);
                    }
                    window[0] = first;
                    let long = Packet::parse_with(&window, &config, Context::OUTSIDE);
                    let short = tnt(first)
                        .map(|packet| (packet, 1))
                        .or_else(|| parse(&window, sizes))
                        .or_else(|| cyc(&window, sizes));
                    let tip = target(&window).map(|(form, payload, size)| {
                        let mut last = LastIp::new();
                        last.update(Ip::Full(0x1122_3344_5566_7788));
                        (last.update_by(form, payload), size)
                    });
                    let expected = match long {
                        Ok(Some((Packet::Tip(ip), size))) => {
                            let mut last = LastIp::new();
                            last.update(Ip::Full(0x1122_3344_5566_7788));
                            last.update(ip).map(|ip| (ip, size))
                        }
                        _ => None,
                    };
                    assert_eq!(tip, expected, "{window:02x?}");
                    if let Some(packet) = short {
                        taken += 1;
                        assert_eq!(long, Ok(Some(packet)), "{window:02x?}");
                    }
                }
            }
        }
        assert!(taken > 2 * 256 * 192, "{taken}");
    }
}
