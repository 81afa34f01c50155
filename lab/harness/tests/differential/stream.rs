//! The readable packets of a damaged trace, from its first PSB on.

use pugmark_decoder_core::{
    event::EventDecoder,
    packet::{Ip, Packet, Packets},
};
use pugmark_ipt::Code;

/// The packets from the first PSB on, each with its offset.
pub(crate) struct Stream {
    packets: Vec<(u64, Packet)>,
    len: u64,
    /// The offsets of packets that no processor sends at that place.
    odd: Vec<u64>,
    /// The offsets of packets in an asynchronous branch: after its FUP (the address where it happened), up to its TIP.
    ends: Vec<u64>,
    /// The offset of the first packet that cannot be read or that is cut off by the end of the trace.
    pub(crate) unreadable: Option<u64>,
    /// The packet that is cut off is one that libipt 2.0.5 does not know.
    newer_cut_off: bool,
    /// The trace ends within a packet.
    pub(crate) cut_off: bool,
    /// The first error that can be found without the code, in libipt's words.
    pub(crate) error: Option<(&'static str, u64)>,
}

impl Stream {
    pub(crate) fn of(trace: &[u8]) -> Self {
        let mut packets = Packets::new(trace);
        packets.sync_forward();
        let mut broken = false;
        let is_whole = |packet: Result<_, _>| packet.inspect_err(|_| broken = true).ok();
        let read: Vec<_> = packets.by_ref().map_while(is_whole).collect();
        let unreadable = (packets.offset() < trace.len() as u64).then(|| packets.offset());
        let rest = unreadable.map_or(&[][..], |offset| &trace[offset as usize..]);
        let newer_cut_off = matches!(rest, [0xd9, ..] | [0x02, 0x13 | 0x33 | 0x53 | 0x63 | 0xb3, ..]);
        let mut events = EventDecoder::new(trace);
        events.sync_forward();
        let error = loop {
            match events.next() {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(error) => break Some((Code::from(error.kind).text(), error.offset)),
            }
        };
        let mut order = Order::default();
        let (mut odd, mut ends) = (vec![], vec![]);
        for (at, packet) in &read {
            ends.extend(Some(*at).filter(|_| order.branch));
            odd.extend(Some(*at).filter(|_| order.is_odd(packet)));
        }
        Self {
            packets: read,
            len: trace.len() as u64,
            odd,
            ends,
            unreadable,
            newer_cut_off,
            cut_off: unreadable.is_some() && !broken,
            error,
        }
    }

    /// Returns true if there are packets unknown to libipt 2.0.5.
    pub(crate) fn is_newer(&self) -> bool {
        use Packet::{Bbp, Bep, Bip, Cfe, Evd, Trig};
        let newer = |packet: &Packet| matches!(packet, Cfe(_) | Evd(_) | Trig(_) | Bbp(_) | Bip(_) | Bep(_));
        self.newer_cut_off || self.packets.iter().any(|(_, packet)| newer(packet))
    }

    /// Returns the packet at `offset`.
    pub(crate) fn at(&self, offset: u64) -> Option<&Packet> {
        self.packets.iter().find(|(at, _)| *at == offset).map(|(_, packet)| packet)
    }

    /// Returns true if the readable packets end at `offset`.
    pub(crate) fn is_end(&self, offset: u64) -> bool {
        offset == self.unreadable.unwrap_or(self.len)
    }

    /// Returns true if no processor sends the packet at `offset` there.
    pub(crate) fn is_odd(&self, offset: u64) -> bool {
        self.odd.contains(&offset)
    }

    /// Returns true if the packet at `offset` is after the FUP of an asynchronous branch, up to its TIP.
    pub(crate) fn is_asynchronous(&self, offset: u64) -> bool {
        self.ends.contains(&offset)
    }

    /// Returns the offset of the packet after the one at `offset`.
    pub(crate) fn next(&self, offset: u64) -> u64 {
        let next = self.packets.iter().map(|(at, _)| *at).chain(self.unreadable);
        next.filter(|at| *at > offset).min().unwrap_or(self.len)
    }

    /// Returns the offset of a branch before `offset`, with `others` more branches in between.
    pub(crate) fn branch_before(&self, offset: u64, others: usize) -> Option<u64> {
        let branches = self.before(offset).filter(|(_, packet)| is_branch(packet));
        branches.map(|(at, _)| *at).collect::<Vec<_>>().into_iter().rev().nth(others)
    }

