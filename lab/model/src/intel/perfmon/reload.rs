//! Auto Counter Reload: the overflow of a counter sets others, and itself, to their reload values.
//!
//! The manual's section on it was not available. The registers, and which of them has what, are those that Linux writes
//! (`arch/x86/events/intel/core.c`, `intel_pmu_config_acr`; `intel_pmu_set_acr_caused_constr` takes the counters in a
//! mask to be the causes, not the reloaded ones); the leaf of CPUID is also in x86-cpuid-db, leaf 23H.2. By the message
//! of a commit there (1271aeccc307), the manual says that the overflow bit is never set for a counter that reloads
//! itself, and its interrupt comes nevertheless.
//!
//! Assumptions made here:
//! - A mask may have counters that can be causes, and no others; a reload value has 32 bits. Everything else is #GP.
//! - Bits 63:32 of a reload value are ones: Linux writes the lower half of a negated period.

use super::fixed::{MAX_FIXED, indices};
use crate::GeneralProtection;
use crate::intel::profile::CounterProfile;
use crate::intel::registers::fixed::FIRST_STATUS_BIT;

/// Number of bits of the IA32_PERF_GLOBAL registers that counters can have.
const BITS: usize = FIRST_STATUS_BIT as usize + MAX_FIXED;

/// The registers of Auto Counter Reload. Counters are numbered as their bits in the IA32_PERF_GLOBAL registers.
#[derive(Debug)]
pub(super) struct AutoReload {
    reloadable: u64,
    causes: u64,
    /// IA32_PMC_GPn_CFG_B and IA32_PMC_FXn_CFG_B: the counters whose overflow reloads the counter.
    mask: [u64; BITS],
    /// IA32_PMC_GPn_CFG_C and IA32_PMC_FXn_CFG_C: the value that it gets.
    value: [u64; BITS],
}

impl AutoReload {
    pub(super) fn new(counters: Option<&CounterProfile>) -> Self {
        let reload = counters.and_then(|counters| counters.extended.as_ref()?.reload.as_ref());
        let bits = |[general, fixed]: [u32; 2]| u64::from(general) | u64::from(fixed) << FIRST_STATUS_BIT;
        Self {
            reloadable: reload.map_or(0, |reload| bits(reload.reloadable)),
            causes: reload.map_or(0, |reload| bits(reload.causes)),
            mask: [0; BITS],
            value: [0; BITS],
        }
    }

    /// Returns true if the counter has the two registers.
    pub(super) fn has(&self, counter: usize) -> bool {
        counter < BITS && self.reloadable >> counter & 1 != 0
    }

    pub(super) fn mask(&self, counter: usize) -> u64 {
        self.mask[counter]
    }

    pub(super) fn value(&self, counter: usize) -> u64 {
        self.value[counter]
    }

    pub(super) fn write_mask(&mut self, counter: usize, value: u64) -> Result<(), GeneralProtection> {
        if value & !self.causes != 0 {
            return Err(GeneralProtection);
        }
        self.mask[counter] = value;
        Ok(())
    }

    pub(super) fn write_value(&mut self, counter: usize, value: u64) -> Result<(), GeneralProtection> {
        if value >> 32 != 0 {
            return Err(GeneralProtection);
        }
        self.value[counter] = value;
        Ok(())
    }

    /// Returns the counters that these overflows reload, a bit each.
    pub(super) fn reloaded(&self, overflows: u64) -> u64 {
        let is = |counter: &usize| self.mask[*counter] & overflows != 0;
        indices(self.reloadable).filter(is).fold(0, |counters, counter| counters | 1 << counter)
    }

    /// Returns the counters that reload themselves, a bit each.
    pub(super) fn self_reloaded(&self) -> u64 {
        let is = |counter: &usize| self.mask[*counter] >> counter & 1 != 0;
        indices(self.reloadable).filter(is).fold(0, |counters, counter| counters | 1 << counter)
    }

    /// Returns the value to which a counter is set.
    pub(super) fn reload_value(&self, counter: usize) -> u64 {
        !0 << 32 | self.value[counter]
    }
}
