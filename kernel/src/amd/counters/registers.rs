//! The addresses of the counters' registers.

use crate::amd::AmdCapabilities;
use crate::msr::{RegisterAt, amd::PerfEvtSel};

/// The addresses of the counters' registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bank {
    /// PerfEvtSel0 to 3 at `C001_0000`, followed by PerfCtr0 to 3.
    Legacy,
    /// PERF_CTL0 at `C001_0200` followed by PERF_CTR0, and so on. The legacy addresses access the first four of them.
    Extended,
}

impl Bank {
    pub(super) const fn of(capabilities: &AmdCapabilities) -> Self {
        if capabilities.extended_counters { Self::Extended } else { Self::Legacy }
    }

    /// Returns the address of the event select of counter `n`.
    pub(super) const fn select(self, n: u8) -> RegisterAt<PerfEvtSel> {
        RegisterAt::new(match self {
            Self::Legacy => 0xc001_0000 + n as u32,
            Self::Extended => 0xc001_0200 + 2 * n as u32,
        })
    }

    /// Returns the address of counter `n`.
    pub(super) const fn counter(self, n: u8) -> RegisterAt {
        RegisterAt::new(match self {
            Self::Legacy => 0xc001_0004 + n as u32,
            Self::Extended => 0xc001_0201 + 2 * n as u32,
        })
    }
}
