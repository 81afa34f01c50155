//! TIP (target IP), TIP.PGE and TIP.PGD (packet generation enabled and disabled): branches, synchronous and
//! asynchronous, and the places where tracing starts and ends.
//!
//! A FUP that no other packet needs begins an asynchronous branch (an interrupt or the like); the next TIP or TIP.PGD
//! ends it. State that the branch changes (PIP, VMCS, MODE.Exec) comes between the two and is reported after the
//! branch, at its target.

use super::{
    Event, EventDecoder, EventKind,
    waiting::{Partner, Waiter},
};
use crate::{
    error::ErrorKind,
    keeper::Keeper,
    packet::{Ip, Pip, Vmcs},
};

impl<K: Keeper> EventDecoder<'_, K> {
    #[inline]
    pub(super) fn tip(&mut self, offset: u64, ip: Ip, event: &mut Option<Event>) -> Result<(), ErrorKind> {
        if !self.state.tracing {
            return Err(ErrorKind::UnexpectedPacket("TIP"));
        }
        let ip = self.state.last_ip.update(ip);
        if !self.state.waiting.is_empty() {
            return self.tip_for_waiters(offset, ip);
        }
        *event = Some(self.event(offset, ip, EventKind::Tip));
        Ok(())
    }

    fn tip_for_waiters(&mut self, offset: u64, ip: Option<u64>) -> Result<(), ErrorKind> {
        let branch = self.state.waiting.take(is_branch);
        let kind = branch.and_then(|branch| branch.kind).unwrap_or(EventKind::Tip);
        self.publish(offset, ip, kind)?;
        self.publish_for_tip(offset, ip)
    }

    pub(super) fn tip_pge(&mut self, offset: u64, ip: Ip) -> Result<(), ErrorKind> {
        let ip = Some(self.state.last_ip.update(ip).ok_or(ErrorKind::IpSuppressed("TIP.PGE"))?);
        self.state.tracing = true;
        self.publish(offset, ip, EventKind::Enabled { resumed: false })?;
        if self.state.waiting.any(|waiter| waiter.partner == Partner::Tip) {
            return Err(ErrorKind::UnexpectedPacket("TIP.PGE"));
        }
        self.publish_for_tip(offset, ip)
    }

    pub(super) fn tip_pgd(&mut self, offset: u64, ip: Ip) -> Result<(), ErrorKind> {
        let ip = self.state.last_ip.update(ip);
        let branch = self.state.waiting.take(is_branch).and_then(|branch| branch.kind);
        if let Some(EventKind::AsyncBranch { from: at }) = branch {
            self.state.tracing = false;
            self.publish(offset, ip, EventKind::AsyncDisabled { at })?;
            return self.publish_for_tip_pgd(offset);
        }
        self.state.tracing = false;
        self.publish(offset, ip, EventKind::Disabled)?;
        self.publish_for_tip_pgd(offset)
    }

    /// Publishes the events that wait for a TIP, at a TIP.PGD in its place.
    fn publish_for_tip_pgd(&mut self, offset: u64) -> Result<(), ErrorKind> {
        while let Some(waiter) = self.state.waiting.take(|waiter| waiter.partner.is_tip()) {
            self.publish_waiter(offset, None, waiter)?;
        }
        Ok(())
    }

    /// Publishes the events that wait for a TIP.
    fn publish_for_tip(&mut self, offset: u64, ip: Option<u64>) -> Result<(), ErrorKind> {
        while let Some(waiter) = self.state.waiting.take(|waiter| waiter.partner.is_tip()) {
            if matches!(waiter.kind, Some(EventKind::AsyncBranch { .. })) {
                return Err(ErrorKind::UnexpectedPacket("FUP"));
            }
            self.publish_waiter(offset, ip, waiter)?;
        }
        Ok(())
    }

    pub(super) fn pip(&mut self, offset: u64, pip: Pip) -> Result<(), ErrorKind> {
        if self.state.waiting.any(is_branch) {
            return self.state.waiting.push(Partner::Tip, Some(EventKind::AsyncPaging(pip)), "PIP");
        }
        self.publish(offset, None, EventKind::Paging(pip))
    }

    pub(super) fn vmcs(&mut self, offset: u64, vmcs: Vmcs) -> Result<(), ErrorKind> {
        if !self.state.waiting.any(is_branch) {
            return self.publish(offset, None, EventKind::Vmcs(vmcs));
        }
        // The VMCS precedes a change of CR3, because that change is within the VMCS.
        let mut last = Some(EventKind::AsyncVmcs(vmcs));
        if let Some(paging) =
            self.state.waiting.find(|waiter| matches!(waiter.kind, Some(EventKind::AsyncPaging(_))))
        {
            core::mem::swap(&mut paging.kind, &mut last);
        }
        self.state.waiting.push(Partner::Tip, last, "VMCS")
    }
}

/// Returns true if the event is the start of an asynchronous branch.
pub(super) fn is_branch(waiter: &Waiter) -> bool {
    matches!(waiter.kind, Some(EventKind::AsyncBranch { .. }))
}
