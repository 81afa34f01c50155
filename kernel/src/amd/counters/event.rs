//! The events to count.

use super::LONGEST;
use crate::amd::AmdCapabilities;
use crate::msr::amd::PerfEvtSel;
use core::fmt;

/// An event to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedEvent {
    select: PerfEvtSel,
    pub(super) period: Option<u64>,
    pub(super) counter: Option<u8>,
}

impl CountedEvent {
    /// Creates an event (12 bits are used) with this unit mask, at all privilege levels.
    #[must_use]
    pub const fn new(event: u16, unit_mask: u8) -> Self {
        let select = PerfEvtSel::USR.union(PerfEvtSel::OS).with_event(event).with_unit_mask(unit_mask);
        Self::of(select)
    }

    /// Creates the event from an event select. The driver itself sets its enable and interrupt bits.
    #[must_use]
    pub const fn of(select: PerfEvtSel) -> Self {
        let select = select.difference(PerfEvtSel::EN.union(PerfEvtSel::INT));
        Self { select, period: None, counter: None }
    }

    /// Sets whether the event counts above CPL 0.
    #[must_use]
    pub fn user(self, user: bool) -> Self {
        self.with(PerfEvtSel::USR, user)
    }

    /// Sets whether the event counts at CPL 0.
    #[must_use]
    pub fn os(self, os: bool) -> Self {
        self.with(PerfEvtSel::OS, os)
    }

    /// Counts the beginnings of the event, not the clocks that it lasts.
    #[must_use]
    pub fn edges(self) -> Self {
        self.with(PerfEvtSel::EDGE, true)
    }

    /// Counts clocks with at least this many events; 0 counts the events.
    #[must_use]
    pub const fn at_least(self, events: u8) -> Self {
        Self { select: self.select.with_counter_mask(events), ..self }
    }

    /// Counts clocks with fewer events than [`CountedEvent::at_least`] gives.
    #[must_use]
    pub fn inverted(self) -> Self {
        self.with(PerfEvtSel::INV, true)
    }

    /// Counts in guests only.
    #[must_use]
    pub fn guest_only(self) -> Self {
        self.with(PerfEvtSel::GUEST_ONLY, true)
    }

    /// Counts in the host only.
    #[must_use]
    pub fn host_only(self) -> Self {
        self.with(PerfEvtSel::HOST_ONLY, true)
    }

    /// Requests an interrupt each time that the event has happened `period` times: 1 to 2⁴⁷.
    #[must_use]
    pub const fn every(self, period: u64) -> Self {
        Self { period: Some(period), ..self }
    }

    /// Allows only this counter.
    #[must_use]
    pub const fn on(self, counter: u8) -> Self {
        Self { counter: Some(counter), ..self }
    }

    fn with(mut self, flag: PerfEvtSel, set: bool) -> Self {
        self.select.set(flag, set);
        self
    }

    /// Returns the event select: the event, its filters and modes.
    #[must_use]
    pub const fn select(&self) -> PerfEvtSel {
        self.select
    }

    /// Checks the event.
    ///
    /// # Errors
    ///
    /// This processor cannot count the event.
    pub(super) fn check(&self, n: usize, capabilities: &AmdCapabilities) -> Result<(), CountersRefusal> {
        let reserved = self.select.difference(known(capabilities));
        if !reserved.is_empty() {
            return Err(CountersRefusal::Reserved { event: n, bits: reserved });
        }
        if !self.select.intersects(PerfEvtSel::USR | PerfEvtSel::OS) {
            return Err(CountersRefusal::NoLevel { event: n });
        }
        match self.period {
            Some(period) if !(1..=LONGEST).contains(&period) => {
                Err(CountersRefusal::Period { event: n, period })
            }
            _ => Ok(()),
        }
    }

    /// Returns the value to write while SVM is on or off (EFER.SVME).
    ///
    /// With HostOnly, a counter counts only while SVM is on. With both bits, it counts guests and host, which is
    /// everything.
    pub(super) fn written(&self, svm: bool) -> PerfEvtSel {
        let both = PerfEvtSel::GUEST_ONLY | PerfEvtSel::HOST_ONLY;
        let mut select = self.select;
        if select.contains(both) {
            select.remove(both);
        }
        if !svm {
            select.remove(PerfEvtSel::HOST_ONLY);
        }
        select | PerfEvtSel::INT
    }
}

/// Returns the bits that are not reserved.
fn known(capabilities: &AmdCapabilities) -> PerfEvtSel {
    let mut known = PerfEvtSel::all();
    if capabilities.family < 0x10 {
        known.remove(PerfEvtSel::SINCE_FAM10H);
    }
    if capabilities.family > 0x10 {
        known.remove(PerfEvtSel::PC);
    }
    known
}

/// The reason why events cannot be counted. `event` is a place in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountersRefusal {
    /// No event was requested.
    Nothing,
    /// Bits are set that this processor does not have.
    Reserved {
        /// The event.
        event: usize,
        /// The bits.
        bits: PerfEvtSel,
    },
    /// Neither CPL 0 nor the levels above it were requested.
    NoLevel {
        /// The event.
        event: usize,
    },
    /// The period is not 1 to 2⁴⁷.
    Period {
        /// The event.
        event: usize,
        /// The requested period.
        period: u64,
    },
    /// No counter of this processor can count the event; on family 15h, northbridge events have their own counters.
    NoCounter {
        /// The event.
        event: usize,
    },
    /// There are not enough free counters.
    NotEnough {
        /// The number of counters that the events need.
        needed: u32,
        /// Bit n is set if counter n is free.
        free: u16,
    },
}

impl fmt::Display for CountersRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("no event is to be counted"),
            Self::Reserved { event, bits } => {
                write!(f, "event {event}: the bits {:#x} are reserved on this processor", bits.bits())
            }
            Self::NoLevel { event } => {
                write!(f, "event {event}: neither CPL 0 nor what is above it is to be counted")
            }
            Self::Period { event, period } => {
                write!(f, "event {event}: the period {period:#x} is not 1 to {LONGEST:#x}")
            }
            Self::NoCounter { event } => write!(f, "event {event}: no counter counts it"),
            Self::NotEnough { needed, free } => {
                write!(f, "{needed} counters are needed, and those in {free:#b} are free and do not suffice")
            }
        }
    }
}

impl core::error::Error for CountersRefusal {}
