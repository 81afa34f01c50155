//! The fixed-function counters: instructions, core clocks and reference clocks.
//!
//! The clocks are those of Intel PT's packets: reference clocks pass as the TSC does, core clocks in their ratio to it.
//! From one instruction to the next the clocks count at the privilege level of the second. While the processor is
//! halted they stand still, and they begin with the first instruction after the counters have been enabled. AnyThread
//! makes no difference: there is one logical processor.
//!
//! Source: SDM vol. 3, Performance Monitoring, "Architectural Performance Monitoring Version 2" and "Fixed-function
//! Performance Counters"; vol. 4, the table "IA-32 Architectural MSRs".

use crate::branch::InstructionKind;
use crate::intel::registers::{fixed, msr};
use crate::intel::taken_branch::TakenBranch;
use crate::intel::unit::{Bus, InstructionInfo, SharedState, TracingUnit};
use crate::intel::{IntelProfile, IntelSettings};
use crate::{Delivery, DeliveryKind, GeneralProtection, Retired};

/// The number of counters in a profile that has any.
pub(crate) const COUNTERS: usize = 3;

/// What the fixed-function counters have to do with the sample of one instruction: bits as in the IA32_PERF_GLOBAL
/// registers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FixedEvents {
    /// The counters that have counted.
    pub(crate) counted: u64,
    /// Those of them that have overflowed.
    pub(crate) overflowed: u64,
    /// The counters whose records are adaptive.
    pub(crate) adaptive: u64,
    /// The values to which a sample resets them.
    pub(crate) resets: [Option<u64>; COUNTERS],
}

#[derive(Debug)]
pub(crate) struct FixedCounters {
    count: usize,
    /// The bits that a counter has.
    mask: u64,
    /// The bits of IA32_FIXED_CTR_CTRL that exist.
    controls: u64,
    control: u64,
    value: [u64; COUNTERS],
    /// The frequency of the core over that of the TSC.
    core_per_tsc: (u64, u64),
    last: Option<LastInstruction>,
    /// Of the core's clock, in units of the ratio's denominator.
    remainder: u64,
}

/// Up to where the clocks have been counted.
#[derive(Clone, Copy, Debug)]
struct LastInstruction {
    tsc: u64,
    /// [`super::Perfmon::changes`]: when it differs, the counters may have stood still.
    changes: u64,
}

enum FixedRegister {
    Control,
    Value(usize),
}

impl FixedCounters {
    pub(crate) fn new(profile: &IntelProfile, settings: IntelSettings) -> Self {
        let counters = profile.counters.as_ref();
        let count = counters.map_or(0, |counters| counters.fixed as usize).min(COUNTERS);
        // AnyThread exists from version 3.
        let of_one = fixed::OS | fixed::USR | fixed::PMI;
        let of_one = if profile.perfmon_version < 3 { of_one } else { of_one | fixed::ANY_THREAD };
        let of_one = if profile.pebs_baseline() { of_one | fixed::ADAPTIVE_RECORD } else { of_one };
        Self {
            count,
            mask: counters.map_or(0, |counters| (1 << counters.width) - 1),
            controls: (0..count).fold(0, |bits, index| bits | of_one << (fixed::BITS * index as u32)),
            control: 0,
            value: [0; COUNTERS],
            core_per_tsc: (
                settings.core_ratio.unwrap_or(profile.non_turbo_ratio).into(),
                profile.non_turbo_ratio.max(1).into(),
            ),
            last: None,
            remainder: 0,
        }
    }

    fn register(&self, number: u32) -> Option<FixedRegister> {
        match number {
            _ if self.count == 0 => None,
            msr::IA32_FIXED_CTR_CTRL => Some(FixedRegister::Control),
            _ => {
                let index = number.checked_sub(msr::IA32_FIXED_CTR0)? as usize;
                (index < self.count).then_some(FixedRegister::Value(index))
            }
        }
    }

    /// The four bits that control a counter.
    fn control_of(&self, index: usize) -> u64 {
        self.control >> (fixed::BITS * index as u32)
    }

    /// Whether a counter is enabled, at any privilege level.
    fn is_enabled(&self, index: usize, shared: &SharedState) -> bool {
        shared.perfmon.enabled_counters() >> (fixed::FIRST_STATUS_BIT + index as u32) & 1 != 0
            && self.control_of(index) & (fixed::OS | fixed::USR) != 0
    }

    /// Returns their bits of IA32_PERF_GLOBAL_INUSE.
    pub(crate) fn in_use(&self) -> u64 {
        let used = |index: &usize| self.control_of(*index) & (fixed::OS | fixed::USR) != 0;
        let bits = (0..self.count).filter(used).fold(0, |bits, index| bits | bit(index));
        let pmi = (0..self.count).any(|index| self.control_of(index) & fixed::PMI != 0);
        bits | if pmi { PMI_IN_USE } else { 0 }
    }

