//! The Intel Processor Trace (PT) unit: its MSRs, the packets it generates, and their output to memory.
//!
//! Only `msr_rules.rs` decides which values WRMSR accepts. `packetizer` makes packets from instructions and events;
//! `output` writes them to the regions of a ToPA table (Table of Physical Addresses) or to a single range, and reports
//! full regions. This module joins them: it holds the registers' values, sets IA32_RTIT_STATUS and signals PMIs.
//!
//! IP payloads, and the addresses compared with address ranges, are RIPs, not linear addresses: CPUID.14H.0:ECX.LIP is
//! clear in all profiles.
//!
//! Source: SDM vol. 3, Intel Processor Trace, in particular "Packet Decoding of RIP versus LIP".

mod msr_rules;
mod output;
mod packetizer;
#[cfg(test)]
mod tests;

use crate::branch::InstructionKind;
use crate::intel::registers::{TRACE_TOPA_PMI, ctl, msr, status};
use crate::intel::taken_branch::TakenBranch;
use crate::intel::transaction::TransactionStep;
use crate::intel::unit::{Bus, InstructionInfo, SharedState, TracingUnit};
use crate::intel::{IntelProfile, IntelSettings};
use crate::{Context, Delivery, GeneralProtection, Init, Retired};
use msr_rules as rules;
pub use output::OperationalError;
use output::Output;
use packetizer::Packetizer;

/// Number of bytes that leave the internal buffer together, if output is not delayed.
const OUTPUT_BATCH: usize = 64;

#[derive(Debug)]
pub(crate) struct Pt {
    profile: &'static IntelProfile,
    ctl: u64,
    /// Error, Stopped, PendPSB and PendToPAPMI; the rest of IA32_RTIT_STATUS is the packetizer's.
    status: u64,
    cr3_match: u64,
    addresses: [u64; 8],
    packetizer: Packetizer,
    output: Output,
    /// Number of bytes that stay in the internal buffer.
    held_back: usize,
    /// Number of bytes that leave it per instruction, if output can be too slow.
    bytes_per_instruction: Option<usize>,
    error: Option<OperationalError>,
}

impl Pt {
    pub(crate) fn new(profile: &'static IntelProfile, settings: IntelSettings) -> Self {
        let capacity = settings.overflow.map_or(2048, |overflow| overflow.capacity.clamp(128, 2048));
        Self {
            profile,
            ctl: 0,
            status: 0,
            cr3_match: 0,
            addresses: [0; 8],
            packetizer: Packetizer::new(profile, settings),
            output: Output::new(profile),
            held_back: settings.visibility.min(capacity / 8) as usize,
            bytes_per_instruction: settings.overflow.map(|overflow| overflow.drain as usize),
            error: None,
        }
    }

    /// Returns the reason for which Error was set last.
    pub(crate) fn operational_error(&self) -> Option<OperationalError> {
        self.error
    }

    /// Returns true if nothing is traced at privilege level 0.
    pub(crate) fn skips_level_0(&self) -> bool {
        self.ctl & ctl::OS == 0
    }

    fn trace_en(&self) -> bool {
        self.ctl & ctl::TRACE_EN != 0
    }

    /// Returns true if TraceEn is set.
    pub(crate) fn traces(&self) -> bool {
        self.trace_en()
    }

    /// Loads IA32_RTIT_CTL at a VM entry or a VM exit. `kind`: whether it is an entry, and whether it is concealed.
    pub(crate) fn load_ctl(
        &mut self,
        value: u64,
        kind: (bool, bool),
        at: &Retired,
        bus: &mut Bus,
    ) -> Result<(), GeneralProtection> {
        // Packets emitted when TraceEn is set describe the code after it, packets emitted when it is cleared the code
        // before it.
        if self.trace_en() {
            self.write_ctl(value, at, bus)?;
            self.packetizer.set_non_root(kind);
        } else {
            self.packetizer.set_non_root(kind);
            self.write_ctl(value, at, bus)?;
        }
        Ok(())
    }

