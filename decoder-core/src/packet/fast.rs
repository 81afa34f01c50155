//! A fast parser for the most frequent packets.
//!
//! All other packets, and all packets near the end of the trace, go to the full parser ([`Packet::parse_with`]). A test
//! compares the two.
//!
//! The cost is in branches that the processor cannot predict, and in waiting for the size of a packet, without which
//! the next one cannot be read. In [`parse`], sizes come from a table, and the code does not branch on the form of the
//! IP (the variants of [`Ip`] have the same layout in memory). The loops that pass packets on instead of returning them
//! have a branch for each of the most frequent: short TNTs, which come in runs, and TIPs with [`TIP_16`] or [`TIP_32`].

use super::{Cyc, Ip, Mtc, Packet, Tnt, Tsc, ip, timing::may_be_ovf_by_skd007};

const LOW_48: u64 = (1 << 48) - 1;
const LOW_56: u64 = (1 << 56) - 1;

/// The bits of an IP's payload, indexed by IPBytes. Entries 5 and 7 are never used.
const IP_MASKS: [u64; 8] = [0, 0xffff, 0xffff_ffff, LOW_48, LOW_48, 0, u64::MAX, 0];

/// The sizes of packets with an IP, indexed by IPBytes; 0 means the full parser.
const IP_SIZES: [u8; 8] = [1, 3, 5, 7, 7, 0, 9, 0];

/// The sizes of packets, indexed by their first byte; 0 means the full parser. CYCs with more than two bytes are
/// detected later, and left to the full parser.
pub(super) static SIZES: [u8; 256] = sizes();

const fn sizes() -> [u8; 256] {
    let mut sizes = [0; 256];
    let mut first = 0;
    while first < sizes.len() {
        // The index is below 256.
        let byte = first as u8;
        sizes[first] = match byte {
            0x00 => 1,
            0x19 => 8,
            0x59 => 2,
            _ if byte & 0b111 == 0b011 => 1,
            _ if byte & 0b111 == 0b111 => 2,
            _ => match (byte & 0x1f, byte >> 5) {
                (ip::TIP | ip::FUP | ip::TIP_PGE | ip::TIP_PGD, form) => IP_SIZES[form as usize],
                _ => 0,
            },
        };
        first += 1;
    }
    sizes
}

/// The first byte of a TIP whose payload has 16 bits. Most TIPs begin with it or with [`TIP_32`].
pub(crate) const TIP_16: u8 = ip::TIP | 1 << 5;
/// The first byte of a TIP whose payload has 32 bits.
pub(crate) const TIP_32: u8 = ip::TIP | 2 << 5;

/// The number of bytes that [`parse`] needs: the size of its longest packet.
pub(super) const WINDOW: usize = 9;

/// Returns true if this byte is a short TNT outside any block: it is even and above 2. The rotation makes odd bytes the
/// highest, so that one comparison is enough.
#[inline(always)]
pub(crate) const fn is_short_tnt(byte: u8) -> bool {
    byte.rotate_right(1).wrapping_sub(2) < 126
}

/// Parses this byte as a short TNT outside any block; `None` if it is another packet.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn tnt(byte: u8) -> Option<Packet> {
    is_short_tnt(byte).then(|| Packet::TntShort(Tnt::of_short(byte)))
}

impl Tnt {
    /// Returns the outcomes of the short TNT that is this byte.
    #[inline(always)]
    pub(crate) fn of_short(byte: u8) -> Self {
        let (bits, len) = OUTCOMES[usize::from(byte)];
        Self { bits: bits.into(), len }
    }
}

/// The outcomes of short TNTs and their number, by the packet's byte. Finding the highest bit of a byte is slower on
/// some processors.
static OUTCOMES: [(u8, u8); 256] = {
    let mut outcomes = [(0, 0); 256];
    // Even numbers above 2 are TNTs; the highest set bit is the stop bit, bit 0 is not an outcome.
    let mut byte: u8 = 4;
    loop {
        let len = byte.ilog2() - 1;
        outcomes[byte as usize] = (byte >> 1 ^ 1 << len, len as u8);
        match byte.checked_add(2) {
            Some(next) => byte = next,
            None => break outcomes,
        }
    }
};

/// Parses the packet at the start of `window`, outside any block. Returns it with its size, or `None` if the full
/// parser must read it. Short TNTs are left to [`tnt`].
///
/// None of these packets opens a block, and only the CYC is affected by an erratum.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn parse(window: &[u8; WINDOW]) -> Option<(Packet, usize)> {
    let [first, a, b, c, d, e, f, g, h] = *window;
    let size = SIZES[usize::from(first)];
    if size == 0 {
        return None;
    }
    let payload = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let packet = if first & 0b11 == 0b11 {
        // A second byte is about as likely as not, so a branch would often be mispredicted.
        let further = first >> 2 & 1;
        if further & a & 1 != 0 || may_be_ovf_by_skd007(a, b) {
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

/// Parses the TIP at the start of `window`, outside any block. Returns the IPBytes field, the payload and the
/// packet's size, or `None` for other packets and for a TIP without an IP.
#[inline(always)]
pub(crate) fn target(window: &[u8; WINDOW]) -> Option<(u8, u64, usize)> {
    target_after(window[0], window)
}

/// Does the same as [`target`] for a known first byte.
///
/// After a branch on the first byte, the size is a constant: the processor predicts the branch, and reads the next
/// packet without waiting for this one.
#[inline(always)]
pub(crate) fn target_after(first: u8, &[_, ref payload @ ..]: &[u8; WINDOW]) -> Option<(u8, u64, usize)> {
    let form = first >> 5;
    let mask = IP_MASKS[usize::from(form)];
    if first & 0x1f != ip::TIP || mask == 0 {
        return None;
    }
    let size = IP_SIZES[usize::from(form)];
    Some((form, u64::from_le_bytes(*payload) & mask, size.into()))
}

/// Builds the packet with an IP whose first byte is `first`.
#[cfg_attr(not(debug_assertions), inline(always))]
fn with_ip(first: u8, payload: u64) -> Packet {
    let form = first >> 5;
    let ip = ip(form, payload & IP_MASKS[usize::from(form)]);
    match first & 0x1f {
        ip::TIP => Packet::Tip(ip),
        ip::FUP => Packet::Fup(ip),
        ip::TIP_PGE => Packet::TipPge(ip),
        _ => Packet::TipPgd(ip),
    }
}

/// Builds the IP with this IPBytes field, which is not a reserved one.
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn ip(form: u8, payload: u64) -> Ip {
    match form {
        0 => Ip::Suppressed,
        1 => Ip::Update16(payload),
        2 => Ip::Update32(payload),
        3 => Ip::SignExtend48(payload),
        4 => Ip::Update48(payload),
        _ => Ip::Full(payload),
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
                    let short = tnt(first).map(|packet| (packet, 1)).or_else(|| parse(&window));
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
