//! A place between two packets, for what goes over whole packets without reading them.

use super::{EventDecoder, Stamp};

/// A place in the trace between two packets, with the state of a decoder that has read everything before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketPlace {
    /// The place in the bytes at hand, and the offset of the first of them.
    pub(crate) at: usize,
    base: u64,
    /// The last IP.
    pub(crate) ip: u64,
    packets: u64,
    held: u64,
    /// The offsets of the last TNT packet and of the last TIP packet.
    pub(crate) outcomes_at: u64,
    pub(crate) target_at: u64,
}

impl PacketPlace {
    /// Goes over TNT and TIP packets, `len` bytes, of which the last is a TIP that makes `ip` the last IP; `tnt_at` is
    /// the place of the last TNT packet among them. [`ends_with_tip`](Self::ends_with_tip) must follow, once for all.
    #[inline(always)]
    pub(crate) fn pass(&mut self, len: usize, packets: u64, ip: u64, tnt_at: Option<usize>) {
        if let Some(tnt_at) = tnt_at {
            self.outcomes_at = self.base + (self.at + tnt_at) as u64;
        }
        self.at += len;
        self.packets += packets;
        self.ip = ip;
    }

    /// Notes that a TIP packet of that size is before this place.
    pub(crate) const fn ends_with_tip(&mut self, size: usize) {
        self.held = self.base + (self.at - size) as u64;
        self.target_at = self.held;
    }
}

impl<'a> EventDecoder<'a> {
    /// The bytes at hand and the place of the next packet there, if no event is open. `outcomes_at` and `target_at` are
    /// the offsets of the last packets with branches.
    pub(crate) fn whole_packets(&self, outcomes_at: u64, target_at: u64) -> Option<(&'a [u8], PacketPlace)> {
        if !self.has_nothing_open() || self.packets.peek_plain().is_none() {
            return None;
        }
        let input = self.packets.input();
        let place = PacketPlace {
            at: (self.packets.offset() - input.base) as usize,
            base: input.base,
            ip: self.last_ip.base(),
            packets: self.counters.packets,
            held: self.held,
            outcomes_at,
            target_at,
        };
        Some((input.readable(), place))
    }

    /// Goes to a place up to which only TNT and TIP packets came. Returns the time there.
    pub(crate) fn go_to(&mut self, place: &PacketPlace) -> Stamp {
        self.rewind(place.base + place.at as u64);
        (self.counters.packets, self.held) = (place.packets, place.held);
        self.last_ip.set(place.ip);
        self.clock.now()
    }
}