    /// Handles a VM entry or a VM exit that does not change IA32_RTIT_CTL. `kind`: whether it is an entry, and whether
    /// it is concealed.
    pub(crate) fn vmx_transition(
        &mut self,
        before: &Context,
        after: &Context,
        tsc: u64,
        kind: (bool, bool),
        bus: &mut Bus,
    ) {
        self.packetizer.vmx_transition(&before.effective(), &after.effective(), tsc, kind);
        if self.trace_en() {
            self.finish_event(&after.effective(), bus);
        }
    }

    /// Handles VMPTRLD.
    pub(crate) fn load_vmcs(&mut self, base: u64, at: &Context, tsc: u64, bus: &mut Bus) {
        self.packetizer.load_vmcs(base, tsc);
        if self.trace_en() {
            self.finish_event(&at.effective(), bus);
        }
    }

    /// Notes that there is no current VMCS, or no VMX operation.
    pub(crate) fn forget_vmcs(&mut self, in_vmx: bool) {
        self.packetizer.forget_vmcs(in_vmx);
    }

    /// Handles a change of the transactional state.
    pub(crate) fn change_transaction(&mut self, step: &TransactionStep, bus: &mut Bus) {
        let (before, after) = (step.before.effective(), step.after.effective());
        self.packetizer.change_transaction(&TransactionStep { before, after, ..*step });
        if self.trace_en() {
            self.finish_event(&after, bus);
        }
    }

    /// Handles INIT. Until the start-up interrupt no packet follows that belongs between two instructions.
    pub(crate) fn init(&mut self, init: &Init, bus: &mut Bus) {
        let (before, after) = (init.before.effective(), init.after.map(Context::effective));
        self.packetizer.init(&Init { before, after, ..*init });
        if let Some(after) = after.filter(|_| self.trace_en()) {
            self.finish_event(&after, bus);
        }
    }

    /// Handles a start-up interrupt.
    pub(crate) fn start_up(&mut self, at: &Context, tsc: u64, bus: &mut Bus) {
        let at = at.effective();
        if self.packetizer.start_up(&at, tsc) {
            self.finish_event(&at, bus);
        }
    }

    fn write_ctl(&mut self, value: u64, at: &Retired, bus: &mut Bus) -> Result<(), GeneralProtection> {
        rules::check_ctl(self.profile, self.ctl, value)?;
        let old = core::mem::replace(&mut self.ctl, value);
        match (old & ctl::TRACE_EN != 0, self.trace_en()) {
            (false, true) => self.enable(at, bus),
            (true, false) => self.disable(old, at, bus),
            (true, true) | (false, false) => {}
        }
        Ok(())
    }

    fn enable(&mut self, at: &Retired, bus: &mut Bus) {
        let inject = self.ctl & ctl::INJECT_PSB_PMI_ON_ENABLE != 0;
        let owed = if inject { self.status & (status::PEND_PSB | status::PEND_TOPA_PMI) } else { 0 };
        self.status &= !owed;
        if owed & status::PEND_TOPA_PMI != 0 {
            bus.raise_pmi(TRACE_TOPA_PMI);
        }
        if self.status & (status::ERROR | status::STOPPED) != 0 {
            return;
        }
        if let Err(error) = self.output.start(self.ctl, bus.mem) {
            self.set_error(error);
            return;
        }
        let filter = (self.cr3_match, &self.addresses);
        let psb = owed & status::PEND_PSB != 0;
        self.packetizer.enable(self.ctl, filter, &at.after.effective(), at.tsc, psb);
        self.note_trace_stop();
    }

