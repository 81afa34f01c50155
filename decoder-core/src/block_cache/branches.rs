//! A part of a trace, read ahead: its outcomes in one array, and its targets, each with its place in the array.
//!
//! Reading first and walking afterwards separates two loops with unrelated branches: the processor predicts each better
//! alone. And the blocks at all targets can be looked up before the walk needs them, so that the lookups do not wait
//! for each other.

use crate::{event::BranchSink, packet::Tnt};

/// Maximum number of targets and outcomes in a part.
const TARGETS: usize = 64;
const OUTCOMES: usize = 1024;
/// Maximum number of outcomes in a part whose offsets are kept: each takes eight more bytes.
const OUTCOMES_WITH_OFFSETS: usize = 256;
/// Room for the outcomes of one packet beyond the maximum; they are written eight at a time.
const ROOM: usize = OUTCOMES + 72;

/// A target of an indirect branch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Target {
    pub(super) ip: u64,
    /// The number of outcomes before it.
    pub(super) at: u32,
    /// The block at this address; 0 if it is not in the cache.
    pub(super) block: u32,
}

/// Branches that were read ahead.
#[derive(Debug)]
pub(super) struct BranchesAhead {
    /// One byte for each outcome: 1 is taken.
    outcomes: [u8; ROOM],
    /// The targets, and one after the last that stands for the end.
    targets: [Target; TARGETS + 1],
    /// The number of each.
    end: BranchCursor,
}

/// A place in the branches that were read ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BranchCursor {
    /// The number of outcomes, and of targets, that were used.
    pub(super) outcomes: usize,
    pub(super) targets: usize,
}

/// The branches that were read ahead and are left.
#[derive(Clone, Copy, Debug)]
pub(super) struct BranchesLeft<'a> {
    /// The outcomes before the next target: 1 is taken.
    pub(super) outcomes: &'a [u8],
    /// The next targets, and the one that stands for the end.
    targets: &'a [Target],
}

impl BranchesLeft<'_> {
    /// Returns true if nothing is left.
    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.outcomes.is_empty() && self.targets.len() <= 1
    }
}

/// The offsets of the packets that hold the branches read ahead.
#[derive(Debug)]
pub(super) struct BranchOffsets {
    outcomes: [u64; OUTCOMES_WITH_OFFSETS + (ROOM - OUTCOMES)],
    targets: [u64; TARGETS],
    /// The offset of the packet that is being read.
    packet: u64,
}

impl BranchOffsets {
    pub(super) const fn new() -> Self {
        Self { outcomes: [0; OUTCOMES_WITH_OFFSETS + (ROOM - OUTCOMES)], targets: [0; TARGETS], packet: 0 }
    }

    /// Returns the offset of the branch at a place: an outcome, or the target there if `is_target`.
    pub(super) fn at(&self, place: BranchCursor, is_target: bool) -> u64 {
        let at = if is_target { self.targets.get(place.targets) } else { self.outcomes.get(place.outcomes) };
        at.copied().unwrap_or_default()
    }
}

/// A writer of branches, with its counts in registers, and of their offsets if a sink wants those.
pub(super) struct BranchWriter<'a, O> {
    outcomes: &'a mut [u8; ROOM],
    targets: &'a mut [Target; TARGETS + 1],
    end: BranchCursor,
    offsets: O,
}

/// Storage for the offsets of branches.
pub(super) trait OffsetWriter {
    /// Maximum number of outcomes in a part.
    const OUTCOMES: usize;

    /// Sets the offset of the packet that holds the next branches.
    fn packet_at(&mut self, offset: u64);

    /// Notes up to eight outcomes of the packet, from that number on.
    fn outcomes(&mut self, from: usize);

    /// Notes the target with that number.
    fn target(&mut self, number: usize);
}

/// No storage: offsets are not kept.
pub(super) struct NoOffsets;

impl OffsetWriter for NoOffsets {
    const OUTCOMES: usize = OUTCOMES;

    #[inline(always)]
    fn packet_at(&mut self, _: u64) {}

    #[inline(always)]
    fn outcomes(&mut self, _: usize) {}

    #[inline(always)]
    fn target(&mut self, _: usize) {}
}

impl OffsetWriter for &mut BranchOffsets {
    const OUTCOMES: usize = OUTCOMES_WITH_OFFSETS;

    #[inline(always)]
    fn packet_at(&mut self, offset: u64) {
        self.packet = offset;
    }

    #[inline(always)]
    fn outcomes(&mut self, from: usize) {
        if let Some(places) = self.outcomes.get_mut(from..).and_then(<[u64]>::first_chunk_mut) {
            *places = [self.packet; 8];
        }
    }

    #[inline(always)]
    fn target(&mut self, number: usize) {
        if let Some(place) = self.targets.get_mut(number) {
            *place = self.packet;
        }
    }
}

/// The outcomes of each short TNT packet: one in a byte from the lowest byte on, and their number in the highest byte.
static SHORT: [u64; 256] = short();

