//! The fixed-function counters: instructions, core clocks, reference clocks, and issue slots.
//!
//! AnyThread makes no difference: there is one logical processor.
//!
//! Source: SDM vol. 3, Performance Monitoring, "Architectural Performance Monitoring Version 2", "Version 5" and
//! "Fixed-function Performance Counters"; vol. 4, the table "IA-32 Architectural MSRs".

use super::clocks::Elapsed;
use crate::GeneralProtection;
use crate::intel::registers::{fixed, msr};
use crate::intel::{CounterProfile, IntelProfile};

/// The largest number of counters in any profile.
pub(super) const MAX_FIXED: usize = 7;
/// The counter of instructions; all others count time.
const INSTRUCTIONS: usize = 0;

#[derive(Debug)]
pub(super) struct FixedCounters {
    /// The counters that exist, a bit each.
    exist: u64,
    /// The bits of a counter.
    mask: u64,
    /// The bits of IA32_FIXED_CTR_CTRL that exist.
    controls: u64,
    control: u64,
    value: [u64; MAX_FIXED],
    /// The issue slots of a core clock.
    slots: u64,
}

#[derive(Clone, Copy)]
pub(super) enum FixedRegister {
    Control,
    Value(usize),
}

/// Counters, a bit each as in the IA32_PERF_GLOBAL registers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// The counters that counted something.
    pub(super) events: u64,
    /// The counters that overflowed.
    pub(super) overflows: u64,
    /// The counters whose overflow interrupts.
    pub(super) interrupts: u64,
}

/// Iterates over the counters whose bits are set.
pub(super) fn indices(counters: u64) -> impl Iterator<Item = usize> {
    (0..u64::BITS as usize).filter(move |index| counters >> index & 1 != 0)
}

/// Returns a counter's bit in the IA32_PERF_GLOBAL registers.
pub(super) const fn bit_of(index: usize) -> u64 {
    1 << (fixed::FIRST_STATUS_BIT + index as u32)
}

impl FixedCounters {
    pub(super) fn new(profile: &IntelProfile) -> Self {
        let counters = profile.counters.as_ref();
        let exist = counters.map_or(0, CounterProfile::fixed_mask) & ((1 << MAX_FIXED) - 1);
        // AnyThread exists from version 3 on, until it is deprecated.
        let no_any_thread = counters.is_some_and(|counters| counters.any_thread_deprecated);
        let any_thread = if profile.perfmon_version < 3 || no_any_thread { 0 } else { fixed::ANY_THREAD };
        let adaptive = if profile.pebs_baseline() { fixed::ADAPTIVE_RECORD } else { 0 };
        let of_one = fixed::OS | fixed::USR | fixed::PMI | any_thread | adaptive;
        Self {
            exist,
            mask: counters.map_or(0, |counters| (1 << counters.width) - 1),
            controls: indices(exist).fold(0, |bits, index| bits | of_one << (fixed::BITS * index as u32)),
            control: 0,
            value: [0; MAX_FIXED],
            slots: counters.map_or(0, |counters| counters.slots.into()),
        }
    }

    /// Returns true if the counter exists.
    pub(super) fn has(&self, index: usize) -> bool {
        index < MAX_FIXED && self.exist >> index & 1 != 0
    }

    pub(super) fn register(&self, number: u32) -> Option<FixedRegister> {
        match number {
            _ if self.exist == 0 => None,
            msr::IA32_FIXED_CTR_CTRL => Some(FixedRegister::Control),
            _ => self.index(msr::IA32_FIXED_CTR0, number).map(FixedRegister::Value),
        }
    }

    /// Returns the counter whose register `number` is, if the first counter's is `first`.
    pub(super) fn index(&self, first: u32, number: u32) -> Option<usize> {
        number.checked_sub(first).map(|index| index as usize).filter(|index| self.has(*index))
    }

