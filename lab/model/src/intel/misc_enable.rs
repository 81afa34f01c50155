//! IA32_MISC_ENABLE, which reports whether BTS and PEBS are available.
//!
//! Source: SDM vol. 4, Model-Specific Registers, "IA-32 Architectural MSRs".

use crate::GeneralProtection;
use crate::intel::IntelProfile;

/// The register.
#[derive(Debug)]
pub(crate) struct MiscEnable(u64);

impl MiscEnable {
    const PERFMON_AVAILABLE: u64 = 1 << 7;
    const BTS_UNAVAILABLE: u64 = 1 << 11;
    const PEBS_UNAVAILABLE: u64 = 1 << 12;
    /// Bits that ignore writes.
    const READ_ONLY: u64 = Self::PERFMON_AVAILABLE | Self::BTS_UNAVAILABLE | Self::PEBS_UNAVAILABLE;
    /// Fast strings, thermal control, SpeedStep, MONITOR, limit CPUID, xTPR, XD disable.
    const WRITABLE: u64 = 1 | 1 << 3 | 1 << 16 | 1 << 18 | 1 << 22 | 1 << 23 | 1 << 34;

    pub(crate) fn new(profile: &IntelProfile) -> Self {
        let store = profile.debug_store.as_ref();
        let mut value = Self::PERFMON_AVAILABLE | 1 | 1 << 16 | 1 << 18;
        for (absent, bit) in [
            (store.is_none(), Self::BTS_UNAVAILABLE),
            (store.is_none_or(|store| store.pebs.is_none()), Self::PEBS_UNAVAILABLE),
        ] {
            value |= if absent { bit } else { 0 };
        }
        Self(value)
    }

    pub(crate) fn value(&self) -> u64 {
        self.0
    }

    pub(crate) fn write(&mut self, value: u64) -> Result<(), GeneralProtection> {
        if value & !(Self::READ_ONLY | Self::WRITABLE) != 0 {
            return Err(GeneralProtection);
        }
        self.0 = self.0 & Self::READ_ONLY | value & Self::WRITABLE;
        Ok(())
    }
}