    /// How many instructions retire at least before one of the counters in `sampled` has overflowed. Clocks may do so
    /// at any instruction.
    pub(crate) fn instructions_until_overflow(&self, sampled: u64) -> u64 {
        let sampled = |index: usize| index < self.count && sampled & bit(index) != 0;
        match (sampled(0), sampled(1) || sampled(2)) {
            (_, true) => 0,
            (true, false) => self.mask.wrapping_sub(self.value[0]).saturating_add(1),
            (false, false) => u64::MAX,
        }
    }

    /// Sets the counters that a sample has reset, and forgets what they have counted.
    pub(crate) fn reset(&mut self, shared: &mut SharedState) {
        let FixedEvents { resets, .. } = core::mem::take(&mut shared.fixed_events);
        for (value, reset) in self.value.iter_mut().zip(resets) {
            if let Some(reset) = reset {
                *value = reset & self.mask;
            }
        }
    }

    /// Returns how many clocks of the TSC have passed since the last instruction.
    fn pass_time(&mut self, tsc: u64, shared: &SharedState) -> u64 {
        let changes = shared.perfmon.changes();
        let last = self.last.replace(LastInstruction { tsc, changes });
        last.filter(|last| last.changes == changes).map_or(0, |last| tsc.saturating_sub(last.tsc))
    }

    /// Counts `instructions` that retired at privilege level `cpl`, and the time before.
    fn count(&mut self, instructions: u64, cpl: u8, tsc: u64, bus: &mut Bus) {
        let reference = self.pass_time(tsc, bus.shared);
        let (core, per) = self.core_per_tsc;
        let scaled = reference.saturating_mul(core).saturating_add(self.remainder);
        self.remainder = scaled % per;
        let level = if cpl == 0 { fixed::OS } else { fixed::USR };
        let (mut counted, mut overflows, mut interrupts, mut adaptive) = (0, 0, 0, 0);
        for (index, events) in [instructions, scaled / per, reference].into_iter().enumerate() {
            let control = self.control_of(index);
            if index >= self.count || !self.is_enabled(index, bus.shared) || control & level == 0 {
                continue;
            }
            let sum = self.value[index].saturating_add(events);
            self.value[index] = sum & self.mask;
            let bit = bit(index);
            counted |= if events != 0 { bit } else { 0 };
            adaptive |= if control & fixed::ADAPTIVE_RECORD != 0 { bit } else { 0 };
            if sum > self.mask {
                overflows |= bit;
                interrupts |= if control & fixed::PMI != 0 { bit } else { 0 };
            }
        }
        bus.shared.fixed_events =
            FixedEvents { counted, overflowed: overflows, adaptive, resets: [None; COUNTERS] };
        bus.shared.perfmon.set_status(overflows);
        if interrupts != 0 {
            bus.raise_pmi(interrupts);
        }
    }
}

/// IA32_PERF_GLOBAL_INUSE.PMI_InUse.
const PMI_IN_USE: u64 = 1 << 63;

/// The bit of a counter in the IA32_PERF_GLOBAL registers and in IA32_PEBS_ENABLE.
const fn bit(index: usize) -> u64 {
    1 << (fixed::FIRST_STATUS_BIT + index as u32)
}

impl TracingUnit for FixedCounters {
    fn owns_msr(&self, number: u32) -> bool {
        self.register(number).is_some()
    }

    fn read_msr(&self, number: u32, _: &SharedState) -> Result<u64, GeneralProtection> {
        Ok(match self.register(number).ok_or(GeneralProtection)? {
            FixedRegister::Control => self.control,
            FixedRegister::Value(index) => self.value[index],
        })
    }

    /// The bits of a value beyond the counter's width are reserved.
    fn write_msr(
        &mut self,
        number: u32,
        value: u64,
        _: &Retired,
        _: &mut Bus,
    ) -> Result<(), GeneralProtection> {
        match self.register(number).ok_or(GeneralProtection)? {
            FixedRegister::Control if value & !self.controls == 0 => {
                self.control = value;
                self.last = None;
            }
            FixedRegister::Value(index) if value & !self.mask == 0 => self.value[index] = value,
            FixedRegister::Control | FixedRegister::Value(_) => return Err(GeneralProtection),
        }
        Ok(())
    }

    fn needs_each_instruction(&self, shared: &SharedState) -> bool {
        (0..self.count).any(|index| self.is_enabled(index, shared))
    }

    fn retire(&mut self, retired: &Retired, info: &InstructionInfo, bus: &mut Bus) {
        self.count(1, retired.before.cpl, retired.tsc, bus);
        if matches!(info.decoded.kind, InstructionKind::Hlt | InstructionKind::Mwait) {
            self.last = None;
        }
    }

    /// INT n and its kin are instructions, which retire; no other delivery is counted.
    fn deliver(&mut self, delivery: &Delivery, _: &TakenBranch, bus: &mut Bus) {
        if delivery.kind == DeliveryKind::SoftwareInterrupt {
            self.count(1, delivery.before.cpl, delivery.tsc, bus);
        }
    }
}

#[cfg(test)]
mod tests;
