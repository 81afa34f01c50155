//! The Branch Trace Store (BTS): a record in memory for each taken branch.
//!
//! The unit owns IA32_DEBUGCTL and IA32_DS_AREA. `intel/debugctl.rs` has each processor's writable bits of
//! IA32_DEBUGCTL, `intel/ds` the addresses that IA32_DS_AREA accepts. This file selects the branches that make a
//! record, and handles a full buffer.
//!
//! Source: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring Features, "Branch Trace Messages", "Branch
//! Trace Store (BTS)", "BTS and DS Save Area", "Setting Up the BTS Buffer" and "Setting Up CPL-Qualified BTS".

#[cfg(test)]
pub(crate) mod tests;

use pugmark_decoder_core::bts::{BranchRecord, Layout};
use pugmark_decoder_core::ds::Width;

use crate::intel::ds::DsBuffer;
use crate::intel::registers::{OVF_DS_BUFFER, msr};
use crate::intel::taken_branch::TakenBranch;
use crate::intel::unit::{Bus, InstructionInfo, SharedState, TracingUnit};
use crate::intel::{IntelProfile, IntelSettings};
use crate::{Delivery, ExecMode, GeneralProtection, Retired};

/// Machine checks end recording.
const MACHINE_CHECK: u8 = 18;

#[derive(Debug)]
pub(crate) struct Bts {
    present: bool,
    predicted: bool,
    sets_status: bool,
}

impl Bts {
    pub(crate) fn new(profile: &IntelProfile, settings: IntelSettings) -> Self {
        let predicted = profile.debug_store.as_ref().is_some_and(|store| store.predicted);
        Self { present: profile.debug_store.is_some(), predicted, sets_status: settings.bts_sets_status }
    }

    /// Handles a branch trace message. In cases that the manual calls undefined nothing is stored, and a violation is
    /// counted.
    fn message(&self, taken: &TakenBranch, mode: ExecMode, bus: &mut Bus) {
        if !bus.shared.debugctl.stores_branches() || bus.shared.debugctl.leaves_out_level(taken.cpl) {
            return;
        }
        let width = bus.shared.ds.width(mode);
        let layout = match width {
            Width::Bits32 => Layout::Bits32,
            Width::Bits64 => Layout::Bits64,
        };
        let Some(buffer) = bus.ds_buffer(DsBuffer::Bts, width) else { return };
        let size = layout.record_bytes() as u64;
        let fits = |index: u64| index.checked_add(size).is_some_and(|end| end <= buffer.absolute_maximum);
        if !fits(buffer.base) || buffer.index < buffer.base {
            bus.shared.violations.ds_misconfigured += 1;
            return;
        }
        if !fits(buffer.index) {
            // In circular mode, the index never remains there.
            bus.shared.violations.branch_records_dropped += 1;
            return;
        }
        let predicted = taken.predicted && self.predicted;
        let record = BranchRecord { from: taken.from, to: taken.to, predicted };
        let mut bytes = [0; 24];
        if record.emit(layout, &mut bytes).is_err() {
            return;
        }
        let next = buffer.index + size;
        let index = if fits(next) || bus.shared.debugctl.btint() { next } else { buffer.base };
        let bytes = &bytes[..layout.record_bytes()];
        if bus.ds_store(DsBuffer::Bts, width, (buffer.index, bytes), index).is_none() {
            return;
        }
        if buffer.index < buffer.interrupt_threshold && next >= buffer.interrupt_threshold {
            // Clearing BTINT does not prevent this interrupt: the threshold must also be out of reach.
            bus.shared.violations.circular_interrupts += u32::from(!bus.shared.debugctl.btint());
            bus.raise_pmi(if self.sets_status { OVF_DS_BUFFER } else { 0 });
        }
    }
}

impl TracingUnit for Bts {
    fn owns_msr(&self, number: u32) -> bool {
        self.present && matches!(number, msr::IA32_DEBUGCTL | msr::IA32_DS_AREA)
    }

    fn read_msr(&self, number: u32, shared: &SharedState) -> Result<u64, GeneralProtection> {
        match number {
            msr::IA32_DEBUGCTL => Ok(shared.debugctl.value()),
            msr::IA32_DS_AREA => Ok(shared.ds.base()),
            _ => Err(GeneralProtection),
        }
    }

    fn write_msr(
        &mut self,
        number: u32,
        value: u64,
        at: &Retired,
        bus: &mut Bus,
    ) -> Result<(), GeneralProtection> {
        match number {
            msr::IA32_DEBUGCTL => bus.shared.debugctl.write(value),
            msr::IA32_DS_AREA => bus.shared.ds.write_base(value, &at.before),
            _ => Err(GeneralProtection),
        }
    }

    fn needs_each_instruction(&self, shared: &SharedState) -> bool {
        shared.debugctl.tr()
    }

    fn retire(&mut self, retired: &Retired, info: &InstructionInfo, bus: &mut Bus) {
        if let Some(taken) = &info.taken {
            self.message(taken, retired.after.mode, bus);
        }
    }

    fn deliver(&mut self, delivery: &Delivery, taken: &TakenBranch, bus: &mut Bus) {
        if delivery.vector == MACHINE_CHECK && delivery.kind.is_exception() {
            bus.shared.debugctl.clear_tr_and_bts();
        }
        self.message(taken, delivery.after.mode, bus);
    }
}
