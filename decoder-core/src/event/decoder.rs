//! The event decoder: packets in, events out.

use super::{Counters, Event, EventKind, clock::Clock, psb::Replay, ready::Ready, waiting::Waiting};
use crate::{
    config::Config,
    error::{Error, ErrorKind},
    keeper::{Keeper, Own, Owned},
    last_ip::LastIp,
    packet::{ModeExec, Packet, Packets, Tnt},
};

/// The decoder of the events of a trace, in order.
///
/// Decoding starts at a PSB: call [`sync_forward`](Self::sync_forward) first, and again after each error.
#[derive(Debug)]
pub struct EventDecoder<'a, K: Keeper = Own> {
    pub(super) packets: Packets<'a>,
    pub(super) state: K::Of<EventState>,
}

/// The state of an event decoder, apart from its place in the trace.
#[derive(Clone, Debug)]
pub(crate) struct EventState {
    pub(super) giving: Giving,
    /// The PSB of the last PSB+.
    pub(super) status_psb: u64,
    pub(super) last_ip: LastIp,
    /// True if packet generation is on.
    pub(super) tracing: bool,
    pub(super) clock: Clock,
    pub(super) ready: Ready,
    pub(super) replay: Option<Replay>,
    /// The last MODE.Exec; reset at an overflow.
    pub(super) mode: Option<ModeExec>,
    pub(super) waiting: Waiting,
    pub(super) counters: Counters,
}

/// The output state of an event decoder.
#[derive(Clone, Copy, Debug)]
pub(super) enum Giving {
    /// No events until the next synchronisation.
    OutOfSync,
    Synced,
    /// The events that are ready, then this error.
    Failing(Error),
}

impl<'a> EventDecoder<'a> {
    /// Creates a decoder at the start of `trace`, not synchronised.
    #[must_use]
    pub fn new(trace: &'a [u8]) -> Self {
        Self::with_config(trace, Config::new())
    }

    /// Creates a decoder at the start of `trace`, not synchronised.
    #[must_use]
    pub fn with_config(trace: &'a [u8], config: Config<'a>) -> Self {
        Self { packets: Packets::with_config(trace, config), state: Owned(EventState::new()) }
    }
}

impl EventState {
    /// Returns counts of the packets read so far.
    pub(crate) const fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the state before any packet.
    pub(crate) const fn new() -> Self {
        Self {
            giving: Giving::OutOfSync,
            status_psb: 0,
            last_ip: LastIp::new(),
            tracing: false,
            clock: Clock::STOPPED,
            ready: Ready::new(),
            replay: None,
            mode: None,
            waiting: Waiting::new(),
            counters: Counters::NONE,
        }
    }
}

impl<'a, K: Keeper> EventDecoder<'a, K> {
    /// Creates a decoder with this state.
    pub(crate) const fn with_state(packets: Packets<'a>, state: K::Of<EventState>) -> Self {
        Self { packets, state }
    }

