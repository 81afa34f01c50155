//! The local APIC's timer, driven by the guest's clock.
//!
//! Source: SDM vol. 3, Advanced Programmable Interrupt Controller (APIC), "APIC Timer", "Local Vector Table".

use crate::local_apic::{CURRENT_COUNT, DIVIDE, INITIAL_COUNT, LVT_RESET, LVT_TIMER};

/// LVT entry: no interrupt comes.
const MASKED: u32 = 1 << 16;
/// LVT entry: the count restarts.
const PERIODIC: u32 = 1 << 17;

/// The rate of the timer before its divider: `counts` in `ticks` of the time-stamp counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerRate {
    /// Counts.
    pub counts: u32,
    /// Ticks of the time-stamp counter.
    pub ticks: u32,
}

/// A local APIC's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApicTimer {
    rate: TimerRate,
    entry: u32,
    divide: u32,
    initial: u32,
    /// The time at which the count reaches 0; `None` if the timer does not count.
    deadline: Option<u64>,
}

impl ApicTimer {
    /// Returns a timer after a reset.
    #[must_use]
    pub const fn new(rate: TimerRate) -> Self {
        Self { rate, entry: LVT_RESET, divide: 0, initial: 0, deadline: None }
    }

    /// Resets the timer as INIT does.
    pub const fn init(&mut self) {
        *self = Self::new(self.rate);
    }

    /// Returns the time, by the time-stamp counter, at which the count reaches 0.
    #[must_use]
    pub const fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    /// Returns the vector of the timer's interrupts.
    #[must_use]
    pub const fn vector(&self) -> u8 {
        self.entry as u8
    }

    /// Reads the register at this offset; `None` if it is not the timer's.
    #[must_use]
    pub fn read(&self, register: usize, now: u64) -> Option<u32> {
        Some(match register {
            LVT_TIMER => self.entry,
            INITIAL_COUNT => self.initial,
            DIVIDE => self.divide,
            CURRENT_COUNT => {
                let left = self.deadline.map_or(0, |deadline| deadline.saturating_sub(now));
                let counts = u128::from(left) * u128::from(self.rate.counts);
                u32::try_from(counts.div_ceil(self.ticks_times_counts(1))).unwrap_or(u32::MAX)
            }
            _ => return None,
        })
    }

    /// Writes the register at this offset. Returns `false` if it is not the timer's.
    pub fn write(&mut self, register: usize, value: u32, now: u64) -> bool {
        const ENTRY: u32 = 0x7_10ff & !(1 << 12);
        match register {
            LVT_TIMER => self.entry = value & ENTRY,
            INITIAL_COUNT => {
                self.initial = value;
                self.deadline = (value != 0).then(|| now.saturating_add(self.ticks(value)));
            }
            DIVIDE => self.divide = value & 0b1011,
            CURRENT_COUNT => {}
            _ => return false,
        }
        true
    }

    /// Returns the vector of the interrupt that is due, and restarts the count if the timer is periodic. If several
    /// periods have passed, only one interrupt is delivered.
    pub fn take_due(&mut self, now: u64) -> Option<u8> {
        let deadline = self.deadline.filter(|&deadline| deadline <= now)?;
        self.deadline = None;
        if self.entry & PERIODIC != 0 {
            let period = self.ticks(self.initial).max(1);
            let passed = (now - deadline) / period + 1;
            self.deadline = Some(deadline.saturating_add(passed.saturating_mul(period)));
        }
        (self.entry & MASKED == 0).then_some(self.entry as u8)
    }

    /// Returns the counts, with a divider of 1, in this many ticks of the time-stamp counter.
    #[must_use]
    pub fn counts(&self, ticks: u64) -> u32 {
        let counts = u128::from(ticks) * u128::from(self.rate.counts) / u128::from(self.rate.ticks.max(1));
        u32::try_from(counts).unwrap_or(u32::MAX)
    }

