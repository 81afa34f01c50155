//! Passes branches and CYCs without decoding them.
//!
//! Most packets between two packets that give the time are TNTs, TIPs and CYCs, of which only the sum of the cycles
//! matters.

use super::{Packets, fast, ip, timing::may_be_ovf_by_skd007};

/// Packets that were passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// The cycles of all CYCs.
    pub(crate) cycles: u64,
    /// The last CYC.
    pub(crate) last: Option<PassedCyc>,
    /// True if the last packet is another one.
    pub(crate) ends_with_branch: bool,
}

/// A CYC that was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PassedCyc {
    /// Its offset.
    pub(crate) offset: u64,
    /// The offset of the packet after it.
    pub(crate) end: u64,
    pub(crate) cycles: u64,
}

impl Packets<'_> {
    /// Passes short TNTs, TIPs and CYCs of at most two bytes that begin before the offset `until`, up to another packet
    /// or one that the fast parser cannot read.
    ///
    /// As in [`Packets::visit`], a branch for each of the most frequent packets is faster than a table of their sizes.
    #[inline]
    pub(crate) fn pass_cycles(&mut self, until: u64) -> Passed {
        let bytes = if self.plain { self.input.bytes } else { &[] };
        let end = bytes.len().saturating_sub(fast::WINDOW - 1).min(self.place_of(until));
        let base = self.input.base;
        let (mut at, mut cycles, mut last) = (self.at, 0, None);
        while at < end {
            let Some(&[first, second, third]) = bytes.get(at..).and_then(<[u8]>::first_chunk) else { break };
            let mut pass_cyc = |size: usize, value: u64| {
                let offset = base + at as u64;
                cycles += value;
                last = Some(PassedCyc { offset, end: offset + size as u64, cycles: value });
                size
            };
            at += if fast::is_short_tnt(first) {
                1
            } else if first & 0b111 == 0b011 {
                pass_cyc(1, u64::from(first >> 3))
            } else if first == fast::TIP_16 {
                3
            } else if first & 0b111 == 0b111 {
                if second & 1 != 0 || may_be_ovf_by_skd007(second, third) {
                    break;
                }
                pass_cyc(2, u64::from(first >> 3) | u64::from(second >> 1) << 5)
            } else if first == fast::TIP_32 {
                5
            } else {
                match fast::SIZES[usize::from(first)] {
                    size if size > 0 && first & 0x1f == ip::TIP => usize::from(size),
                    _ => break,
                }
            };
        }
        let ends_with_branch = at > self.at && last.is_none_or(|cyc| cyc.end != base + at as u64);
        self.at = at;
        Passed { cycles, last, ends_with_branch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Config,
        errata::Errata,
        packet::{Packet, tests::random},
    };

    extern crate std;
    use std::vec::Vec;

    /// Returns packets of the kinds that are passed, and a few others.
    fn trace(random: &mut impl FnMut() -> u64) -> Vec<u8> {
        let mut trace = Vec::new();
        for _ in 0..60 {
            let payload = random().to_le_bytes();
            let tip = |form: u8, size: usize| [&[ip::TIP | form << 5], &payload[..size]].concat();
            match random() % 24 {
                0..4 => trace.push((payload[0] | 4) & !1),
                4..8 => trace.push(payload[0] & !0b100 | 0b11),
                8..12 => trace.extend([payload[0] | 0b111, payload[1] & !1]),
                12 => trace.extend([payload[0] | 0b111, payload[1] | 1, payload[2] & !1]),
                13 => trace.extend([payload[0] | 0b111, 0x02, 0xf3]),
                14 => trace.extend(tip(0, 0)),
                15..17 => trace.extend(tip(1, 2)),
                17 => trace.extend(tip(2, 4)),
                18 => trace.extend(tip(4, 6)),
                19 => trace.extend(tip(6, 8)),
                20 => trace.extend([0x59, payload[0]]),
                21 => trace.push(0),
                22 => trace.extend([0x3d, payload[0], payload[1]]),
                _ => trace.extend([0x02, 0x03, payload[0] & 0x7f, 0]),
            }
        }
        trace
    }

    /// Passes the packets before `until` one by one.
    fn passed(packets: &mut Packets<'_>, until: u64) -> Passed {
        let mut passed = Passed::default();
        let len = packets.bytes().len();
        loop {
            let mut next = packets.clone();
            let Some(Ok((offset, packet))) = next.next() else { return passed };
            let end = next.offset();
            if offset >= until || len - (offset as usize) < fast::WINDOW {
                return passed;
            }
            match packet {
                Packet::TntShort(_) | Packet::Tip(_) => passed.ends_with_branch = true,
                // The fast parser leaves a possible OVF to the full parser.
                Packet::Cyc(cyc) if end - offset <= 2 && packets.next_plain().is_some() => {
                    passed.cycles += cyc.cycles;
                    passed.last = Some(PassedCyc { offset, end, cycles: cyc.cycles });
                    passed.ends_with_branch = false;
                }
                _ => return passed,
            }
            *packets = next;
        }
    }

    #[test]
    fn what_is_passed_at_once_is_what_is_passed_one_by_one() {
        let mut random = random();
        let (mut cycs, mut branches) = (0, 0);
        for round in 0..400 {
            let trace = trace(&mut random);
            let config =
                Config { errata: Errata { skd007: round % 2 == 0, ..Errata::NONE }, ..Config::new() };
            let until = if round % 4 < 2 { u64::MAX } else { random() % trace.len() as u64 };
            let (mut at_once, mut one_by_one) =
                (Packets::with_config(&trace, config), Packets::with_config(&trace, config));
            loop {
                let found = at_once.pass_cycles(until);
                assert_eq!(found, passed(&mut one_by_one, until), "{trace:02x?} up to {until}");
                assert_eq!(at_once.offset(), one_by_one.offset(), "{trace:02x?} up to {until}");
                cycs += u32::from(found.last.is_some());
                branches += u32::from(found.ends_with_branch);
                if !matches!((at_once.next(), one_by_one.next()), (Some(Ok(_)), Some(Ok(_)))) {
                    break;
                }
            }
        }
        assert!(cycs > 1000 && branches > 1000, "{cycs} {branches}");
    }
}
