//! The packets of a sequence.

use crate::{
    last_ip::LastIp,
    packet::{self, Tnt},
};

use super::KeptIp;

/// Maximum length of a sequence in bytes.
pub(super) const BYTES: usize = 16;
/// A sequence ends at the first TIP packet after which it has that many bytes. If no TIP is among the next [`BYTES`],
/// it ends at a TNT packet.
pub(super) const ENOUGH: usize = 8;
/// Maximum number of outcomes and ends: those of short TNT packets and of the shortest TIP packets.
const OUTCOMES: usize = 6 * BYTES;
const ENDS: usize = BYTES.div_ceil(3);

/// The next bytes of the trace, the first of which may be a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes(pub(super) [u8; BYTES]);

/// The branches of the packets of a sequence.
pub(super) struct Branches {
    /// The outcomes; 1 is taken.
    outcomes: [u8; OUTCOMES],
    outcomes_len: usize,
    ends: [SequenceEnd; ENDS],
    ends_len: usize,
    pub(super) kept: KeptIp,
}

/// A place after a packet, at which a sequence may end.
#[derive(Clone, Copy, Debug)]
pub(super) struct SequenceEnd {
    /// The last IP.
    pub(super) ip: u64,
    /// True if the packet is a TIP.
    pub(super) named: bool,
    /// The number of outcomes before it.
    pub(super) outcomes: usize,
    /// The length of the sequence, and the number of its packets.
    pub(super) len: usize,
    pub(super) packets: u64,
    /// The places of the last TNT packet and of the last TIP packet.
    pub(super) tnt_at: Option<usize>,
    pub(super) tip_at: Option<usize>,
}

impl SequenceEnd {
    const NONE: Self =
        Self { ip: 0, named: false, outcomes: 0, len: 0, packets: 0, tnt_at: None, tip_at: None };
}

/// The masks of the first bytes of 16, in two halves, by the number of bytes.
static MASKS: [[u64; 2]; 32] = {
    let mut masks = [[0; 2]; 32];
    let mut len = 1;
    while len < masks.len() {
        let all = if len < BYTES { (1 << (8 * len)) - 1 } else { u128::MAX };
        masks[len] = [all as u64, (all >> 64) as u64];
        len += 1;
    }
    masks
};

impl Bytes {
    /// Returns the bytes from that place on, if there are as many.
    #[inline(always)]
    pub(super) fn at(trace: &[u8], place: usize) -> Option<Self> {
        trace.get(place..)?.first_chunk().copied().map(Self)
    }

    #[inline(always)]
    pub(super) fn halves(&self) -> [u64; 2] {
        let all = u128::from_le_bytes(self.0);
        [all as u64, (all >> 64) as u64]
    }

    #[inline(always)]
    pub(super) fn first(&self) -> u64 {
        self.halves()[0]
    }

    /// Returns 0 if the first `len` bytes are the same as those in the two halves of `other`.
    #[inline(always)]
    pub(super) fn differ_from(&self, other: [u64; 2], len: usize) -> u64 {
        let ([a, b], [c, d], [m, n]) = (self.halves(), other, MASKS[len % MASKS.len()]);
        (a ^ c) & m | (b ^ d) & n
    }

    /// Returns the number of bytes to read without sequences before the next attempt: the packets of a possible
    /// sequence, or all.
    pub(super) fn until_next(&self) -> usize {
        let (mut end, mut without_tip) = (None, None);
        for packet in self.packets() {
            match packet.branches {
                PacketBranches::Target { .. } => end = Some(packet.end),
                PacketBranches::Outcomes(_) if packet.end >= ENOUGH => {
                    without_tip = without_tip.or(Some(packet.end));
                }
                PacketBranches::Outcomes(_) => {}
            }
        }
        end.or(without_tip).unwrap_or(BYTES)
    }

    /// Iterates over the TNT and TIP packets up to the end of a sequence with [`ENOUGH`] bytes, the first other packet,
    /// or an incomplete one.
    fn packets(&self) -> SequencePackets {
        let mut bytes = [0; BYTES + 8];
        bytes[..BYTES].copy_from_slice(&self.0);
        SequencePackets { bytes, at: 0 }
    }
}

/// A packet of a sequence.
struct SequencePacket {
    /// The place of its first byte, and the place after it.
    at: usize,
    end: usize,
    branches: PacketBranches,
}

enum PacketBranches {
    Outcomes(Tnt),
    Target { form: u8, payload: u64 },
}

/// The packets of a possible sequence.
struct SequencePackets {
    /// The bytes, padded at the end, so that all packets are parsed in the same way.
    bytes: [u8; BYTES + 8],
    at: usize,
}

impl Iterator for SequencePackets {
    type Item = SequencePacket;

    #[inline(always)]
    fn next(&mut self) -> Option<SequencePacket> {
        let at = self.at;
        let window = self.bytes.get(at..)?.first_chunk()?;
        let (branches, size) = if packet::is_short_tnt(window[0]) {
            (PacketBranches::Outcomes(Tnt::of_short(window[0])), 1)
        } else {
            let (form, payload, size) = packet::target(window)?;
            (PacketBranches::Target { form, payload }, size)
        };
        let end = at + size;
        let is_last = end >= ENOUGH && matches!(branches, PacketBranches::Target { .. });
        self.at = if is_last { self.bytes.len() } else { end };
        (end <= BYTES).then_some(SequencePacket { at, end, branches })
    }
}

