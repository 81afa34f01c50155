//! The events to count.

use super::registers::width;
use crate::msr::{Counter, FixedCtrCtrl, Ia32PerfEvtSel};
use core::fmt;

/// An event to count, and the code in which it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntelEvent {
    select: Ia32PerfEvtSel,
    reload: Option<Reload>,
}

/// The automatic reload of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reload {
    /// The events whose overflow causes it, a bit for each place in the list.
    pub(super) places: u64,
    /// The number of events until the counter overflows; 0 lets it count from 0.
    pub(super) period: u32,
}

impl Reload {
    /// The longest period: the value that is loaded has 32 bits, and the counter's others are copies of bit 31.
    pub(super) const LONGEST: u32 = 1 << 31;

    /// Returns the value that the counter has when it begins, as one of `bits` bits.
    pub(super) const fn first_value(self, bits: u8) -> u64 {
        (self.period as u64).wrapping_neg() & width(bits)
    }
}

/// A feature of counters that CPUID leaves 23H and 1CH enumerate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntelCounterFeature {
    /// [`IntelEvent::unit_mask_2`].
    UnitMask2,
    /// [`IntelEvent::exactly`].
    Equal,
    /// [`IntelEvent::rdpmc_user_disable`].
    RdpmcUserDisable,
    /// [`IntelEvent::in_branch_records`].
    BranchRecords,
    /// [`IntelEvent::reloaded_by`].
    AutoReload,
}

impl fmt::Display for IntelCounterFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnitMask2 => "CPUID.23H.0:EBX[0] (second unit mask)",
            Self::Equal => "CPUID.23H.0:EBX[1] (comparison for equality)",
            Self::RdpmcUserDisable => "CPUID.23H.0:EBX[2] (RDPMC user disable)",
            Self::BranchRecords => "CPUID.1CH:ECX[19:16] (events in last branch records)",
            Self::AutoReload => "CPUID.23H.2 (auto counter reload)",
        })
    }
}

impl IntelEvent {
    /// Core cycles that were not halted.
    pub const CYCLES: Self = Self::new(0x3c, 0x00);
    /// Retired instructions.
    pub const INSTRUCTIONS: Self = Self::new(0xc0, 0x00);
    /// Reference cycles that were not halted: of the bus, or of the crystal.
    pub const REFERENCE_CYCLES: Self = Self::new(0x3c, 0x01);
    /// References to the last-level cache.
    pub const CACHE_REFERENCES: Self = Self::new(0x2e, 0x4f);
    /// Misses of the last-level cache.
    pub const CACHE_MISSES: Self = Self::new(0x2e, 0x41);
    /// Retired branch instructions.
    pub const BRANCHES: Self = Self::new(0xc4, 0x00);
    /// Retired branch instructions that were mispredicted.
    pub const MISPREDICTED_BRANCHES: Self = Self::new(0xc5, 0x00);

    /// The architectural events, by their bits in `CPUID.0AH:EBX`.
    const ARCHITECTURAL: [Self; 7] = [
        Self::CYCLES,
        Self::INSTRUCTIONS,
        Self::REFERENCE_CYCLES,
        Self::CACHE_REFERENCES,
        Self::CACHE_MISSES,
        Self::BRANCHES,
        Self::MISPREDICTED_BRANCHES,
    ];

    /// Creates an event of the model's, at all privilege levels.
    #[must_use]
    pub const fn new(event: u8, umask: u8) -> Self {
        let levels = Ia32PerfEvtSel::USR.union(Ia32PerfEvtSel::OS);
        Self { select: Ia32PerfEvtSel::event(event, umask).union(levels), reload: None }
    }

    /// Sets whether the event counts at CPL 0.
    #[must_use]
    pub const fn os(self, os: bool) -> Self {
        self.with(Ia32PerfEvtSel::OS, os)
    }

    /// Sets whether the event counts above CPL 0.
    #[must_use]
    pub const fn user(self, user: bool) -> Self {
        self.with(Ia32PerfEvtSel::USR, user)
    }

    /// Sets whether the beginnings of the event are counted, not the cycles that it lasts.
    #[must_use]
    pub const fn edges(self, edges: bool) -> Self {
        self.with(Ia32PerfEvtSel::E, edges)
    }

