//! The periods that a counter takes: errata of several microarchitectures make short or odd ones useless.

use super::{Counter, PebsCapabilities, PreciseEvent};
use core::fmt;

/// The periods that a counter takes for an event: multiples of `step` from `shortest` to `longest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Periods {
    /// The shortest period, in events.
    pub shortest: u64,
    /// The longest period, in events.
    pub longest: u64,
    /// The granularity.
    pub step: u64,
}

impl Periods {
    /// Returns whether a counter takes this period.
    #[must_use]
    pub const fn contain(&self, period: u64) -> bool {
        self.shortest <= period && period <= self.longest && period % self.step == 0
    }

    /// Returns the longest period that is not longer than `period`, or the shortest one if there is none.
    #[must_use]
    pub const fn at_most(&self, period: u64) -> u64 {
        let shorter = if period < self.longest { period } else { self.longest };
        let rounded = shorter - shorter % self.step;
        if rounded < self.shortest { self.shortest } else { rounded }
    }
}

impl fmt::Display for Periods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            1 => write!(f, "{} to {}", self.shortest, self.longest),
            step => write!(f, "multiples of {step} from {} to {}", self.shortest, self.longest),
        }
    }
}

/// The rules for periods of a microarchitecture.
///
/// Source: Intel's specification updates, for the errata named here; Linux, arch/x86/events/intel/core.c,
/// `nhm_limit_period`, `hsw_limit_period`, `bdw_limit_period` and `glc_limit_period`, for the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeriodRules {
    /// No restriction is known.
    All,
    /// Nehalem: with a period below 32, a PMI can request the next one before its handler ends. Westmere has the same
    /// core, and is treated alike as a precaution.
    Nehalem,
    /// Haswell: as on Nehalem. INST_RETIRED.PREC_DIST needs a period above 100 (HSW11); Linux takes no less than 128.
    Haswell,
    /// Broadwell: INST_RETIRED.PREC_DIST as on Haswell (BDM11), and bits 5:0 of its period must be 0 (BDM55). Other
    /// events as on Haswell, as a precaution: both have the same core.
    Broadwell,
    /// Golden Cove and its successors: instructions with a precise distribution, which fixed-function counter 0 has,
    /// need 128.
    GoldenCove,
}

impl PeriodRules {
    /// Returns the rules of a display family and model.
    pub(super) const fn of(family: u8, model: u8) -> Self {
        match (family, model) {
            (6, 0x1a | 0x1e | 0x1f | 0x2e | 0x25 | 0x2c | 0x2f) => Self::Nehalem,
            (6, 0x3c | 0x3f | 0x45 | 0x46) => Self::Haswell,
            (6, 0x3d | 0x47 | 0x4f | 0x56) => Self::Broadwell,
            // Sapphire and Emerald Rapids, Granite Rapids; Alder Lake to Arrow Lake; Lunar Lake, Panther Lake.
            (6, 0x8f | 0xcf | 0xad | 0xae | 0x97 | 0x9a | 0xb7 | 0xba | 0xbf) => Self::GoldenCove,
            (6, 0xaa | 0xac | 0xb5 | 0xc5 | 0xc6 | 0xbd | 0xcc) => Self::GoldenCove,
            // Nova Lake, Diamond Rapids.
            (0x12 | 0x13, _) => Self::GoldenCove,
            _ => Self::All,
        }
    }

    /// Returns the shortest period, and the step.
    const fn shortest(self, counter: Counter, event: Option<PreciseEvent>) -> (u64, u64) {
        let distributed = matches!(event, Some(PreciseEvent::INST_RETIRED_PREC_DIST));
        match (self, counter) {
            (Self::Haswell, _) if distributed => (128, 1),
            (Self::Broadwell, _) if distributed => (128, 64),
            (Self::Nehalem | Self::Haswell | Self::Broadwell, _) => (32, 1),
            (Self::GoldenCove, Counter::Fixed(0)) => (128, 1),
            (Self::GoldenCove, _) if distributed => (128, 1),
            (Self::All | Self::GoldenCove, _) => (1, 1),
        }
    }
}

