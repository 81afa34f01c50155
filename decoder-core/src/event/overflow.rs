//! OVF: packets were lost.
//!
//! If a FUP follows, tracing continues at its IP. Any other control-flow packet means that tracing is off.
//!
//! Source: SDM vol. 3, Intel Processor Trace, "Packet Definitions", "Overflow (OVF) Packet".

use super::{
    EventDecoder, EventKind, Stamp, is_aside,
    waiting::{Partner, Waiter},
};
use crate::{
    error::{Error, ErrorKind},
    keeper::Keeper,
    packet::Packet,
};

/// The packet after an OVF.
enum AfterOverflow {
    /// A FUP; the packet after it is at this offset.
    Fup(u64),
    /// A packet that can also be sent while tracing is off.
    Other,
    /// The end of the trace.
    End,
}

impl<K: Keeper> EventDecoder<'_, K> {
    /// Applies the OVF at `offset`.
    pub(super) fn ovf(&mut self, offset: u64, packet: Packet) -> Result<(), Error> {
        self.enter_overflow(offset, packet)?;
        self.continue_after(offset)
    }

    /// Publishes waiting events, and forgets the state that an OVF makes unknown.
    fn enter_overflow(&mut self, offset: u64, packet: Packet) -> Result<(), Error> {
        self.track_time(packet).map_err(|kind| Error { offset, kind })?;
        self.state.counters.overflows += 1;
        if !self.state.tracing {
            self.publish_unplaced(offset).map_err(|kind| Error { offset, kind })?;
        }
        self.state.waiting.clear();
        self.state.mode = None;
        self.state.tracing = false;
        Ok(())
    }

    fn continue_after(&mut self, offset: u64) -> Result<(), Error> {
        match self.after_overflow() {
            Ok(AfterOverflow::Fup(end)) => self.fup_after(offset, end),
            // The FUP of an OVF follows at once. Many timing packets come only while tracing is off.
            Ok(_) | Err(Error { kind: ErrorKind::LooksTooFar, .. }) => self.no_fup_after(offset, Ok(())),
            Err(error) if matches!(error.kind, ErrorKind::EndOfSlice) => Err(error),
            Err(error) => self.no_fup_after(offset, Err(error)),
        }
    }

    /// Continues at the FUP that follows the OVF at `offset` and ends at `end`.
    fn fup_after(&mut self, offset: u64, end: u64) -> Result<(), Error> {
        let when = Some(self.state.clock.now());
        if self.config().errata.apl12 && unless_far(self.went_off_by_apl12(end))? {
            return self.pass_fup_by_apl12(offset, end);
        }
        let waiter = Waiter { partner: Partner::OwnFup, kind: Some(EventKind::Overflow), when };
        self.state.waiting.push_with(waiter, "OVF").map_err(|kind| Error { offset, kind })
    }

    /// Continues after the OVF at `offset` without a FUP. `others` is `Ok` if the packets after it do not concern
    /// control flow, as the manual requires; an erratum may explain an error.
    fn no_fup_after(&mut self, offset: u64, others: Result<(), Error>) -> Result<(), Error> {
        let when = self.state.clock.now();
        let unexpected = matches!(others, Err(Error { kind: ErrorKind::UnexpectedPacket(_), .. }));
        match self.repair(offset, when, unexpected) {
            Ok(false) if others.is_ok() => {
                self.publish_overflow(offset, None, when).map_err(|kind| Error { offset, kind })
            }
            Ok(false) => others,
            repaired => repaired.map(|_| ()),
        }
    }

    /// Continues according to the errata; returns `false` if none applies.
    fn repair(&mut self, offset: u64, when: Stamp, unexpected: bool) -> Result<bool, Error> {
        if self.config().errata.skd010 {
            let repaired = unless_far(self.resume_by_skd010(offset, when));
            if !matches!(repaired, Ok(false)) {
                return repaired;
            }
        }
        match self.config().errata.apl11 && unexpected {
            true => unless_far(self.go_off_by_apl11(offset, when)),
            false => Ok(false),
        }
    }

    /// Looks for a FUP after the OVF. Only packets that do not concern control flow may precede it.
    fn after_overflow(&self) -> Result<AfterOverflow, Error> {
        let mut packets = self.packets.clone();
        while let Some(packet) = packets.next() {
            let (offset, packet) = packet?;
            match packet {
                Packet::Fup(_) => return Ok(AfterOverflow::Fup(packets.offset())),
                Packet::TntShort(_)
                | Packet::TntLong(_)
                | Packet::Tip(_)
                | Packet::TipPgd(_)
                | Packet::PsbEnd => {
                    return Err(Error { offset, kind: ErrorKind::UnexpectedPacket(packet.name()) });
                }
                _ if is_aside(&packet) => {}
                _ => return Ok(AfterOverflow::Other),
            }
        }
        Ok(AfterOverflow::End)
    }

    /// Publishes the overflow with the time of the OVF, not with that of the packet that shows its consequence.
    pub(super) fn publish_overflow(
        &mut self,
        offset: u64,
        ip: Option<u64>,
        when: Stamp,
    ) -> Result<(), ErrorKind> {
        let event = self.event(offset, ip, EventKind::Overflow);
        self.publish_event(super::Event { when, ..event })
    }
}

/// Returns false if a search goes too far: errata show soon after the OVF, or not at all.
fn unless_far(found: Result<bool, Error>) -> Result<bool, Error> {
    match found {
        Err(Error { kind: ErrorKind::LooksTooFar, .. }) => Ok(false),
        found => found,
    }
}
