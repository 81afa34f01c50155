//! The state of an event decoder, and the search for the next event.

use super::queue::WaitingEvents;
use crate::{
    Clock, EventData, PacketDecoder, Release, TraceBytes,
    code::{Answer, Code},
    event::{PtEvent, flag},
    packet::{PtPacket, kind},
};
use pugmark_decoder_core::{
    config::Clocks,
    errata::Errata,
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

/// The processor, and the caller's choices.
#[derive(Clone, Copy, Debug)]
pub struct EventOptions {
    /// The processor's errata.
    pub errata: Errata,
    /// The processor's clocks.
    pub clocks: Clocks,
    /// True to keep the measured length of core cycles at an overflow.
    pub keep_calibration: bool,
    /// True if changes of the interrupt flag are events.
    pub iflags: bool,
    /// The release whose events are wanted.
    pub release: Release,
}

/// `struct pt_event_decoder`: makes an event of everything in a trace, also of branches. Events have the addresses and
/// times of packets; no code is read.
#[derive(Clone, Debug)]
pub struct EventDecoder<T> {
    pub(super) options: EventOptions,
    pub(super) packets: PacketDecoder<T>,
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
    /// The offset of the packet that the last event or error came from, and that after it.
    event_at: Option<(u64, u64)>,
}

impl<T: TraceBytes> EventDecoder<T> {
    /// Starts without a position.
    pub fn new(trace: T, options: EventOptions) -> Self {
        Self {
            options,
            packets: PacketDecoder::new(trace, options.errata, options.release),
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
            event_at: None,
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

    /// Fetches the next packet that is no PAD. An error is kept for the next event.
    pub(super) fn fetch(&mut self) {
        loop {
            match self.packets.next_repaired() {
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
        self.event_at = None;
        self.status = 0;
        self.fetch();
        match self.packet.kind {
            kind::PSB => self.psb(),
            kind::INVALID if self.status < 0 => Err(self.status),
            kind::INVALID => Err(Code::Internal.status()),
            _ => Err(Code::NoSync.status()),
        }
    }

    /// Goes to the next PSB, and reads its PSB+.
    ///
    /// # Errors
    /// [`Code::EndOfStream`] if there is none, and errors of the PSB+.
    pub fn sync_forward(&mut self) -> Answer<()> {
        self.reset();
        self.packets.sync_forward()?;
        self.start()
    }

    /// Goes to the PSB at `offset`, and reads its PSB+.
    ///
    /// # Errors
    /// [`Code::NoSync`] if there is none, and errors of the PSB+.
    pub fn sync_set(&mut self, offset: u64) -> Answer<()> {
        self.reset();
        self.packets.sync_set(offset)?;
        self.start()
    }

    /// Goes to the last PSB before the current packet, and reads its PSB+.
    ///
    /// # Errors
    /// As in [`sync_forward`](Self::sync_forward).
    pub fn sync_backward(&mut self) -> Answer<()> {
        let start = self.packets.position().unwrap_or(self.packets.trace().bytes().len() as u64);
        let mut last = start;
        loop {
            self.reset();
            loop {
                let from = self.packets.position();
                self.packets.sync_backward()?;
                let found = self.packets.position().unwrap_or(0);
                if found < last {
                    last = found;
                    break;
                }
                // In a run of PSBs the search finds the last one from each of them; libipt never returns there.
                if from == Some(found) {
                    self.packets.sync_set(found.saturating_sub(PSB.len() as u64))?;
                }
            }
            let started = self.start();
            // A PSB+ with nothing after it leads back to the start of the search.
            if self.packets.position().unwrap_or(0) < start {
                return started;
            }
        }
    }

    /// Returns the offset of the current packet, which the next event comes from; `None` before the first
    /// synchronisation.
    pub fn offset(&self) -> Option<u64> {
        self.packets.position().map(|position| position.wrapping_sub(self.packet.size.into()))
    }

    /// Returns the offset of the packet that the last event or error came from, and that after it.
    pub(crate) const fn event_at(&self) -> Option<(u64, u64)> {
        self.event_at
    }

    /// Returns the offset after the current packet.
    pub(crate) const fn position(&self) -> Option<u64> {
        self.packets.position()
    }

    /// Returns the offset of the last synchronisation.
    pub fn sync_offset(&self) -> Option<u64> {
        self.packets.sync_position()
    }

    /// Returns the next event.
    ///
    /// # Errors
    /// The packets contradict each other, cannot be read, or end.
    #[allow(clippy::should_implement_trait, reason = "after an error it goes on")]
    pub fn next(&mut self) -> Answer<PtEvent> {
        loop {
            self.event_at = self.offset().zip(self.position());
            if self.step()? == Step::Event {
                return self.event.take().ok_or(Code::Internal.status());
            }
            if self.event.is_some() {
                return Err(Code::Internal.status());
            }
            self.bound = false;
            self.fetch();
        }
    }

    /// Applies the current packet.
    fn step(&mut self) -> Answer<Step> {
        match self.packet.kind {
            kind::TNT_8 | kind::TNT_64 => self.tnt(),
            kind::TSC | kind::TMA | kind::MTC | kind::CYC => {
                self.clock.apply(&self.packet, &self.options.clocks)?;
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
