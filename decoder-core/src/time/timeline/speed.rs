//! The limits of the core clock's frequency.

/// The limits of the core clock: the possible numbers of core cycles in a TSC tick while the core clock runs.
///
/// With these limits, CYC packets narrow the bounds of time, because a number of cycles takes a minimum and a maximum
/// number of ticks. Without them, CYC packets only improve the guess.
///
/// ```
/// use pugmark_decoder_core::time::CoreSpeed;
///
/// // A 3.0 GHz processor whose core clock is between 800 MHz and 3.6 GHz.
/// let speed = CoreSpeed::between(8, 36, 30).unwrap();
/// assert_eq!((speed.least_ticks(360_001), speed.most_ticks(80_000)), (297_024, 303_044));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoreSpeed {
    /// Minimum number of core cycles in 2^16 TSC ticks; not zero.
    slowest: u32,
    /// Maximum number of core cycles in 2^16 TSC ticks; not zero.
    fastest: u32,
}

impl CoreSpeed {
    /// Creates the limits from the lowest and the highest ratio of core clock to bus clock, and the ratio of TSC to bus
    /// clock, which is [`nom_freq`](crate::config::Clocks::nom_freq). `None` if a ratio is zero or the lowest is above
    /// the highest.
    ///
    /// One percent is added on both sides: the bus clock is spread by up to half a percent, and the TSC's nominal ratio
    /// is rounded. The highest ratio is that of the highest turbo mode, from MSR_TURBO_RATIO_LIMIT. The lowest is the
    /// maximum efficiency ratio, MSR_PLATFORM_INFO\[47:40\], or lower under thermal throttling.
    #[must_use]
    pub const fn between(lowest: u8, highest: u8, nom_freq: u8) -> Option<Self> {
        if lowest == 0 || lowest > highest || nom_freq == 0 {
            return None;
        }
        let (lowest, highest, nominal) = (lowest as u32, highest as u32, nom_freq as u32);
        Some(Self {
            slowest: (lowest << 16) / nominal * 99 / 100,
            fastest: (highest << 16).div_ceil(nominal) * 101 / 100 + 1,
        })
    }

    /// Returns the minimum number of ticks between two moments `cycles` cycles apart. Both counters count whole units.
    #[must_use]
    pub const fn least_ticks(self, cycles: u64) -> u64 {
        let ticks = ((cycles.saturating_sub(1) as u128) << 16) / self.fastest as u128;
        saturate(ticks)
    }

    /// Returns the maximum number of ticks between two such moments, if the core clock did not stop between them.
    #[must_use]
    pub const fn most_ticks(self, cycles: u64) -> u64 {
        let ticks = ((cycles as u128 + 1) << 16).div_ceil(self.slowest as u128);
        saturate(ticks).saturating_add(1)
    }
}

const fn saturate(ticks: u128) -> u64 {
    if ticks > u64::MAX as u128 { u64::MAX } else { ticks as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_bound_ticks_whatever_the_core_clock_does_between_its_limits() {
        let mut state = 9_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..crate::rounds(2_000) {
            let nominal = 1 + random(40) as u8;
            let lowest = 1 + random(60) as u8;
            let highest = lowest + random(60) as u8;
            let speed = CoreSpeed::between(lowest, highest, nominal).unwrap();
            // The unit of time is 1 / (1000 · nominal) of a tick. `permille` is the speed of the bus clock, in
            // thousandths of its nominal frequency.
            let scale = 1000 * u64::from(nominal);
            let (mut time, mut phase) = (random(scale), random(1_000_000));
            let (start_tick, start_cycle) = (time / scale, 0);
            for _ in 0..20 {
                let ratio = u64::from(lowest) + random(u64::from(highest - lowest) + 1);
                let permille = 995 + random(11);
                let ticks = random(500);
                time += ticks * scale;
                phase += ticks * ratio * permille * 1_000_000 / scale;
                let cycles = phase / 1_000_000 - start_cycle;
                let passed = time / scale - start_tick;
                assert!(speed.least_ticks(cycles) <= passed, "{cycles} cycles in {passed}, {speed:?}");
                assert!(passed <= speed.most_ticks(cycles), "{cycles} cycles in {passed}, {speed:?}");
            }
        }
    }

    #[test]
    fn a_range_of_ratios_must_be_one() {
        for (lowest, highest, nominal) in [(0, 36, 30), (8, 7, 30), (8, 36, 0)] {
            assert_eq!(CoreSpeed::between(lowest, highest, nominal), None);
        }
        let widest = CoreSpeed::between(1, 255, 255).unwrap();
        assert_eq!((widest.least_ticks(0), widest.least_ticks(1)), (0, 0));
        assert_eq!(widest.most_ticks(u64::MAX), u64::MAX);
        assert!(CoreSpeed::between(255, 255, 1).unwrap().least_ticks(u64::MAX) > 1 << 55);
    }
}
