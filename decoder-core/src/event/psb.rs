//! PSB+: the packets from PSB to PSBEND, which repeat the current state so that a decoder can start there.
//!
//! Only the whole PSB+ shows if tracing is on, and where. So the decoder reads it twice: first for that and to check
//! that it is complete, then for its events.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "Packet Stream Boundary (PSB) Packet".

use super::{Event, EventDecoder, EventKind, is_aside, is_state, mode::exec_mode, waiting::Partner};
use crate::{
    error::{Error, ErrorKind},
    keeper::Keeper,
    packet::{PSB, Packet},
};

/// A PSB+ that is being read for its events.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    /// The offset of the next packet.
    next: u64,
    /// The offset of its first packet after the PSB, and its end.
    start: u64,
    end: u64,
    /// True if its state was reported and only its MNTs are left.
    pub(super) maintenance: bool,
    /// The event to report before those of its packets.
    first: Option<Event>,
}

impl<K: Keeper> EventDecoder<'_, K> {
    /// Reads up to the end of the PSB+ whose PSB is at `psb`.
    pub(super) fn psb(&mut self, psb: u64) -> Result<(), Error> {
        self.state.counters.psbs += 1;
        let power = |partner| matches!(partner, Partner::Exstop | Partner::Pwrx);
        if self.state.waiting.any(|waiter| !power(waiter.partner)) {
            return Err(Error { offset: psb, kind: ErrorKind::UnexpectedPacket("PSB") });
        }
        self.state.status_psb = psb;
        self.state.last_ip.reset();
        let suspect_mtc = self.config().errata.skl168;
        self.state.clock.enter_psb(suspect_mtc);
        let start = psb + PSB.len() as u64;
        let mut ip = None;
        loop {
            let (offset, packet) = match self.packets.next() {
                Some(Ok(next)) => next,
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            };
            match packet {
                Packet::PsbEnd => self.state.counters.packets += 1,
                // The OVF is read again after the events of the PSB+ that it truncated.
                Packet::Ovf => self.packets.set_offset(offset),
                _ => match self.apply_in_psb(offset, packet, &mut ip) {
                    Ok(()) => continue,
                    error => return error,
                },
            }
            self.begin_replay(psb, start, offset, ip, matches!(packet, Packet::PsbEnd));
            return Ok(());
        }
    }

    /// Applies a packet of a PSB+ that does not end it. Sets `ip` to the address where tracing is on.
    fn apply_in_psb(&mut self, offset: u64, packet: Packet, ip: &mut Option<u64>) -> Result<(), Error> {
        let checked = match packet {
            Packet::Fup(fup) => {
                let stray = self.config().errata.bdm70
                    && self.is_enabled_next().map_err(|error| Error { offset, ..error })?;
                *ip = if stray { None } else { self.state.last_ip.update(fup) };
                Ok(())
            }
            Packet::ModeExec(mode) => self.check_mode(mode),
            _ if is_aside(&packet) || is_state(&packet) => Ok(()),
            _ => Err(ErrorKind::UnexpectedPacket(packet.name())),
        };
        let applied = checked.and_then(|()| self.track_time(packet));
        self.state.counters.packets += u64::from(applied.is_ok());
        applied.map_err(|kind| Error { offset, kind })
    }

    /// Starts the second reading. `whole` is false if an OVF truncated the PSB+. The FUP may then be lost, so a missing
    /// FUP does not mean that tracing is off.
    fn begin_replay(&mut self, psb: u64, start: u64, end: u64, ip: Option<u64>, whole: bool) {
        let kind = match ip {
            Some(_) => Some(EventKind::Enabled { resumed: false }),
            None => whole.then_some(EventKind::Disabled),
        };
        if kind.is_some() {
            self.state.tracing = ip.is_some();
        }
        self.state.clock.leave_psb();
        let first = kind.map(|kind| Event { status: true, ..self.event(psb, ip, kind) });
        self.state.replay = Some(Replay { next: start, start, end, maintenance: false, first });
    }

    /// Returns true if a TIP.PGE follows. Then, by erratum BDM70, the FUP in the PSB+ should not be there.
    fn is_enabled_next(&self) -> Result<bool, Error> {
        let mut packets = self.packets.clone();
        for packet in packets.by_ref() {
            match packet?.1 {
                Packet::TipPge(_) => return Ok(true),
                Packet::PsbEnd => {}
                packet if is_aside(&packet) || is_state(&packet) => {}
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Sets `event` to the next event of the PSB+ in its second reading, if there is one.
    pub(super) fn replay(&mut self, event: &mut Option<Event>) -> Result<(), Error> {
        while let Some(replay) = &mut self.state.replay {
            if replay.first.is_some() {
                *event = replay.first.take();
                return Ok(());
            }
            if replay.next >= replay.end {
                // Events that do not concern state come last.
                (replay.maintenance, replay.next) = match replay.maintenance {
                    true => return self.end_replay(),
                    false => (true, replay.start),
                };
                return Ok(());
            }
            let after = self.packets.offset();
            self.packets.set_offset(replay.next);
            let read = self.packets.next();
            replay.next = self.packets.offset();
            self.packets.set_offset(after);
            // All packets up to the end were read in the first reading.
            let Some(packet) = read else { return Ok(()) };
            let (offset, packet) = packet?;
            self.replay_packet(offset, packet, event).map_err(|kind| Error { offset, kind })?;
            if event.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn end_replay(&mut self) -> Result<(), Error> {
        self.state.replay = None;
        Ok(())
    }

    /// Sets `event` to the event of a packet of the PSB+, if it has one.
    fn replay_packet(
        &mut self,
        offset: u64,
        packet: Packet,
        event: &mut Option<Event>,
    ) -> Result<(), ErrorKind> {
        let maintenance = self.state.replay.as_ref().is_some_and(|replay| replay.maintenance);
        let kind = match packet {
            Packet::Mnt(mnt) if maintenance => EventKind::Mnt { payload: mnt.payload },
            _ if maintenance => return Ok(()),
            Packet::ModeExec(mode) => {
                self.replay_iflags(offset, mode.iflag)?;
                EventKind::ExecMode(exec_mode(mode))
            }
            Packet::ModeTsx(mode) => EventKind::Tsx { speculative: mode.in_tx, aborted: mode.abort },
            Packet::Pip(pip) => EventKind::Paging(pip),
            Packet::Vmcs(vmcs) => EventKind::Vmcs(vmcs),
            Packet::Cbr(cbr) => EventKind::Cbr { ratio: cbr.ratio },
            _ => return Ok(()),
        };
        *event = Some(Event { status: !maintenance, ..self.event(offset, None, kind) });
        Ok(())
    }

    fn replay_iflags(&mut self, offset: u64, enabled: bool) -> Result<(), ErrorKind> {
        if self.config().flags.iflags {
            let event = Event { status: true, ..self.event(offset, None, EventKind::Iflags { enabled }) };
            if !self.state.ready.push(event) {
                return Err(ErrorKind::TooManyWaiting("MODE.Exec"));
            }
        }
        Ok(())
    }
}