    /// Counts the cycles with at least this many events; 0 counts the events.
    #[must_use]
    pub const fn at_least(self, events: u8) -> Self {
        let rest = self.select.difference(Ia32PerfEvtSel::CMASK).difference(Ia32PerfEvtSel::EQ);
        Self { select: rest.union(Ia32PerfEvtSel::from_bits_retain((events as u64) << 24)), ..self }
    }

    /// Counts the cycles with exactly this many events, or with [`inverted`](Self::inverted) with any other number.
    /// Needs [`IntelCounterFeature::Equal`].
    ///
    /// Source: Linux, ARCH_PERFMON_EVENTSEL_EQ; how EQ goes with INV is not said there.
    #[must_use]
    pub const fn exactly(self, events: u8) -> Self {
        self.at_least(events).with(Ia32PerfEvtSel::EQ, true)
    }

    /// Sets the second unit mask. Needs [`IntelCounterFeature::UnitMask2`].
    #[must_use]
    pub const fn unit_mask_2(self, umask: u8) -> Self {
        let rest = self.select.difference(Ia32PerfEvtSel::UMASK2);
        Self { select: rest.union(Ia32PerfEvtSel::from_bits_retain((umask as u64) << 40)), ..self }
    }

    /// Sets whether RDPMC above CPL 0 reads 0 instead of the count, where CR4.PCE lets it read counters. Needs
    /// [`IntelCounterFeature::RdpmcUserDisable`].
    ///
    /// Source: Linux, "perf/x86/intel: Add support for rdpmc user disable feature".
    #[must_use]
    pub const fn rdpmc_user_disable(self, disable: bool) -> Self {
        self.with(Ia32PerfEvtSel::RDPMC_USR_DISABLE, disable)
    }

    /// Lets the processor begin the count anew whenever the counter of one of the events at `places` in the list
    /// overflows; bit 0 is the first event. The event may be among them itself. It overflows after `period` events,
    /// 2^31 at most; with 0 it counts from 0. Its count is that since it began last. Needs
    /// [`IntelCounterFeature::AutoReload`].
    ///
    /// Source: Linux, "perf/x86/intel: Support auto counter reload" and `tools/perf/Documentation/intel-acr.txt`.
    #[must_use]
    pub const fn reloaded_by(self, places: u64, period: u32) -> Self {
        Self { reload: Some(Reload { places, period }), ..self }
    }

    /// Sets whether the cycles with fewer events than [`IntelEvent::at_least`] gives are counted.
    #[must_use]
    pub const fn inverted(self, inverted: bool) -> Self {
        self.with(Ia32PerfEvtSel::INV, inverted)
    }

    /// Sets whether last branch records count the event, too: their
    /// [`events`](crate::intel::lbr::Branch::events) are those since the record before. Needs
    /// [`IntelCounterFeature::BranchRecords`], and last branch records that are on.
    ///
    /// Source: Linux, "perf/x86/intel: Support branch counters logging".
    #[must_use]
    pub const fn in_branch_records(self, counted: bool) -> Self {
        self.with(Ia32PerfEvtSel::EN_LBR_LOG, counted)
    }

    /// Returns whether last branch records count the event.
    pub(super) const fn is_in_branch_records(&self) -> bool {
        self.select.contains(Ia32PerfEvtSel::EN_LBR_LOG)
    }

    const fn with(self, flag: Ia32PerfEvtSel, set: bool) -> Self {
        let select = if set { self.select.union(flag) } else { self.select.difference(flag) };
        Self { select, ..self }
    }

    pub(super) const fn reload(&self) -> Option<Reload> {
        self.reload
    }

    /// Returns the features that the event needs.
    pub(super) fn needs(&self) -> impl Iterator<Item = IntelCounterFeature> {
        let has = |flag| self.select.intersects(flag);
        let table = [
            (has(Ia32PerfEvtSel::UMASK2), IntelCounterFeature::UnitMask2),
            (has(Ia32PerfEvtSel::EQ), IntelCounterFeature::Equal),
            (has(Ia32PerfEvtSel::RDPMC_USR_DISABLE), IntelCounterFeature::RdpmcUserDisable),
            (self.is_in_branch_records(), IntelCounterFeature::BranchRecords),
            (self.reload.is_some(), IntelCounterFeature::AutoReload),
        ];
        table.into_iter().filter(|(needed, _)| *needed).map(|(_, feature)| feature)
    }

