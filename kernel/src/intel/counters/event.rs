//! The events to count.

use crate::msr::{Counter, FixedCtrCtrl, Ia32PerfEvtSel};
use core::fmt;

/// An event to count, and the code in which it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntelEvent {
    select: Ia32PerfEvtSel,
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
        Self { select: Ia32PerfEvtSel::event(event, umask).union(levels) }
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
        let rest = self.select.difference(Ia32PerfEvtSel::CMASK);
        Self { select: rest.union(Ia32PerfEvtSel::from_bits_retain((events as u64) << 24)) }
    }

    /// Sets whether the cycles with fewer events than [`IntelEvent::at_least`] gives are counted.
    #[must_use]
    pub const fn inverted(self, inverted: bool) -> Self {
        self.with(Ia32PerfEvtSel::INV, inverted)
    }

    const fn with(self, flag: Ia32PerfEvtSel, set: bool) -> Self {
        let select = if set { self.select.union(flag) } else { self.select.difference(flag) };
        Self { select }
    }

    /// Returns the event's bit in `CPUID.0AH:EBX` if it is architectural.
    pub(super) const fn architectural(&self) -> Option<usize> {
        let number = Ia32PerfEvtSel::EVENT.union(Ia32PerfEvtSel::UMASK).bits();
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
        match self.os(true).user(true) {
            Self::INSTRUCTIONS => Some(0),
            Self::CYCLES => Some(1),
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
        FixedCtrCtrl::counting(n, has(Ia32PerfEvtSel::OS), has(Ia32PerfEvtSel::USR), false)
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
