//! Overflows: finds out if tracing is enabled afterwards, which errata obscure.

use super::{
    decoder::{EventDecoder, Step},
    queue::binding,
};
use crate::{
    PacketDecoder, Release, TraceBytes,
    clock::Clock,
    code::{Answer, Code},
    event::{PtEvent, flag, kind as event_kind},
    packet::{LEAF_TSX, PtPacket, field, kind},
};
use pugmark_decoder_core::packet::Ip;

const OVERFLOW: PtEvent = PtEvent::new(event_kind::OVERFLOW, [0; 3]);

/// Returns the next packet, or `None` at the end of the trace.
fn next_if_any<T: TraceBytes>(packets: &mut PacketDecoder<T>) -> Answer<Option<PtPacket>> {
    match packets.next_repaired() {
        Ok(packet) => Ok(Some(packet)),
        Err(error) if error == Code::EndOfStream.status() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the address in the FUP of the PSB+ whose rest is here, if it has one. The outer `None`: the trace ends
/// before.
fn header_fup<T: TraceBytes>(mut packets: PacketDecoder<T>) -> Answer<Option<Option<Ip>>> {
    loop {
        let Some(packet) = next_if_any(&mut packets)? else { return Ok(None) };
        match packet.kind {
            kind::FUP => return Ok(Some(Some(packet.address()))),
            kind::PSBEND | kind::OVF => return Ok(Some(None)),
            kind::MODE | kind::PIP | kind::VMCS | kind::MNT | kind::PAD | kind::INVALID => {}
            time if kind::is_time(time) => {}
            _ => return Err(Code::BadContext.status()),
        }
    }
}

/// The place to resume after an overflow: after this packet, which has been read.
struct ResumeAfter<T> {
    packets: PacketDecoder<T>,
    packet: PtPacket,
    clock: Clock,
}

impl<T: TraceBytes> EventDecoder<T> {
    pub(super) fn ovf(&mut self) -> Answer<Step> {
        // A PSB+ that the overflow has cut off ends here.
        if self.psbend()? == Step::Event {
            return Ok(Step::Event);
        }
        if let Some(event) = self.take_cut_off() {
            self.event = Some(event);
            return Ok(Step::Event);
        }
        let mut clock = self.clock;
        self.reset();
        self.clock.time = clock.time;
        if self.options.keep_calibration {
            clock.calibration.ovf(true);
            self.clock.calibration = clock.calibration;
        }
        let fup = self.find_fup();
        if let Ok(Some(size)) = fup {
            if self.options.errata.apl12 && self.is_apl12(size)? {
                self.skip_to(size)?;
                return Ok(self.publish_without_ip(OVERFLOW));
            }
            let mut event = OVERFLOW;
            self.clock.stamp(&mut event);
            self.waiting.push(binding::OWN_FUP, event)?;
            return Ok(Step::More);
        }
        if self.options.errata.skd010 && self.handle_skd010()? {
            return Ok(Step::Event);
        }
        let is_apl11 = self.options.errata.apl11 && fup == Err(Code::BadContext.status());
        if is_apl11 && self.handle_apl11()? {
            return Ok(Step::Event);
        }
        match fup {
            Err(error) if error != Code::EndOfStream.status() => Err(error),
            _ => Ok(self.publish_without_ip(OVERFLOW)),
        }
    }

    /// Takes the next event that an overflow has cut off from its packet, and that 2.3 reports then. While tracing is
    /// enabled such an event could not be placed, and is dropped.
    fn take_cut_off(&mut self) -> Option<PtEvent> {
        if self.enabled || self.options.release < Release::V2_3 {
            return None;
        }
        loop {
            let mut event = self.waiting.take(binding::ANY)?;
            match event.kind {
                event_kind::PWRE | event_kind::RSM | event_kind::SIPI => return Some(event),
                event_kind::EXSTOP
                | event_kind::MWAIT
                | event_kind::PTWRITE
                | event_kind::TSX
                | event_kind::EXEC_MODE => {}
                _ if event.is_of_event_trace() => {}
                event_kind::TRIG | event_kind::SWINTR | event_kind::SYSCALL => {}
                _ => continue,
            }
            event.flags |= flag::IP_SUPPRESSED;
            return Some(event);
        }
    }

    /// Looks for the FUP at which tracing resumes. Returns the distance from the overflow to the FUP's end, or `None`
    /// if a packet says that tracing is disabled.
    fn find_fup(&self) -> Answer<Option<u64>> {
        let mut packets = self.packets.clone();
        let mut size = 0;
        loop {
            let packet = packets.next_repaired()?;
            if packet.size == 0 {
                return Err(Code::BadPacket.status());
            }
            size += u64::from(packet.size);
            match packet.kind {
                kind::FUP => return Ok(Some(size)),
                kind::UNKNOWN | kind::PAD | kind::MNT | kind::INVALID => {}
                time if kind::is_time(time) => {}
                kind::PSBEND | kind::TIP | kind::TIP_PGD | kind::TNT_8 | kind::TNT_64 => {
                    return Err(Code::BadContext.status());
                }
                _ => return Ok(None),
            }
        }
    }

    fn go_on_at(&mut self, place: ResumeAfter<T>) {
        self.packets = place.packets;
        self.packet = place.packet;
        self.clock = place.clock;
    }

    /// Resumes at a place where tracing is enabled, at an address. The event has the time of the overflow.
    fn recover(&mut self, place: ResumeAfter<T>, ip: Ip) {
        self.ip.update(ip);
        let mut event = OVERFLOW;
        self.set_ip(&mut event, 0);
        self.publish(event);
        self.go_on_at(place);
        self.enabled = true;
    }

    /// Resumes after a TIP.PGD.
    fn recover_disabled(&mut self, place: ResumeAfter<T>) {
        self.publish(PtEvent { flags: flag::IP_SUPPRESSED, ..OVERFLOW });
        self.go_on_at(place);
        self.fetch();
    }

    /// Handles erratum SKD010: the FUP after the overflow is missing. If anything, a later packet says where tracing
    /// resumes.
    fn handle_skd010(&mut self) -> Answer<bool> {
        let (mut packets, mut clock) = (self.packets.clone(), self.clock);
        let mut tsx = None;
        loop {
            let Some(packet) = next_if_any(&mut packets)? else { return Ok(false) };
            match packet.kind {
                kind::TIP_PGD => {
                    self.recover_disabled(ResumeAfter { packets, packet, clock });
                    return Ok(true);
                }
                kind::TIP => {
                    self.recover(ResumeAfter { packets, packet, clock }, packet.address());
                    self.fetch();
                    return Ok(true);
                }
                kind::FUP => {
                    if let Some(tsx) = tsx {
                        self.waiting.push(binding::OWN_FUP, PtEvent::new(event_kind::TSX, [0, tsx, 0]))?;
                    }
                    self.recover(ResumeAfter { packets, packet, clock }, packet.address());
                    return Ok(true);
                }
                kind::PSB => {
                    let Some(Some(ip)) = header_fup(packets.clone())? else { return Ok(false) };
                    self.recover(ResumeAfter { packets, packet, clock }, ip);
                    return Ok(true);
                }
                kind::PSBEND => return Err(Code::BadContext.status()),
                kind::MODE if packet.get(field::MODE_LEAF) == LEAF_TSX => {
                    if tsx.replace(packet.tsx()).is_some() {
                        return Ok(false);
                    }
                }
                kind::EXSTOP if packet.flag(field::EXSTOP_IP) => return Ok(false),
                kind::PTW if packet.flag(field::PTW_IP) => return Ok(false),
                kind::CFE if packet.flag(field::CFE_IP) => return Ok(false),
                kind::PIP | kind::VMCS | kind::MODE | kind::PAD | kind::MNT | kind::PWRE | kind::PWRX => {}
                kind::EXSTOP | kind::PTW | kind::CFE | kind::EVD | kind::TRIG => {}
                time if kind::is_time(time) => clock.apply(&packet, &self.options.clocks)?,
                // TIP.PGE, OVF and STOP: no erratum. TNT, MWAIT and unknown packets: nothing can be done.
                _ => return Ok(false),
            }
        }
    }

    /// Handles erratum APL11: there is a TIP.PGD too many after the overflow. Decoding resumes after it.
    fn handle_apl11(&mut self) -> Answer<bool> {
        let (mut packets, mut clock) = (self.packets.clone(), self.clock);
        loop {
            let packet = packets.next_repaired()?;
            match packet.kind {
                kind::TIP_PGD => {
                    self.recover_disabled(ResumeAfter { packets, packet, clock });
                    return Ok(true);
                }
                kind::PAD | kind::MNT | kind::CFE | kind::EVD | kind::TRIG => {}
                time if kind::is_time(time) => clock.apply(&packet, &self.options.clocks)?,
                _ => return Ok(false),
            }
        }
    }

    /// Returns true for erratum APL12: there is a FUP although tracing is disabled after the overflow. A later packet
    /// shows that.
    fn is_apl12(&self, size: u64) -> Answer<bool> {
        let mut packets = self.packets.clone();
        packets.skip(size);
        loop {
            let Some(packet) = next_if_any(&mut packets)? else { return Ok(false) };
            match packet.kind {
                kind::STOP | kind::TIP_PGE => return Ok(true),
                kind::PSB => return Ok(header_fup(packets)? == Some(None)),
                kind::TNT_8
                | kind::TNT_64
                | kind::TIP
                | kind::TIP_PGD
                | kind::PSBEND
                | kind::OVF
                | kind::UNKNOWN
                | kind::INVALID => return Ok(false),
                _ => {}
            }
        }
    }

    /// Skips packets up to `size` bytes from here; all but the last update the time.
    fn skip_to(&mut self, mut size: u64) -> Answer<()> {
        loop {
            self.packet = self.packets.next_repaired()?;
            let own = u64::from(self.packet.size);
            if size <= own {
                return if size < own { Err(Code::Internal.status()) } else { Ok(()) };
            }
            size -= own;
            if matches!(self.packet.kind, kind::MODE | kind::PIP | kind::VMCS | kind::INVALID | kind::UNKNOWN)
            {
                return Err(Code::Internal.status());
            }
            self.clock.apply(&self.packet, &self.options.clocks)?;
        }
    }
}
