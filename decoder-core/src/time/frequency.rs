//! The TSC's frequency: converts ticks to nanoseconds.
//!
//! Source: SDM vol. 2, CPUID, leaves 15H and 16H; vol. 3, "Time-Stamp Counter", "Invariant Time-Keeping".

use crate::config::Clocks;
use core::time::Duration;

const NANOSECONDS: u128 = 1_000_000_000;

/// The TSC's frequency as an exact fraction, for example as CPUID enumerates it.
///
/// ```
/// use pugmark_decoder_core::config::Clocks;
/// use pugmark_decoder_core::time::TscFrequency;
/// use std::time::Duration;
///
/// // 24 MHz · 242 / 2 = 2904 MHz. CPUID.16H says 2900.
/// let clocks = Clocks { cpuid_15h_eax: 2, cpuid_15h_ebx: 242, cpuid_15h_ecx: 24_000_000, cpuid_16h_eax: 2900,
///     ..Clocks::default() };
/// let frequency = TscFrequency::enumerated(&clocks).unwrap();
/// assert_eq!(frequency.hz(), 2_904_000_000);
/// assert_eq!(frequency.duration(2_904_000_001), Duration::from_secs(1));
/// assert_eq!(frequency.ticks(Duration::from_millis(1)), Some(2_904_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TscFrequency {
    /// Ticks in `denominator` seconds; neither is zero, and the fraction is 1 or more.
    numerator: u64,
    denominator: u32,
}

impl TscFrequency {
    /// Returns the frequency from CPUID.15H, or from CPUID.16H if leaf 15H lacks the crystal's frequency or the ratio;
    /// `None` if leaf 16H lacks it too.
    ///
    /// Leaf 16H has the base frequency of the marketing name in whole MHz, which is up to 0.2 % off the TSC. If you
    /// know the crystal's frequency (24 MHz on most client processors from Skylake on), set [`Clocks::cpuid_15h_ecx`]
    /// to it.
    #[must_use]
    pub const fn enumerated(clocks: &Clocks) -> Option<Self> {
        let (numerator, denominator) = (clocks.cpuid_15h_ebx as u64, clocks.cpuid_15h_eax);
        match Self::new(numerator * clocks.cpuid_15h_ecx as u64, denominator) {
            None => Self::new(clocks.cpuid_16h_eax as u64 * 1_000_000, 1),
            crystal => crystal,
        }
    }

    /// Creates `numerator / denominator` Hz; `None` for less than 1 Hz and for a denominator of zero.
    #[must_use]
    pub const fn new(numerator: u64, denominator: u32) -> Option<Self> {
        if denominator == 0 || numerator < denominator as u64 {
            return None;
        }
        Some(Self { numerator, denominator })
    }

    /// Returns whole Hz, rounded down.
    #[must_use]
    pub const fn hz(self) -> u64 {
        self.numerator / self.denominator as u64
    }

    /// Returns the duration of `ticks` ticks in nanoseconds, rounded down.
    ///
    /// The result is exact for every number of ticks: 64, 32 and 30 bits are multiplied in 128.
    #[must_use]
    pub const fn nanoseconds(self, ticks: u64) -> u128 {
        ticks as u128 * self.denominator as u128 * NANOSECONDS / self.numerator as u128
    }

    /// Returns the same as a [`Duration`], which can hold it for every number of ticks.
    #[must_use]
    pub const fn duration(self, ticks: u64) -> Duration {
        let nanoseconds = self.nanoseconds(ticks);
        // At 1 Hz or more there are at most as many seconds as ticks.
        Duration::new((nanoseconds / NANOSECONDS) as u64, (nanoseconds % NANOSECONDS) as u32)
    }