    /// Returns the ticks of the time-stamp counter for this many counts.
    fn ticks(&self, counts: u32) -> u64 {
        let ticks = self.ticks_times_counts(counts) / u128::from(self.rate.counts.max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    fn ticks_times_counts(&self, counts: u32) -> u128 {
        // Bits 3, 1 and 0: 2, 4 and so on to 128, then 1.
        let by = (self.divide & 0b11 | self.divide >> 1 & 0b100) + 1;
        (u128::from(counts) * u128::from(self.rate.ticks.max(1))) << (by % 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: TimerRate = TimerRate { counts: 2, ticks: 208 };
    const ONE: u32 = 0b1011;

    fn timer(entry: u32, divide: u32) -> ApicTimer {
        let mut timer = ApicTimer::new(RATE);
        assert!(timer.write(LVT_TIMER, entry, 0) && timer.write(DIVIDE, divide, 0));
        timer
    }

    #[test]
    fn the_divider_is_what_the_manual_says() {
        for (divide, by) in
            [(0, 2), (1, 4), (2, 8), (3, 16), (0b1000, 32), (0b1001, 64), (0b1010, 128), (ONE, 1)]
        {
            let mut timer = timer(0xec, divide);
            timer.write(INITIAL_COUNT, 10, 1000);
            assert_eq!(timer.deadline(), Some(1000 + 10 * 104 * by), "{divide:#b}");
            assert_eq!(timer.read(DIVIDE, 0), Some(divide));
        }
    }

    #[test]
    fn a_time_has_as_many_counts_at_the_timers_rate() {
        for (ticks, counts) in [(0, 0), (103, 0), (104, 1), (1040, 10), (u64::MAX, u32::MAX)] {
            // The divider does not matter.
            assert_eq!(timer(0, 0b11).counts(ticks), counts, "{ticks}");
        }
        let nothing = ApicTimer::new(TimerRate { counts: 1, ticks: 0 });
        assert_eq!(nothing.counts(7), 7);
    }

    #[test]
    fn counts_down_once_and_interrupts_once() {
        let mut timer = timer(0xec, ONE);
        assert_eq!((timer.take_due(u64::MAX), timer.read(CURRENT_COUNT, 5)), (None, Some(0)));
        timer.write(INITIAL_COUNT, 3, 1000);
        let counts = [1000, 1001, 1104, 1208, 1311, 1312, 5000].map(|now| timer.read(CURRENT_COUNT, now));
        assert_eq!(counts, [3, 3, 2, 1, 1, 0, 0].map(Some));
        assert_eq!((timer.take_due(1311), timer.read(INITIAL_COUNT, 0)), (None, Some(3)));
        assert_eq!([timer.take_due(1312), timer.take_due(9999)], [Some(0xec), None]);
        timer.write(INITIAL_COUNT, 3, 2000);
        timer.write(INITIAL_COUNT, 0, 2000);
        assert_eq!(timer.take_due(u64::MAX), None, "a count of 0 stops it");
    }

    #[test]
    fn a_periodic_timer_keeps_its_rhythm_and_periods_that_were_missed_come_once() {
        let mut timer = timer(PERIODIC | 0x31, ONE);
        timer.write(INITIAL_COUNT, 1, 0);
        assert_eq!([timer.take_due(105), timer.take_due(105)], [Some(0x31), None]);
        assert_eq!(timer.deadline(), Some(208));
        assert_eq!([timer.take_due(640), timer.take_due(640)], [Some(0x31), None]);
        assert_eq!(timer.deadline(), Some(728));
    }

    #[test]
    fn a_count_that_takes_no_time_is_a_period_of_one_tick_and_a_rate_of_nothing_is_one() {
        let with = |rate| {
            let mut timer = ApicTimer::new(rate);
            assert!(timer.write(LVT_TIMER, PERIODIC | 0x31, 0) && timer.write(DIVIDE, ONE, 0));
            timer
        };
        let mut fast = with(TimerRate { counts: 1000, ticks: 1 });
        fast.write(INITIAL_COUNT, 1, 0);
        assert_eq!([fast.take_due(10), fast.take_due(10)], [Some(0x31), None]);
        assert_eq!(fast.deadline(), Some(11));
        let mut unknown = with(TimerRate { counts: 0, ticks: 0 });
        unknown.write(INITIAL_COUNT, 7, 100);
        assert_eq!(unknown.deadline(), Some(107));
    }

    #[test]
    fn a_masked_timer_counts_without_interrupts() {
        let mut timer = timer(MASKED | 0x31, ONE);
        timer.write(INITIAL_COUNT, 1, 0);
        assert_eq!((timer.take_due(200), timer.deadline()), (None, None));
        timer.init();
        assert_eq!((timer, timer.read(LVT_TIMER, 0)), (ApicTimer::new(RATE), Some(MASKED)));
        assert!(timer.read(0x30, 0).is_none() && !timer.write(0x30, 0, 0));
        timer.write(CURRENT_COUNT, 9, 0);
        assert_eq!(timer, ApicTimer::new(RATE), "the count is read-only");
    }
}