    /// Returns the event's bit in `CPUID.0AH:EBX` if it is architectural.
    pub(super) const fn architectural(&self) -> Option<usize> {
        let number = Ia32PerfEvtSel::EVENT.union(Ia32PerfEvtSel::UMASK).union(Ia32PerfEvtSel::UMASK2).bits();
        let mut n = 0;
        while n < Self::ARCHITECTURAL.len() {
            if (Self::ARCHITECTURAL[n].select.bits() ^ self.select.bits()) & number == 0 {
                return Some(n);
            }
            n += 1;
        }
        None
    }

    /// Returns the fixed-function counter that counts this event, too.
    pub(super) fn fixed(&self) -> Option<u8> {
        let fields = Ia32PerfEvtSel::OS | Ia32PerfEvtSel::USR | Ia32PerfEvtSel::RDPMC_USR_DISABLE;
        let event = self.select | fields;
        match [Self::INSTRUCTIONS, Self::CYCLES].map(|it| it.select | fields) {
            [instructions, _] if event == instructions => Some(0),
            [_, cycles] if event == cycles => Some(1),
            _ => None,
        }
    }

    /// Returns IA32_PERFEVTSELx of a counter that counts the event.
    pub(super) const fn select(&self) -> Ia32PerfEvtSel {
        self.select.union(Ia32PerfEvtSel::EN)
    }

    /// Returns the fields of fixed-function counter `n` in IA32_FIXED_CTR_CTRL.
    pub(super) fn fixed_fields(&self, n: u8) -> u64 {
        let has = |flag| self.select.contains(flag);
        let hidden = has(Ia32PerfEvtSel::RDPMC_USR_DISABLE);
        FixedCtrCtrl::counting(n, has(Ia32PerfEvtSel::OS), has(Ia32PerfEvtSel::USR), false)
            | if hidden { FixedCtrCtrl::rdpmc_usr_disable(n) } else { 0 }
    }

    /// Returns whether the event counts nowhere.
    pub(super) const fn is_nowhere(&self) -> bool {
        !self.select.intersects(Ia32PerfEvtSel::USR.union(Ia32PerfEvtSel::OS))
    }
}

/// The reason why events cannot be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntelCountersRefusal {
    /// The list is empty.
    Nothing,
    /// An event counts at no privilege level.
    NoLevel {
        /// The event's place in the list.
        event: usize,
    },
    /// The processor lacks an architectural event.
    NoEvent {
        /// The event's place in the list.
        event: usize,
    },
    /// There is no free counter for an event.
    NoCounter {
        /// The event's place in the list.
        event: usize,
    },
    /// The processor lacks a feature that an event needs.
    NoFeature {
        /// The event's place in the list.
        event: usize,
        /// The feature.
        feature: IntelCounterFeature,
    },
    /// An event is reloaded by none of the list, or by one that the list does not have.
    ReloadPlaces {
        /// The event's place in the list.
        event: usize,
        /// The places of the events that reload it.
        places: u64,
    },
    /// An event is reloaded with a longer period than 2^31.
    ReloadPeriod {
        /// The event's place in the list.
        event: usize,
        /// The period.
        period: u32,
    },
}

impl fmt::Display for IntelCountersRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("there is no event to count"),
            Self::NoLevel { event } => write!(f, "event {event} of the list counts at no privilege level"),
            Self::NoEvent { event } => {
                write!(f, "event {event} of the list: CPUID.0AH:EBX says that it is missing")
            }
            Self::NoCounter { event } => write!(f, "event {event} of the list: no counter is free"),
            Self::NoFeature { event, feature } => {
                write!(f, "event {event} of the list: {feature} is not there")
            }
            Self::ReloadPlaces { event, places } => {
                write!(
                    f,
                    "event {event} of the list: it is reloaded by those of {places:#b}, which the list lacks"
                )
            }
            Self::ReloadPeriod { event, period } => {
                let longest = Reload::LONGEST;
                write!(f, "event {event} of the list: a period of {period}, the longest is {longest}")
            }
        }
    }
}

impl core::error::Error for IntelCountersRefusal {}

/// An event and its counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Assigned {
    pub(super) event: IntelEvent,
    pub(super) counter: Counter,
}
