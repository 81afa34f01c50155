//! Applies events to the walk's state: tracing on or off, address, mode, address space.

use super::{
    place::{Tracing, binding},
    walker::Walker,
};
use crate::{
    error::ErrorKind,
    event::{Event, EventKind},
    image::Window,
    insn::{Class, Insn, Op},
    keeper::Keeper,
};

impl<K: Keeper> Walker<'_, K> {
    /// Applies an event before the instruction at `ip`, and completes it. Returns true if the event is to be reported.
    pub(super) fn apply(&mut self, event: &mut Event) -> Result<bool, ErrorKind> {
        if event.status {
            self.apply_status(event)?;
            self.at.when = event.when;
            return Ok(self.config().flags.statuses);
        }
        self.check(event)?;
        self.at.when = event.when;
        self.locate(event);
        self.at.loops.consumed();
        if event.ip.is_some() || matches!(event.kind, EventKind::Trigger { icnt: Some(_), .. }) {
            self.at.loops.anchor();
        }
        match event.kind {
            EventKind::Enabled { .. } => {
                let ip = event.ip.ok_or(ErrorKind::IpSuppressed("TIP.PGE"))?;
                event.kind = EventKind::Enabled { resumed: self.at.stopped_at == ip };
                self.resume_at(ip);
            }
            EventKind::Disabled => self.stop(self.at.ip),
            EventKind::AsyncDisabled { at } => self.stop(at),
            EventKind::AsyncBranch { .. } => self.at.ip = event.ip.ok_or(ErrorKind::IpSuppressed("TIP"))?,
            EventKind::Overflow => {
                self.at.returns.clear();
                self.at.mode_lost = true;
                self.at.speculative = false;
                match event.ip {
                    Some(ip) => self.resume_at(ip),
                    None => self.stop(0),
                }
            }
            EventKind::ExecMode(mode) => {
                self.at.mode = mode;
                self.at.mode_lost = false;
            }
            EventKind::Trigger { trbv, icnt: Some(_), mult } if self.at.tracing == Tracing::On => {
                event.ip = Some(self.at.ip);
                event.kind = EventKind::Trigger { trbv, icnt: None, mult };
            }
            _ => self.apply_context(event.kind),
        }
        Ok(true)
    }

    /// Checks that the event fits the state of packet generation and the walk's place.
    fn check(&self, event: &Event) -> Result<(), ErrorKind> {
        let unexpected = match (event.kind, self.at.tracing) {
            (EventKind::Enabled { .. }, Tracing::On) => "TIP.PGE",
            (EventKind::Disabled | EventKind::AsyncDisabled { .. }, Tracing::Off) => "TIP.PGD",
            (EventKind::Stop, Tracing::On) => "TraceStop",
            (EventKind::Trigger { icnt: Some(icnt), .. }, Tracing::On)
                if u64::from(icnt) < self.at.loops.insns_since_anchor() =>
            {
                return Err(ErrorKind::MalformedPacket { packet: "TRIG", value: icnt.into() });
            }
            _ => return Ok(()),
        };
        Err(ErrorKind::UnexpectedPacket(unexpected))
    }

    /// Applies an event after the instruction that caused it, which the walk has not left yet.
    pub(super) fn apply_after(&mut self, event: &Event, insn: Insn) {
        self.at.when = event.when;
        self.locate(event);
        self.at.loops.consumed();
        self.at.bound |= binding(event.kind);
        if event.ip.is_some() {
            // The event's FUP was sent when the instruction was executed, so instructions are counted from here.
            self.at.loops.anchor();
        }
        if matches!(event.kind, EventKind::Disabled) {
            // Tracing may resume at the next instruction: a call returns there, and code after a change of CR3
            // continues there.
            let goes_on = match (insn.class, insn.op) {
                (Class::IndirectCall | Class::FarCall, _) | (_, Op::MovToCr3) => insn.next(self.at.ip),
                _ => 0,
            };
            self.stop(goes_on);
            self.at.executed = None;
        } else {
            self.apply_context(event.kind);
        }
    }

    /// Applies the state that a PSB+ repeats: takes it if the decoder has just synchronised, else compares it.
    fn apply_status(&mut self, event: &Event) -> Result<(), ErrorKind> {
        let mismatch = Err(ErrorKind::StateMismatch { ip: self.at.ip });
        self.at.loops.consumed();
        if matches!(event.kind, EventKind::Enabled { .. } | EventKind::Disabled) {
            self.at.psb = Some(event.offset);
        }
        match (event.kind, self.at.tracing) {
            (EventKind::Enabled { .. }, Tracing::Unknown) => {
                self.resume_at(event.ip.ok_or(ErrorKind::IpSuppressed("FUP"))?);
                self.locate(event);
                self.at.loops.anchor();
            }
            (EventKind::Disabled, Tracing::Unknown) => self.stop(0),
            (EventKind::Enabled { .. }, Tracing::Off) | (EventKind::Disabled, Tracing::On) => {
                return mismatch;
            }
            (EventKind::ExecMode(mode), _) => {
                if self.at.tracing == Tracing::On
                    && self.at.mode.is_some()
                    && !self.at.mode_lost
                    && self.at.mode != mode
                {
                    return mismatch;
                }
                self.at.mode = mode;
                self.at.mode_lost = false;
            }
            (kind, _) => self.apply_context(kind),
        }
        Ok(())
    }

    pub(super) fn apply_context(&mut self, kind: EventKind) {
        match kind {
            EventKind::Paging(pip) | EventKind::AsyncPaging(pip) => {
                self.at.space.cr3 = Some(pip.cr3);
                self.window = Window::default();
            }
            EventKind::Vmcs(vmcs) | EventKind::AsyncVmcs(vmcs) => {
                self.at.space.vmcs = Some(vmcs.base);
                self.window = Window::default();
            }
            EventKind::Tsx { speculative, .. } => self.at.speculative = speculative,
            _ => {}
        }
    }

    pub(super) fn resume_at(&mut self, ip: u64) {
        self.at.tracing = Tracing::On;
        self.at.ip = ip;
    }

    pub(super) fn stop(&mut self, at: u64) {
        self.at.tracing = Tracing::Off;
        self.at.stopped_at = at;
    }
}