    /// Returns the place in the trace.
    pub(crate) const fn packets(&self) -> &Packets<'a> {
        &self.packets
    }

    /// Returns the configuration that the trace is read with.
    #[must_use]
    pub fn config(&self) -> &Config<'a> {
        self.packets.config()
    }

    /// Returns the offset of the next packet, or the end of the trace.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.packets.offset()
    }

    /// Returns the trace.
    #[must_use]
    pub fn trace(&self) -> &'a [u8] {
        self.packets.bytes()
    }

    /// Returns the time at the last packet read: the estimated TSC, 56 bits; `None` before the first TSC packet.
    #[must_use]
    pub fn time(&self) -> Option<u64> {
        self.state.clock.now().tsc
    }

    /// Returns how many MTC packets [`time`](Self::time) excludes because their clock ran too far.
    #[must_use]
    pub fn lost_mtc(&self) -> u32 {
        self.state.clock.now().lost_mtc
    }

    /// Returns how many CYC packets [`time`](Self::time) excludes because no ratio was known.
    #[must_use]
    pub fn lost_cyc(&self) -> u32 {
        self.state.clock.now().lost_cyc
    }

    /// Returns the ratio of core clock to bus clock in the last CBR packet.
    #[must_use]
    pub fn core_bus_ratio(&self) -> Option<u8> {
        self.state.clock.now().core_bus_ratio
    }

    /// Returns counts of the packets read so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.state.counters
    }

    /// Returns the next event, or `None` at the end of the trace.
    ///
    /// # Errors
    /// Holds the offset of the wrong packet. It is reported after the events that were complete before that packet.
    /// After an error, only [`ErrorKind::OutOfSync`] follows until [`sync_forward`](Self::sync_forward).
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot tell its end from an error by `?`")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Event>, Error> {
        let mut event = None;
        self.next_into(&mut event)?;
        Ok(event)
    }

    /// Does the same as [`next`](Self::next), into `event`, which is `None` after an error. An event is large: a
    /// handler's stack has no room for one in each function that passes it on.
    #[inline]
    pub(crate) fn next_into(&mut self, event: &mut Option<Event>) -> Result<(), Error> {
        *event = None;
        if !matches!(self.state.giving, Giving::Synced) {
            return self.next_of_failed(event);
        }
        match self.advance(event) {
            Err(error) if !matches!(error.kind, ErrorKind::EndOfSlice) => {
                self.state.giving = Giving::Failing(error);
                // Complete events come before the error.
                self.next_of_failed(event)
            }
            done => done,
        }
    }

    #[cold]
    fn next_of_failed(&mut self, event: &mut Option<Event>) -> Result<(), Error> {
        let Giving::Failing(error) = self.state.giving else {
            return Err(Error { offset: self.offset(), kind: ErrorKind::OutOfSync });
        };
        self.state.ready.pop_into(event);
        if event.is_some() {
            return Ok(());
        }
        self.state.giving = Giving::OutOfSync;
        // The wrong packet may be a PSB, which the next synchronisation should find.
        self.packets.set_offset(error.offset);
        Err(error)
    }

    /// Sets `event`, which is `None`, to the next event. At the end of the trace it stays `None`.
    fn advance(&mut self, event: &mut Option<Event>) -> Result<(), Error> {
        loop {
            self.state.ready.pop_into(event);
            if event.is_some() {
                return Ok(());
            }
            if self.state.replay.is_some() {
                self.replay(event)?;
            } else {
                let done = match self.packets.next() {
                    Some(Ok((offset, packet))) => self.apply(offset, packet, event),
                    Some(Err(error)) => Err(error),
                    None => return Ok(()),
                };
                done?;
            }
            if event.is_some() {
                return Ok(());
            }
        }
    }

    /// Applies a packet. Sets `event` to the first event that it completes, or queues all of them.
    #[inline]
    fn apply(&mut self, offset: u64, packet: Packet, event: &mut Option<Event>) -> Result<(), Error> {
        self.state.counters.packets += 1;
        match packet {
            Packet::Psb | Packet::Ovf => self.step_ahead(offset, packet),
            _ => self.step(offset, packet, event).map_err(|kind| Error { offset, kind }),
        }
    }

    /// Applies a PSB or an OVF, whose meaning depends on later packets. Without those at hand, changes nothing.
    #[cold]
    fn step_ahead(&mut self, offset: u64, packet: Packet) -> Result<(), Error> {
        if !self.packets.may_end(offset) {
            return self.look_ahead(offset, packet);
        }
        let before = self.state.snapshot();
        let done = self.look_ahead(offset, packet);
        if let Err(Error { kind: ErrorKind::EndOfSlice, .. }) = done {
            self.state.restore(&before);
            self.state.counters.packets -= 1;
            self.packets.set_offset(offset);
        }
        done
    }

    /// Applies a PSB or an OVF, and looks at later packets as far as allowed.
    fn look_ahead(&mut self, offset: u64, packet: Packet) -> Result<(), Error> {
        self.packets.set_fence(offset);
        let done = match packet {
            Packet::Psb => self.psb(offset),
            _ => self.ovf(offset, packet),
        };
        self.packets.clear_fence();
        match done {
            Err(Error { kind: kind @ ErrorKind::LooksTooFar, .. }) => Err(Error { offset, kind }),
            done => done,
        }
    }

    /// Applies one packet that is no OVF and not in a PSB+.
    #[inline]
    fn step(&mut self, offset: u64, packet: Packet, event: &mut Option<Event>) -> Result<(), ErrorKind> {
        if self.is_out_of_place(&packet) {
            return Err(ErrorKind::UnexpectedPacket(packet.name()));
        }
        self.track_time(packet)?;
        match packet {
            Packet::TntShort(tnt) | Packet::TntLong(tnt) => self.tnt(offset, tnt, event),
            Packet::Tip(ip) => self.tip(offset, ip, event),
            Packet::Pad
            | Packet::Tsc(_)
            | Packet::Mtc(_)
            | Packet::Cyc(_)
            | Packet::Tma(_)
            | Packet::DamagedTma(_)
            | Packet::Bbp(_)
            | Packet::Bip(_)
            // A PSBEND that does not end a PSB+ has no meaning.
            | Packet::PsbEnd
            | Packet::Unknown(_) => Ok(()),
            Packet::Fup(ip) => self.fup(offset, ip),
            Packet::TipPge(ip) => self.tip_pge(offset, ip),
            Packet::TipPgd(ip) => self.tip_pgd(offset, ip),
            _ => self.step_rarely(offset, packet),
        }
    }

    /// Applies one of the other packets. Not inlined, to save stack.
    fn step_rarely(&mut self, offset: u64, packet: Packet) -> Result<(), ErrorKind> {
        match packet {
            Packet::ModeExec(mode) => self.mode_exec(mode),
            Packet::ModeTsx(mode) => self.mode_tsx(offset, mode),
            Packet::Pip(pip) => self.pip(offset, pip),
            Packet::Vmcs(vmcs) => self.vmcs(offset, vmcs),
            Packet::Exstop(exstop) => self.exstop(offset, exstop),
            Packet::Mwait(mwait) => self.mwait(mwait),
            Packet::Pwre(pwre) => self.pwre(pwre),
            Packet::Pwrx(pwrx) => self.pwrx(offset, pwrx),
            Packet::Ptw(ptw) => self.ptw(offset, ptw),
            Packet::Bep(bep) => self.bep(bep),
            Packet::Cfe(cfe) => self.cfe(offset, cfe),
            Packet::Evd(evd) => self.evd(evd),
            Packet::Trig(trig) => self.trig(offset, trig),
            _ => {
                let kind = match packet {
                    Packet::Cbr(cbr) => EventKind::Cbr { ratio: cbr.ratio },
                    Packet::Mnt(mnt) => EventKind::Mnt { payload: mnt.payload },
                    Packet::TraceStop => EventKind::Stop,
                    // PSB and OVF are handled only in `step_ahead`, because an error after them has another offset.
                    _ => return Err(ErrorKind::UnexpectedPacket(packet.name())),
                };
                self.state.counters.stops += u64::from(matches!(kind, EventKind::Stop));
                self.publish(offset, None, kind)
            }
        }
    }

    #[inline]
    fn tnt(&mut self, offset: u64, tnt: Tnt, event: &mut Option<Event>) -> Result<(), ErrorKind> {
        if !self.state.tracing {
            return Err(ErrorKind::UnexpectedPacket("TNT"));
        }
        *event = Some(self.event(offset, None, EventKind::Tnt(tnt)));
        Ok(())
    }

    #[inline]
    pub(super) fn event(&self, offset: u64, ip: Option<u64>, kind: EventKind) -> Event {
        Event { kind, ip, when: self.state.clock.now(), offset, status: false }
    }

    /// Appends an event to those that are ready.
    pub(super) fn publish(&mut self, offset: u64, ip: Option<u64>, kind: EventKind) -> Result<(), ErrorKind> {
        self.publish_event(self.event(offset, ip, kind))
    }

    /// Appends an event to those that are ready.
    pub(super) fn publish_event(&mut self, event: Event) -> Result<(), ErrorKind> {
        if self.state.ready.push(event) { Ok(()) } else { Err(ErrorKind::TooManyWaiting("event")) }
    }
}

