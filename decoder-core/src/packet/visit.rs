//! Passes on the packets of a trace, one call each, with the addresses that their IPs stand for.
//!
//! Passes on the same packets as the iterator [`Packets`], several times as fast: no value is built that its receiver
//! would only take apart again.
//!
//! ```
//! use pugmark_decoder_core::last_ip::LastIp;
//! use pugmark_decoder_core::packet::{IpPacket, Ip, PSB, Packet, Packets, PacketSink};
//!
//! /// Collects the targets of branches.
//! struct Targets(Vec<u64>);
//!
//! impl PacketSink for Targets {
//!     fn packet(&mut self, _: u64, _: Packet) {}
//!
//!     fn ip(&mut self, _: u64, packet: IpPacket, _: Ip, address: Option<u64>) {
//!         if packet == IpPacket::Tip {
//!             self.0.extend(address);
//!         }
//!     }
//! }
//!
//! let trace = [&PSB[..], &[0x02, 0x23, 0x4d, 0x78, 0x56, 0x34, 0x12, 0x2d, 0xcd, 0xab]].concat();
//! let (mut targets, mut last_ip) = (Targets(vec![]), LastIp::new());
//! Packets::new(&trace).visit(&mut last_ip, &mut targets).unwrap();
//! assert_eq!(targets.0, [0x1234_5678, 0x1234_abcd]);
//! ```

use super::last_ip::LastIp;
use super::{Cyc, Ip, Mtc, Packet, Packets, Tnt, Tsc, fast, input::Input, may_be_ovf_by_skd007};
use crate::{error::Error, lost::Lost};

/// The kinds of packets with an IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpPacket {
    /// [`Packet::Tip`].
    Tip,
    /// [`Packet::TipPge`].
    TipPge,
    /// [`Packet::TipPgd`].
    TipPgd,
    /// [`Packet::Fup`].
    Fup,
}

impl IpPacket {
    /// Returns the packet with this IP.
    #[must_use]
    pub const fn with(self, ip: Ip) -> Packet {
        match self {
            Self::Tip => Packet::Tip(ip),
            Self::TipPge => Packet::TipPge(ip),
            Self::TipPgd => Packet::TipPgd(ip),
            Self::Fup => Packet::Fup(ip),
        }
    }
}

/// A receiver of the packets of a trace in order, each by one call, with its offset.
///
/// Packets whose method is not overridden come to [`packet`](Self::packet). For speed, override the methods of frequent
/// packets and mark them `#[inline]`.
pub trait PacketSink {
    /// Takes a packet that no other method takes.
    fn packet(&mut self, offset: u64, packet: Packet);

    /// Takes a short TNT ([`Packet::TntShort`]).
    #[inline]
    fn tnt(&mut self, offset: u64, tnt: Tnt) {
        self.packet(offset, Packet::TntShort(tnt));
    }

    /// Takes a packet with an IP, and the address that it stands for after earlier packets; `None` if it is suppressed.
    #[inline]
    fn ip(&mut self, offset: u64, packet: IpPacket, ip: Ip, address: Option<u64>) {
        let _ = address;
        self.packet(offset, packet.with(ip));
    }

    /// Takes a CYC.
    #[inline]
    fn cyc(&mut self, offset: u64, cyc: Cyc) {
        self.packet(offset, Packet::Cyc(cyc));
    }

    /// Takes an MTC.
    #[inline]
    fn mtc(&mut self, offset: u64, mtc: Mtc) {
        self.packet(offset, Packet::Mtc(mtc));
    }

    /// Takes a TSC.
    #[inline]
    fn tsc(&mut self, offset: u64, tsc: Tsc) {
        self.packet(offset, Packet::Tsc(tsc));
    }

    /// Takes a loss at this place; only streams of slices report one, see [`resume`](crate::resume).
    #[inline]
    fn lost(&mut self, lost: &Lost) {
        let _ = lost;
    }
}