impl PebsCapabilities {
    /// Returns the periods that `counter` takes; `event` is the event of a general-purpose counter.
    #[must_use]
    pub const fn periods(&self, counter: Counter, event: Option<PreciseEvent>) -> Periods {
        let longest = match counter {
            Counter::General(_) if self.full_width => full_width(self.general_bits),
            // Without full-width writes, only half of the range of 32 bits can be written.
            Counter::General(_) => 1 << 31,
            Counter::Fixed(_) => full_width(self.fixed_bits),
        };
        let (shortest, step) = self.period_rules.shortest(counter, event);
        Periods { shortest, longest, step }
    }
}

const fn full_width(bits: u8) -> u64 {
    match bits {
        64.. => u64::MAX,
        _ => (1 << bits) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENERAL: Counter = Counter::General(1);
    const INSTRUCTIONS: PreciseEvent = PreciseEvent::INST_RETIRED;
    const DISTRIBUTED: PreciseEvent = PreciseEvent::INST_RETIRED_PREC_DIST;
    const BRANCHES: PreciseEvent = PreciseEvent::BR_INST_RETIRED_PEBS;

    #[test]
    fn each_model_has_the_rules_of_its_core() {
        use PeriodRules::{All, Broadwell, GoldenCove, Haswell, Nehalem};
        for (rules, models) in [
            (Nehalem, &[0x1a, 0x1e, 0x1f, 0x2e, 0x25, 0x2c, 0x2f][..]),
            (Haswell, &[0x3c, 0x3f, 0x45, 0x46]),
            (Broadwell, &[0x3d, 0x47, 0x4f, 0x56]),
            (GoldenCove, &[0x8f, 0xcf, 0x97, 0x9a, 0xb7, 0xba, 0xbf, 0xaa, 0xac, 0xad, 0xae]),
            (GoldenCove, &[0xb5, 0xbd, 0xc5, 0xc6, 0xcc]),
            (
                All,
                &[0x0f, 0x17, 0x1c, 0x2a, 0x2d, 0x3a, 0x3e, 0x5c, 0x4e, 0x5e, 0x55, 0x6a, 0x7e, 0x8c, 0x96],
            ),
        ] {
            for &model in models {
                assert_eq!(PeriodRules::of(6, model), rules, "{model:#x}");
            }
        }
        assert_eq!((PeriodRules::of(0x13, 1), PeriodRules::of(0x0f, 0x3d)), (GoldenCove, All));
    }

    #[test]
    fn errata_set_the_shortest_period_and_the_step() {
        use PeriodRules::{All, Broadwell, GoldenCove, Haswell, Nehalem};
        for (rules, counter, event, expected) in [
            (All, GENERAL, Some(DISTRIBUTED), (1, 1)),
            (All, Counter::Fixed(0), None, (1, 1)),
            (Nehalem, GENERAL, Some(INSTRUCTIONS), (32, 1)),
            (Haswell, GENERAL, Some(BRANCHES), (32, 1)),
            (Haswell, GENERAL, Some(DISTRIBUTED), (128, 1)),
            (Broadwell, GENERAL, Some(BRANCHES), (32, 1)),
            (Broadwell, GENERAL, Some(DISTRIBUTED), (128, 64)),
            (GoldenCove, Counter::Fixed(0), None, (128, 1)),
            (GoldenCove, Counter::Fixed(1), None, (1, 1)),
            (GoldenCove, GENERAL, Some(DISTRIBUTED), (128, 1)),
            (GoldenCove, GENERAL, Some(BRANCHES), (1, 1)),
        ] {
            assert_eq!(rules.shortest(counter, event), expected, "{rules:?} {counter} {event:?}");
        }
    }

    #[test]
    fn a_period_is_rounded_down_to_one_that_the_counter_takes() {
        let periods = Periods { shortest: 128, longest: 1000, step: 64 };
        for (wanted, rounded) in
            [(0, 128), (127, 128), (128, 128), (191, 128), (192, 192), (999, 960), (u64::MAX, 960)]
        {
            assert_eq!(periods.at_most(wanted), rounded, "{wanted}");
            assert!(periods.contain(rounded), "{rounded}");
        }
        for wrong in [0, 64, 129, 1000, 1024] {
            assert!(!periods.contain(wrong), "{wrong}");
        }
    }
}