    fn disable(&mut self, old: u64, at: &Retired, bus: &mut Bus) {
        // An overflow is resolved before the WRMSR completes.
        self.write_out(usize::MAX, bus);
        if self.packetizer.overflowed() {
            self.packetizer.between_instructions(&at.before.effective());
        }
        self.packetizer.disable(&at.before.effective(), at.tsc);
        self.write_out(usize::MAX, bus);
        self.output.finish(bus.mem, &mut bus.shared.violations);
        if old & ctl::INJECT_PSB_PMI_ON_ENABLE != 0 {
            if self.packetizer.psb_due() {
                self.status |= status::PEND_PSB;
            }
            if bus.shared.perfmon.recall_topa_pmis() {
                self.status |= status::PEND_TOPA_PMI;
            }
        }
        bus.shared.perfmon.deliver_all(&mut bus.shared.violations);
    }

    /// Takes the record that PEBS has made at this instruction for Intel PT, if any. While nothing is traced the record
    /// is lost.
    pub(crate) fn take_record(&mut self, next: &Context, bus: &mut Bus) {
        if bus.shared.traced_record.is_empty() {
            return;
        }
        if self.trace_en() {
            let next = next.effective();
            self.packetizer.sample(&bus.shared.traced_record, &next);
            self.finish_event(&next, bus);
        }
        bus.shared.traced_record.clear();
    }

    fn read_status(&self) -> u64 {
        self.packetizer.status() | self.status
    }

    fn write_status(&mut self, value: u64) -> Result<(), GeneralProtection> {
        rules::check_status(self.profile, value)?;
        self.status = value & (status::ERROR | status::STOPPED | status::PEND_PSB | status::PEND_TOPA_PMI);
        let count = value >> status::PACKET_BYTE_CNT_SHIFT & status::PACKET_BYTE_CNT_MAX;
        self.packetizer.set_packet_byte_cnt(count as u32);
        Ok(())
    }

    /// Returns true if near branches, and nothing else, can show in the trace until the state `at` changes.
    pub(crate) fn traces_near_branches(&self, at: &Context) -> bool {
        self.trace_en() && self.bytes_per_instruction.is_none() && self.packetizer.traces_near_branches(at)
    }

    /// Returns a time before which no packet is due for the time alone.
    pub(crate) fn quiet_until(&self) -> u64 {
        self.packetizer.quiet_until()
    }

    /// Retires a near branch, while [`Self::traces_near_branches`]. Returns whether [`Self::finish_event`] has
    /// something to do then.
    #[inline]
    pub(crate) fn near_branch(&mut self, kind: InstructionKind, next_ip: u64, to: u64, tsc: u64) -> bool {
        self.packetizer.near_branch(kind, next_ip, to, tsc);
        self.ready() >= OUTPUT_BATCH || self.packetizer.psb_due()
    }

    /// Returns the number of bytes that may leave the internal buffer.
    #[inline]
    fn ready(&self) -> usize {
        self.packetizer.buffered().saturating_sub(self.held_back)
    }

    /// Moves bytes to the output after packets were generated, and handles the consequences.
    pub(crate) fn finish_event(&mut self, next: &Context, bus: &mut Bus) {
        self.note_trace_stop();
        let ready = self.ready();
        let count = match self.bytes_per_instruction {
            Some(drain) => ready.min(drain),
            None if ready >= OUTPUT_BATCH => ready,
            None => 0,
        };
        if count > 0 {
            self.write_out(count, bus);
        }
        self.packetizer.between_instructions(next);
        self.note_trace_stop();
    }

    fn note_trace_stop(&mut self) {
        if self.packetizer.take_stopped() {
            self.status |= status::STOPPED;
        }
    }

    /// Moves up to `count` bytes from the internal buffer to the output.
    fn write_out(&mut self, mut count: usize, bus: &mut Bus) {
        while count > 0 && self.packetizer.buffered() > 0 {
            let written =
                self.output.write(self.packetizer.oldest_bytes(count), bus.mem, &mut bus.shared.violations);
            self.packetizer.consume(written.count);
            count -= written.count;
            let ends = written.stop || written.error.is_some();
            if ends && (written.int || bus.shared.perfmon.has_pmi_on_the_way()) {
                bus.shared.violations.stopped_in_skid += 1;
            }
            if written.stop {
                self.status |= status::STOPPED;
                self.packetizer.end_by_output();
            }
            if written.int {
                bus.raise_pmi(TRACE_TOPA_PMI);
            }
            if let Some(error) = written.error {
                self.set_error(error);
            }
        }
    }