    /// Returns the offset of the packet at this share of the packets before `end`.
    pub(crate) fn offset(&self, share: f64, end: u64) -> Option<u64> {
        let all = self.before(end).count();
        self.packets.get((all as f64 * share) as usize).map(|(at, _)| *at)
    }

    pub(crate) fn is_branch_at(&self, offset: u64) -> bool {
        self.packets.iter().any(|(at, packet)| *at == offset && is_branch(packet))
    }

    /// Returns true if, after the last PSB+ before `offset`, there is a MODE.Exec whose partner is not a TIP or TIP.PGE
    /// with an IP.
    pub(crate) fn has_odd_mode(&self, offset: u64) -> bool {
        let (mut waits, mut in_psb, mut odd) = (false, false, false);
        for (at, packet) in &self.packets {
            let partner = match packet {
                Packet::ModeExec(_) if *at < offset => {
                    waits = !in_psb;
                    false
                }
                Packet::Psb if *at < offset => {
                    (in_psb, odd) = (true, false);
                    false
                }
                Packet::PsbEnd | Packet::Ovf => {
                    in_psb = false;
                    false
                }
                Packet::Tip(ip) | Packet::TipPge(ip) => std::mem::take(&mut waits) && *ip == Ip::Suppressed,
                Packet::TipPgd(_) | Packet::Fup(_) => std::mem::take(&mut waits),
                _ => false,
            };
            odd |= partner;
        }
        odd
    }

    /// Returns true if there is a TIP.PGD before `offset`.
    pub(crate) fn was_off(&self, offset: u64) -> bool {
        self.before(offset).any(|(_, packet)| matches!(packet, Packet::TipPgd(_)))
    }

    /// Returns the number of TIP and TNT packets after `one` and before `other`.
    pub(crate) fn branches_between(&self, one: u64, other: u64) -> usize {
        let between = one + 1..other;
        self.packets.iter().filter(|(offset, packet)| between.contains(offset) && is_branch(packet)).count()
    }

    /// Returns true if the last branch before `offset` is a TNT.
    pub(crate) fn is_after_tnt(&self, offset: u64) -> bool {
        let last = self.before(offset).filter(|(_, packet)| is_branch(packet)).last();
        last.is_some_and(|(at, _)| self.is_tnt(*at))
    }

    pub(crate) fn is_tnt(&self, offset: u64) -> bool {
        matches!(self.at(offset), Some(Packet::TntShort(_) | Packet::TntLong(_)))
    }

    /// Returns the offset of the PSB whose PSB+ is not closed before `offset`.
    pub(crate) fn open_psb(&self, offset: u64) -> Option<u64> {
        let last = |open, (at, packet): &(u64, Packet)| match packet {
            Packet::Psb => Some(*at),
            Packet::PsbEnd | Packet::Ovf => None,
            _ => open,
        };
        self.before(offset).fold(None, last)
    }

    /// Returns whether the PSBEND of the first PSB+ is at `start`, and no event is between it and `end`.
    pub(crate) fn starts_silently(&self, start: u64, end: u64) -> bool {
        let first = self.packets.iter().find(|(_, packet)| matches!(packet, Packet::PsbEnd | Packet::Ovf));
        // Events of a PSB+ are those of its end.
        let silent_to = self.open_psb(end).unwrap_or(end);
        let between = |at: u64| start < at && at < silent_to;
        let silent = |packet: &Packet| match packet {
            Packet::Cyc(_) | Packet::Mtc(_) | Packet::Pad | Packet::Tma(_) | Packet::Tsc(_) => true,
            // They wait for another packet.
            Packet::ModeExec(_) | Packet::Mwait(_) => true,
            Packet::Ptw(ptw) => ptw.ip,
            Packet::Exstop(exstop) => exstop.ip,
            _ => false,
        };
        first.is_some_and(|(at, packet)| *at == start && *packet == Packet::PsbEnd)
            && start < end
            && self.packets.iter().filter(|(at, _)| between(*at)).all(|(_, packet)| silent(packet))
    }

    /// Returns whether the packet at `offset` is a TIP for which a change of mode waits.
    pub(crate) fn mode_waits(&self, offset: u64) -> bool {
        let waits = |waits, (_, packet): &(u64, Packet)| match packet {
            Packet::ModeExec(_) => true,
            Packet::Tip(_) | Packet::TipPge(_) | Packet::TipPgd(_) | Packet::Fup(_) | Packet::PsbEnd => false,
            _ => waits,
        };
        matches!(self.at(offset), Some(Packet::Tip(_))) && self.before(offset).fold(false, waits)
    }

