//! FUP, and the packets that need one to be complete.

use super::{EventDecoder, EventKind, branch::Branch};
use crate::{
    error::ErrorKind,
    packet::{Bep, Ip, ModeExec, ModeTsx, Ptw, Trig},
};

/// What waits for a FUP.
#[derive(Clone, Copy, Debug)]
pub(super) enum Waiter {
    /// This event, at the FUP's IP.
    Event(EventKind),
    /// A transaction's abort: an event, and the begin of an asynchronous branch.
    Abort,
    /// MODE.Exec: content with a TIP or TIP.PGE as well.
    Mode(ModeExec),
    /// A packet whose meaning is not known, or of no interest here.
    Ignored,
}

/// The packets that wait for a FUP, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    waiters: [Waiter; Self::CAPACITY],
    len: usize,
    /// How many of them are not modes.
    need_fup: usize,
}

impl Waiting {
    /// Processors send the FUP right behind the packet that needs it.
    const CAPACITY: usize = 6;

    pub(super) const fn new() -> Self {
        Self { waiters: [Waiter::Ignored; Self::CAPACITY], len: 0, need_fup: 0 }
    }

    pub(super) fn push(&mut self, waiter: Waiter, packet: &'static str) -> Result<(), ErrorKind> {
        *self.waiters.get_mut(self.len).ok_or(ErrorKind::TooManyWaiting(packet))? = waiter;
        self.len += 1;
        self.need_fup += usize::from(!matches!(waiter, Waiter::Mode(_)));
        Ok(())
    }

    pub(super) fn as_slice(&self) -> &[Waiter] {
        self.waiters.get(..self.len).unwrap_or_default()
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Nothing waits that a TIP would leave waiting.
    #[inline]
    pub(super) const fn takes_tip(&self) -> bool {
        self.need_fup == 0
    }
}

impl EventDecoder<'_> {
    pub(super) fn fup(&mut self, offset: u64, ip: Ip) -> Result<(), ErrorKind> {
        let ip = self.last_ip.update(ip).ok_or(ErrorKind::IpSuppressed("FUP"))?;
        if !self.waiting.is_empty() {
            return self.publish_waiting(offset, Some(ip));
        }
        if !self.tracing || self.branch.is_some() {
            return Err(ErrorKind::UnexpectedPacket("FUP"));
        }
        self.branch = Some(Branch::new(ip));
        self.publish_shared(offset, ip)
    }

    /// Publishes what waits for a FUP.
    pub(super) fn publish_waiting(&mut self, offset: u64, ip: Option<u64>) -> Result<(), ErrorKind> {
        let waiting = core::mem::replace(&mut self.waiting, Waiting::new());
        for &waiter in waiting.as_slice() {
            match waiter {
                Waiter::Event(kind) => self.publish(offset, ip, kind)?,
                Waiter::Abort => {
                    self.publish(offset, ip, EventKind::Tsx { speculative: false, aborted: true })?;
                    self.branch = ip.map(Branch::new);
                }
                Waiter::Mode(mode) => self.publish_mode(offset, ip, mode)?,
                Waiter::Ignored => {}
            }
        }
        Ok(())
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
            self.waiting.push(Waiter::Event(kind), packet)
        } else {
            self.publish(offset, None, kind)
        }
    }

    pub(super) fn mode_tsx(&mut self, offset: u64, mode: ModeTsx) -> Result<(), ErrorKind> {
        let kind = EventKind::Tsx { speculative: mode.in_tx, aborted: mode.abort };
        if !self.tracing {
            return self.publish(offset, None, kind);
        }
        self.waiting.push(if mode.abort { Waiter::Abort } else { Waiter::Event(kind) }, "MODE.TSX")
    }

    pub(super) fn ptw(&mut self, offset: u64, ptw: Ptw) -> Result<(), ErrorKind> {
        self.at_fup(offset, ptw.ip, EventKind::Ptwrite(ptw.payload), "PTW")
    }

    pub(super) fn bep(&mut self, bep: Bep) -> Result<(), ErrorKind> {
        if bep.ip { self.waiting.push(Waiter::Ignored, "BEP") } else { Ok(()) }
    }

    pub(super) fn trig(&mut self, offset: u64, trig: Trig) -> Result<(), ErrorKind> {
        let icnt = match (trig.ip, trig.icnt) {
            // The FUP says where it was, so there is nothing to count.
            (true, Some(0)) => None,
            (true, icnt) => {
                return Err(ErrorKind::MalformedPacket { packet: "TRIG", value: icnt.map_or(0, u64::from) });
            }
            (false, icnt) => icnt,
        };
        self.at_fup(offset, trig.ip, EventKind::Trigger { trbv: trig.trbv, icnt, mult: trig.mult }, "TRIG")
    }
}
