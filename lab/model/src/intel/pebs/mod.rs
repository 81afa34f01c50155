//! Processor Event Based Sampling (PEBS): after the overflow of a counter, its next event stores a record.
//!
//! PEBS is a part of the counters (`perfmon::counters`), which own its registers IA32_PEBS_ENABLE and MSR_PEBS_DATA_CFG
//! and pass writes of them on. The rules for both registers are here, and so is the content of a record in each format.
//! The record is stored through `ds`.
//!
//! Source: SDM vol. 3, Performance Monitoring, "Processor Event Based Sampling (PEBS)" of the Core, Nehalem and
//! Skylake microarchitectures, and "Adaptive PEBS".
//!
//! Records can also go to Intel PT (`blocks`, `pt::packetizer`). The manual's section on it was not available. The bits
//! of IA32_PEBS_ENABLE and the registers MSR_RELOAD_PMCx and MSR_RELOAD_FIXED_CTRx, with their #GP, are those of an
//! emulation by Intel's authors (KVM, "PEBS output to Intel PT MSRs emulation", 2019): bits 62:61 are 01, other values
//! than 00 and 01 are reserved; a reload value has as many bits as its counter. Assumptions made here:
//! - Bit 60 may be set with any value of bits 62:61; it only has an effect with records to Intel PT.
//! - The PMI after a record sets OvfDSBuffer, the only status bit by which Linux recognises PEBS: with it Linux 6.1
//!   takes each of these PMIs for its own.
//! - A counter is reloaded, and the PMI is raised, even if Intel PT drops the record.

pub(crate) mod blocks;
#[cfg(test)]
mod tests;

use pugmark_decoder_core::pebs::{
    Format, Memory, PebsRecord, Registers, SampledBranch, SampledBranches, TxAbort,
};

use crate::intel::IntelProfile;
use crate::intel::ds::DsBuffer;
use crate::intel::lbr::stack::LastBranch;
use crate::intel::registers::{OVF_DS_BUFFER, fixed};
use crate::intel::unit::Bus;
use crate::{ExecMode, GeneralProtection, Retired};

/// Maximum number of counters that can be sampled: general-purpose, then fixed-function counters. The reset values in
/// the save area are in this order from format 4 on. Source: SDM vol. 3, Performance Monitoring, "Extended PEBS".
const MAX_SAMPLED: usize = SAMPLED_GENERAL + 4;
/// Maximum number of general-purpose counters that can be sampled.
pub(crate) const SAMPLED_GENERAL: usize = 8;
/// Maximum number of last branches in a record.
const MAX_BRANCHES: usize = 32;
/// The size of the largest record in bytes: all groups of the adaptive format.
const MAX_RECORD_BYTES: usize = 32 + 32 + 18 * 8 + 256 + MAX_BRANCHES * SampledBranch::BYTES;

/// IA32_PEBS_ENABLE, with PEBS output to Intel PT.
mod pebs_enable {
    /// PMI_AFTER_EACH_RECORD.
    pub(super) const PMI_AFTER_EACH_RECORD: u64 = 1 << 60;
    /// PEBS_OUTPUT, bits 62:61: Intel PT.
    pub(super) const OUTPUT_PT: u64 = 1 << 61;
}

/// MSR_PEBS_DATA_CFG: the groups of an adaptive record in addition to the basic one.
mod data_cfg {
    pub(super) const MEMORY: u64 = 1 << 0;
    pub(super) const GPRS: u64 = 1 << 1;
    pub(super) const XMMS: u64 = 1 << 2;
    pub(super) const LBRS: u64 = 1 << 3;
    /// Bits 31:24: one less than the number of branches.
    pub(super) const LBR_ENTRIES_SHIFT: u32 = 24;
    pub(super) const RESERVED: u64 = !(0xf | 0xff << LBR_ENTRIES_SHIFT);
}

#[derive(Debug)]
pub(crate) struct PebsSampler {
    format: Option<Format>,
    /// A bit for each counter that can be sampled, as in IA32_PEBS_ENABLE.
    counters: u64,
    other_bits: u64,
    /// Records can go to Intel PT.
    to_pt: bool,
    /// IA32_PEBS_ENABLE.
    enable: u64,
    /// MSR_PEBS_DATA_CFG.
    data_cfg: u64,
    /// MSR_RELOAD_PMCx and MSR_RELOAD_FIXED_CTRx.
    reload: [u64; MAX_SAMPLED],
    /// Counters that have overflowed and wait for their next event, one bit each.
    armed: u64,
    registers: Registers,
    xmm: [u8; 256],
}

