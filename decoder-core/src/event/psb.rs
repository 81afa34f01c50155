//! PSB+: the packets from PSB to PSBEND, which repeat the current state so that a decoder can start there.
//!
//! Only the whole PSB+ shows whether tracing is on, and where. So it is read twice: first for that and to check that
//! it is complete, then for its events.
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
    /// Its state was reported; only its MNTs are left.
    pub(super) maintenance: bool,
    /// The event that is reported before those of its packets.
    first: Option<Event>,
}

impl<K: Keeper> EventDecoder<'_, K> {
    /// Reads on to the end of the PSB+ whose PSB is at `psb`.
    pub(super) fn psb(&mut self, psb: u64) -> Result<(), Error> {
        self.state.counters.psbs += 1;
        self.state.held = psb;
        let power = |partner| matches!(partner, Partner::Exstop | Partner::Pwrx);
        let dialect = self.config().dialect;
        if self.state.waiting.any(|waiter| !(dialect.expects_psb_in_sleep() && power(waiter.partner))) {
            return Err(Error { offset: psb, kind: ErrorKind::UnexpectedPacket("PSB") });
        }
        self.state.status_psb = psb;
        self.state.last_ip.reset();
        let suspect_mtc = dialect.allows_for_skl168() && self.config().errata.skl168;
        self.state.clock.enter_psb(suspect_mtc);
        let start = psb + PSB.len() as u64;
        let mut ip = None;
        loop {
            let Some(packet) = self.packets.next() else { return Ok(()) };
            let (offset, packet) = packet?;
            let here = |kind| Error { offset, kind };
            match packet {
                Packet::PsbEnd => {
                    self.state.counters.packets += 1;
                    self.begin_replay(psb, start, offset, ip, true);
                    return Ok(());
                }
                Packet::Ovf => {
                    // The OVF is read again after the events of the PSB+ that it cut short.
                    self.packets.set_offset(offset);
                    self.begin_replay(psb, start, offset, ip, false);
                    return Ok(());
                }
                Packet::Fup(fup) => {
                    let stray = self.config().errata.bdm70
                        && self.is_enabled_next().map_err(|error| Error { offset, ..error })?;
                    ip = if stray { None } else { self.state.last_ip.update(fup) };
                }
                Packet::ModeExec(mode) => self.check_mode(mode).map_err(here)?,
                _ if is_aside(&packet) || is_state(&packet) => {}
                _ => return Err(here(ErrorKind::UnexpectedPacket(packet.name()))),
            }
            self.track_time(packet).map_err(here)?;
            self.state.counters.packets += 1;
        }
    }

    /// Starts the second reading. `whole`: no OVF cut the PSB+ short. If one did, the FUP may be lost, so a missing
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
        // libipt holds the end of the PSB+ while it reports its events.
        self.state.held = end;
        let first = kind.map(|kind| Event { status: true, ..self.event(psb, ip, kind) });
        self.state.replay = Some(Replay { next: start, start, end, maintenance: false, first });
    }

    /// Whether a TIP.PGE follows. If so, by erratum BDM70, the FUP in the PSB+ should not be there.
    fn is_enabled_next(&self) -> Result<bool, Error> {
        for packet in self.packets.clone() {
            match packet?.1 {
                Packet::TipPge(_) => return Ok(true),
                Packet::PsbEnd => {}
                packet if is_aside(&packet) || is_state(&packet) => {}
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// The next event of the PSB+ in its second reading.
    pub(super) fn replay(&mut self) -> Result<Option<Event>, Error> {
        let Some(replay) = &mut self.state.replay else { return Ok(None) };
        if let Some(first) = replay.first.take() {
            return Ok(Some(first));
        }
        loop {
            let Some(replay) = &mut self.state.replay else { return Ok(None) };
            if replay.next >= replay.end {
                if replay.maintenance {
                    self.state.replay = None;
                    return Ok(None);
                }
                // Events that are not about state come last.
                (replay.maintenance, replay.next) = (true, replay.start);
                return Ok(None);
            }
            let after = self.packets.offset();
            self.packets.set_offset(replay.next);
            let read = self.packets.next();
            replay.next = self.packets.offset();
            self.packets.set_offset(after);
            // All packets up to the end were read before.
            let Some(packet) = read else { return Ok(None) };
            let (offset, packet) = packet?;
            if replay.maintenance {
                let Packet::Mnt(mnt) = packet else { continue };
                return Ok(Some(self.event(offset, None, EventKind::Mnt { payload: mnt.payload })));
            }
            let kind = match packet {
                Packet::ModeExec(mode) => {
                    let iflags = EventKind::Iflags { enabled: mode.iflag };
                    let event = Event { status: true, ..self.event(offset, None, iflags) };
                    if self.config().flags.iflags && !self.state.ready.push(event) {
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
