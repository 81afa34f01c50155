//! Overflows: the ends of counters' periods, their receiver, and counts of their fates.

/// A receiver of overflows in the handler: it must not wait, allocate or format.
pub trait OverflowSink {
    /// Takes an overflow; returns `false` if there is no room for it, and it is lost.
    fn overflow(&mut self, overflow: Overflow) -> bool;
}

impl<F: FnMut(Overflow) -> bool> OverflowSink for F {
    fn overflow(&mut self, overflow: Overflow) -> bool {
        self(overflow)
    }
}

/// The end of a counter's period. It happened in the code that the handler interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// The event's place in the list.
    pub event: usize,
    /// The number of events since the start.
    pub count: u64,
}

/// The overflows, counted by their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverflowCounts {
    /// Overflows that the sink took.
    pub taken: u64,
    /// Overflows that the sink had no room for.
    pub lost: u64,
    /// Periods that ended before the handler served the previous one.
    pub skipped: u64,
    /// Overflows that no handler saw, because the counters were stopped first.
    pub unseen: u64,
    /// The number of times that the handler gave up, after a fault or because interrupts did not end: the counters that
    /// could be stopped were stopped until an interrupt was served again, and events meanwhile are not counted.
    pub abandoned: u64,
    /// The number of times that a counter was found off, or with another event, although the driver had left it on:
    /// another owner or a hypervisor has changed its registers. Events since then are not counted. If its event select
    /// was changed, its count falls back to that of the last interrupt, because the events in the register may be
    /// others.
    pub turned_off: u64,
}