/// Returns the bit of a counter, the fixed-function counters coming last, in IA32_PEBS_ENABLE.
const fn bit_of(counter: usize) -> u64 {
    match counter.checked_sub(SAMPLED_GENERAL) {
        None => 1 << counter,
        Some(index) => 1 << (fixed::FIRST_STATUS_BIT + index as u32),
    }
}

/// The value to which each counter is reset; `None` if it is not.
type ResetValues = [Option<u64>; MAX_SAMPLED];

impl PebsSampler {
    pub(crate) fn new(profile: &IntelProfile) -> Self {
        let pebs = profile.debug_store.as_ref().and_then(|store| store.pebs.as_ref());
        Self {
            format: pebs.map(|pebs| pebs.format),
            counters: pebs.map_or(0, |pebs| {
                ((1 << pebs.counters) - 1) | ((1 << pebs.fixed) - 1) << fixed::FIRST_STATUS_BIT
            }),
            other_bits: pebs.map_or(0, |pebs| pebs.other_bits),
            to_pt: profile.pebs_output_pt(),
            enable: 0,
            data_cfg: 0,
            reload: [0; MAX_SAMPLED],
            armed: 0,
            registers: Registers::default(),
            xmm: [0; 256],
        }
    }

    pub(crate) fn is_present(&self) -> bool {
        self.format.is_some()
    }

    pub(crate) fn enable(&self) -> u64 {
        self.enable
    }

    pub(crate) fn write_enable(&mut self, value: u64) -> Result<(), GeneralProtection> {
        let output = if self.to_pt { pebs_enable::PMI_AFTER_EACH_RECORD | pebs_enable::OUTPUT_PT } else { 0 };
        if value & !(self.counters | self.other_bits | output) != 0 {
            return Err(GeneralProtection);
        }
        self.enable = value;
        self.armed &= value;
        Ok(())
    }

    /// Returns true if MSR_PEBS_DATA_CFG exists.
    pub(crate) fn is_adaptive(&self) -> bool {
        self.format == Some(Format::Adaptive)
    }

    pub(crate) fn data_cfg(&self) -> u64 {
        self.data_cfg
    }

    pub(crate) fn write_data_cfg(&mut self, value: u64) -> Result<(), GeneralProtection> {
        if value & data_cfg::RESERVED != 0 {
            return Err(GeneralProtection);
        }
        self.data_cfg = value;
        Ok(())
    }

    /// Returns the counters that are sampled, one bit each.
    pub(crate) fn sampled(&self) -> u64 {
        self.enable & self.counters
    }

    /// Returns whether MSR_RELOAD_PMCx and MSR_RELOAD_FIXED_CTRx exist.
    pub(crate) fn has_reloads(&self) -> bool {
        self.to_pt
    }

    pub(crate) fn reload(&self, counter: usize) -> u64 {
        self.reload[counter]
    }

    pub(crate) fn set_reload(&mut self, counter: usize, value: u64) {
        self.reload[counter] = value;
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed != 0
    }

    pub(crate) fn set_registers(&mut self, registers: Registers, xmm: &[u8; 256]) {
        self.registers = registers;
        self.xmm = *xmm;
    }

    /// Notes that these counters have overflowed.
    pub(crate) fn arm(&mut self, counters: u64) {
        self.armed |= counters & self.enable & self.counters;
    }

    /// Handles the events of `counters` at one instruction. Stores a record if one of these counters is armed, and
    /// returns the reset values of all counters that have overflowed. The record has the groups of MSR_PEBS_DATA_CFG if
    /// it is for one of the counters in `adaptive`.
    pub(crate) fn sample(
        &mut self,
        counters: u64,
        adaptive: u64,
        retired: &Retired,
        bus: &mut Bus,
    ) -> ResetValues {
        let mut resets = [None; MAX_SAMPLED];
        let applicable = self.armed & counters;
        let Some(format) = self.format.filter(|_| applicable != 0) else { return resets };
        let groups = if applicable & adaptive != 0 { self.data_cfg } else { 0 };
        let to_pt = self.enable & pebs_enable::OUTPUT_PT != 0;
        if to_pt {
            self.trace(applicable, groups, retired, bus);
        } else if self.store(format, applicable, groups, retired, bus).is_none() {
            return resets;
        }
        let width = bus.shared.ds.width(retired.after.mode);
        for (counter, reset) in resets.iter_mut().enumerate() {
            if self.armed & bit_of(counter) != 0 {
                *reset = match to_pt {
                    true => Some(self.reload[counter]),
                    false => bus.ds_counter_reset(counter as u8, width),
                };
            }
        }
        bus.shared.perfmon.clear_status(self.armed);
        self.armed = 0;
        resets
    }

