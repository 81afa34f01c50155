//! The guest's own clock.
//!
//! The clock runs at the frequency that the guest's processor reports, and follows the time-stamp counter of the
//! processor below.
//!
//! Stepping takes a thousand times as long as executing. If the guest's clocks continue meanwhile, its timer may
//! interrupt again before the handler of the last interrupt has ended. Therefore the clock can be stopped while any
//! processor is stepped; then each retired instruction takes a fixed time. The untraced code that another processor
//! executes before its next traced instruction takes a fixed time too: from a task switch in the kernel to the task's
//! first instruction time must pass, because a decoder uses the time to assign that instruction to its task.

/// Duration of another processor's untraced code, in instructions of a stepped processor. Intel PT tells time by the
/// crystal clock, mostly in units of a thousand ticks, which at a hundred ticks per instruction are ten instructions.
const UNSEEN: u64 = 100;

/// The frequency of the guest's time-stamp counter, and its ratio to that of the counter below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockRate {
    /// The guest's frequency in Hz.
    pub guest_hz: u64,
    /// Ticks of the guest's counter in 2³² of the one below.
    ratio: u64,
}

impl ClockRate {
    /// Converts ticks of the counter below to ticks of the guest's.
    #[must_use]
    pub fn guest_ticks(self, below: u64) -> u64 {
        ((u128::from(below) * u128::from(self.ratio)) >> 32) as u64
    }

    /// Computes the ratio: the counter below counted `ticks` in `nanoseconds`.
    #[must_use]
    pub fn measured(guest_hz: u64, ticks: u64, nanoseconds: u64) -> Self {
        let billionths = (u128::from(guest_hz) * u128::from(nanoseconds)) << 32;
        let ratio = billionths.div_ceil(u128::from(ticks.max(1)) * 1_000_000_000);
        Self { guest_hz, ratio: u64::try_from(ratio).unwrap_or(u64::MAX) }
    }
}

/// The time-stamp counter of all the guest's processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestClock {
    /// Ticks that an instruction of a stepped processor takes; 0: the clock runs on while processors are stepped.
    per_instruction: u64,
    /// Number of processors that are stepped.
    stepped: usize,
    /// While no processor is stepped: the offset from the counter below. Otherwise: the time.
    value: u64,
}

impl GuestClock {
    /// Returns a clock that agrees with the counter below until a processor is stepped; with 0 ticks for an
    /// instruction, forever. The counter below is the machine's, in ticks of the guest's ([`ClockRate::guest_ticks`]).
    #[must_use]
    pub const fn new(per_instruction: u32) -> Self {
        Self { per_instruction: per_instruction as u64, stepped: 0, value: 0 }
    }

    /// Returns the time when the counter below is `below`.
    #[must_use]
    pub const fn now(&self, below: u64) -> u64 {
        if self.stepped == 0 { below.wrapping_add(self.value) } else { self.value }
    }

    /// Notes that one more processor is stepped.
    pub const fn begin(&mut self, below: u64) {
        if self.per_instruction > 0 {
            self.value = self.now(below);
            self.stepped += 1;
        }
    }

    /// Notes that one processor fewer is stepped.
    pub const fn end(&mut self, below: u64) {
        if self.per_instruction > 0 {
            self.stepped -= 1;
            if self.stepped == 0 {
                self.value = self.value.wrapping_sub(below);
            }
        }
    }

    /// Notes that an instruction retires on a processor that is stepped.
    pub const fn retired(&mut self) {
        self.value = self.value.wrapping_add(self.per_instruction);
    }

    /// Notes that an instruction retires on a processor that is not stepped and has just executed untraced code.
    pub const fn retired_after_unseen(&mut self) {
        if self.stepped > 0 {
            self.value = self.value.wrapping_add(UNSEEN * self.per_instruction);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stepped_guests_time_is_that_of_its_instructions() {
        let mut clock = GuestClock::new(100);
        assert_eq!(clock.now(5000), 5000);
        clock.begin(6000);
        assert_eq!([clock.now(6000), clock.now(9_000_000)], [6000; 2]);
        clock.retired();
        clock.retired();
        assert_eq!(clock.now(9_000_000), 6200);
        clock.end(10_000_000);
        assert_eq!([clock.now(10_000_000), clock.now(10_000_007)], [6200, 6207]);
        clock.begin(10_000_010);
        assert_eq!(clock.now(20_000_000), 6210);
    }

    #[test]
    fn a_clock_whose_instructions_take_no_time_runs_on_while_the_guest_is_stepped() {
        let mut clock = GuestClock::new(0);
        clock.begin(100);
        clock.retired();
        clock.retired_after_unseen();
        assert_eq!([clock.now(100), clock.now(900)], [100, 900]);
        clock.end(1000);
        assert_eq!((clock.now(1001), clock), (1001, GuestClock::new(0)));
    }

    #[test]
    fn what_a_processor_executes_unseen_takes_time_while_another_is_stepped() {
        let mut clock = GuestClock::new(10);
        clock.retired_after_unseen();
        assert_eq!(clock.now(70), 70);
        clock.begin(100);
        clock.retired_after_unseen();
        assert_eq!(clock.now(9000), 1100);
    }

    #[test]
    fn the_clock_runs_freely_only_when_no_processor_is_stepped() {
        let mut clock = GuestClock::new(3);
        clock.begin(100);
        clock.begin(200);
        clock.retired();
        clock.end(300);
        assert_eq!(clock.now(400), 103);
        clock.retired();
        clock.end(500);
        assert_eq!(clock.now(510), 116);
    }

    #[test]
    fn the_guests_ticks_have_the_guests_frequency() {
        let rate = ClockRate::measured(3_000_000_000, 50_000_000, 20_000_000);
        assert_eq!([0, 5, 2_500_000_000].map(|below| rate.guest_ticks(below)), [0, 6, 3_000_000_000]);
        // A month.
        let month = rate.guest_ticks(2_592_000 * 2_500_000_000);
        assert!(month.abs_diff(2_592_000 * 3_000_000_000) < 3_000_000, "{month}");
        assert_eq!(ClockRate::measured(5, 7, 0).guest_ticks(7), 0);
        assert_eq!(ClockRate::measured(1_000_000_000, 0, 1).guest_ticks(9), 9);
    }
}