    fn set_error(&mut self, error: OperationalError) {
        self.error = Some(error);
        self.status |= status::ERROR;
        self.packetizer.end_by_output();
    }

    /// Writes one of the MSRs that can be written only while TraceEn is clear.
    fn write_configuration(&mut self, number: u32, value: u64) -> Result<(), GeneralProtection> {
        if self.trace_en() {
            return Err(GeneralProtection);
        }
        match number {
            msr::IA32_RTIT_OUTPUT_BASE => {
                rules::check_output_base(self.profile, value)?;
                self.output.set_base(value);
            }
            msr::IA32_RTIT_OUTPUT_MASK_PTRS => {
                rules::output_exists(self.profile)?;
                self.output.set_mask_ptrs(value);
            }
            msr::IA32_RTIT_STATUS => self.write_status(value)?,
            msr::IA32_RTIT_CR3_MATCH => {
                rules::check_cr3_match(self.profile, value)?;
                self.cr3_match = value;
            }
            msr::IA32_RTIT_ADDR0_A..=msr::IA32_RTIT_ADDR3_B => {
                let index = number - msr::IA32_RTIT_ADDR0_A;
                rules::check_addr(self.profile, index, value)?;
                self.addresses[index as usize] = value;
            }
            _ => return Err(GeneralProtection),
        }
        Ok(())
    }
}

impl TracingUnit for Pt {
    fn owns_msr(&self, number: u32) -> bool {
        self.profile.has_pt()
            && matches!(
                number,
                msr::IA32_RTIT_OUTPUT_BASE
                    | msr::IA32_RTIT_OUTPUT_MASK_PTRS
                    | msr::IA32_RTIT_CTL..=msr::IA32_RTIT_CR3_MATCH
                    | msr::IA32_RTIT_ADDR0_A..=msr::IA32_RTIT_ADDR3_B
            )
    }

    fn read_msr(&self, number: u32, _: &SharedState) -> Result<u64, GeneralProtection> {
        match number {
            msr::IA32_RTIT_OUTPUT_BASE => rules::output_exists(self.profile).map(|()| self.output.base()),
            msr::IA32_RTIT_OUTPUT_MASK_PTRS => {
                rules::output_exists(self.profile).map(|()| self.output.mask_ptrs())
            }
            msr::IA32_RTIT_CTL => Ok(self.ctl),
            msr::IA32_RTIT_STATUS => Ok(self.read_status()),
            msr::IA32_RTIT_CR3_MATCH => rules::cr3_match_exists(self.profile).map(|()| self.cr3_match),
            msr::IA32_RTIT_ADDR0_A..=msr::IA32_RTIT_ADDR3_B => {
                let index = number - msr::IA32_RTIT_ADDR0_A;
                rules::addr_exists(self.profile, index).map(|()| self.addresses[index as usize])
            }
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
            msr::IA32_RTIT_CTL => self.write_ctl(value, at, bus),
            _ => self.write_configuration(number, value),
        }
    }

    fn needs_each_instruction(&self, _: &SharedState) -> bool {
        self.trace_en()
    }

    fn retire(&mut self, retired: &Retired, info: &InstructionInfo, bus: &mut Bus) {
        let (before, after) = (retired.before.effective(), retired.after.effective());
        self.packetizer.retire(&Retired { before, after, ..*retired }, info.decoded);
        self.finish_event(&after, bus);
    }

    fn deliver(&mut self, delivery: &Delivery, _: &TakenBranch, bus: &mut Bus) {
        let (before, after) = (delivery.before.effective(), delivery.after.effective());
        self.packetizer.deliver(&Delivery { before, after, ..*delivery });
        self.finish_event(&after, bus);
    }
}
