//! The packet stream: orders the packets, compresses each against earlier ones, and stores it in the internal buffer.

use pugmark_decoder_core::packet::Packet;
use pugmark_decoder_core::packet::{Cyc, Ip};

use super::buffer::{InternalBuffer, PACKET};
use super::ip_compression::LastIp;
use super::timing::PacketClock;
use super::tnt::TntBuffer;
use crate::intel::registers::ctl;
use crate::intel::{IntelProfile, IntelSettings};

#[derive(Debug)]
pub(crate) struct PacketStream {
    pub(super) buffer: InternalBuffer,
    pub(super) clock: PacketClock,
    last_ip: LastIp,
    tnt: TntBuffer,
    /// TIPs may be deferred.
    defers_tips: bool,
    /// The first IP after an OVF is compressed against the last one before it.
    compresses_after_overflow: bool,
    /// Bytes since the last PSB.
    since_psb: u32,
    /// Capacity of the internal buffer in bytes.
    capacity: usize,
    /// The internal buffer overflowed and the overflow is not resolved yet.
    overflowed: bool,
}

impl PacketStream {
    pub(super) fn new(profile: &IntelProfile, settings: &IntelSettings) -> Self {
        let core_ratio = settings.core_ratio.unwrap_or(profile.non_turbo_ratio);
        Self {
            buffer: InternalBuffer::new(),
            clock: PacketClock::new(profile, core_ratio),
            last_ip: LastIp::new(),
            tnt: TntBuffer::new(settings.long_tnt),
            defers_tips: settings.deferred_tips,
            compresses_after_overflow: settings.compress_after_overflow,
            since_psb: 0,
            capacity: settings
                .overflow
                .map_or(usize::MAX, |overflow| overflow.capacity.clamp(128, 2048) as usize),
            overflowed: false,
        }
    }

    pub(super) fn start(&mut self, ctl: u64, tsc: u64, defers: bool) {
        self.clock.start(ctl, tsc);
        // A CYC packet before the TIP would force the TNT buffer out anyway.
        self.defers_tips = defers && ctl & ctl::CYC_EN == 0;
    }

    /// Adds the outcome of a conditional branch or a compressed RET.
    #[inline]
    pub(super) fn branch_outcome(&mut self, taken: bool) {
        if self.overflowed {
            return;
        }
        if self.tnt.is_empty() {
            // CYC gives the time of the first branch in the TNT.
            self.cyc();
            if self.overflowed {
                return;
            }
        }
        if self.tnt.push(taken) {
            self.flush();
        }
    }

    /// Adds a TIP that may be deferred.
    #[inline]
    pub(super) fn deferrable_tip(&mut self, target: u64) {
        if self.overflowed {
            return;
        }
        if !self.defers_tips || self.tnt.is_empty() {
            self.ip(target, Packet::Tip);
        } else if self.tnt.hold_tip(target) {
            self.flush();
        }
    }

    /// Adds a packet with an IP.
    pub(super) fn ip(&mut self, ip: u64, packet: fn(Ip) -> Packet) {
        self.flush();
        let packet = packet(self.last_ip.compress(ip));
        // FUP is not CYC-eligible.
        if !matches!(packet, Packet::Fup(_)) {
            self.cyc();
        }
        if self.put(&packet) {
            self.last_ip.set(ip);
        }
    }

    /// Adds any other packet, after the buffered ones. A CYC-eligible packet is preceded by a CYC packet if one is due.
    pub(super) fn packet(&mut self, packet: Packet) -> bool {
        self.flush();
        match packet {
            Packet::TipPgd(_)
            | Packet::ModeExec(_)
            | Packet::ModeTsx(_)
            | Packet::Pip(_)
            | Packet::Mtc(_)
            | Packet::Tsc(_)
            | Packet::Ptw(_)
            | Packet::Exstop(_)
            | Packet::Mwait(_) => self.put_eligible(&packet),
            _ => self.put(&packet),
        }
    }

    /// Adds a PSB, which resets the compression state.
    pub(super) fn psb(&mut self) {
        self.flush();
        if self.put(&Packet::Psb) {
            // A PSB is the longest packet.
            self.since_psb = PACKET as u32;
            self.last_ip.reset();
        }
    }

    /// Emits the TNT buffer and the TIPs deferred after it.
    pub(super) fn flush(&mut self) {
        let Some(tnt) = self.tnt.take() else { return };
        self.put(&tnt);
        for target in self.tnt.take_held_tips() {
            if self.put(&Packet::Tip(self.last_ip.compress(target))) {
                self.last_ip.set(target);
            }
        }
    }

    /// Advances the time: emits MTC and stand-alone CYC packets that are due. The time may leap, because the caller did
    /// something else. As MTCs stopped for that long, a TSC packet and a TMA packet follow, if TSC packets are on.
    ///
    /// Source: SDM vol. 3, Intel Processor Trace, "Timestamp Counter (TSC) Packet": sent after any event that causes
    /// timing packets, such as MTC, to stop.
    pub(super) fn tick(&mut self, tsc: u64) {
        self.clock.advance(tsc);
        if self.clock.lost_count_of_mtcs()
            && let Some(packet) = self.clock.tsc()
        {
            self.clock.drop_mtcs();
            for packet in [Some(packet), self.clock.tma()].into_iter().flatten() {
                self.packet(packet);
            }
        }
        if let Some(mtc) = self.clock.mtc() {
            self.packet(mtc);
        }
        if !self.overflowed
            && let Some(cycles) = self.clock.take_wrap()
        {
            self.packet(Packet::Cyc(Cyc { cycles }));
        }
    }

