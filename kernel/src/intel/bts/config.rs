//! The configuration of BTS, checked before any register is written.

use crate::msr::DebugFlags;
use core::fmt;

/// The branches that go into the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BtsConfig {
    os: bool,
    user: bool,
}

impl BtsConfig {
    /// Returns a configuration that records branches at all privilege levels.
    #[must_use]
    pub const fn new() -> Self {
        Self { os: true, user: true }
    }

    /// Sets whether branches at CPL 0 are stored. Excluding them needs `CPUID.1:ECX[4]`. A branch between privilege
    /// levels may still be recorded with an address of the kernel, so the records must be kept from user code. On
    /// Core 2 of 65 nm (models 0FH and 16H) its source may also be wrong (erratum AR62).
    #[must_use]
    pub const fn os(self, os: bool) -> Self {
        Self { os, ..self }
    }

    /// Sets whether branches above CPL 0 are stored. Excluding them needs `CPUID.1:ECX[4]`. If both are excluded,
    /// messages are sent and nothing is stored.
    #[must_use]
    pub const fn user(self, user: bool) -> Self {
        Self { user, ..self }
    }

    /// Returns the bits of the control register; `interrupts`: the buffer requests PMIs.
    ///
    /// # Errors
    ///
    /// This processor does not support the configuration.
    pub(crate) fn check(
        &self,
        capabilities: BtsCapabilities,
        interrupts: bool,
    ) -> Result<DebugFlags, BtsRefusal> {
        if !capabilities.bts {
            return Err(BtsRefusal::Unavailable);
        }
        let mut control = DebugFlags::TR.union(DebugFlags::BTS);
        if !self.os {
            control |= DebugFlags::BTS_OFF_OS;
        }
        if !self.user {
            control |= DebugFlags::BTS_OFF_USR;
        }
        let all_levels = self.os && self.user;
        if !all_levels && !capabilities.cpl_qualified {
            return Err(BtsRefusal::CplQualified);
        }
        if interrupts {
            control |= DebugFlags::BTINT;
        }
        Ok(control)
    }
}

impl Default for BtsConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The processor's capabilities of recording branches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BtsCapabilities {
    /// True if branches can be stored.
    pub(crate) bts: bool,
    /// True if privilege levels can be excluded: `CPUID.1:ECX[4]`.
    pub(crate) cpl_qualified: bool,
}

/// The reason why branches cannot be recorded as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BtsRefusal {
    /// `IA32_MISC_ENABLE[11]` is 1.
    Unavailable,
    /// `CPUID.1:ECX[4]` (CPL-qualified debug store) is 0.
    CplQualified,
}

impl fmt::Display for BtsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable => f.write_str("IA32_MISC_ENABLE[11] (branch trace storage unavailable) is 1"),
            Self::CplQualified => f.write_str("CPUID.1:ECX[4] (CPL-qualified debug store) is not there"),
        }
    }
}

impl core::error::Error for BtsRefusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msr::DebugCtlLayout;

    const CAPABILITIES: BtsCapabilities = BtsCapabilities { bts: true, cpl_qualified: true };

    #[test]
    fn the_flags_are_the_manuals_table() {
        let all = BtsConfig::new();
        // (configuration, interrupts, IA32_DEBUGCTL)
        let table = [
            (all, false, 0xc0),
            (all, true, 0x1c0),
            (all.user(false), false, 0x4c0),
            (all.user(false), true, 0x5c0),
            (all.os(false), false, 0x2c0),
            (all.os(false), true, 0x3c0),
            (all.os(false).user(false), false, 0x6c0),
            (all.os(false).user(false), true, 0x7c0),
        ];
        for (config, interrupts, bits) in table {
            let control = config.check(CAPABILITIES, interrupts).unwrap();
            assert_eq!(DebugCtlLayout::Ia32.bits(control), bits, "{config:?} {interrupts}");
        }
    }

    #[test]
    fn refuses_what_is_not_there() {
        let all = BtsConfig::new();
        let plain = BtsCapabilities { cpl_qualified: false, ..CAPABILITIES };
        let absent = BtsCapabilities { bts: false, ..CAPABILITIES };
        let table = [
            (all, absent, BtsRefusal::Unavailable),
            (all.os(false), plain, BtsRefusal::CplQualified),
            (all.user(false), plain, BtsRefusal::CplQualified),
        ];
        for (config, capabilities, refusal) in table {
            assert_eq!(config.check(capabilities, false), Err(refusal));
        }
    }
}