    /// Returns the number of whole ticks in `duration`; `None` if 64 bits cannot hold it.
    #[must_use]
    pub const fn ticks(self, duration: Duration) -> Option<u64> {
        let (numerator, denominator) = (self.numerator as u128, self.denominator as u128);
        // Seconds are converted first, with their remainder carried over, because nanoseconds would not fit.
        let by_seconds = duration.as_secs() as u128 * numerator;
        let (whole, rest) = (by_seconds / denominator, by_seconds % denominator);
        let fraction =
            (rest * NANOSECONDS + duration.subsec_nanos() as u128 * numerator) / (denominator * NANOSECONDS);
        let ticks = whole + fraction;
        if ticks > u64::MAX as u128 { None } else { Some(ticks as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn leaf_15h(eax: u32, ebx: u32, ecx: u32, base_mhz: u16) -> Clocks {
        Clocks {
            cpuid_15h_eax: eax,
            cpuid_15h_ebx: ebx,
            cpuid_15h_ecx: ecx,
            cpuid_16h_eax: base_mhz,
            ..Clocks::UNKNOWN
        }
    }

    #[test]
    fn leaf_16h_stands_in_where_leaf_15h_lacks_something() {
        for (clocks, hz) in [
            (leaf_15h(2, 208, 25_000_000, 2600), Some(2_600_000_000)),
            (leaf_15h(3, 100, 19_200_000, 600), Some(640_000_000)),
            // Not a whole number of Hz: the remainder is 1 / 3.
            (leaf_15h(3, 100, 1_000_000, 0), Some(33_333_333)),
            (leaf_15h(2, 250, 0, 3000), Some(3_000_000_000)),
            (leaf_15h(0, 250, 24_000_000, 3000), Some(3_000_000_000)),
            (leaf_15h(2, 0, 24_000_000, 3000), Some(3_000_000_000)),
            (leaf_15h(2, 250, 0, 0), None),
            (Clocks::UNKNOWN, None),
            // A TSC frequency is at least 1 Hz.
            (leaf_15h(3, 1, 1, 0), None),
            (leaf_15h(u32::MAX, u32::MAX, u32::MAX, 0), Some(u64::from(u32::MAX))),
        ] {
            assert_eq!(TscFrequency::enumerated(&clocks).map(TscFrequency::hz), hz, "{clocks:?}");
        }
    }

    #[test]
    fn conversions_are_exact_up_to_the_last_tick() {
        let of = |numerator, denominator| TscFrequency::new(numerator, denominator).unwrap();
        for (frequency, ticks, nanoseconds) in [
            (of(3_000_000_000, 1), 3, 1),
            (of(3_000_000_000, 1), 2, 0),
            (of(3_000_000_000, 1), u64::MAX, 6_148_914_691_236_517_205),
            (of(2_904_000_000, 1), 2_904_000_000, 1_000_000_000),
            // 10^9 / 3 Hz: each tick is 3 ns.
            (of(1_000_000_000, 3), u64::MAX, 55_340_232_221_128_654_845),
            (of(1, 1), u64::MAX, 18_446_744_073_709_551_615_000_000_000),
            (of(u32::MAX.into(), u32::MAX), 5, 5_000_000_000),
            (of(u64::MAX, 1), u64::MAX, 1_000_000_000),
        ] {
            assert_eq!(frequency.nanoseconds(ticks), nanoseconds, "{frequency:?} {ticks}");
            assert_eq!(frequency.duration(ticks).as_nanos(), nanoseconds, "{frequency:?} {ticks}");
        }
    }

    #[test]
    fn ticks_of_a_duration_are_those_that_fit_into_it() {
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> (state >> 58)
        };
        for _ in 0..crate::rounds(2_000) {
            let denominator = random() as u32 | 1;
            let Some(frequency) = TscFrequency::new(random(), denominator) else { continue };
            let (ticks, seconds) = (random(), random());
            let duration = frequency.duration(ticks);
            // The duration was rounded down, so a tick may be missing, or several if they are short.
            let back = frequency.ticks(duration).unwrap();
            assert!(back <= ticks, "{frequency:?} {ticks}");
            assert_eq!(frequency.duration(back.max(ticks)), duration, "{frequency:?} {ticks}");
            let most = Duration::new(seconds, 999_999_999);
            if let Some(ticks) = frequency.ticks(most) {
                assert!(frequency.duration(ticks) <= most, "{frequency:?} {most:?}");
                if let Some(more) = ticks.checked_add(1) {
                    let exact = u128::from(more) * u128::from(denominator) * NANOSECONDS;
                    let limit = most.as_nanos() * u128::from(frequency.numerator);
                    assert!(exact > limit, "{frequency:?} {most:?}");
                }
            } else {
                assert!(frequency.duration(u64::MAX) < most, "{frequency:?} {most:?}");
            }
        }
    }

    #[test]
    fn the_longest_duration_is_more_ticks_than_there_are() {
        let frequency = TscFrequency::new(u64::MAX, 1).unwrap();
        assert_eq!(frequency.ticks(Duration::MAX), None);
        assert_eq!(frequency.ticks(Duration::from_secs(1)), Some(u64::MAX));
    }
}