impl Branches {
    /// No branches.
    pub(super) const NONE: Self = Self {
        outcomes: [0; OUTCOMES],
        outcomes_len: 0,
        ends: [SequenceEnd::NONE; ENDS],
        ends_len: 0,
        kept: KeptIp::Nothing,
    };

    /// Reads the branches of the packets up to the end of a sequence with [`ENOUGH`] bytes, with `last_ip` before them,
    /// if there are none yet.
    pub(super) fn read(&mut self, bytes: &Bytes, last_ip: u64) {
        let branches = self;
        let mut end = SequenceEnd { ip: last_ip, ..SequenceEnd::NONE };
        // The end of the sequence if no TIP comes.
        let mut without_tip = None;
        for packet in bytes.packets() {
            end.packets += 1;
            end.len = packet.end;
            match packet.branches {
                PacketBranches::Outcomes(outcomes) => {
                    branches.add(outcomes);
                    (end.named, end.outcomes, end.tnt_at) = (false, branches.outcomes_len, Some(packet.at));
                    if end.len >= ENOUGH {
                        without_tip.get_or_insert(end);
                    }
                }
                PacketBranches::Target { form, payload } => {
                    if end.tip_at.is_none() {
                        branches.kept = match form {
                            1 => KeptIp::Above16,
                            2 => KeptIp::Above32,
                            _ => KeptIp::Nothing,
                        };
                    }
                    (end.ip, end.named, end.tip_at) =
                        (LastIp::updated(end.ip, form, payload), true, Some(packet.at));
                    branches.may_end(end);
                }
            }
        }
        if let Some(end) = without_tip.filter(|_| branches.ends().is_empty()) {
            branches.may_end(end);
        }
    }

    fn add(&mut self, outcomes: Tnt) {
        for outcome in outcomes.outcomes() {
            if let Some(place) = self.outcomes.get_mut(self.outcomes_len) {
                *place = outcome.into();
                self.outcomes_len += 1;
            }
        }
    }

    fn may_end(&mut self, end: SequenceEnd) {
        if let Some(place) = self.ends.get_mut(self.ends_len) {
            *place = end;
            self.ends_len += 1;
        }
    }

    /// Returns the outcomes from that number on up to an end; 1 is taken.
    pub(super) fn outcomes(&self, from: usize, end: &SequenceEnd) -> &[u8] {
        self.outcomes.get(from..end.outcomes).unwrap_or_default()
    }

    /// Returns the places where the sequence may end, in order.
    pub(super) fn ends(&self) -> &[SequenceEnd] {
        self.ends.get(..self.ends_len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;
    use std::vec::Vec;

    fn branches(bytes: &Bytes) -> Branches {
        let mut branches = Branches::NONE;
        branches.read(bytes, 0);
        branches
    }

    /// Returns the possible lengths of a sequence with these bytes, and PADs after them.
    fn ends(parts: &[&[u8]]) -> Vec<usize> {
        let mut bytes = [0; BYTES];
        bytes.iter_mut().zip(parts.concat()).for_each(|(to, from)| *to = from);
        branches(&Bytes(bytes)).ends().iter().map(|end| end.len).collect()
    }

    #[test]
    fn a_repeat_ends_at_a_tip_or_where_no_tip_comes_with_eight_bytes() {
        // TNT (taken); TIPs with two and with eight bytes of an IP.
        let (tnt, tip, long_tip): (&[u8], &[u8], &[u8]) = (&[6; BYTES], &[0x2d, 0, 0x10], &[0xcd; 9]);
        for (parts, expected) in [
            (&[&tnt[..5], tip, tip][..], &[8][..]),
            (&[&tnt[..4], tip, tip, tip], &[7, 10]),
            (&[&tnt[..6], tip, tip], &[9]),
            // After a TIP with too few bytes a TNT is no end.
            (&[&tnt[..4], tip, tnt], &[7]),
            (&[tnt], &[8]),
            (&[&tnt[..8]], &[8]),
            (&[&tnt[..7]], &[]),
            // The last complete TIP has 16 bytes.
            (&[&tnt[..7], long_tip], &[16]),
            (&[&tnt[..8], long_tip], &[8]),
            (&[&tnt[..4], tip, long_tip], &[7, 16]),
            (&[], &[]),
        ] {
            assert_eq!(ends(parts), expected, "{parts:x?}");
        }
    }

    #[test]
    fn the_next_attempt_comes_after_what_could_be_a_repeat() {
        let mut random = fastrand::Rng::with_seed(0x6e65_7874);
        let mut ends = [0; BYTES + 1];
        for _ in 0..100_000 {
            // TNT packets of up to six outcomes, TIP packets with each IPBytes field, and a few others.
            let bytes = Bytes(core::array::from_fn(|_| match random.u8(..16) {
                0..3 => random.u8(..8) << 5 | 0x0d,
                3 => random.u8(..),
                _ => random.u8(2..128) << 1,
            }));
            let expected = branches(&bytes).ends().last().map_or(BYTES, |end| end.len);
            assert_eq!(bytes.until_next(), expected, "{bytes:x?}");
            ends[expected] += 1;
        }
        // The shortest TIP packet has three bytes.
        assert!(ends[3..].iter().all(|times| *times > 100), "{ends:?}");
    }
}
