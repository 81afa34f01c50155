//! The packets of a damaged trace, as far as they can be read from its first PSB on.

use crate::own::MANUAL;
use pugmark_decoder_core::{
    event::EventDecoder,
    packet::{Ip, Packet, Packets},
};

/// The packets from the first PSB on, each with its offset.
pub(crate) struct Stream {
    packets: Vec<(u64, Packet)>,
    /// Where the first is that cannot be read, or that the trace ends in.
    pub(crate) unreadable: Option<u64>,
    /// The trace ends in a packet that libipt 2.0.5 does not know.
    newer_cut_off: bool,
    /// The first error that does not need the code, in libipt's words.
    pub(crate) error: Option<(&'static str, u64)>,
}

impl Stream {
    pub(crate) fn of(trace: &[u8]) -> Self {
        let mut packets = Packets::with_config(trace, MANUAL);
        packets.sync_forward();
        let read: Vec<_> = packets.by_ref().map_while(Result::ok).collect();
        let unreadable = (packets.offset() < trace.len() as u64).then(|| packets.offset());
        let rest = unreadable.map_or(&[][..], |offset| &trace[offset as usize..]);
        let newer_cut_off = matches!(rest, [0xd9, ..] | [0x02, 0x13 | 0x33 | 0x53 | 0x63 | 0xb3, ..]);
        let mut events = EventDecoder::with_config(trace, MANUAL);
        events.sync_forward();
        let error = loop {
            match events.next() {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some((error.kind.libipt_text(), error.offset)),
            }
        };
        Self { packets: read, unreadable, newer_cut_off, error }
    }

    /// Whether there are packets that libipt 2.0.5 does not know.
    pub(crate) fn is_newer(&self) -> bool {
        use Packet::{Bbp, Bep, Bip, Cfe, Evd, Trig};
        let newer = |packet: &Packet| matches!(packet, Cfe(_) | Evd(_) | Trig(_) | Bbp(_) | Bip(_) | Bep(_));
        self.newer_cut_off || self.packets.iter().any(|(_, packet)| newer(packet))
    }

    pub(crate) fn is_branch_at(&self, offset: u64) -> bool {
        self.packets.iter().any(|(at, packet)| *at == offset && is_branch(packet))
    }

    /// Whether there is a MODE.Exec whose partner is no TIP or TIP.PGE with an IP.
    pub(crate) fn has_odd_mode(&self) -> bool {
        let (mut waits, mut in_psb) = (false, false);
        self.packets.iter().any(|(_, packet)| {
            match packet {
                Packet::Psb => in_psb = true,
                Packet::PsbEnd | Packet::Ovf => in_psb = false,
                Packet::ModeExec(_) => waits = !in_psb,
                Packet::Tip(ip) | Packet::TipPge(ip) => {
                    return std::mem::take(&mut waits) && *ip == Ip::Suppressed;
                }
                Packet::TipPgd(_) | Packet::Fup(_) => return std::mem::take(&mut waits),
                _ => {}
            }
            false
        })
    }

    /// Whether there is a TIP.PGD before `offset`.
    pub(crate) fn was_off(&self, offset: u64) -> bool {
        self.before(offset).any(|(_, packet)| matches!(packet, Packet::TipPgd(_)))
    }

    /// How many TIP and TNT packets there are between two places.
    pub(crate) fn branches_between(&self, one: u64, other: u64) -> usize {
        let between = one.min(other)..one.max(other);
        self.packets.iter().filter(|(offset, packet)| between.contains(offset) && is_branch(packet)).count()
    }

    /// The PSB of the PSB+ that is not closed before `offset`.
    pub(crate) fn open_psb(&self, offset: u64) -> Option<u64> {
        let last = |open, (at, packet): &(u64, Packet)| match packet {
            Packet::Psb => Some(*at),
            Packet::PsbEnd | Packet::Ovf => None,
            _ => open,
        };
        self.before(offset).fold(None, last)
    }

    /// Whether a packet before `offset` waits for its FUP or TIP.
    pub(crate) fn waits(&self, offset: u64) -> bool {
        let waits = |waits, (_, packet): &(u64, Packet)| match packet {
            Packet::Ptw(ptw) => waits || ptw.ip,
            Packet::Exstop(exstop) => waits || exstop.ip,
            Packet::ModeExec(_) | Packet::ModeTsx(_) | Packet::Mwait(_) => true,
            Packet::Fup(_) | Packet::PsbEnd | Packet::Ovf => false,
            packet if is_branch(packet) => false,
            _ => waits,
        };
        self.before(offset).fold(false, waits)
    }

    /// Whether there is a TraceStop behind the last branch before `offset`.
    pub(crate) fn stopped(&self, offset: u64) -> bool {
        let stopped = |stopped, (_, packet): &(u64, Packet)| match packet {
            Packet::TraceStop => true,
            packet => stopped && !is_branch(packet),
        };
        self.before(offset).fold(false, stopped)
    }

    fn before(&self, offset: u64) -> impl Iterator<Item = &(u64, Packet)> {
        self.packets.iter().take_while(move |(at, _)| *at < offset)
    }
}

fn is_branch(packet: &Packet) -> bool {
    use Packet::{Tip, TipPgd, TipPge, TntLong, TntShort};
    matches!(packet, Tip(_) | TipPge(_) | TipPgd(_) | TntShort(_) | TntLong(_))
}
