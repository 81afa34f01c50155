//! A place between two packets, for walks over whole packets that do not parse them.

use super::{EventDecoder, Stamp};
use crate::keeper::Keeper;

/// A place in the trace between two packets, with the state of a decoder that has read everything before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketPlace {
    /// The place in the bytes at hand; `base` is the offset of their first byte.
    pub(crate) at: usize,
    base: u64,
    /// The last IP.
    pub(crate) ip: u64,
    packets: u64,
    /// True if a TIP packet was passed.
    named: bool,
    /// The offsets of the last TNT packet and of the last TIP packet.
    pub(crate) outcomes_at: u64,
    pub(crate) target_at: u64,
}

impl PacketPlace {
    /// Passes TNT and TIP packets of `len` bytes. `tnt_at` and `tip_at` are the places of the last packet of each kind
    /// among them; a TIP there makes `ip` the last IP.
    #[inline(always)]
    pub(crate) fn pass(
        &mut self,
        len: usize,
        packets: u64,
        ip: u64,
        tnt_at: Option<usize>,
        tip_at: Option<usize>,
    ) {
        if let Some(tnt_at) = tnt_at {
            self.outcomes_at = self.base + (self.at + tnt_at) as u64;
        }
        if let Some(tip_at) = tip_at {
            self.target_at = self.base + (self.at + tip_at) as u64;
            (self.ip, self.named) = (ip, true);
        }
        self.at += len;
        self.packets += packets;
    }
}

impl<'a, K: Keeper> EventDecoder<'a, K> {
    /// Returns the bytes at hand and the place of the next packet there, if no event is open. `outcomes_at` and
    /// `target_at` are the offsets of the last packets with branches.
    pub(crate) fn whole_packets(&self, outcomes_at: u64, target_at: u64) -> Option<(&'a [u8], PacketPlace)> {
        if !self.has_nothing_open() || self.packets.peek_plain().is_none() {
            return None;
        }
        let input = self.packets.input();
        let place = PacketPlace {
            at: (self.packets.offset() - input.base) as usize,
            base: input.base,
            ip: self.state.last_ip.base(),
            packets: self.state.counters.packets,
            named: false,
            outcomes_at,
            target_at,
        };
        Some((input.readable(), place))
    }

    /// Goes to a place that only TNT and TIP packets precede. Returns the time there.
    pub(crate) fn go_to(&mut self, place: &PacketPlace) -> Stamp {
        self.rewind(place.base + place.at as u64);
        self.state.counters.packets = place.packets;
        if place.named {
            self.state.last_ip.set(place.ip);
        }
        self.state.clock.now()
    }
}
