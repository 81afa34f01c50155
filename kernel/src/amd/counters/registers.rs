//! Where the registers of a counter are.

use crate::amd::AmdCapabilities;

/// Where the registers of the counters are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bank {
    /// PerfEvtSel0 to 3 at `C001_0000`, PerfCtr0 to 3 behind them.
    Legacy,
    /// PERF_CTL0 at `C001_0200` with PERF_CTR0 behind it, and so on. Those at the addresses above are the first four of
    /// them.
    Extended,
}

impl Bank {
    pub(super) const fn of(capabilities: &AmdCapabilities) -> Self {
        if capabilities.extended_counters { Self::Extended } else { Self::Legacy }
    }

    /// The register that says what counter `n` counts.
    pub(super) const fn select(self, n: u8) -> u32 {
        match self {
            Self::Legacy => 0xc001_0000 + n as u32,
            Self::Extended => 0xc001_0200 + 2 * n as u32,
        }
    }

    /// Counter `n`.
    pub(super) const fn counter(self, n: u8) -> u32 {
        match self {
            Self::Legacy => 0xc001_0004 + n as u32,
            Self::Extended => 0xc001_0201 + 2 * n as u32,
        }
    }
}
