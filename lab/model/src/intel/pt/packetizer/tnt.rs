//! The TNT buffer, which collects outcomes of branches (taken/not taken) for one packet, and TIPs deferred until it is
//! emitted. Source: SDM vol. 3, Intel Processor Trace, "Taken/Not-taken (TNT) Packet" and "Deferred TIPs".

use pugmark_decoder_core::packet::Packet;
use pugmark_decoder_core::packet::Tnt;

/// The numbers of outcomes in a short and in a long TNT packet.
const SHORT: u8 = 6;
const LONG: u8 = 47;
/// Maximum number of deferred TIPs.
const MAX_HELD_TIPS: usize = 8;

/// Outcomes that are not yet in a packet, and the TIPs deferred after them.
#[derive(Debug)]
pub(crate) struct TntBuffer {
    bits: u64,
    len: u8,
    capacity: u8,
    held: [u64; MAX_HELD_TIPS],
    held_len: usize,
}

impl TntBuffer {
    pub(crate) const fn new(long: bool) -> Self {
        let capacity = if long { LONG } else { SHORT };
        Self { bits: 0, len: 0, capacity, held: [0; MAX_HELD_TIPS], held_len: 0 }
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds one outcome. Returns whether the buffer is then full.
    #[inline]
    pub(crate) fn push(&mut self, taken: bool) -> bool {
        self.bits = self.bits << 1 | u64::from(taken);
        self.len += 1;
        self.len == self.capacity
    }

    /// Defers a TIP. Returns whether there is then no room for another one.
    pub(crate) fn hold_tip(&mut self, target: u64) -> bool {
        if let Some(slot) = self.held.get_mut(self.held_len) {
            *slot = target;
            self.held_len += 1;
        }
        self.held_len == MAX_HELD_TIPS
    }

    /// Empties the buffer into a packet.
    pub(crate) fn take(&mut self) -> Option<Packet> {
        let tnt = Tnt { bits: self.bits, len: self.len };
        self.bits = 0;
        self.len = 0;
        match tnt.len {
            0 => None,
            1..=SHORT => Some(Packet::TntShort(tnt)),
            _ => Some(Packet::TntLong(tnt)),
        }
    }

    /// Takes the deferred TIPs.
    pub(crate) fn take_held_tips(&mut self) -> impl Iterator<Item = u64> + use<> {
        let len = core::mem::take(&mut self.held_len);
        self.held.into_iter().take(len)
    }

    /// Discards outcomes and TIPs.
    pub(crate) fn clear(&mut self) {
        self.bits = 0;
        self.len = 0;
        self.held_len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_is_a_full_packet_and_few_bits_a_short_one() {
        for (long, capacity) in [(false, 6), (true, 47)] {
            let mut buffer = TntBuffer::new(long);
            for bit in 1..=capacity {
                assert_eq!(buffer.push(true), bit == capacity);
            }
            let full = Tnt { bits: (1 << capacity) - 1, len: capacity };
            let expected = if long { Packet::TntLong(full) } else { Packet::TntShort(full) };
            assert_eq!(buffer.take(), Some(expected));
            assert_eq!(buffer.take(), None);
            for taken in [true, false, false] {
                buffer.push(taken);
            }
            assert_eq!(buffer.take(), Some(Packet::TntShort(Tnt { bits: 0b100, len: 3 })));
        }
    }
}
