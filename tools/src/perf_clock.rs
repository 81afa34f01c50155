//! The clock of Linux' perf, which follows from the TSC.

/// The relation of perf's clock to the TSC.
///
/// Source: Linux, include/uapi/linux/perf_event.h, `perf_event_mmap_page`, "time_zero"; tools/perf/util/tsc.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfClock {
    /// `time_zero`: the time at which the TSC was 0, in nanoseconds.
    pub zero: u64,
    /// `time_shift`.
    pub shift: u16,
    /// `time_mult`: a tick of the TSC lasts `mult / 2^shift` nanoseconds.
    pub mult: u32,
}

impl PerfClock {
    /// Returns the TSC at a time in nanoseconds, rounded as perf does; `None` if the clock stands still.
    #[must_use]
    pub fn tsc(&self, time: u64) -> Option<u64> {
        let (time, mult) = (time.wrapping_sub(self.zero), u64::from(self.mult));
        let shift = |value: u64| value.checked_shl(self.shift.into()).unwrap_or(0);
        let whole = shift(time.checked_div(mult)?);
        let rest = shift(time % mult) / mult;
        Some(whole.wrapping_add(rest))
    }

    /// Returns the time in nanoseconds at a TSC, rounded as perf does.
    #[must_use]
    pub fn nanoseconds(&self, tsc: u64) -> u64 {
        let (mult, shift) = (u64::from(self.mult), u32::from(self.shift));
        let whole = tsc.checked_shr(shift).unwrap_or(0);
        let rest = tsc.wrapping_sub(whole.checked_shl(shift).unwrap_or(0));
        let rest = rest.wrapping_mul(mult).checked_shr(shift).unwrap_or(0);
        self.zero.wrapping_add(whole.wrapping_mul(mult)).wrapping_add(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_that_perf_prints() {
        // The clock of a TSC at 2.596 GHz, with pairs as `perf script -F time,tsc` prints them.
        let clock = PerfClock { zero: 18_446_744_072_137_855_251, shift: 31, mult: 827_196_680 };
        let zero = 18_446_744_072_137_855_251_u64;
        for tsc in [0, 1, 2, 1 << 31, 0x9_1c92_e3e9, 0x12_a2f8_e399, u64::MAX >> 1] {
            let exact = (u128::from(tsc) * 827_196_680) >> 31;
            let time = clock.nanoseconds(tsc);
            assert_eq!(time, zero.wrapping_add(exact as u64), "{tsc:#x}");
            // A nanosecond is more than a tick.
            let back = clock.tsc(time).unwrap();
            assert!(tsc.wrapping_sub(back) < 4, "{tsc:#x} {back:#x}");
        }
        assert_eq!(PerfClock { mult: 0, ..clock }.tsc(5), None);
        let far = PerfClock { shift: 64, ..clock };
        assert_eq!((far.tsc(5), far.nanoseconds(5)), (Some(0), zero));
    }
}
