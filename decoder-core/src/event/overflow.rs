//! OVF: packets were lost.
//!
//! When a FUP follows, tracing continues at its IP. Any other packet about the flow means that tracing is off.
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

/// What follows an OVF.
enum AfterOverflow {
    /// A FUP; the packet after it is at this offset.
    Fup(u64),
    /// A packet that can also be sent while tracing is off.
    Other,
    /// The end of the trace.
    End,
}

impl<K: Keeper> EventDecoder<'_, K> {
    pub(super) fn ovf(&mut self, offset: u64) -> Result<(), Error> {
        self.state.counters.overflows += 1;
        self.state.held = offset;
        let dialect = self.config().dialect;
        let here = |kind| Error { offset, kind };
        if !self.state.tracing {
            self.publish_unplaced(offset).map_err(here)?;
        }
        self.state.waiting.clear();
        self.state.mode = None;
        self.state.tracing = false;
        if dialect.forgets_last_ip_at_overflow() {
            self.state.last_ip.reset();
        }
        let blame = |error: Error| if dialect.blames_overflow() { Error { offset, ..error } } else { error };
        let when = self.state.clock.now();
        let after = match self.after_overflow() {
            Err(error @ Error { kind: ErrorKind::EndOfSlice, .. }) => return Err(error),
            // The FUP of an OVF follows at once. Many timing packets come while tracing is off.
            Err(Error { kind: ErrorKind::LooksTooFar, .. }) => Ok(AfterOverflow::Other),
            after => after,
        };
        if let Ok(AfterOverflow::Fup(end)) = after {
            if self.config().errata.apl12 && unless_far(self.went_off_by_apl12(end)).map_err(blame)? {
                return self.pass_fup_by_apl12(offset, end).map_err(blame);
            }
            let waiter =
                Waiter { partner: Partner::OwnFup, kind: Some(EventKind::Overflow), when: Some(when) };
            return self.state.waiting.push_with(waiter, "OVF").map_err(here);
        }
        if self.config().errata.skd010 && unless_far(self.resume_by_skd010(offset, when)).map_err(blame)? {
            return Ok(());
        }
        let unexpected = matches!(after, Err(Error { kind: ErrorKind::UnexpectedPacket(_), .. }));
        if self.config().errata.apl11
            && unexpected
            && unless_far(self.go_off_by_apl11(offset, when)).map_err(blame)?
        {
            return Ok(());
        }
        after.map_err(blame)?;
        self.state.held = self.next_offset();
        self.publish_overflow(offset, None, when).map_err(here)
    }

    /// Looks for a FUP after the OVF, with only packets before it that say nothing about the flow.
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

/// What an erratum is about comes close after the OVF, or not at all.
fn unless_far(found: Result<bool, Error>) -> Result<bool, Error> {
    match found {
        Err(Error { kind: ErrorKind::LooksTooFar, .. }) => Ok(false),
        found => found,
    }
}
