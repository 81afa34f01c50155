//! Errata about overflows: what follows an OVF is not always what the manual says.
//!
//! Source: the specification updates of the 6th generation Intel Core processors (SKD010, "Intel PT FUP May be
//! Dropped After OVF") and of the Intel Atom processors of the same time (APL11, "Intel PT OVF Packet May Be Followed
//! by TIP.PGD Packet"; APL12, "Intel PT OVF May Be Followed by an Unexpected FUP Packet").

use super::{EventDecoder, EventKind, Stamp, clock::Clock, is_aside, waiting::Partner};
use crate::{
    error::{Error, ErrorKind},
    keeper::Keeper,
    last_ip::LastIp,
    packet::{Exstop, Ip, ModeTsx, Packet, Packets},
};

/// What was read after an OVF to find out where tracing continues.
struct LookAhead<'a> {
    packets: Packets<'a>,
    clock: Clock,
    last_ip: LastIp,
    tsx: Option<ModeTsx>,
}

impl LookAhead<'_> {
    /// Passes over the packet at `at`, if it may come before the one that says where tracing continues.
    fn passes(&mut self, at: u64, packet: Packet) -> Result<bool, Error> {
        let failed = |kind| Error { offset: at, kind };
        match packet {
            Packet::PsbEnd => return Err(failed(ErrorKind::UnexpectedPacket("PSBEND"))),
            Packet::ModeTsx(mode) if self.tsx.is_none() => self.tsx = Some(mode),
            Packet::ModeExec(_)
            | Packet::Pip(_)
            | Packet::Vmcs(_)
            | Packet::Pwre(_)
            | Packet::Pwrx(_)
            | Packet::Evd(_)
            | Packet::Trig(_)
            | Packet::Exstop(Exstop { ip: false }) => {}
            Packet::Ptw(ptw) if !ptw.ip => {}
            Packet::Cfe(cfe) if !cfe.ip => {}
            _ if is_aside(&packet) => self.clock.track(packet, self.packets.config()).map_err(failed)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl<K: Keeper> EventDecoder<'_, K> {
    /// SKD010: the FUP after the OVF at `offset` may be missing. Looks for a packet that says where tracing
    /// continues, or that it is off. If there is one, reports the overflow, continues reading there and returns true.
    pub(super) fn resume_by_skd010(&mut self, offset: u64, when: Stamp) -> Result<bool, Error> {
        let mut ahead = LookAhead {
            packets: self.packets.clone(),
            clock: self.state.clock,
            last_ip: self.state.last_ip,
            tsx: None,
        };
        while let Some(packet) = ahead.packets.next() {
            let (at, packet) = packet?;
            let ip = match packet {
                Packet::Tip(ip) => self.go_to_tip(&mut ahead, ip),
                Packet::Fup(ip) => self.go_to_fup(&mut ahead, at, ip)?,
                Packet::TipPgd(ip) => self.go_to_tip_pgd(&mut ahead, ip),
                Packet::Psb => match psb_ip(&mut ahead.packets)? {
                    Some(ip) => self.go_to_psb(&ahead, at, ip),
                    None => return Ok(false),
                },
                _ if ahead.passes(at, packet)? => continue,
                // The trace is as the manual says, or cannot be repaired.
                _ => return Ok(false),
            };
            return self
                .publish_overflow(offset, ip, when)
                .map(|()| true)
                .map_err(|kind| Error { offset: at, kind });
        }
        Ok(false)
    }

    // Each goes to a packet after an OVF, and returns where tracing continues; `None` if it is off.

    fn go_to_tip(&mut self, ahead: &mut LookAhead<'_>, ip: Ip) -> Option<u64> {
        let ip = ahead.last_ip.update(ip);
        self.packets.set_offset(ahead.packets.offset());
        (self.state.clock, self.state.last_ip, self.state.tracing) = (ahead.clock, ahead.last_ip, true);
        self.state.held = self.next_offset();
        ip
    }

    /// The FUP is read again after the overflow, together with a MODE.TSX before it.
    fn go_to_fup(&mut self, ahead: &mut LookAhead<'_>, at: u64, ip: Ip) -> Result<Option<u64>, Error> {
        let ip = self.go_to_tip(ahead, ip);
        self.packets.set_offset(at);
        if let Some(ModeTsx { in_tx, abort }) = ahead.tsx {
            let kind = EventKind::Tsx { speculative: in_tx, aborted: abort };
            let pushed = self.state.waiting.push(Partner::OwnFup, Some(kind), "MODE.TSX");
            pushed.map_err(|kind| Error { offset: at, kind })?;
        }
        self.state.held = self.next_offset();
        Ok(ip)
    }

    fn go_to_tip_pgd(&mut self, ahead: &mut LookAhead<'_>, ip: Ip) -> Option<u64> {
        ahead.last_ip.update(ip);
        (self.state.clock, self.state.last_ip) = (ahead.clock, ahead.last_ip);
        self.packets.set_offset(ahead.packets.offset());
        self.state.held = self.next_offset();
        None
    }

    fn go_to_psb(&mut self, ahead: &LookAhead<'_>, at: u64, ip: u64) -> Option<u64> {
        (self.state.clock, self.state.tracing) = (ahead.clock, true);
        self.packets.set_offset(at);
        self.state.held = at;
        Some(ip)
    }

    /// APL11: a TIP.PGD may follow the OVF at `offset`. If it does, reports the overflow, continues after the TIP.PGD
    /// with tracing off and returns true.
    pub(super) fn go_off_by_apl11(&mut self, offset: u64, when: Stamp) -> Result<bool, Error> {
        let mut packets = self.packets.clone();
        let mut clock = self.state.clock;
        while let Some(packet) = packets.next() {
            let (at, packet) = packet?;
            let here = |kind| Error { offset: at, kind };
            match packet {
                Packet::TipPgd(ip) => {
                    self.state.last_ip.update(ip);
                    self.state.clock = clock;
                    self.packets.set_offset(packets.offset());
                    self.state.held = self.next_offset();
                    return self.publish_overflow(offset, None, when).map(|()| true).map_err(here);
                }
                _ if is_aside(&packet) => clock.track(packet, self.packets.config()).map_err(here)?,
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// APL12: whether the packets after `end`, the end of the FUP after an OVF, show that tracing was already off
    /// there.
    pub(super) fn went_off_by_apl12(&self, end: u64) -> Result<bool, Error> {
        let mut packets = self.packets.clone();
        packets.set_offset(end);
        while let Some(packet) = packets.next() {
            match packet?.1 {
                Packet::TraceStop | Packet::TipPge(_) => return Ok(true),
                Packet::Psb => return has_no_fup(&mut packets),
                Packet::TntShort(_)
                | Packet::TntLong(_)
                | Packet::Tip(_)
                | Packet::TipPgd(_)
                | Packet::PsbEnd
                | Packet::Ovf => return Ok(false),
                _ => {}
            }
        }
        Ok(false)
    }

    /// APL12: reports the overflow after that FUP, with the time at the FUP.
    pub(super) fn pass_fup_by_apl12(&mut self, offset: u64, end: u64) -> Result<(), Error> {
        while self.packets.offset() < end {
            let Some(packet) = self.packets.next() else { break };
            let (at, packet) = packet?;
            self.state.counters.packets += 1;
            self.track_time(packet).map_err(|kind| Error { offset: at, kind })?;
        }
        self.state.held = self.next_offset();
        self.publish_overflow(offset, None, self.state.clock.now()).map_err(|kind| Error { offset, kind })
    }
}

/// The IP of the FUP in a PSB+ whose PSB has been read.
fn psb_ip(packets: &mut Packets<'_>) -> Result<Option<u64>, Error> {
    for packet in packets.by_ref() {
        match packet?.1 {
            Packet::Fup(ip) => return Ok(LastIp::new().update(ip)),
            Packet::PsbEnd | Packet::Ovf => return Ok(None),
            _ => {}
        }
    }
    Ok(None)
}

/// Whether a whole PSB+ says that tracing is off.
fn has_no_fup(packets: &mut Packets<'_>) -> Result<bool, Error> {
    for packet in packets.by_ref() {
        match packet?.1 {
            Packet::PsbEnd | Packet::Ovf => return Ok(true),
            Packet::Fup(_) => return Ok(false),
            _ => {}
        }
    }
    Ok(false)
}