const fn short() -> [u64; 256] {
    let mut all = [0; 256];
    let mut packet = 4;
    while packet < all.len() {
        // The highest set bit ends the outcomes.
        let len = packet.ilog2() - 1;
        let mut outcome = 0;
        all[packet] = (len as u64) << 56;
        while outcome < len {
            all[packet] |= (packet as u64 >> (len - outcome) & 1) << (8 * outcome);
            outcome += 1;
        }
        packet += 2;
    }
    all
}

impl BranchesAhead {
    pub(super) const fn new() -> Self {
        let none = Target { ip: 0, at: 0, block: 0 };
        let end = BranchCursor { outcomes: 0, targets: 0 };
        Self { outcomes: [0; ROOM], targets: [none; TARGETS + 1], end }
    }

    /// Replaces the branches by those that `read` writes.
    #[inline(always)]
    pub(super) fn fill<O: OffsetWriter>(&mut self, offsets: O, read: impl FnOnce(&mut BranchWriter<'_, O>)) {
        let Self { outcomes, targets, .. } = self;
        let mut writer = BranchWriter { outcomes, targets, end: BranchCursor::default(), offsets };
        read(&mut writer);
        self.end = writer.end;
        if let Some(end) = self.targets.get_mut(self.end.targets) {
            *end = Target { ip: 0, at: self.end.outcomes as u32, block: 0 };
        }
    }

    /// Returns the place before the branch that ends at the cursor.
    pub(super) fn before(&self, BranchCursor { outcomes, targets }: BranchCursor) -> BranchCursor {
        let last = targets
            .checked_sub(1)
            .filter(|last| self.targets.get(*last).is_some_and(|target| target.at as usize == outcomes));
        match last {
            Some(last) => BranchCursor { outcomes, targets: last },
            None => BranchCursor { outcomes: outcomes.saturating_sub(1), targets },
        }
    }

    /// Returns the place after all branches.
    pub(super) const fn end(&self) -> BranchCursor {
        self.end
    }

    pub(super) fn is_empty(&self) -> bool {
        self.end == BranchCursor::default()
    }

    /// Returns the targets from the one with that number on.
    pub(super) fn targets_mut(&mut self, from: usize) -> &mut [Target] {
        self.targets.get_mut(from..self.end.targets).unwrap_or_default()
    }

    /// Returns the branches that are left from a place on.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn left(&self, from: BranchCursor) -> BranchesLeft<'_> {
        let targets = self.targets.get(from.targets..=self.end.targets).unwrap_or_default();
        let until = targets.first().map_or(0, |next| next.at as usize);
        BranchesLeft { outcomes: self.outcomes.get(from.outcomes..until).unwrap_or_default(), targets }
    }

    /// Returns the place at which these branches are left.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn cursor(&self, left: &BranchesLeft<'_>) -> BranchCursor {
        let until = left.targets.first().map_or(0, |next| next.at as usize);
        BranchCursor {
            outcomes: until.saturating_sub(left.outcomes.len()),
            targets: (self.end.targets + 1).saturating_sub(left.targets.len()),
        }
    }

    /// Takes the next target, after the outcomes before it; `None` at the end.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn take_target<'a>(&'a self, left: &mut BranchesLeft<'a>) -> Option<Target> {
        let (target, rest) = left.targets.split_first()?;
        let next = rest.first()?;
        let outcomes = self.outcomes.get(target.at as usize..next.at as usize).unwrap_or_default();
        *left = BranchesLeft { outcomes, targets: rest };
        Some(*target)
    }
}

