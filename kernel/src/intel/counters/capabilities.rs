//! Reads what the counters can do.

use super::IntelEvent;
use super::registers::microcode_counters;
use crate::cpuid::CpuIdReader;
use crate::intel::errata::Errata;
use crate::lifecycle::{Absent, Missing};
use crate::msr::{MiscEnable, Msr, TypedMsr};
use raw_cpuid::CpuId;

/// The number of general-purpose counters, and of fixed-function counters, that this driver uses at most.
pub(super) const MOST: u8 = 8;

/// The capabilities of this processor's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntelCounterCapabilities {
    /// The general-purpose counters, a bit for each: `CPUID.0AH:EAX[15:8]`, without those that microcode uses.
    pub general: u8,
    /// The width of a general-purpose counter in bits: `CPUID.0AH:EAX[23:16]`.
    pub general_bits: u8,
    /// The fixed-function counters, a bit for each: `CPUID.0AH:EDX[4:0]`, and `CPUID.0AH:ECX` since version 5.
    pub fixed: u8,
    /// The width of a fixed-function counter in bits: `CPUID.0AH:EDX[12:5]`.
    pub fixed_bits: u8,
    /// The architectural events that do not exist, a bit for each: `CPUID.0AH:EBX`, with the bits above its length.
    unavailable: u32,
    /// True if IA32_PERF_GLOBAL_INUSE exists: `CPUID.0AH:EAX[7:0]` is 4 or more.
    pub(super) global_in_use: bool,
    /// True if the model has the errata of [`Errata::COUNTERS_NEED_CLEARING`].
    pub(super) need_clearing: bool,
}

impl IntelCounterCapabilities {
    /// Reads the capabilities. Writes no register.
    ///
    /// # Errors
    ///
    /// The processor is not Intel's, has no counters, or none that IA32_PERF_GLOBAL_CTRL turns on; or an access raised
    /// #GP.
    pub fn read(cpuid: impl CpuIdReader, msr: &mut impl Msr) -> Result<Self, Absent> {
        let id = CpuId::with_cpuid_reader(cpuid.clone());
        if id.get_vendor_info().is_none_or(|vendor| vendor.as_str() != "GenuineIntel") {
            return Err(Missing::Intel.into());
        }
        let leaf = match cpuid.cpuid1(0).eax {
            0xa.. => cpuid.cpuid2(0xa, 0),
            _ => return Err(Missing::GlobalCtrl { version: 0 }.into()),
        };
        let [version, number, general_bits, events] = leaf.eax.to_le_bytes();
        if version < 2 {
            return Err(Missing::GlobalCtrl { version }.into());
        }
        let misc_enable: MiscEnable = msr.read()?;
        if !misc_enable.contains(MiscEnable::PERFORMANCE_MONITORING) {
            return Err(Missing::PerformanceMonitoring.into());
        }
        let general = first(number) & !microcode_counters(&cpuid, msr);
        let more = if version >= 5 { leaf.ecx as u8 } else { 0 };
        let fixed = first((leaf.edx & 0x1f) as u8) | more;
        if general == 0 && fixed == 0 {
            return Err(Missing::Counters.into());
        }
        let features = id.get_feature_info();
        let errata = features.map_or(Errata::empty(), |it| Errata::of(it.family_id(), it.model_id()));
        let beyond = u32::MAX.checked_shl(events.into()).unwrap_or(0);
        Ok(Self {
            general,
            general_bits,
            fixed,
            fixed_bits: (leaf.edx >> 5) as u8,
            unavailable: leaf.ebx | beyond,
            global_in_use: version >= 4,
            need_clearing: errata.contains(Errata::COUNTERS_NEED_CLEARING),
        })
    }

    /// Returns whether the processor has this event. Events that are not architectural depend on the model, and are
    /// assumed to exist.
    #[must_use]
    pub const fn has(&self, event: &IntelEvent) -> bool {
        match event.architectural() {
            Some(bit) => self.unavailable >> bit & 1 == 0,
            None => true,
        }
    }
}

/// Returns the bits of the first `number` counters that this driver uses.
const fn first(number: u8) -> u8 {
    match number {
        MOST.. => u8::MAX,
        _ => (1 << number) - 1,
    }
}