    /// Passes a record to Intel PT.
    fn trace(&self, applicable: u64, groups: u64, retired: &Retired, bus: &mut Bus) {
        let mut branches = [[0; SampledBranch::BYTES]; MAX_BRANCHES];
        let record = self.record(applicable, retired, bus);
        let record = self.with_groups(groups, record, &mut branches, bus);
        bus.shared.traced_record.set(&record, retired.after.mode != ExecMode::Bits64);
        if self.enable & pebs_enable::PMI_AFTER_EACH_RECORD != 0 {
            bus.raise_pmi(OVF_DS_BUFFER);
        }
    }

    /// Stores a record. Returns `None` if it does not fit or an access faults.
    fn store(
        &self,
        format: Format,
        applicable: u64,
        groups: u64,
        retired: &Retired,
        bus: &mut Bus,
    ) -> Option<()> {
        let width = bus.shared.ds.width(retired.after.mode);
        let buffer = bus.ds_buffer(DsBuffer::Pebs, width)?;
        let mut bytes = [0; MAX_RECORD_BYTES];
        let mut branches = [[0; SampledBranch::BYTES]; MAX_BRANCHES];
        let record = self.record(applicable, retired, bus);
        let record = match format {
            Format::Adaptive => self.with_groups(groups, record, &mut branches, bus),
            _ => record,
        };
        let size = record.emit(format, &mut bytes).ok()?;
        let next = buffer.index.checked_add(size as u64)?;
        // A record that would be out of bounds is dropped, and the processor does not report it.
        if buffer.index < buffer.base || next > buffer.absolute_maximum {
            bus.shared.violations.samples_dropped += 1;
            return None;
        }
        bus.ds_store(DsBuffer::Pebs, width, (buffer.index, &bytes[..size]), next)?;
        if buffer.index < buffer.interrupt_threshold && next >= buffer.interrupt_threshold {
            bus.raise_pmi(OVF_DS_BUFFER);
        }
        Some(())
    }

    /// Returns the state after the instruction, with the instruction as the eventing one. Unmodelled fields are 0.
    fn record(&self, applicable: u64, retired: &Retired, bus: &Bus) -> PebsRecord<'static> {
        let registers = Registers { rip: retired.after.ip, ..self.registers };
        let registers = match retired.after.mode {
            ExecMode::Bits64 => registers,
            ExecMode::Bits16 | ExecMode::Bits32 => legacy_registers(registers),
        };
        PebsRecord {
            registers: Some(registers),
            eventing_ip: Some(retired.before.ip),
            global_status: Some(bus.shared.perfmon.status()),
            applicable_counters: Some(applicable),
            memory: Some(Memory::default()),
            tx_abort: Some(TxAbort::default()),
            tsc: Some(retired.tsc),
            ..PebsRecord::default()
        }
    }
}

impl PebsSampler {
    /// Returns an adaptive record with these groups and no others. It cannot have more branches than the stack has.
    fn with_groups<'a>(
        &'a self,
        groups: u64,
        record: PebsRecord<'a>,
        branches: &'a mut [[u8; SampledBranch::BYTES]; MAX_BRANCHES],
        bus: &Bus,
    ) -> PebsRecord<'a> {
        let has = |group: u64| groups & group != 0;
        let wanted = (groups >> data_cfg::LBR_ENTRIES_SHIFT) as usize + 1;
        let mut count = 0;
        for (out, entry) in branches.iter_mut().zip(bus.shared.last_branches.newest_first()).take(wanted) {
            let LastBranch { from, to, info } = entry;
            *out = SampledBranch { from, to, info }.emit();
            count += 1;
        }
        PebsRecord {
            memory: record.memory.filter(|_| has(data_cfg::MEMORY)),
            tx_abort: record.tx_abort.filter(|_| has(data_cfg::MEMORY)),
            registers: record.registers.filter(|_| has(data_cfg::GPRS)),
            xmm: has(data_cfg::XMMS).then_some(&self.xmm),
            branches: has(data_cfg::LBRS).then_some(SampledBranches::new(&branches[..count])),
            ..record
        }
    }
}

/// Narrows registers to those outside 64-bit mode: they have 32 bits, and there are no R8 to R15.
fn legacy_registers(registers: Registers) -> Registers {
    let Registers { rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, .. } = registers;
    let [rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp] =
        [rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp].map(|value| value & 0xffff_ffff);
    Registers { rflags, rip, rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8_r15: [0; 8] }
}