/// A state to come back to, without the events that wait or are ready: in between some may be dropped, but none
/// replaced.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    giving: Giving,
    status_psb: u64,
    last_ip: LastIp,
    tracing: bool,
    clock: Clock,
    replay: Option<Replay>,
    mode: Option<ModeExec>,
    counters: Counters,
    ready: usize,
    waiting: usize,
}

impl EventState {
    /// Returns the current state.
    fn snapshot(&self) -> Snapshot {
        let Self { giving, status_psb, last_ip, tracing, clock, mode, counters, .. } = *self;
        let (replay, ready, waiting) = (self.replay.clone(), self.ready.len(), self.waiting.len());
        Snapshot { giving, status_psb, last_ip, tracing, clock, replay, mode, counters, ready, waiting }
    }

    fn restore(&mut self, before: &Snapshot) {
        let Snapshot { giving, status_psb, last_ip, tracing, clock, mode, counters, .. } = *before;
        (self.giving, self.status_psb, self.last_ip, self.tracing) = (giving, status_psb, last_ip, tracing);
        (self.clock, self.mode, self.counters) = (clock, mode, counters);
        self.replay.clone_from(&before.replay);
        self.ready.restore(before.ready);
        self.waiting.restore(before.waiting);
    }
}

impl<'a, K: Keeper> EventDecoder<'a, K> {
    /// Saves the state and the place, to look back at branches and then [come back](Self::come_back).
    pub(crate) fn leave(&self) -> (Packets<'a>, Snapshot) {
        (self.packets.clone(), self.state.snapshot())
    }

    /// Undoes [`drop_events`](Self::drop_events), and the reading of branches after it.
    pub(crate) fn come_back(&mut self, (packets, state): &(Packets<'a>, Snapshot)) {
        self.packets.clone_from(packets);
        self.state.restore(state);
    }
}

impl Clone for EventDecoder<'_> {
    fn clone(&self) -> Self {
        Self { packets: self.packets.clone(), state: self.state.clone() }
    }
}
