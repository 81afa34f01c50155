//! The event decoder: takes packets, gives events.

use super::{
    Counters, Event, EventKind, Stamp, branch::Branch, clock::Clock, control::Control, fup::Waiting,
    mode::Mode, power::Power, psb::Replay, ready::Ready,
};
use crate::{
    config::{Config, Dialect},
    error::{Error, ErrorKind},
    last_ip::LastIp,
    packet::{Packet, Packets, Tnt},
};

/// Gives the events of a trace, in order.
///
/// It begins at a PSB: [`sync_forward`](Self::sync_forward) first, and again after each error.
#[derive(Clone, Debug)]
pub struct EventDecoder<'a> {
    pub(super) packets: Packets<'a>,
    pub(super) synced: bool,
    pub(super) ended: bool,
    /// The PSB of the last PSB+.
    pub(super) status_psb: u64,
    pub(super) last_ip: LastIp,
    /// Packet generation is on.
    pub(super) tracing: bool,
    pub(super) clock: Clock,
    /// The packet that the decoder holds; see [`Event::held`].
    pub(super) held: u64,
    pub(super) ready: Ready,
    pub(super) replay: Option<Replay<'a>>,
    pub(super) mode: Mode,
    pub(super) waiting: Waiting,
    /// A FUP began an asynchronous branch, its TIP or TIP.PGD is not there yet.
    pub(super) branch: Option<Branch>,
    pub(super) power: Power,
    pub(super) control: Control,
    /// An OVF whose consequence the next packets decide.
    pub(super) overflow: bool,
    /// When that OVF was.
    pub(super) overflow_time: Stamp,
    /// The packet before the one at hand.
    previous: u64,
    pub(super) counters: Counters,
}

impl<'a> EventDecoder<'a> {
    /// A decoder in front of `trace`, not synchronised.
    #[must_use]
    pub fn new(trace: &'a [u8]) -> Self {
        Self::with_config(trace, Config::new())
    }

    /// A decoder in front of `trace`, not synchronised.
    #[must_use]
    pub fn with_config(trace: &'a [u8], config: Config<'a>) -> Self {
        Self {
            packets: Packets::with_config(trace, config),
            synced: false,
            ended: false,
            status_psb: 0,
            last_ip: LastIp::new(),
            tracing: false,
            clock: Clock::default(),
            held: 0,
            ready: Ready::new(),
            replay: None,
            mode: Mode::new(),
            waiting: Waiting::new(),
            branch: None,
            power: Power::new(),
            control: Control::new(),
            overflow: false,
            overflow_time: Stamp::default(),
            previous: 0,
            counters: Counters::default(),
        }
    }