    /// Returns the bytes since the last PSB.
    #[inline]
    pub(super) const fn since_psb(&self) -> u32 {
        self.since_psb
    }

    pub(super) fn set_since_psb(&mut self, bytes: u32) {
        self.since_psb = bytes;
    }

    #[inline]
    pub(super) const fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Returns true if the overflow can end: the internal buffer must have room for a PSB+.
    pub(super) fn can_resume(&self) -> bool {
        self.overflowed && self.buffer.len() <= self.capacity / 4
    }

    /// Resolves the overflow: emits OVF, and before it a CYC for the duration of the overflow.
    pub(super) fn resume(&mut self) {
        self.overflowed = false;
        if !self.compresses_after_overflow {
            self.last_ip.forget();
        }
        if let Some(cycles) = self.clock.restart_cycles() {
            self.put(&Packet::Cyc(Cyc { cycles }));
        }
        self.put(&Packet::Ovf);
    }

    /// Discards buffered packets, because output stopped or met an error.
    pub(super) fn discard_buffered(&mut self) {
        self.buffer.clear();
        self.tnt.clear();
        self.overflowed = false;
    }

    fn put_eligible(&mut self, packet: &Packet) -> bool {
        self.cyc();
        self.put(packet)
    }

    #[inline]
    fn cyc(&mut self) {
        if self.overflowed {
            return;
        }
        if let Some(cycles) = self.clock.take_cycles() {
            self.put(&Packet::Cyc(Cyc { cycles }));
        }
    }

    /// Stores a packet in the internal buffer. Returns false if it does not fit: the buffer then overflowed, and no
    /// packet is stored until the overflow is resolved.
    fn put(&mut self, packet: &Packet) -> bool {
        if self.overflowed {
            return false;
        }
        let mut bytes = [0; PACKET];
        let Ok(len) = packet.emit(&mut bytes) else { return false };
        if self.buffer.len() + len > self.capacity || !self.buffer.push(&bytes, len) {
            self.overflowed = true;
            return false;
        }
        self.since_psb = self.since_psb.saturating_add(len as u32);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intel::Overflow;

    #[test]
    fn an_overflow_is_over_when_three_quarters_of_the_internal_buffer_are_free() {
        for (capacity, len) in [(128, 32), (200, 50), (2048, 512)] {
            let overflow = Some(Overflow { capacity, drain: 1 });
            let profile = IntelProfile::by_name("skylake").expect("skylake");
            let mut stream =
                PacketStream::new(profile, &IntelSettings { overflow, ..IntelSettings::default() });
            while stream.packet(Packet::Psb) {
                assert!(!stream.can_resume(), "there is no overflow to resume after");
            }
            // A packet that fits exactly is stored.
            assert!(stream.overflowed());
            assert_eq!(stream.buffer.len(), capacity as usize / PACKET * PACKET);
            stream.buffer.consume(stream.buffer.len() - len - 1);
            assert!(!stream.can_resume(), "{capacity}");
            stream.buffer.consume(1);
            assert!(stream.can_resume(), "{capacity}");
        }
    }

    fn stream(settings: IntelSettings) -> PacketStream {
        PacketStream::new(IntelProfile::by_name("skylake").expect("skylake"), &settings)
    }

    #[test]
    fn what_is_discarded_never_comes_and_what_follows_does() {
        let deferring = IntelSettings { deferred_tips: true, ..IntelSettings::default() };
        let mut stream = stream(deferring);
        stream.start(0, 0, true);
        stream.psb();
        stream.branch_outcome(true);
        stream.deferrable_tip(0x1234);
        assert_eq!(stream.buffer.len(), PACKET, "the outcome and the TIP wait");
        stream.discard_buffered();
        assert_eq!(stream.buffer.len(), 0);
        stream.flush();
        assert_eq!(stream.buffer.len(), 0, "no outcome");
        stream.branch_outcome(false);
        stream.flush();
        assert_eq!(stream.buffer.oldest_bytes(100), [0b100], "one TNT, and no TIP");
    }

    #[test]
    fn a_discard_ends_an_overflow() {
        let overflow = Some(Overflow { capacity: 128, drain: 1 });
        let mut stream = stream(IntelSettings { overflow, ..IntelSettings::default() });
        while stream.packet(Packet::Psb) {}
        assert!(stream.overflowed());
        stream.discard_buffered();
        assert!(!stream.overflowed() && stream.packet(Packet::Psb));
    }

    #[test]
    fn a_cyc_stands_alone_before_its_counter_wraps_unless_packets_are_lost() {
        let overflow = Some(Overflow { capacity: 128, drain: 1 });
        for overflows in [false, true] {
            let mut stream = stream(IntelSettings { overflow, ..IntelSettings::default() });
            stream.start(ctl::CYC_EN | 15 << 19, 0, false);
            while overflows && stream.packet(Packet::Psb) {}
            let before = stream.buffer.len();
            stream.tick((1 << 20) - 1);
            assert_eq!(stream.buffer.len(), before);
            stream.tick(1 << 20);
            let cyc = &[0x07, 0x01, 0x01, 0x80][..];
            assert_eq!(stream.buffer.len() - before, if overflows { 0 } else { cyc.len() }, "{overflows}");
            // The cycles are those since the last CYC: none was emitted while packets were lost.
            let since = if overflows { Some((1 << 20) + 5) } else { Some(5) };
            stream.clock.advance((1 << 20) + 5);
            assert_eq!(stream.clock.restart_cycles(), since, "{overflows}");
        }
    }
}
