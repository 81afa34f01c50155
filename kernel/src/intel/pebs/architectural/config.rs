//! The configuration of architectural PEBS: counters, events, periods, groups.

use super::{ArchPebsCapabilities, ArchPebsGroups};
use crate::intel::pebs::{Counter, PreciseEvent};
use crate::msr::{FixedCtrCtrl, Ia32PerfEvtSel};
use core::fmt;

const GENERAL: usize = 32;
const FIXED: usize = FixedCtrCtrl::COUNTERS as usize;
/// The longest period: a reload value has 32 bits, and the counter's others are copies of bit 31.
const LONGEST: u32 = 1 << 31;

/// The counters that sample, with their events, periods and groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchPebsConfig {
    general: [Option<(PreciseEvent, u32)>; GENERAL],
    fixed: [Option<u32>; FIXED],
    groups: ArchPebsGroups,
    os: bool,
    user: bool,
}

impl ArchPebsConfig {
    /// Returns a configuration without counters, at all privilege levels. Records have the basic group.
    #[must_use]
    pub const fn new() -> Self {
        let (general, fixed) = ([None; GENERAL], [None; FIXED]);
        Self { general, fixed, groups: ArchPebsGroups::empty(), os: true, user: true }
    }

    /// Adds a record about every `period` events by general-purpose counter `n`. A number above 31 is ignored.
    #[must_use]
    pub const fn general(mut self, n: u8, event: PreciseEvent, period: u32) -> Self {
        if (n as usize) < GENERAL {
            self.general[n as usize] = Some((event, period));
        }
        self
    }

    /// Adds a record about every `period` events by fixed-function counter `n`. A number above 7 is ignored.
    #[must_use]
    pub const fn fixed(mut self, n: u8, period: u32) -> Self {
        if (n as usize) < FIXED {
            self.fixed[n as usize] = Some(period);
        }
        self
    }

    /// Sets the groups that records have besides the basic one.
    #[must_use]
    pub const fn groups(self, groups: ArchPebsGroups) -> Self {
        Self { groups, ..self }
    }

    /// Sets whether events at CPL 0 count.
    #[must_use]
    pub const fn os(self, os: bool) -> Self {
        Self { os, ..self }
    }

    /// Sets whether events above CPL 0 count.
    #[must_use]
    pub const fn user(self, user: bool) -> Self {
        Self { user, ..self }
    }

    /// Checks that the processor supports the configuration.
    ///
    /// # Errors
    ///
    /// It does not.
    pub fn check(&self, capabilities: &ArchPebsCapabilities) -> Result<(), ArchPebsRefusal> {
        if !self.os && !self.user {
            return Err(ArchPebsRefusal::NoLevel);
        }
        let missing = self.groups.difference(capabilities.groups);
        if !missing.is_empty() {
            return Err(ArchPebsRefusal::Groups(missing));
        }
        if self.counters().next().is_none() {
            return Err(ArchPebsRefusal::NoCounters);
        }
        for (counter, period) in self.counters() {
            let there = match counter {
                Counter::General(n) => capabilities.general >> n & 1 == 1,
                Counter::Fixed(n) => capabilities.fixed >> n & 1 == 1,
            };
            if !there {
                return Err(ArchPebsRefusal::NoCounter(counter));
            }
            if period == 0 || period > LONGEST {
                return Err(ArchPebsRefusal::Period { counter, period });
            }
        }
        Ok(())
    }

    /// Returns the counters that sample, and their periods.
    pub(super) fn counters(&self) -> impl Iterator<Item = (Counter, u32)> + '_ {
        let general = (0..).zip(&self.general).filter_map(|(n, general)| {
            let (_, period) = (*general)?;
            Some((Counter::General(n), period))
        });
        let fixed = (0..).zip(&self.fixed).filter_map(|(n, period)| Some((Counter::Fixed(n), (*period)?)));
        general.chain(fixed)
    }

    /// Returns IA32_PMC_GPn_CFG_A of a counter that samples.
    pub(super) fn select(&self, n: u8) -> Ia32PerfEvtSel {
        let event = self.general.get(usize::from(n)).copied().flatten().map(|(event, _)| event);
        let mut select =
            event.map_or(Ia32PerfEvtSel::empty(), |event| Ia32PerfEvtSel::event(event.select, event.umask));
        select.insert(Ia32PerfEvtSel::EN);
        select.set(Ia32PerfEvtSel::OS, self.os);
        select.set(Ia32PerfEvtSel::USR, self.user);
        select
    }

    /// Returns the fields of fixed-function counter `n` in IA32_FIXED_CTR_CTRL.
    pub(super) const fn fixed_fields(&self, n: u8) -> u64 {
        FixedCtrCtrl::counting(n, self.os, self.user, false)
    }

    /// Returns CFG_C of a counter with this period.
    pub(super) fn extended(&self, period: u32) -> u64 {
        let values = ArchPebsGroups::COUNTERS | ArchPebsGroups::FIXED_COUNTERS | ArchPebsGroups::METRICS;
        let allow = match self.groups.intersects(values) {
            true => ArchPebsGroups::ALLOW_IN_RECORD,
            false => 0,
        };
        ArchPebsGroups::ENABLE | allow | self.groups.bits() | u64::from(period.wrapping_neg())
    }
}

impl Default for ArchPebsConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The reason why counters cannot sample as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchPebsRefusal {
    /// No counter was requested.
    NoCounters,
    /// Neither CPL 0 nor the levels above it were requested.
    NoLevel,
    /// The counter does not sample.
    NoCounter(Counter),
    /// The period is 0 or above 2^31.
    Period {
        /// The counter.
        counter: Counter,
        /// The requested period.
        period: u32,
    },
    /// Records do not have these groups.
    Groups(ArchPebsGroups),
}

impl fmt::Display for ArchPebsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCounters => f.write_str("no counter is to sample"),
            Self::NoLevel => f.write_str("neither CPL 0 nor what is above it is to be sampled"),
            Self::NoCounter(counter) => write!(f, "{counter} does not sample"),
            Self::Period { counter, period } => {
                write!(f, "a period of {period} for {counter}, which takes 1 to {LONGEST}")
            }
            Self::Groups(groups) => {
                write!(f, "CPUID.23H.4:EBX lacks groups of the records: {:#x}", groups.bits() >> 32)
            }
        }
    }
}

impl core::error::Error for ArchPebsRefusal {}
