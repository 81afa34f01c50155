//! Reports events, and applies them to the walk.

use super::{block::FlowStatus, decoder::BlockDecoder};
use crate::{
    code::{Answer, Code},
    event::{PtEvent, flag, kind},
};
use pugmark_decoder_core::{image::Asid, mode::ExecMode};

impl BlockDecoder<'_> {
    /// Returns the pending event, and the status after it.
    ///
    /// # Errors
    /// An error of the event decoder, which is kept until here; an event that contradicts the walk.
    pub fn event(&mut self) -> Answer<(PtEvent, FlowStatus)> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut event = self.event;
        if event.kind == kind::TNT {
            event = self.tick_of_tnt()?;
            if self.event.variant[1] == 0 {
                self.next_event()?;
            }
        } else {
            if self.awaited_ip().is_some_and(|ip| ip != self.ip) {
                return Err(Code::BadQuery.status());
            }
            self.apply(&mut event)?;
            self.next_event()?;
        }
        Ok((event, self.trailing_event(None)?))
    }

    /// Makes a tick of a TNT, which stays the next event: its time says that there was one.
    fn tick_of_tnt(&mut self) -> Answer<PtEvent> {
        let tnt = self.event;
        if !self.options.ticks || !tnt.has(flag::HAS_TSC) || tnt.tsc == self.tsc {
            return Err(Code::BadQuery.status());
        }
        self.tsc = tnt.tsc;
        Ok(PtEvent {
            kind: kind::TICK,
            flags: flag::HAS_TSC,
            reserved: [0; 2],
            variant: [self.ip, 0, 0, 0],
            ..tnt
        })
    }

    /// Makes a tick of a TIP that was used, from the address of its branch, or goes to the next event.
    pub(super) fn tick_or_next(&mut self, from: u64) -> Answer<()> {
        if self.options.ticks && self.event.tsc != self.tsc {
            self.event.kind = kind::TICK;
            self.event.variant[0] = from;
            return Ok(());
        }
        self.next_event()
    }

    /// Goes to the next event.
    pub(super) fn next_event(&mut self) -> Answer<()> {
        self.tsc = self.event.tsc;
        self.anchor()?;
        self.read_event();
        Ok(())
    }

    /// Counts instructions from the event's address, if it gives one.
    fn anchor(&mut self) -> Answer<()> {
        let suppressed = self.event.has(flag::IP_SUPPRESSED);
        self.since_anchor = match self.event.kind {
            kind::PAGING
            | kind::SIPI
            | kind::CBR
            | kind::MNT
            | kind::STOP
            | kind::VMCS
            | kind::MWAIT
            | kind::PWRE
            | kind::PWRX => self.since_anchor,
            kind::DISABLED | kind::ASYNC_DISABLED => None,
            kind::OVERFLOW if suppressed => None,
            kind::ENABLED | kind::ASYNC_BRANCH | kind::TIP | kind::TNT if suppressed => {
                return Err(Code::Internal.status());
            }
            _ if suppressed => self.since_anchor,
            _ => Some(0),
        };
        Ok(())
    }

    fn apply(&mut self, event: &mut PtEvent) -> Answer<()> {
        let is_status = event.has(flag::STATUS_UPDATE);
        let [first, second, ..] = event.variant;
        match event.kind {
            kind::ENABLED => {
                if first == self.ip {
                    event.variant[1] |= flag::RESUMED;
                }
                return self.enable(event);
            }
            kind::DISABLED | kind::ASYNC_DISABLED if is_status => return mismatch_if(self.enabled),
            kind::DISABLED | kind::ASYNC_DISABLED => {
                context(self.enabled)?;
                // The address stays: tracing may be enabled again there.
                self.enabled = false;
                self.since_anchor = self.since_anchor.map(|_| 0);
            }
            kind::ASYNC_BRANCH => {
                context(self.enabled)?;
                self.ip = second;
            }
            kind::PAGING | kind::ASYNC_PAGING | kind::VMCS | kind::ASYNC_VMCS => self.change_space(event),
            kind::OVERFLOW => {
                let ip = event.ip();
                self.enabled = ip.is_some();
                self.ip = ip.unwrap_or(0);
                self.speculative = false;
            }
            kind::EXEC_MODE => {
                let mode = exec_mode(first);
                mismatch_if(is_status && self.enabled && self.mode.is_some() && self.mode != mode)?;
                self.mode = mode;
            }
            kind::TSX => self.speculative = second & flag::SPECULATIVE != 0,
            kind::STOP => context(!self.enabled)?,
            kind::TIP => return Err(Code::BadQuery.status()),
            kind::TRIG => {
                let is_elsewhere = event.ip().is_some_and(|ip| ip != self.ip);
                if self.enabled && is_elsewhere {
                    return Err(Code::BadQuery.status());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn enable(&mut self, event: &PtEvent) -> Answer<()> {
        if event.has(flag::STATUS_UPDATE) {
            return mismatch_if(!self.enabled);
        }
        let ip = event.ip().ok_or(Code::NoIp.status())?;
        context(!self.enabled)?;
        (self.ip, self.enabled) = (ip, true);
        Ok(())
    }

    /// Applies a new CR3 or VMCS.
    pub(super) fn change_space(&mut self, event: &PtEvent) {
        let [value, ..] = event.variant;
        let space = self.memory.space();
        self.memory.set_space(match event.kind {
            kind::PAGING | kind::ASYNC_PAGING => Asid { cr3: Some(value), ..space },
            _ => Asid { vmcs: Some(value), ..space },
        });
    }
}

/// Fails if an event needs tracing to be on, or off, and it is not.
fn context(fits: bool) -> Answer<()> {
    if fits { Ok(()) } else { Err(Code::BadContext.status()) }
}

/// Fails if the state at a PSB differs.
fn mismatch_if(differs: bool) -> Answer<()> {
    if differs { Err(Code::BadStatusUpdate.status()) } else { Ok(()) }
}

/// Converts `enum pt_exec_mode`.
fn exec_mode(mode: u64) -> Option<ExecMode> {
    match mode {
        1 => Some(ExecMode::Bits16),
        2 => Some(ExecMode::Bits32),
        3 => Some(ExecMode::Bits64),
        _ => None,
    }
}
