//! The state of an event decoder, and the search for the next event.

use super::queue::WaitingEvents;
use crate::{
    clock::{Clock, clocks},
    config::{PtConfig, PtErrata},
    error::Code,
    event::{PtEvent, flag},
    event_trace::EventData,
    packet::{PtPacket, kind},
    packets::PacketDecoder,
    query::decoder::Answer,
};
use pugmark_decoder_core::{
    config::Clocks,
    last_ip::LastIp,
    packet::{ModeExec, PSB},
};
use std::ffi::c_int;

/// The effect of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There is an event. If the next packet has been fetched, this one is consumed.
    Event,
    /// The packet is consumed.
    More,
}

/// Flags in the configuration.
pub(crate) const KEEP_CALIBRATION: u32 = 1 << 0;
pub(crate) const INTERRUPT_FLAG_EVENTS: u32 = 1 << 1;

/// `struct pt_event_decoder`.
#[derive(Debug)]
pub struct EventDecoder {
    pub(crate) config: PtConfig,
    flags: u32,
    pub(super) clocks: Clocks,
    pub(super) packets: PacketDecoder,
    /// The current packet. After an error the packet is invalid, and the error is the status.
    pub(super) packet: PtPacket,
    pub(super) status: c_int,
    pub(super) ip: LastIp,
    pub(super) clock: Clock,
    pub(super) waiting: WaitingEvents,
    pub(super) data: EventData,
    /// The event of the current packet. An event may be left after an error.
    pub(super) event: Option<PtEvent>,
    pub(super) mode: Option<ModeExec>,
    /// True while tracing is enabled.
    pub(super) enabled: bool,
    /// True if an event has used the current packet, which then is no event of its own.
    pub(super) bound: bool,
}

impl EventDecoder {
    /// # Safety
    /// As in [`pt_evt_alloc_decoder`](super::pt_evt_alloc_decoder).
    pub(super) unsafe fn new(mut config: PtConfig) -> Self {
        let [flags, ..] = std::mem::take(&mut config.flags);
        // SAFETY: by contract.
        let packets = unsafe { PacketDecoder::new(config) };
        Self {
            config,
            flags,
            clocks: clocks(&config),
            packets,
            packet: PtPacket::new(kind::INVALID),
            status: Code::NoSync.status(),
            ip: LastIp::new(),
            clock: Clock::default(),
            waiting: WaitingEvents::NONE,
            data: EventData::NONE,
            event: None,
            mode: None,
            enabled: false,
            bound: false,
        }
    }

    /// Resets everything but the position in the trace.
    pub(super) fn reset(&mut self) {
        self.packet.kind = kind::INVALID;
        self.status = Code::NoSync.status();
        self.event = None;
        self.enabled = false;
        self.bound = false;
        self.mode = None;
        self.ip = LastIp::new();
        self.clock = Clock::default();
        self.waiting = WaitingEvents::NONE;
        self.data = EventData::NONE;
    }

    pub(super) fn has(&self, erratum: u32) -> bool {
        self.config.errata.has(erratum)
    }

    /// Returns true if calibration is kept over an overflow.
    pub(super) fn keeps_calibration(&self) -> bool {
        self.flags & KEEP_CALIBRATION != 0
    }

    /// Returns true if changes of the interrupt flag are events.
    pub(super) fn has_interrupt_flag_events(&self) -> bool {
        self.flags & INTERRUPT_FLAG_EVENTS != 0
    }

    /// Fetches the next packet that is no PAD. An error is kept for the next event.
    pub(super) fn fetch(&mut self) {
        loop {
            match next(&mut self.packets) {
                Ok(packet) => self.packet = packet,
                Err(status) => {
                    self.packet = PtPacket::new(kind::INVALID);
                    self.status = status;
                }
            }
            if self.packet.kind != kind::PAD {
                return;
            }
        }
    }

    /// Sets a word of an event to the last address; without one the address is suppressed.
    pub(super) fn set_ip(&self, event: &mut PtEvent, word: usize) {
        let ip = self.ip.get();
        event.variant[word] = ip.unwrap_or(0);
        if ip.is_err() {
            event.flags |= flag::IP_SUPPRESSED;
        }
    }

    /// Publishes an event with the current time.
    pub(super) fn publish(&mut self, mut event: PtEvent) -> Step {
        self.clock.stamp(&mut event);
        self.event = Some(event);
        Step::Event
    }

    /// Publishes an event with the current time and, if it takes one, the last address.
    pub(super) fn publish_at_ip(&mut self, mut event: PtEvent) -> Step {
        if let Some(word) = event.ip_word() {
            self.set_ip(&mut event, word);
        }
        self.publish(event)
    }

