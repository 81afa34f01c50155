//! FUP (flow update: the address of an event), and the packets that need a FUP to be complete.

use super::{
    EventDecoder, EventKind,
    waiting::{Partner, Waiter},
};
use crate::{
    error::ErrorKind,
    keeper::Keeper,
    packet::{Bep, Ip, ModeTsx, Ptw, Trig},
};

impl<K: Keeper> EventDecoder<'_, K> {
    pub(super) fn fup(&mut self, offset: u64, ip: Ip) -> Result<(), ErrorKind> {
        let from = self.state.last_ip.update(ip).ok_or(ErrorKind::IpSuppressed("FUP"))?;
        let claimed = self.state.waiting.any(|waiter| waiter.partner.claims_fup());
        while let Some(waiter) = self.state.waiting.take(|waiter| waiter.partner.is_fup()) {
            // An OVF's own FUP shows that packet generation is on again.
            self.state.tracing |= matches!(waiter.kind, Some(EventKind::Overflow));
            // These events have no place in the code.
            let placed = !matches!(waiter.kind, Some(EventKind::Rsm | EventKind::Sipi { .. }));
            self.publish_waiter(offset, Some(from).filter(|_| placed), waiter)?;
        }
        if claimed {
            return Ok(());
        }
        self.state.waiting.push(Partner::Tip, Some(EventKind::AsyncBranch { from }), "FUP")
    }

    /// Publishes an event that waited.
    pub(super) fn publish_waiter(
        &mut self,
        offset: u64,
        ip: Option<u64>,
        waiter: Waiter,
    ) -> Result<(), ErrorKind> {
        let Some(kind) = waiter.kind else { return Ok(()) };
        let event = self.event(offset, ip, kind);
        self.publish_event(waiter.when.map_or(event, |when| super::Event { when, ..event }))
    }

    /// Reports `kind` at the FUP that follows, or now and without an IP when none follows.
    pub(super) fn at_fup(
        &mut self,
        offset: u64,
        follows: bool,
        kind: EventKind,
        packet: &'static str,
    ) -> Result<(), ErrorKind> {
        if follows {
            self.state.waiting.push(Partner::OwnFup, Some(kind), packet)
        } else {
            self.publish(offset, None, kind)
        }
    }

    pub(super) fn mode_tsx(&mut self, offset: u64, mode: ModeTsx) -> Result<(), ErrorKind> {
        let kind = EventKind::Tsx { speculative: mode.in_tx, aborted: mode.abort };
        if !self.state.tracing {
            return self.publish(offset, None, kind);
        }
        // The FUP of an abort also begins an asynchronous branch.
        let partner = if mode.abort { Partner::AnyFup } else { Partner::OwnFup };
        self.state.waiting.push(partner, Some(kind), "MODE.TSX")
    }

    pub(super) fn ptw(&mut self, offset: u64, ptw: Ptw) -> Result<(), ErrorKind> {
        self.at_fup(offset, ptw.ip, EventKind::Ptwrite(ptw.payload), "PTW")
    }

    pub(super) fn bep(&mut self, bep: Bep) -> Result<(), ErrorKind> {
        if bep.ip { self.state.waiting.push(Partner::OwnFup, None, "BEP") } else { Ok(()) }
    }

    pub(super) fn trig(&mut self, offset: u64, trig: Trig) -> Result<(), ErrorKind> {
        let malformed = |icnt: u16| Err(ErrorKind::MalformedPacket { packet: "TRIG", value: icnt.into() });
        let icnt = match (trig.ip, trig.icnt) {
            // The FUP gives the place, so no count is needed.
            (true, Some(0)) => None,
            (true, icnt) => return malformed(icnt.unwrap_or(0)),
            // While tracing is off there is no place to count from.
            (false, Some(icnt)) if icnt > 0 && !self.state.tracing => return malformed(icnt),
            (false, icnt) => icnt,
        };
        self.at_fup(offset, trig.ip, EventKind::Trigger { trbv: trig.trbv, icnt, mult: trig.mult }, "TRIG")
    }
}
