//! Sets TraceEn, unless the trace is paused.

use super::PtSession;
use crate::intel::pt::detect::other_recorder;
use crate::intel::pt::{OperationalError, PtState};
use crate::lifecycle::Halted;
use crate::memory::Frames;
use crate::msr::{GeneralProtection, Msr, OutputBase, OutputMaskPtrs, RtitCtl, RtitStatus, TypedMsr};
use crate::slot::PauseGate;
use core::sync::atomic::{Ordering, fence};

impl<M: Msr, F: Frames> PtSession<M, F> {
    /// Returns whether the processor's gate is closed.
    pub(super) fn is_paused(&self) -> bool {
        self.unit.gate.is_some_and(PauseGate::is_closed)
    }

    /// Sets TraceEn, and checks whether the processor accepts tables and memory. If the gate is closed, only TraceEn
    /// differs from a trace that is on.
    pub(super) fn enable(&mut self, _: Halted) -> Result<Option<OperationalError>, GeneralProtection> {
        // Tables and cleared memory must be written before the processor reads or writes there.
        fence(Ordering::SeqCst);
        self.turn_on()?;
        self.state = PtState::Tracing;
        if self.is_paused() {
            return Ok(None);
        }
        let status: RtitStatus = self.unit.msr.read()?;
        if !status.contains(RtitStatus::ERROR) {
            return Ok(None);
        }
        let base = self.unit.msr.read()?;
        let pointers = self.unit.msr.read()?;
        let error = self.operational_error(status, base, pointers);
        self.error = Some(error);
        Ok(Some(error))
    }

    /// Sets TraceEn if the gate is open.
    fn turn_on(&mut self) -> Result<(), GeneralProtection> {
        // Before the write, because code that closes the gate right after it looks for a trace that is on.
        self.set_on(true);
        self.lit = None;
        let clears = self.clears();
        if !self.is_paused() {
            self.unit.write(self.ctl.union(RtitCtl::TRACE_EN)).inspect_err(|_| self.set_on(false))?;
            self.lit = Some(clears);
        }
        self.unread = true;
        self.resync = false;
        // Code that closed the gate between the check and the write has found TraceEn 0.
        if !self.is_paused() {
            return Ok(());
        }
        self.lit = None;
        self.unit.turn_off(self.ctl)
    }

    /// Sets TraceEn of a trace that was paused. Returns `false` if the trace cannot resume so: another owner records
    /// branches, the registers are no longer this trace's, or the pause found the trace turned off.
    pub(in super::super) fn resume_paused(&mut self) -> Result<bool, GeneralProtection> {
        if !self.on || self.is_paused() {
            return Ok(true);
        }
        let ctl: RtitCtl = self.unit.msr.read()?;
        if ctl.contains(RtitCtl::TRACE_EN) {
            return Ok(self.buffer.begins_at(self.unit.msr.read()?));
        }
        if other_recorder(&mut self.unit.msr, &self.unit.capabilities).is_some() {
            return Ok(false);
        }
        if !self.has_registers()? || self.was_turned_off(ctl) {
            return Ok(false);
        }
        self.turn_on().map(|()| true)
    }

    /// Notes whether the registers are those of a trace whose TraceEn is set, or would be if it were not paused.
    pub(super) fn set_on(&mut self, on: bool) {
        self.on = on;
        if let Some(gate) = self.unit.gate {
            gate.note(on);
        }
    }

    pub(super) fn operational_error(
        &self,
        status: RtitStatus,
        base: OutputBase,
        pointers: OutputMaskPtrs,
    ) -> OperationalError {
        OperationalError { status, base, pointers, entry: self.buffer.entry_at(base, pointers) }
    }
}
