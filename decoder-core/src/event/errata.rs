//! Errata about overflows: packets after an OVF that contradict the manual.
//!
//! Source: the specification updates of the 6th generation Intel Core processors (SKD010, "Intel PT FUP May be
//! Dropped After OVF") and of the Intel Atom processors of the same time (APL11, "Intel PT OVF Packet May Be Followed
//! by TIP.PGD Packet"; APL12, "Intel PT OVF May Be Followed by an Unexpected FUP Packet").

use super::{EventDecoder, EventKind, EventState, Stamp, clock::Clock, is_aside, waiting::Partner};
use crate::{
    error::{Error, ErrorKind},
    keeper::Keeper,
    last_ip::LastIp,
    packet::{Exstop, ModeTsx, Packet, Packets},
};

/// The packets after an OVF, read to find out where tracing continues.
struct LookAhead<'a> {
    packets: Packets<'a>,
    clock: Clock,
    last_ip: LastIp,
    tsx: Option<ModeTsx>,
}

/// The place where tracing continues after an OVF.
enum Continued {
    /// At this address; `None` if tracing is off.
    At(Option<u64>),
    Unknown,
}

impl LookAhead<'_> {
    /// Skips the packet at `at`, if it may precede the one that gives the place where tracing continues.
    fn passes(&mut self, at: u64, packet: Packet) -> Result<bool, Error> {
        match packet {
            Packet::PsbEnd => return Err(Error { offset: at, kind: ErrorKind::UnexpectedPacket("PSBEND") }),
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
            _ if is_aside(&packet) => return self.track(at, packet).map(|()| true),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn track(&mut self, at: u64, packet: Packet) -> Result<(), Error> {
        self.clock.track(packet, self.packets.config()).map_err(|kind| Error { offset: at, kind })
    }
}

impl<'a, K: Keeper> EventDecoder<'a, K> {
    /// Continues by SKD010: the FUP after the OVF at `offset` may be missing. Returns true if a later packet gives the
    /// place where tracing continues, or shows that it is off: then reports the overflow and reads on from there.
    pub(super) fn resume_by_skd010(&mut self, offset: u64, when: Stamp) -> Result<bool, Error> {
        let mut ahead = self.after_ovf();
        loop {
            let (at, packet) = match ahead.packets.next() {
                Some(Ok(next)) => next,
                Some(Err(error)) => return Err(error),
                None => return Ok(false),
            };
            let found = match packet {
                Packet::Tip(_) | Packet::Fup(_) | Packet::TipPgd(_) => self.take_ip(&mut ahead, at, packet),
                Packet::Psb => self.take_psb(&mut ahead, at),
                _ => match ahead.passes(at, packet) {
                    Ok(true) => continue,
                    // The trace follows the manual, or cannot be repaired.
                    Ok(false) => return Ok(false),
                    Err(error) => Err(error),
                },
            };
            return self.found_after_ovf(offset, at, when, found);
        }
    }

    /// Starts looking ahead after an OVF.
    fn after_ovf(&self) -> LookAhead<'a> {
        let EventState { clock, last_ip, .. } = *self.state;
        LookAhead { packets: self.packets.clone(), clock, last_ip, tsx: None }
    }

    /// Reports the overflow, if the packet at `at` gives the place where tracing continues or shows that it is off.
    fn found_after_ovf(
        &mut self,
        offset: u64,
        at: u64,
        when: Stamp,
        found: Result<Continued, Error>,
    ) -> Result<bool, Error> {
        let ip = match found? {
            Continued::At(ip) => ip,
            Continued::Unknown => return Ok(false),
        };
        self.publish_overflow(offset, ip, when).map(|()| true).map_err(|kind| Error { offset: at, kind })
    }

    /// Goes to the packet with an IP that was read last.
    fn take_ip(&mut self, ahead: &mut LookAhead<'_>, at: u64, packet: Packet) -> Result<Continued, Error> {
        let (Packet::Tip(ip) | Packet::Fup(ip) | Packet::TipPgd(ip)) = packet else {
            return Ok(Continued::Unknown);
        };
        let ip = ahead.last_ip.update(ip);
        (self.state.clock, self.state.last_ip) = (ahead.clock, ahead.last_ip);
        // A FUP is read again after the overflow, together with a MODE.TSX before it.
        let is_fup = matches!(packet, Packet::Fup(_));
        self.packets.set_offset(if is_fup { at } else { ahead.packets.offset() });
        if matches!(packet, Packet::TipPgd(_)) {
            return Ok(Continued::At(None));
        }
        self.state.tracing = true;
        if let (Some(ModeTsx { in_tx, abort }), true) = (ahead.tsx, is_fup) {
            let kind = EventKind::Tsx { speculative: in_tx, aborted: abort };
            let pushed = self.state.waiting.push(Partner::OwnFup, Some(kind), "MODE.TSX");
            pushed.map_err(|kind| Error { offset: at, kind })?;
        }
        Ok(Continued::At(ip))
    }

    /// Goes to the PSB at `at`, which was read last.
    fn take_psb(&mut self, ahead: &mut LookAhead<'_>, at: u64) -> Result<Continued, Error> {
        let Some(ip) = psb_ip(&mut ahead.packets)? else { return Ok(Continued::Unknown) };
        (self.state.clock, self.state.tracing) = (ahead.clock, true);
        self.packets.set_offset(at);
        Ok(Continued::At(Some(ip)))
    }

    /// Continues by APL11: a TIP.PGD may follow the OVF at `offset`. If it does, reports the overflow, continues after
    /// the TIP.PGD with tracing off and returns true.
    pub(super) fn go_off_by_apl11(&mut self, offset: u64, when: Stamp) -> Result<bool, Error> {
        let mut ahead = self.after_ovf();
        while let Some(packet) = ahead.packets.next() {
            let (at, packet) = packet?;
            match packet {
                Packet::TipPgd(_) => {
                    let found = self.take_ip(&mut ahead, at, packet);
                    return self.found_after_ovf(offset, at, when, found);
                }
                _ if is_aside(&packet) => ahead.track(at, packet)?,
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Returns true if, by APL12, the packets after `end`, the end of the FUP after an OVF, show that tracing was
    /// already off there.
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

    /// Reports, by APL12, the overflow after that FUP, with the time at the FUP.
    pub(super) fn pass_fup_by_apl12(&mut self, offset: u64, end: u64) -> Result<(), Error> {
        while self.packets.offset() < end {
            let Some(packet) = self.packets.next() else { break };
            let (at, packet) = packet?;
            self.state.counters.packets += 1;
            self.track_time(packet).map_err(|kind| Error { offset: at, kind })?;
        }
        self.publish_overflow(offset, None, self.state.clock.now()).map_err(|kind| Error { offset, kind })
    }
}

/// Returns the IP of the FUP in a PSB+ whose PSB has been read.
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

/// Returns true if a whole PSB+ shows that tracing is off.
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
