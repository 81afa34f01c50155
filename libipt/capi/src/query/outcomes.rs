//! The outcomes of conditional branches that no query has taken yet.

use super::{
    decoder::{Answer, QueryDecoder},
    opcode::{self, Opcode},
};
use crate::fast_packets::{TNT_LEN, outcomes_of};

/// Outcomes, the first one in the highest bit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcomes {
    bits: u64,
    /// The bit of the next outcome; zero if no outcome is left.
    next: u64,
    /// Number of packets they come from besides the first: contiguous short TNT packets before the position. To the
    /// caller, those whose outcomes are all unused are yet to be read.
    more: usize,
}

/// Maximum number of short packets read at once; their outcomes always fit.
const MOST: usize = 10;

impl Outcomes {
    pub(super) const fn new(bits: u64, len: u8) -> Self {
        Self { bits, next: 1 << (len - 1), more: 0 }
    }

    pub(super) const fn is_empty(self) -> bool {
        self.next == 0
    }

    /// Takes the next outcome unless it is the last one.
    #[inline(always)]
    pub(super) const fn take_before_last(&mut self) -> Option<bool> {
        if self.next > 1 { Some(self.take()) } else { None }
    }

    /// Takes the next outcome.
    #[inline(always)]
    pub(super) const fn take(&mut self) -> bool {
        let is_taken = self.bits & self.next != 0;
        self.next >>= 1;
        is_taken
    }

    /// Counts the packets before a position whose outcomes are all unused, and those outcomes.
    fn untouched(self, before: &[u8]) -> (usize, u32) {
        let left = self.next.checked_ilog2().map_or(0, |bit| bit + 1);
        let (mut packets, mut outcomes) = (0, 0);
        for &byte in before.iter().rev().take(self.more) {
            let with = outcomes + u32::from(TNT_LEN[usize::from(byte)]);
            if with > left {
                break;
            }
            (packets, outcomes) = (packets + 1, with);
        }
        (packets, outcomes)
    }
}

impl QueryDecoder {
    /// Reads the short TNT packet at the position, and those directly after it. A packet that the next query needs
    /// follows them, so that only outcomes are read early.
    #[inline(always)]
    pub(super) fn read_short(&mut self, first: u8) -> Answer<()> {
        let rest = self.rest();
        let (mut bits, mut len) = outcomes_of(first);
        let (mut packets, mut last) = (1, 0);
        while let Some(&byte) = rest.get(packets)
            && packets < MOST
            && TNT_LEN[usize::from(byte)] != 0
        {
            let (more, of_last) = outcomes_of(byte);
            (bits, len, last) = (bits << of_last | more, len + of_last, of_last);
            packets += 1;
        }
        let next = Opcode::fetch(rest.get(packets..).unwrap_or_default());
        let next = next.ok().filter(|next| next.flags() & (opcode::TIP | opcode::TNT) != 0);
        if next.is_none() && packets == 1 {
            self.outcomes = Outcomes::new(bits, len);
            self.skip(1);
            return self.answered();
        }
        if next.is_none() {
            (bits, len, packets) = (bits >> last, len - last, packets - 1);
        }
        self.outcomes = Outcomes { more: packets - 1, ..Outcomes::new(bits, len) };
        self.skip(packets);
        self.answered_now(next.unwrap_or(Opcode::Tnt8));
        Ok(())
    }

    /// Returns the number of packets before the position whose outcomes are all unused, and of those outcomes.
    fn untouched(&self) -> (usize, u32) {
        if self.outcomes.more == 0 || self.outcomes.is_empty() {
            return (0, 0);
        }
        let before = self.position.and_then(|position| self.trace().get(..position));
        self.outcomes.untouched(before.unwrap_or_default())
    }

    /// Goes back to the first packet whose outcomes are all unused.
    pub(super) fn settle(&mut self) {
        let (packets, outcomes) = self.untouched();
        if packets > 0 {
            self.position = self.position.map(|position| position - packets);
            self.next = Some(Opcode::Tnt8);
            self.outcomes.bits >>= outcomes;
            self.outcomes.next >>= outcomes;
        }
        self.outcomes.more = 0;
    }

    /// Returns the offset of the next packet, as the caller sees it.
    pub(crate) fn offset(&self) -> Option<u64> {
        self.position.map(|position| (position - self.untouched().0) as u64)
    }
}
