//! Errata about overflows: what follows an OVF is not always what the manual says.
//!
//! Source: the specification updates of the 6th generation Intel Core processors (SKD010, "Intel PT FUP May be
//! Dropped After OVF") and of the Intel Atom processors of the same time (APL11, "Intel PT OVF Packet May Be Followed
//! by TIP.PGD Packet"; APL12, "Intel PT OVF May Be Followed by an Unexpected FUP Packet").

use super::{EventDecoder, EventKind, Stamp, is_aside, waiting::Partner};
use crate::{
    error::{Error, ErrorKind},
    keeper::Keeper,
    last_ip::LastIp,
    packet::{Exstop, ModeTsx, Packet, Packets},
};

impl<K: Keeper> EventDecoder<'_, K> {
    /// SKD010: the FUP after the OVF at `offset` may be missing. Looks for a packet that says where tracing
    /// continues, or that it is off. If there is one, reports the overflow, continues reading there and returns true.
    pub(super) fn resume_by_skd010(&mut self, offset: u64, when: Stamp) -> Result<bool, Error> {
        let mut packets = self.packets.clone();
        let mut clock = self.state.clock;
        let mut last_ip = self.state.last_ip;
        let mut tsx: Option<ModeTsx> = None;
        loop {
            let Some(packet) = packets.next() else { return Ok(false) };
            let (at, packet) = packet?;
            let here = |kind| Error { offset: at, kind };
            match packet {
                Packet::Tip(ip) | Packet::Fup(ip) => {
                    let ip = last_ip.update(ip);
                    let is_fup = matches!(packet, Packet::Fup(_));
                    // A FUP is read again after the overflow, together with a MODE.TSX before it.
                    self.packets.set_offset(if is_fup { at } else { packets.offset() });
                    (self.state.clock, self.state.last_ip, self.state.tracing) = (clock, last_ip, true);
                    if let (Some(ModeTsx { in_tx, abort }), true) = (tsx, is_fup) {
                        let kind = EventKind::Tsx { speculative: in_tx, aborted: abort };
                        self.state.waiting.push(Partner::OwnFup, Some(kind), "MODE.TSX").map_err(here)?;
                    }
                    self.state.held = self.next_offset();
                    return self.publish_overflow(offset, ip, when).map(|()| true).map_err(here);
                }
                Packet::TipPgd(ip) => {
                    last_ip.update(ip);
                    (self.state.clock, self.state.last_ip) = (clock, last_ip);
                    self.packets.set_offset(packets.offset());
                    self.state.held = self.next_offset();
                    return self.publish_overflow(offset, None, when).map(|()| true).map_err(here);
                }
                Packet::Psb => {
                    let Some(ip) = psb_ip(&mut packets)? else { return Ok(false) };
                    (self.state.clock, self.state.tracing) = (clock, true);
                    self.packets.set_offset(at);
                    self.state.held = at;
                    return self.publish_overflow(offset, Some(ip), when).map(|()| true).map_err(here);
                }
                Packet::PsbEnd => return Err(here(ErrorKind::UnexpectedPacket("PSBEND"))),
                Packet::ModeTsx(mode) if tsx.is_none() => tsx = Some(mode),
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
                _ if is_aside(&packet) => clock.track(packet, self.packets.config()).map_err(here)?,
                // The trace is as the manual says, or cannot be repaired.
                _ => return Ok(false),
            }
        }
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