    pub(super) fn read(&self, register: FixedRegister) -> u64 {
        match register {
            FixedRegister::Control => self.control,
            FixedRegister::Value(index) => self.value[index],
        }
    }

    /// Writes a register. The bits of a value beyond the counter's width are reserved.
    pub(super) fn write(&mut self, register: FixedRegister, value: u64) -> Result<(), GeneralProtection> {
        match register {
            FixedRegister::Control if value & !self.controls == 0 => self.control = value,
            FixedRegister::Value(index) if value & !self.mask == 0 => self.value[index] = value,
            FixedRegister::Control | FixedRegister::Value(_) => return Err(GeneralProtection),
        }
        Ok(())
    }

    /// Sets the value of a counter that was sampled, or that another one reloads.
    pub(super) fn reset(&mut self, index: usize, value: u64) {
        self.value[index] = value & self.mask;
    }

    /// Returns the four bits that control a counter, and bit 32 for its records.
    fn control_of(&self, index: usize) -> u64 {
        self.control >> (fixed::BITS * index as u32)
    }

    /// Returns the counters that have all of these control bits.
    fn with(&self, bits: u64) -> u64 {
        let has = |index: &usize| self.control_of(*index) & bits == bits;
        indices(self.exist).filter(has).fold(0, |counters, index| counters | bit_of(index))
    }

    /// Returns the counters that count at some privilege level if IA32_PERF_GLOBAL_CTRL enables them.
    pub(super) fn counting(&self) -> u64 {
        self.with(fixed::OS) | self.with(fixed::USR)
    }

    /// Returns the counters that count time at all privilege levels.
    pub(super) fn clocks(&self) -> u64 {
        self.with(fixed::OS | fixed::USR) & !bit_of(INSTRUCTIONS)
    }

    /// Returns whether the overflow of a counter interrupts.
    pub(super) fn interrupts(&self) -> bool {
        self.with(fixed::PMI) != 0
    }

    /// Returns the counters whose records are adaptive.
    pub(super) fn adaptive(&self) -> u64 {
        self.with(fixed::ADAPTIVE_RECORD)
    }

    /// Returns the counters that overflow after at least `events` events.
    pub(super) fn far_from_overflow(&self, events: u64) -> u64 {
        let is_far = |index: &usize| self.until_overflow(*index) >= events;
        indices(self.exist).filter(is_far).fold(0, |counters, index| counters | bit_of(index))
    }

    fn until_overflow(&self, index: usize) -> u64 {
        (self.mask - self.value[index]).saturating_add(1)
    }

    /// Returns the minimum number of instructions before one of `counters` overflows.
    pub(super) fn instructions_until_overflow(&self, counters: u64) -> u64 {
        let of = |index: usize| if index == INSTRUCTIONS { self.until_overflow(index) } else { 0 };
        indices(self.exist).filter(|index| counters & bit_of(*index) != 0).map(of).min().unwrap_or(u64::MAX)
    }

    /// Counts `instructions` that retired at privilege level `cpl`, and the time before, in the `enabled` counters.
    pub(super) fn count(&mut self, instructions: u64, time: Elapsed, cpl: u8, enabled: u64) -> Counted {
        let level = if cpl == 0 { fixed::OS } else { fixed::USR };
        // The others count issue slots by their kind.
        let amounts =
            [instructions, time.core, time.reference, time.core.saturating_mul(self.slots), 0, 0, 0];
        let mut counted = Counted::default();
        for index in indices(self.exist) {
            let (events, bit, control) = (amounts[index], bit_of(index), self.control_of(index));
            if enabled & bit == 0 || control & level == 0 || events == 0 {
                continue;
            }
            counted.events |= bit;
            let sum = self.value[index].saturating_add(events);
            self.value[index] = sum & self.mask;
            if sum > self.mask {
                counted.overflows |= bit;
                counted.interrupts |= if control & fixed::PMI != 0 { bit } else { 0 };
            }
        }
        counted
    }
}

#[cfg(test)]
mod tests;