    /// Publishes an event with the current time, and consumes the packet.
    pub(super) fn publish_alone(&mut self, event: PtEvent) -> Step {
        self.publish(event);
        self.fetch();
        Step::Event
    }

    /// Publishes an event without an address, and consumes the packet.
    pub(super) fn publish_without_ip(&mut self, mut event: PtEvent) -> Step {
        event.flags |= flag::IP_SUPPRESSED;
        self.publish_alone(event)
    }

    /// Ends with an error at an event that does not belong to the packet.
    pub(super) fn refuse(&mut self, event: PtEvent, code: Code) -> Answer<Step> {
        self.event = Some(event);
        Err(code.status())
    }

    /// Starts at the PSB where the packet decoder is.
    fn start(&mut self) -> Answer<()> {
        self.status = 0;
        self.fetch();
        match self.packet.kind {
            kind::PSB => self.psb(),
            kind::INVALID if self.status < 0 => Err(self.status),
            kind::INVALID => Err(Code::Internal.status()),
            _ => Err(Code::NoSync.status()),
        }
    }

    pub(super) fn sync_forward(&mut self) -> Answer<()> {
        self.reset();
        succeeded(self.packets.sync_forward())?;
        self.start()
    }

    pub(super) fn sync_set(&mut self, offset: u64) -> Answer<()> {
        self.reset();
        succeeded(self.packets.sync_set(offset))?;
        self.start()
    }

    pub(super) fn sync_backward(&mut self) -> Answer<()> {
        let start = self.packets.position().unwrap_or(self.config.len());
        let mut last = start;
        loop {
            self.reset();
            loop {
                let from = self.packets.position();
                succeeded(self.packets.sync_backward())?;
                let found = self.packets.position().unwrap_or(0);
                if found < last {
                    last = found;
                    break;
                }
                // In a run of PSBs the search finds the last one from each of them; libipt never returns there.
                if from == Some(found) {
                    succeeded(self.packets.sync_set(found.saturating_sub(PSB.len() as u64)))?;
                }
            }
            let started = self.start();
            // A PSB+ with nothing after it leads back to the start of the search.
            if self.packets.position().unwrap_or(0) < start {
                return started;
            }
        }
    }

    /// Returns the offset of the current packet.
    pub(super) fn offset(&self) -> Option<u64> {
        self.packets.position().map(|position| position.wrapping_sub(self.packet.size.into()))
    }

    pub(super) fn sync_offset(&self) -> Option<u64> {
        self.packets.sync_position()
    }

    /// Returns the next event.
    pub(super) fn next(&mut self) -> Answer<PtEvent> {
        while self.step()? == Step::More {
            if self.event.is_some() {
                return Err(Code::Internal.status());
            }
            self.bound = false;
            self.fetch();
        }
        self.event.take().ok_or(Code::Internal.status())
    }

    /// Applies the current packet.
    fn step(&mut self) -> Answer<Step> {
        match self.packet.kind {
            kind::TNT_8 | kind::TNT_64 => self.tnt(),
            kind::TSC | kind::TMA | kind::MTC | kind::CYC => {
                self.clock.apply(&self.packet, &self.clocks)?;
                Ok(Step::More)
            }
            kind::FUP => self.fup(),
            kind::TIP => self.tip(),
            kind::TIP_PGE => self.tip_pge(),
            kind::TIP_PGD => self.tip_pgd(),
            kind::PSB => {
                self.psb()?;
                self.step()
            }
            kind::PSBEND => self.psbend(),
            kind::OVF => self.ovf(),
            kind::CFE => self.cfe(),
            kind::EVD => self.evd(),
            kind::INVALID if self.status < 0 => Err(self.status),
            kind::INVALID | kind::PAD | kind::UNKNOWN => Ok(Step::More),
            _ => self.other(),
        }
    }
}

/// Converts the status that a function has returned.
fn succeeded(status: c_int) -> Answer<()> {
    if status < 0 { Err(status) } else { Ok(()) }
}

/// Returns the next packet as libipt reads it since 2.1: erratum SKD007 is repaired here, and the trace ends where
/// SKZ84 has led past its end.
pub(super) fn next(packets: &mut PacketDecoder) -> Answer<PtPacket> {
    if packets.is_after_end() {
        return Err(Code::EndOfStream.status());
    }
    let (packet, _) = packets.next()?;
    if packet.kind == kind::CYC && packets.has(PtErrata::SKD007) && packets.skip_cut_off_cyc(&packet) {
        return Ok(PtPacket { size: 2, ..PtPacket::new(kind::OVF) });
    }
    Ok(packet)
}