    /// Returns the number of packets that report state in the PSB+ at `offset`.
    pub(crate) fn updates(&self, offset: u64) -> usize {
        let psb = self.before(offset + 1).filter(|(_, packet)| *packet == Packet::Psb).last();
        let next = self.packets.iter().skip_while(|(at, _)| Some(*at) != psb.map(|(psb, _)| *psb));
        let within = next.take_while(|(_, packet)| *packet != Packet::PsbEnd);
        within
            .filter(|(_, packet)| {
                matches!(
                    packet,
                    Packet::Fup(_)
                        | Packet::ModeExec(_)
                        | Packet::ModeTsx(_)
                        | Packet::Pip(_)
                        | Packet::Vmcs(_)
                        | Packet::Cbr(_)
                        | Packet::Mnt(_)
                )
            })
            .count()
    }

    /// Returns true if a packet before `offset` waits for its FUP or TIP.
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

    /// Returns true if there is a TraceStop after the last branch before `offset`.
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

/// Checks the order of packets, by the manual alone.
#[derive(Debug, Default)]
struct Order {
    /// Tracing is on; `None` before the first PSB+ and after an OVF.
    on: Option<bool>,
    /// `Some` in a PSB+: `true` if it has a FUP.
    psb: Option<bool>,
    /// A packet still needs its FUP.
    fup: bool,
    /// A FUP has begun an asynchronous branch.
    branch: bool,
    /// A MODE.Exec waits for its TIP.
    mode: bool,
    /// A TSC still has no TMA that belongs to it.
    tsc: bool,
}

impl Order {
    /// Returns true if no processor sends `packet` here.
    fn is_odd(&mut self, packet: &Packet) -> bool {
        use Packet::{
            Bep, Exstop, Fup, ModeExec, ModeTsx, Mwait, Ovf, Psb, PsbEnd, Ptw, Pwre, Pwrx, Tip, TipPgd,
            TipPge, Tma, TntLong, TntShort, TraceStop, Tsc,
        };
        let on = self.on == Some(true);
        if let Some(has_fup) = &mut self.psb {
            match packet {
                Fup(_) => *has_fup = true,
                PsbEnd => {
                    self.on = Some(*has_fup);
                    self.psb = None;
                }
                Ovf => (self.on, self.psb) = (None, None),
                Tsc(_) => self.tsc = true,
                Tma(_) => return !std::mem::take(&mut self.tsc),
                Tip(_) | TipPge(_) | TipPgd(_) | TntShort(_) | TntLong(_) | Psb | TraceStop | Ptw(_)
                | Exstop(_) | Mwait(_) | Pwre(_) | Pwrx(_) | ModeTsx(_) | Bep(_) => return true,
                _ => {}
            }
            return false;
        }
        let waits = self.fup || self.branch || self.mode;
        match packet {
            TntShort(_) | TntLong(_) => !on || waits,
            Tip(ip) => {
                let odd = !on || self.fup || *ip == Ip::Suppressed;
                (self.branch, self.mode) = (false, false);
                odd
            }
            TipPge(ip) => {
                let odd = on || waits || *ip == Ip::Suppressed;
                (self.on, self.branch, self.mode) = (Some(true), false, false);
                odd
            }
            TipPgd(_) => {
                let odd = !on || self.fup;
                (self.on, self.branch, self.mode) = (Some(false), false, false);
                odd
            }
            Fup(ip) => {
                let odd = *ip == Ip::Suppressed || !self.fup && (self.on == Some(false) || self.branch);
                if self.on.is_none() {
                    self.on = Some(true);
                } else if !std::mem::take(&mut self.fup) {
                    self.branch = true;
                }
                odd
            }
            Psb => {
                self.psb = Some(false);
                waits
            }
            Ovf => {
                *self = Self::default();
                false
            }
            PsbEnd => true,
            Tsc(_) => {
                self.tsc = true;
                false
            }
            Tma(_) => !std::mem::take(&mut self.tsc),
            TraceStop => on,
            ModeExec(_) => std::mem::replace(&mut self.mode, true),
            ModeTsx(_) => {
                self.fup |= on;
                false
            }
            Ptw(packet) => {
                self.fup |= packet.ip;
                false
            }
            Exstop(packet) => {
                self.fup |= packet.ip;
                false
            }
            Bep(packet) => {
                self.fup |= packet.ip;
                false
            }
            _ => false,
        }
    }
}

fn is_branch(packet: &Packet) -> bool {
    use Packet::{Tip, TipPgd, TipPge, TntLong, TntShort};
    matches!(packet, Tip(_) | TipPge(_) | TipPgd(_) | TntShort(_) | TntLong(_))
}