impl Packets<'_> {
    /// Passes all packets to `sink` until the end of the trace or an error.
    ///
    /// `last_ip` is the last IP of earlier packets, and on return that of the packets passed on. A PSB resets it.
    ///
    /// # Errors
    /// The error that the iterator would return.
    #[inline]
    pub fn visit(&mut self, last_ip: &mut LastIp, sink: &mut impl PacketSink) -> Result<(), Error> {
        loop {
            if self.plain {
                self.at = self.visit_frequent(last_ip, sink);
            }
            match self.next_out_of_line() {
                Some(Ok((offset, packet))) => hand(offset, packet, last_ip, sink),
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            }
        }
    }

    /// Passes on packets up to the first one that is not frequent, and returns its place in the input.
    ///
    /// Each frequent packet has its own branch, in which its size is a constant: the processor would wait for a size
    /// from a table, but not for a predicted branch. All calls are inlined, so that the sink's counts can stay in
    /// registers.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn visit_frequent(&self, last_ip: &mut LastIp, sink: &mut impl PacketSink) -> usize {
        let Input { bytes, base, .. } = self.input;
        let mut last = *last_ip;
        let mut at = self.at;
        // The places at which a frequent packet is complete.
        let starts = bytes.get(..bytes.len().saturating_sub(fast::WINDOW - 1)).unwrap_or_default();
        while let Some(&first) = starts.get(at) {
            let offset = base + at as u64;
            if first & 1 == 0 {
                let Some(Packet::TntShort(tnt)) = fast::tnt(first) else { break };
                sink.tnt(offset, tnt);
                at += 1;
                continue;
            }
            if first & 0b111 == 0b011 {
                sink.cyc(offset, Cyc { cycles: u64::from(first >> 3) });
                at += 1;
                continue;
            }
            let Some(window) = bytes.get(at..).and_then(<[u8]>::first_chunk::<{ fast::WINDOW }>) else {
                break;
            };
            let [_, second, third, ..] = *window;
            if first == fast::TIP_16 {
                let Some(size) = hand_tip(fast::TIP_16, window, offset, &mut last, sink) else { break };
                at += size;
            } else if first & 0b111 == 0b111 && second & 1 == 0 && !may_be_ovf_by_skd007(second, third) {
                sink.cyc(offset, Cyc { cycles: u64::from(first >> 3) | u64::from(second >> 1) << 5 });
                at += 2;
            } else if first == fast::TIP_32 {
                let Some(size) = hand_tip(fast::TIP_32, window, offset, &mut last, sink) else { break };
                at += size;
            } else if let Some(size) = hand_tip(first, window, offset, &mut last, sink) {
                at += size;
            } else if first == 0x59 {
                sink.mtc(offset, Mtc { ctc: second });
                at += 2;
            } else {
                break;
            }
        }
        *last_ip = last;
        at
    }

    #[inline(never)]
    fn next_out_of_line(&mut self) -> Option<Result<(u64, Packet), Error>> {
        self.next()
    }
}

/// Passes on the TIP whose first byte is `first`, and returns its size; `None` if it is no TIP with an IP.
#[cfg_attr(not(debug_assertions), inline(always))]
fn hand_tip(
    first: u8,
    window: &[u8; fast::WINDOW],
    offset: u64,
    last_ip: &mut LastIp,
    sink: &mut impl PacketSink,
) -> Option<usize> {
    let (form, payload, size) = fast::target_after(first, window)?;
    let address = last_ip.update_by(form, payload);
    sink.ip(offset, IpPacket::Tip, fast::ip(form, payload), Some(address));
    Some(size)
}

/// Passes on one packet.
#[cfg_attr(not(debug_assertions), inline(always))]
fn hand(offset: u64, packet: Packet, last_ip: &mut LastIp, sink: &mut impl PacketSink) {
    let (kind, ip) = match packet {
        Packet::Tip(ip) => (IpPacket::Tip, ip),
        Packet::TipPge(ip) => (IpPacket::TipPge, ip),
        Packet::TipPgd(ip) => (IpPacket::TipPgd, ip),
        Packet::Fup(ip) => (IpPacket::Fup, ip),
        Packet::TntShort(tnt) => return sink.tnt(offset, tnt),
        Packet::Cyc(cyc) => return sink.cyc(offset, cyc),
        Packet::Mtc(mtc) => return sink.mtc(offset, mtc),
        Packet::Tsc(tsc) => return sink.tsc(offset, tsc),
        _ => {
            if matches!(packet, Packet::Psb) {
                last_ip.reset();
            }
            return sink.packet(offset, packet);
        }
    };
    let address = last_ip.update(ip);
    sink.ip(offset, kind, ip, address);
}
