//! OVF: packets were lost.
//!
//! When a FUP follows, tracing goes on at its IP. Any other packet that says something about the flow means that
//! tracing is off.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "Overflow (OVF) Packet".

use super::{Event, EventDecoder, EventKind, is_aside, mode::Mode};
use crate::{error::ErrorKind, packet::Packet};

impl EventDecoder<'_> {
    pub(super) fn ovf(&mut self, offset: u64) -> Result<(), ErrorKind> {
        self.counters.overflows += 1;
        self.held = offset;
        if !self.tracing {
            // Nobody knows where in the code these were, and nothing that would say so was lost.
            self.publish_pwres(offset)?;
            self.publish_mwait()?;
            self.publish_waiting(offset, None)?;
        }
        self.drop_waiting();
        self.mode = Mode::new();
        self.overflow = true;
        self.overflow_time = self.clock.now();
        Ok(())
    }

    /// Takes the packet behind an OVF; `true` when nothing is left of it.
    pub(super) fn resolve_overflow(&mut self, offset: u64, packet: Packet) -> Result<bool, ErrorKind> {
        match packet {
            _ if is_aside(&packet) => Ok(false),
            Packet::Fup(_) if self.config().errata.apl12 && self.went_off_by_apl12() => {
                self.held = self.packets.offset();
                self.end_overflow(offset).map(|()| true)
            }
            Packet::Fup(ip) => {
                let ip = self.last_ip.update(ip).ok_or(ErrorKind::IpSuppressed("FUP"))?;
                self.overflow = false;
                self.tracing = true;
                self.publish_overflow(offset, Some(ip))?;
                Ok(true)
            }
            Packet::TipPgd(ip) if self.config().errata.apl11 || self.config().errata.skd010 => {
                self.held = self.packets.offset();
                self.last_ip.update(ip);
                self.end_overflow(offset).map(|()| true)
            }
            _ if self.config().errata.skd010 && self.resume_by_skd010(offset)? => Ok(true),
            Packet::TntShort(_) | Packet::TntLong(_) => Err(ErrorKind::UnexpectedPacket("TNT")),
            Packet::Tip(_) => Err(ErrorKind::UnexpectedPacket("TIP")),
            Packet::TipPgd(_) => Err(ErrorKind::UnexpectedPacket("TIP.PGD")),
            Packet::PsbEnd => Err(ErrorKind::UnexpectedPacket("PSBEND")),
            _ => self.end_overflow(offset).map(|()| false),
        }
    }

    /// An OVF without a FUP: tracing is off.
    pub(super) fn end_overflow(&mut self, offset: u64) -> Result<(), ErrorKind> {
        if !self.overflow {
            return Ok(());
        }
        self.overflow = false;
        self.tracing = false;
        self.publish_overflow(offset, None)
    }

    /// It happened when the OVF says, not when its consequence is known.
    pub(super) fn publish_overflow(&mut self, offset: u64, ip: Option<u64>) -> Result<(), ErrorKind> {
        let event = Event { when: self.overflow_time, ..self.event(offset, ip, EventKind::Overflow) };
        if self.ready.push(event) { Ok(()) } else { Err(ErrorKind::TooManyWaiting("event")) }
    }
}