    /// How the trace is read.
    #[must_use]
    pub fn config(&self) -> &Config<'a> {
        self.packets.config()
    }

    /// The offset of the packet that comes next, or where the trace ends.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.packets.offset()
    }

    /// The trace.
    #[must_use]
    pub fn trace(&self) -> &'a [u8] {
        self.packets.bytes()
    }

    /// The time at the packet that was read last: the estimated TSC, 56 bits; `None` before the first TSC packet.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        self.clock.now().tsc
    }

    /// How many MTC packets are not in the [`time`](Self::time), because their clock ran too far.
    #[must_use]
    pub fn lost_mtc(&self) -> u32 {
        self.clock.now().lost_mtc
    }

    /// How many CYC packets are not in the [`time`](Self::time), because no ratio was known.
    #[must_use]
    pub fn lost_cyc(&self) -> u32 {
        self.clock.now().lost_cyc
    }

    /// The ratio of core clock to bus clock by the last CBR packet.
    #[must_use]
    pub fn core_bus_ratio(&self) -> Option<u8> {
        self.clock.now().core_bus_ratio
    }

    /// What was seen so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The next event, or `None` at the end of the trace.
    ///
    /// # Errors
    /// With the offset of the packet that is wrong. After one, only [`ErrorKind::OutOfSync`] follows until
    /// [`sync_forward`](Self::sync_forward).
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot tell its end from an error by `?`")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Event>, Error> {
        if !self.synced {
            return Err(Error { offset: self.offset(), kind: ErrorKind::OutOfSync });
        }
        let next = self.advance();
        if let Err(error) = next {
            self.synced = false;
            // What is wrong here may be a PSB, which the next synchronisation should find.
            self.packets.set_offset(error.offset);
        }
        next
    }

    fn advance(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if let Some(event) = self.ready.pop() {
                return Ok(Some(event));
            }
            if self.replay.is_some() {
                if let Some(event) = self.replay()? {
                    return Ok(Some(event));
                }
                continue;
            }
            let Some(packet) = self.packets.next() else {
                // The trace may end behind an OVF.
                let offset = self.offset();
                self.ended = true;
                self.held = self.packets.bytes().len() as u64;
                self.end_overflow(offset).map_err(|kind| Error { offset, kind })?;
                return Ok(self.ready.pop());
            };
            let (offset, packet) = packet?;
            self.counters.packets += 1;
            if packet == Packet::Psb {
                self.psb(offset)?;
            } else {
                // libipt looks at what follows an OVF while it has the packet before in its hand.
                let libipt = self.config().dialect == Dialect::Libipt;
                let blamed = if self.overflow && libipt { self.previous } else { offset };
                let event = self.step(offset, packet).map_err(|kind| Error { offset: blamed, kind })?;
                self.previous = offset;
                if event.is_some() {
                    return Ok(event);
                }
            }
        }
    }

    /// One packet outside a PSB+. What it completes is returned or ready; when both, what is returned is first.
    #[inline]
    fn step(&mut self, offset: u64, packet: Packet) -> Result<Option<Event>, ErrorKind> {
        // A packet that completes others is held until all of them are reported.
        self.held = offset;
        if self.overflow && self.resolve_overflow(offset, packet)? {
            return Ok(None);
        }
        if !matches!(packet, Packet::Tip(_) | Packet::Fup(_) | Packet::TipPge(_) | Packet::TipPgd(_)) {
            self.held = self.packets.offset();
        }
        self.track_time(packet)?;
        match packet {
            Packet::TntShort(tnt) | Packet::TntLong(tnt) => return self.tnt(offset, tnt).map(Some),
            Packet::Tip(ip) => return self.tip(offset, ip).map(Some),
            Packet::Pad
            | Packet::Tsc(_)
            | Packet::Mtc(_)
            | Packet::Cyc(_)
            | Packet::Tma(_)
            | Packet::DamagedTma(_)
            | Packet::Bbp(_)
            | Packet::Bip(_)
            | Packet::Unknown(_) => {}
            Packet::Cbr(cbr) => self.publish(offset, None, EventKind::Cbr { ratio: cbr.ratio })?,
            Packet::Fup(ip) => self.fup(offset, ip)?,
            Packet::TipPge(ip) => self.tip_pge(offset, ip)?,
            Packet::TipPgd(ip) => self.tip_pgd(offset, ip)?,
            Packet::ModeExec(mode) => self.mode_exec(mode)?,
            Packet::ModeTsx(mode) => self.mode_tsx(offset, mode)?,
            Packet::Pip(pip) => self.pip(offset, pip)?,
            Packet::Vmcs(vmcs) => self.vmcs(offset, vmcs)?,
            Packet::Ovf => self.ovf(offset)?,
            Packet::TraceStop => {
                self.counters.stops += 1;
                self.publish(offset, None, EventKind::Stop)?;
            }
            Packet::Mnt(mnt) => self.publish(offset, None, EventKind::Mnt { payload: mnt.payload })?,
            Packet::Exstop(exstop) => self.exstop(offset, exstop)?,
            Packet::Mwait(mwait) => self.mwait(offset, mwait)?,
            Packet::Pwre(pwre) => self.pwre(pwre)?,
            Packet::Pwrx(pwrx) => self.pwrx(offset, pwrx)?,
            Packet::Ptw(ptw) => self.ptw(offset, ptw)?,
            Packet::Bep(bep) => self.bep(bep)?,
            Packet::Cfe(cfe) => self.cfe(offset, cfe)?,
            Packet::Evd(evd) => self.evd(evd)?,
            Packet::Trig(trig) => self.trig(offset, trig)?,
            Packet::PsbEnd => return Err(ErrorKind::UnexpectedPacket("PSBEND")),
            // Only `advance` takes it, because what is wrong in a PSB+ has another offset.
            Packet::Psb => return Err(ErrorKind::UnexpectedPacket("PSB")),
        }
        Ok(None)
    }

    #[inline]
    fn tnt(&mut self, offset: u64, tnt: Tnt) -> Result<Event, ErrorKind> {
        if !self.tracing || self.branch.is_some() {
            return Err(ErrorKind::UnexpectedPacket("TNT"));
        }
        Ok(self.event(offset, None, EventKind::Tnt(tnt)))
    }

    #[inline]
    pub(super) fn event(&self, offset: u64, ip: Option<u64>, kind: EventKind) -> Event {
        Event { kind, ip, when: self.clock.now(), offset, held: self.held, status: false }
    }

    /// Appends an event to those that are ready.
    pub(super) fn publish(&mut self, offset: u64, ip: Option<u64>, kind: EventKind) -> Result<(), ErrorKind> {
        let event = self.event(offset, ip, kind);
        if self.ready.push(event) { Ok(()) } else { Err(ErrorKind::TooManyWaiting("event")) }
    }
}
