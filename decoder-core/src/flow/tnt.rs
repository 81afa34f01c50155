//! A queue of the outcomes that the walk has not used yet, from one TNT packet or several.

use crate::packet::Tnt;

/// Outcomes of TNT packets that follow each other without a gap; the oldest is in bit 63.
///
/// Packets after the first are short ones, of one byte each, read from the trace without the event decoder. The
/// borders between packets matter only at errors and deferred TIPs; then they are found again from the bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcomes {
    bits: u64,
    /// How many outcomes are left. As wide as its neighbours, because a wide load right after narrower stores stalls
    /// the processor.
    len: u64,
    /// How many outcomes the first packet had, and how many all packets had together.
    first: u8,
    filled: u8,
    /// The offset of the second packet.
    more: usize,
}

impl Outcomes {
    pub(super) const fn new() -> Self {
        Self { bits: 0, len: 0, first: 0, filled: 0, more: 0 }
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// How many outcomes are left.
    pub(super) const fn len(&self) -> u8 {
        self.len as u8
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether no outcome was taken since the last [`fill`](Self::fill).
    #[inline]
    pub(super) const fn is_untouched(&self) -> bool {
        self.len == self.filled as u64
    }

    /// Fills the queue with a packet's outcomes and those of the short TNT packets at `more`, the offset of the next
    /// packet. Returns how many short packets were read. There must be no outcomes left.
    #[inline]
    pub(super) fn fill(&mut self, tnt: Tnt, trace: &[u8], more: usize) -> usize {
        let len = tnt.len.min(63);
        let mut bits = if len == 0 { 0 } else { tnt.bits << (64 - u32::from(len)) };
        let mut filled = len;
        let mut at = more;
        // A short packet has at most six outcomes.
        while filled <= 58
            && let Some(&byte) = trace.get(at)
            && let Some(next) = short(byte)
        {
            bits |= next.bits << (64 - filled - next.len);
            filled += next.len;
            at += 1;
        }
        *self = Self { bits, len: filled.into(), first: len, filled, more };
        at - more
    }

    /// Takes the oldest outcome.
    #[inline]
    pub(super) fn take(&mut self) -> Option<bool> {
        self.len = self.len.checked_sub(1)?;
        let taken = self.bits >> 63 != 0;
        self.bits <<= 1;
        Some(taken)
    }

    /// Returns the oldest outcomes, at most `most`, which must be less than 8: the oldest in the highest bit, with a
    /// set bit above it.
    #[inline]
    pub(super) fn peek(&self, most: u8) -> u8 {
        let len = self.len.min(most.into());
        // Two shifts, because a shift by 64 is not possible when there are no outcomes.
        ((self.bits >> 1 | 1 << 63) >> (63 - len)) as u8
    }

    /// Drops the oldest outcomes, which were peeked at: less than 64.
    #[inline]
    pub(super) fn skip(&mut self, outcomes: u8) {
        self.len = self.len.saturating_sub(outcomes.into());
        self.bits <<= outcomes & 63;
    }

    /// Keeps the outcomes of the packet with the next outcome, or with the one `before` positions earlier, and gives
    /// the later ones back. Returns the offset of the packet after it and how many packets are given back, or `None`
    /// if there are none.
    #[cold]
    pub(super) fn give_back(&mut self, trace: &[u8], before: u8) -> Option<(usize, usize)> {
        let taken = self.filled - self.len();
        let kept = taken.saturating_sub(before);
        let mut border = self.first;
        let mut at = self.more;
        while border <= kept && border < self.filled {
            border += trace.get(at).copied().and_then(short)?.len;
            at += 1;
        }
        let mut back = 0;
        let mut end = border;
        while end < self.filled {
            end += trace.get(at + back).copied().and_then(short)?.len;
            back += 1;
        }
        self.len = border.saturating_sub(taken).into();
        self.filled = border;
        (back > 0).then_some((at, back))
    }
}

/// The outcomes of a short TNT packet; `None` for the first byte of anything else.
#[inline]
fn short(byte: u8) -> Option<Tnt> {
    // Bit 0 is the opcode; 00 is PAD and 02 begins other packets. The highest set bit ends the outcomes.
    if byte & 1 != 0 || byte < 4 {
        return None;
    }
    let stop = 7 - byte.leading_zeros();
    Some(Tnt { bits: u64::from(byte ^ 1 << stop) >> 1, len: (stop - 1) as u8 })
}

#[cfg(test)]
mod tests {
    use super::*;

    extern crate std;
    use std::vec::Vec;

    const FIRST: Tnt = Tnt { bits: 0b101, len: 3 };

    fn all(outcomes: &mut Outcomes) -> Vec<bool> {
        core::iter::from_fn(|| outcomes.take()).collect()
    }

    #[test]
    fn short_packets_behind_the_first_join_it_in_order() {
        for (trace, packets, expected) in [
            (&[][..], 0, &[true, false, true][..]),
            (&[0b110], 1, &[true, false, true, true]),
            (&[0b1010, 0b100, 0x02], 2, &[true, false, true, false, true, false]),
            (&[0x00, 0b110], 0, &[true, false, true]),
            (&[0x02, 0xa3], 0, &[true, false, true]),
            (&[0x2d, 0x06], 0, &[true, false, true]),
        ] {
            let mut outcomes = Outcomes::new();
            assert_eq!(outcomes.fill(FIRST, trace, 0), packets, "{trace:x?}");
            assert_eq!(all(&mut outcomes), expected, "{trace:x?}");
        }
    }

    #[test]
    fn those_that_come_next_are_seen_and_taken_at_once() {
        // Three outcomes of the first packet, two of another one.
        for (taken, most, expected) in [
            (0, 6, 0b1_10110),
            (0, 2, 0b1_10),
            (1, 6, 0b1_0110),
            (4, 6, 0b1_0),
            (5, 6, 1),
            (6, 6, 1),
            (0, 0, 1),
        ] {
            let mut outcomes = Outcomes::new();
            outcomes.fill(FIRST, &[0b1100], 0);
            outcomes.skip(taken);
            assert_eq!(outcomes.peek(most), expected, "{taken} taken, {most}");
        }
    }

    #[test]
    fn takes_no_more_packets_than_fit() {
        // Six outcomes each, all taken.
        let trace = [0xfe; 20];
        let mut outcomes = Outcomes::new();
        assert_eq!(outcomes.fill(FIRST, &trace, 5), 10);
        assert_eq!(all(&mut outcomes).len(), 63);
    }

    #[test]
    fn gives_back_the_packets_behind_the_one_that_is_next() {
        // Three, two and one outcome.
        let trace = [0xff, 0b1010, 0b110, 0xff];
        for (taken, before, left, back) in [
            (0, 0, 3, Some((1, 2))),
            (2, 0, 1, Some((1, 2))),
            (3, 0, 2, Some((2, 1))),
            (3, 1, 0, Some((1, 2))),
            (4, 0, 1, Some((2, 1))),
            (4, 1, 1, Some((2, 1))),
            (5, 0, 1, None),
            (5, 1, 0, Some((2, 1))),
            (6, 0, 0, None),
        ] {
            let mut outcomes = Outcomes::new();
            assert_eq!(outcomes.fill(FIRST, &trace, 1), 2);
            for _ in 0..taken {
                outcomes.take();
            }
            assert_eq!(outcomes.give_back(&trace, before), back, "{taken} taken");
            assert_eq!(all(&mut outcomes).len(), left, "{taken} taken");
        }
    }
}
