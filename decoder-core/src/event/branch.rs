//! TIP, TIP.PGE, TIP.PGD: branches, synchronous and asynchronous, and where packet generation begins and ends.
//!
//! A FUP that no other packet asked for begins an asynchronous branch; the next TIP or TIP.PGD ends it. What changed
//! on the way (PIP, VMCS, MODE.Exec) lies between them and is reported behind the branch, at its target.

use super::{Event, EventDecoder, EventKind};
use crate::{
    error::ErrorKind,
    packet::{Ip, Pip, Vmcs},
};

/// An asynchronous branch whose target is not there yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Branch {
    pub(super) from: u64,
    pip: Option<Pip>,
    vmcs: Option<Vmcs>,
}

impl Branch {
    pub(super) const fn new(from: u64) -> Self {
        Self { from, pip: None, vmcs: None }
    }
}

impl EventDecoder<'_> {
    #[inline]
    pub(super) fn tip(&mut self, offset: u64, ip: Ip) -> Result<Event, ErrorKind> {
        if !self.tracing || !self.waiting.takes_tip() {
            return Err(ErrorKind::UnexpectedPacket("TIP"));
        }
        let ip = self.last_ip.update(ip);
        let Some(branch) = self.branch.take() else {
            self.publish_modes(offset, ip)?;
            return Ok(self.event(offset, ip, EventKind::Tip));
        };
        self.publish_context(offset, ip, branch)?;
        Ok(self.event(offset, ip, EventKind::AsyncBranch { from: branch.from }))
    }

    pub(super) fn tip_pge(&mut self, offset: u64, ip: Ip) -> Result<(), ErrorKind> {
        if self.tracing || !self.waiting.takes_tip() {
            return Err(ErrorKind::UnexpectedPacket("TIP.PGE"));
        }
        let ip = self.last_ip.update(ip).ok_or(ErrorKind::IpSuppressed("TIP.PGE"))?;
        self.tracing = true;
        self.publish(offset, Some(ip), EventKind::Enabled { resumed: false })?;
        self.publish_modes(offset, Some(ip))
    }

    pub(super) fn tip_pgd(&mut self, offset: u64, ip: Ip) -> Result<(), ErrorKind> {
        if !self.tracing || !self.waiting.takes_tip() {
            return Err(ErrorKind::UnexpectedPacket("TIP.PGD"));
        }
        let ip = self.last_ip.update(ip);
        self.tracing = false;
        match self.branch.take() {
            None => {
                if self.waiting.is_empty() {
                    self.held = self.packets.offset();
                }
                self.publish(offset, ip, EventKind::Disabled)?;
                self.publish_modes(offset, None)
            }
            Some(branch) => {
                self.publish(offset, ip, EventKind::AsyncDisabled { at: branch.from })?;
                self.publish_context(offset, None, branch)
            }
        }
    }

    /// What changed within an asynchronous branch: the VMCS first, then CR3, then the mode.
    fn publish_context(&mut self, offset: u64, ip: Option<u64>, branch: Branch) -> Result<(), ErrorKind> {
        if let Some(vmcs) = branch.vmcs {
            self.publish(offset, ip, EventKind::AsyncVmcs(vmcs))?;
        }
        if let Some(pip) = branch.pip {
            self.publish(offset, ip, EventKind::AsyncPaging(pip))?;
        }
        self.publish_modes(offset, ip)
    }

    pub(super) fn pip(&mut self, offset: u64, pip: Pip) -> Result<(), ErrorKind> {
        match &mut self.branch {
            Some(branch) => branch.pip = Some(pip),
            None => self.publish(offset, None, EventKind::Paging(pip))?,
        }
        Ok(())
    }

    pub(super) fn vmcs(&mut self, offset: u64, vmcs: Vmcs) -> Result<(), ErrorKind> {
        match &mut self.branch {
            Some(branch) => branch.vmcs = Some(vmcs),
            None => self.publish(offset, None, EventKind::Vmcs(vmcs))?,
        }
        Ok(())
    }
}