impl<O: OffsetWriter> BranchSink for BranchWriter<'_, O> {
    const PLACES: bool = true;

    #[inline(always)]
    fn packet_at(&mut self, offset: u64) {
        self.offsets.packet_at(offset);
    }

    #[inline(always)]
    fn short(&mut self, packet: u8) {
        self.offsets.outcomes(self.end.outcomes);
        let outcomes = SHORT[usize::from(packet)];
        if let Some(place) = self.outcomes.get_mut(self.end.outcomes..).and_then(<[u8]>::first_chunk_mut) {
            *place = outcomes.to_le_bytes();
        }
        self.end.outcomes += (outcomes >> 56) as usize;
    }

    // Rare: most recordings have only short TNT packets.
    #[inline(never)]
    fn long(&mut self, outcomes: Tnt) {
        let mut left = outcomes.len.min(63);
        while left > 0 {
            // Split into short packets.
            let most = left.min(Tnt::SHORT);
            left -= most;
            let bits = (outcomes.bits >> left) as u8 & !(0xff << most);
            self.short((1 << most | bits) << 1);
        }
    }

    #[inline(always)]
    fn target(&mut self, ip: u64) {
        if let Some(target) = self.targets.get_mut(self.end.targets) {
            *target = Target { ip, at: self.end.outcomes as u32, block: 0 };
            self.offsets.target(self.end.targets);
            self.end.targets += 1;
        }
    }

    #[inline(always)]
    fn is_full(&self) -> bool {
        self.end.outcomes >= O::OUTCOMES || self.end.targets >= TARGETS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Encoder, Packet};

    extern crate std;
    use std::{vec, vec::Vec};

    fn outcomes(ahead: &BranchesAhead) -> Vec<bool> {
        let mut left = ahead.left(BranchCursor::default());
        let mut all = vec![];
        loop {
            all.extend(left.outcomes.iter().map(|outcome| *outcome != 0));
            if ahead.take_target(&mut left).is_none() {
                return all;
            }
        }
    }

    #[test]
    fn outcomes_are_in_the_order_of_their_packets() {
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..crate::rounds(1000) {
            let packets: Vec<_> = (0..rng.usize(1..20))
                .map(|_| {
                    let len = if rng.bool() { rng.u8(1..=6) } else { rng.u8(1..=47) };
                    Tnt { bits: rng.u64(..1 << len), len }
                })
                .collect();
            let mut ahead = BranchesAhead::new();
            ahead.fill(NoOffsets, |writer| {
                for &tnt in &packets {
                    let mut memory = [0; 8];
                    match tnt.packet() {
                        Packet::TntShort(_) => {
                            Encoder::new(&mut memory).emit(&tnt.packet()).expect("there is room");
                            writer.short(memory[0]);
                        }
                        _ => writer.long(tnt),
                    }
                }
            });
            let expected: Vec<bool> = packets.iter().flat_map(|tnt| tnt.outcomes()).collect();
            assert_eq!(outcomes(&ahead), expected, "{packets:x?}");
        }
    }

    #[test]
    fn the_table_of_short_packets_gives_each_ones_outcomes() {
        for (packet, (row, computed)) in SHORT.into_iter().zip(short()).enumerate() {
            // Bit 0 distinguishes other packets, and at least one outcome precedes the highest set bit.
            let outcomes: Vec<u8> = match packet {
                4.. if packet % 2 == 0 => {
                    let digits = std::format!("{packet:b}");
                    digits[1..digits.len() - 1].bytes().map(|digit| digit - b'0').collect()
                }
                _ => Vec::new(),
            };
            let mut expected = [0; 8];
            expected[..outcomes.len()].copy_from_slice(&outcomes);
            expected[7] = outcomes.len() as u8;
            assert_eq!((row.to_le_bytes(), computed), (expected, row), "{packet:#x}");
        }
    }

    #[test]
    fn a_part_is_full_with_the_last_outcome_that_it_may_have() {
        let mut ahead = BranchesAhead::new();
        ahead.fill(NoOffsets, |writer| {
            for number in 0..OUTCOMES {
                assert!(!writer.is_full(), "{number}");
                writer.short(0b100);
            }
            assert!(writer.is_full());
        });
        assert_eq!(ahead.end, BranchCursor { outcomes: OUTCOMES, targets: 0 });
    }

    #[test]
    fn a_target_comes_after_the_outcomes_before_it() {
        let mut ahead = BranchesAhead::new();
        ahead.fill(NoOffsets, |writer| {
            writer.target(0x1000);
            writer.long(Tnt { bits: 0b101, len: 3 });
            writer.target(0x2000);
        });
        let mut left = ahead.left(BranchCursor::default());
        for (target, outcomes) in
            [(Some((0x1000, 0, 0)), &[][..]), (Some((0x2000, 3, 0)), &[1, 0, 1]), (None, &[])]
        {
            let place = ahead.cursor(&left);
            assert_eq!(left.outcomes, outcomes);
            // The branches left from that place are the same, also between outcomes.
            assert_eq!(ahead.left(place).outcomes, outcomes);
            assert_eq!(left.is_empty(), target.is_none());
            if let [_, rest @ ..] = left.outcomes {
                let place = ahead.cursor(&BranchesLeft { outcomes: rest, ..left });
                assert_eq!(ahead.left(place).outcomes, rest);
            }
            let taken = ahead.take_target(&mut left);
            assert_eq!(taken.map(|Target { ip, at, block }| (ip, at, block)), target);
        }
        assert_eq!(ahead.end, BranchCursor { outcomes: 3, targets: 2 });
        let back = core::iter::successors(Some(ahead.end), |cursor| {
            (*cursor != BranchCursor::default()).then(|| ahead.before(*cursor))
        });
        let back: Vec<_> = back.map(|BranchCursor { outcomes, targets }| (outcomes, targets)).collect();
        assert_eq!(back, [(3, 2), (3, 1), (2, 1), (1, 1), (0, 1), (0, 0)]);
    }

    #[test]
    fn a_part_that_is_not_full_has_room_for_the_largest_packet() {
        for len in 1..=63 {
            let mut ahead = BranchesAhead::new();
            let mut written = 0;
            ahead.fill(NoOffsets, |writer| {
                while !writer.is_full() {
                    writer.long(Tnt { bits: (1 << len) - 1, len });
                    written += usize::from(len);
                }
            });
            assert_eq!(outcomes(&ahead), [true].repeat(written), "{len}");
            ahead.fill(NoOffsets, |writer| {
                while !writer.is_full() {
                    writer.target(1)
                }
            });
            assert_eq!(ahead.end.targets, TARGETS);
        }
    }
}
