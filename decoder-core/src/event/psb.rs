//! PSB+: PSB, the state, PSBEND.
//!
//! Whether tracing is on, and where, is only known when the whole PSB+ was seen; so it is read twice: once for that
//! and to see that it is whole, then for its events.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "Packet Stream Boundary (PSB) Packet".

use super::{Event, EventDecoder, EventKind, is_aside, is_state, mode::exec_mode};
use crate::{
    config::Dialect,
    error::{Error, ErrorKind},
    packet::{PSB, Packet, Packets},
};

/// A PSB+ that is read for its events.
#[derive(Clone, Debug)]
pub(super) struct Replay<'a> {
    packets: Packets<'a>,
    /// Where its first packet behind the PSB is, and where it ends.
    start: u64,
    end: u64,
    /// Its state was given out; what is left is its MNTs.
    pub(super) maintenance: bool,
    /// What comes before its packets.
    first: Option<Event>,
}

impl EventDecoder<'_> {
    /// Reads on to the end of the PSB+ whose PSB is at `psb`.
    pub(super) fn psb(&mut self, psb: u64) -> Result<(), Error> {
        self.counters.psbs += 1;
        self.held = psb;
        if self.overflow
            && self.config().errata.skd010
            && self.resume_by_skd010(psb).map_err(|kind| Error { offset: psb, kind })?
        {
            // It is taken again, behind the overflow.
            self.counters.psbs -= 1;
            return Ok(());
        }
        self.end_overflow(psb).map_err(|kind| Error { offset: psb, kind })?;
        if !self.waiting.is_empty() || self.branch.is_some() || !self.control.is_empty() {
            return Err(Error { offset: psb, kind: ErrorKind::UnexpectedPacket("PSB") });
        }
        self.status_psb = psb;
        self.last_ip.reset();
        self.clock.in_psb = true;
        let start = psb + PSB.len() as u64;
        let mut ip = None;
        loop {
            let Some(packet) = self.packets.next() else { return Ok(()) };
            let (offset, packet) = packet?;
            match packet {
                Packet::PsbEnd => {
                    self.counters.packets += 1;
                    // libipt finds this one a packet early.
                    if ip.is_none()
                        && self.config().dialect == Dialect::Libipt
                        && matches!(self.packets.clone().next(), Some(Ok((_, Packet::Fup(_)))))
                    {
                        return Err(Error { offset, kind: ErrorKind::UnexpectedPacket("FUP") });
                    }
                    self.begin_replay(psb, start, offset, ip, true);
                    return Ok(());
                }
                Packet::Ovf => {
                    // It is taken again, behind the events of the PSB+ that it cut short.
                    self.packets.set_offset(offset);
                    self.begin_replay(psb, start, offset, ip, false);
                    return Ok(());
                }
                Packet::Fup(fup) => ip = self.last_ip.update(fup),
                _ if is_aside(&packet) || is_state(&packet) => {}
                _ => return Err(Error { offset, kind: ErrorKind::UnexpectedPacket(packet.name()) }),
            }
            self.track_time(packet).map_err(|kind| Error { offset, kind })?;
            self.counters.packets += 1;
        }
    }

    /// `whole`: it was not cut short by an OVF. Where it was, its FUP may be among what was lost, and a missing one says
    /// nothing.
    fn begin_replay(&mut self, psb: u64, start: u64, end: u64, ip: Option<u64>, whole: bool) {
        let ip = ip.filter(|_| !(self.config().errata.bdm70 && self.is_enabled_next()));
        let kind = match ip {
            Some(_) => Some(EventKind::Enabled { resumed: false }),
            None => whole.then_some(EventKind::Disabled),
        };
        if kind.is_some() {
            self.tracing = ip.is_some();
        }
        self.clock.in_psb = false;
        self.held = end;
        let first = kind.map(|kind| Event { status: true, ..self.event(psb, ip, kind) });
        let mut packets = self.packets.clone();
        packets.set_offset(start);
        self.replay = Some(Replay { packets, start, end, maintenance: false, first });
    }

    /// Whether a TIP.PGE follows. Then, by erratum BDM70, the FUP in the PSB+ is one that should not be there.
    fn is_enabled_next(&self) -> bool {
        let says_where = |packet: &Result<(u64, Packet), Error>| match packet {
            Ok((_, packet)) => !is_aside(packet) && !is_state(packet),
            Err(_) => true,
        };
        let next = self.packets.clone().find(says_where);
        matches!(next, Some(Ok((_, Packet::TipPge(_)))))
    }

    /// The next event of the PSB+ that is read again.
    pub(super) fn replay(&mut self) -> Result<Option<Event>, Error> {
        let Some(replay) = &mut self.replay else { return Ok(None) };
        if let Some(first) = replay.first.take() {
            return Ok(Some(first));
        }
        loop {
            let Some(replay) = &mut self.replay else { return Ok(None) };
            let (offset, packet) = match replay.packets.next() {
                Some(packet) => packet?,
                None => (replay.end, Packet::PsbEnd),
            };
            if offset >= replay.end {
                if replay.maintenance {
                    self.replay = None;
                    return Ok(None);
                }
                // Those that are not about state come last.
                replay.maintenance = true;
                replay.packets.set_offset(replay.start);
                return Ok(None);
            }
            if replay.maintenance {
                let Packet::Mnt(mnt) = packet else { continue };
                self.held = replay.end;
                return Ok(Some(self.event(offset, None, EventKind::Mnt { payload: mnt.payload })));
            }
            self.held = replay.end;
            let kind = match packet {
                Packet::ModeExec(mode) => {
                    self.mode.know(mode);
                    let iflags = EventKind::Iflags { enabled: mode.iflag };
                    let event = Event { status: true, ..self.event(offset, None, iflags) };
                    if self.config().flags.iflags && !self.ready.push(event) {
                        return Err(Error { offset, kind: ErrorKind::TooManyWaiting("MODE.Exec") });
                    }
                    EventKind::ExecMode(exec_mode(mode))
                }
                Packet::ModeTsx(mode) => EventKind::Tsx { speculative: mode.in_tx, aborted: mode.abort },
                Packet::Pip(pip) => EventKind::Paging(pip),
                Packet::Vmcs(vmcs) => EventKind::Vmcs(vmcs),
                Packet::Cbr(cbr) => EventKind::Cbr { ratio: cbr.ratio },
                _ => continue,
            };
            return Ok(Some(Event { status: true, ..self.event(offset, None, kind) }));
        }
    }
}
