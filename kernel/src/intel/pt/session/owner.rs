//! Proof that the unit's registers are this trace's, and their restoration.
//!
//! A driver's value may be stale: another unit of this driver, firmware or the processor itself may have used the
//! registers meanwhile. So TraceEn is set only after all registers were written or read back. TraceEn is cleared, and a
//! position counts, only if OUTPUT_BASE names this trace's memory.

use super::PtSession;
use crate::intel::pt::config::Checked;
use crate::intel::pt::unit::PtUnit;
use crate::memory::Frames;
use crate::msr::{GeneralProtection, Msr, OutputBase, OutputMaskPtrs, RtitCtl, RtitStatus, TypedMsr};
use crate::slot::PauseGate;

/// The registers that a trace writes, as they were before it began: those of a trace that is off and resumes later, or
/// leftovers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    status: RtitStatus,
    base: OutputBase,
    pointers: OutputMaskPtrs,
    filters: Checked,
}

impl Found {
    /// Reads the registers that a trace with these filters writes. TraceEn must be 0.
    pub(super) fn read<M: Msr>(unit: &mut PtUnit<M>, filters: &Checked) -> Result<Self, GeneralProtection> {
        let filters = unit.read_filters(filters)?;
        let msr = &mut unit.msr;
        Ok(Self { status: msr.read()?, base: msr.read()?, pointers: msr.read()?, filters })
    }

    /// Writes the registers. TraceEn must be 0. OUTPUT_BASE comes near the end: once it is restored, the others are.
    /// IA32_RTIT_CTL comes last, because this write makes the registers of [`XsavedMsr`](crate::intel::pt::XsavedMsr)
    /// take effect. It becomes 0, which shows a trace that was on before that it was turned off.
    fn restore<M: Msr>(self, unit: &mut PtUnit<M>) -> Result<(), GeneralProtection> {
        unit.write_filters(&self.filters)?;
        unit.write(self.status)?;
        unit.write(self.pointers)?;
        unit.write(self.base)?;
        unit.write(RtitCtl::empty())
    }
}

impl<M: Msr, F: Frames> PtSession<M, F> {
    /// Returns whether the registers name a place in this trace's buffer, as they do after it was paused. TraceEn must
    /// be 0.
    pub(super) fn has_registers(&mut self) -> Result<bool, GeneralProtection> {
        let base: OutputBase = self.unit.msr.read()?;
        let pointers: OutputMaskPtrs = self.unit.msr.read()?;
        Ok(self.buffer.position(base, pointers).is_some())
    }

    /// Returns whether something other than the driver and the gate cleared TraceEn since this trace set it. `ctl` is
    /// IA32_RTIT_CTL without TraceEn.
    pub(super) fn was_turned_off(&self, ctl: RtitCtl) -> bool {
        let Some(clears) = self.lit else { return false };
        let gate_has = clears != self.clears() || self.unit.gate.is_some_and(PauseGate::is_closing);
        // Another unit that was used meanwhile leaves 0.
        ctl != self.ctl || !gate_has
    }

    /// Returns how often the processor's gate cleared TraceEn.
    pub(super) fn clears(&self) -> u64 {
        self.unit.gate.map(PauseGate::clears).unwrap_or_default()
    }

    /// Puts back the registers that were found at the start, if they still name this trace's memory. That memory may
    /// soon have another owner; a trace that was off meanwhile finds its own registers again.
    pub(super) fn put_back(&mut self) -> Result<(), GeneralProtection> {
        let Some(found) = self.found.take() else { return Ok(()) };
        let ctl: RtitCtl = self.unit.msr.read()?;
        if !ctl.contains(RtitCtl::TRACE_EN) && self.has_registers()? {
            found.restore(&mut self.unit)?;
        }
        Ok(())
    }

    /// Clears TraceEn if it is this trace's. A trace owns its memory from its start to its end, so OUTPUT_BASE is
    /// proof, whatever the allocator has given out since.
    pub(super) fn turn_off(&mut self) -> Result<(), GeneralProtection> {
        let ctl: RtitCtl = self.unit.msr.read()?;
        if !ctl.contains(RtitCtl::TRACE_EN) {
            self.turned_off |= self.was_turned_off(ctl);
            self.lit = None;
            self.set_on(false);
            return Ok(());
        }
        // The processor may have moved on to another table of the same buffer.
        if self.buffer.begins_at(self.unit.msr.read()?) {
            self.unit.turn_off(self.ctl)?;
            self.set_on(false);
        } else {
            self.turned_off = true;
            // The gate belongs to the processor, where another trace is on.
            self.on = false;
        }
        self.lit = None;
        Ok(())
    }
}
