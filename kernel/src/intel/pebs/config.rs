//! The configuration of PEBS: counters, events and periods.

use super::{Counter, FIXED, GENERAL, LoadLatency, PebsCapabilities, Periods};
use crate::msr::Ia32PerfEvtSel;
use core::fmt;

/// The counters that sample, with their events, periods and privilege levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PebsConfig {
    general: [Option<(PreciseEvent, u64)>; GENERAL as usize],
    fixed: [Option<u64>; FIXED as usize],
    os: bool,
    user: bool,
    load_latency: Option<(u8, u16)>,
}

/// An event that a general-purpose counter counts. [`PebsCapabilities::counters_for`] returns the counters that sample
/// it, which depend on the processor.
///
/// Source: SDM vol. 3, Performance Monitoring, the tables of precise events of each microarchitecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreciseEvent {
    /// Event select.
    pub select: u8,
    /// Unit mask.
    pub umask: u8,
}

impl PreciseEvent {
    /// INST_RETIRED.ANY_P: retired instructions. The event samples on Core 2, Nehalem and, with extended PEBS, since
    /// Ice Lake.
    pub const INST_RETIRED: Self = Self { select: 0xc0, umask: 0 };
    /// INST_RETIRED.PREC_DIST: retired instructions. The event samples from Sandy Bridge to Skylake, on counter 1.
    pub const INST_RETIRED_PREC_DIST: Self = Self { select: 0xc0, umask: 1 };
    /// BR_INST_RETIRED.ALL_BRANCHES: retired branches. The event samples on Nehalem, Westmere and, with extended PEBS,
    /// since Ice Lake.
    pub const BR_INST_RETIRED: Self = Self { select: 0xc4, umask: 0 };
    /// BR_INST_RETIRED.ALL_BRANCHES_PEBS: retired branches. The event samples from Sandy Bridge to Skylake.
    pub const BR_INST_RETIRED_PEBS: Self = Self { select: 0xc4, umask: 4 };
    /// MEM_INST_RETIRED.LATENCY_ABOVE_THRESHOLD: the loads of [`PebsConfig::load_latency`] on Nehalem and Westmere.
    pub const LATENCY_ABOVE_THRESHOLD: Self = Self { select: 0x0b, umask: 0x10 };
    /// MEM_TRANS_RETIRED.LOAD_LATENCY: the loads of [`PebsConfig::load_latency`] since Sandy Bridge.
    pub const LOAD_LATENCY: Self = Self { select: 0xcd, umask: 1 };
}

impl PebsConfig {
    /// Returns a configuration without counters, at all privilege levels.
    #[must_use]
    pub const fn new() -> Self {
        let (general, fixed) = ([None; GENERAL as usize], [None; FIXED as usize]);
        Self { general, fixed, os: true, user: true, load_latency: None }
    }

    /// Adds a record about every `period` events by general-purpose counter `n`. A number above 7 is ignored. The
    /// processor does not take every period ([`PebsCapabilities::periods`]); others are refused, not rounded.
    #[must_use]
    pub const fn general(mut self, n: u8, event: PreciseEvent, period: u64) -> Self {
        if n < GENERAL {
            self.general[n as usize] = Some((event, period));
        }
        self
    }

    /// Adds a record about every `period` events by fixed-function counter `n`. A number above 15 is ignored.
    #[must_use]
    pub const fn fixed(mut self, n: u8, period: u64) -> Self {
        if n < FIXED {
            self.fixed[n as usize] = Some(period);
        }
        self
    }

    /// Adds a record about every `period` loads that took more than `threshold` core cycles, by general-purpose counter
    /// `n`; `event` is [`PebsCapabilities::load_latency_event`]. The processor looks at some of all loads. The record
    /// has address, source and latency; an adaptive one with [`Groups::memory`](super::Groups::memory). A number above
    /// 7 is ignored.
    #[must_use]
    pub const fn load_latency(self, n: u8, event: PreciseEvent, threshold: u16, period: u64) -> Self {
        if n >= GENERAL {
            return self;
        }
        Self { load_latency: Some((n, threshold)), ..self.general(n, event, period) }
    }

    /// Sets whether events at CPL 0 count.
    #[must_use]
    pub const fn os(self, os: bool) -> Self {
        Self { os, ..self }
    }

    /// Sets whether events above CPL 0 count.
    #[must_use]
    pub const fn user(self, user: bool) -> Self {
        Self { user, ..self }
    }

    /// Checks the configuration for a buffer that keeps `spare` records free.
    ///
    /// # Errors
    ///
    /// This processor does not support the configuration, or the records that may be stored until a PMI is served do
    /// not fit.
    pub fn check(&self, capabilities: &PebsCapabilities, spare: u32) -> Result<(), PebsRefusal> {
        if !self.os && !self.user {
            return Err(PebsRefusal::NoLevel);
        }
        let mut needed = 0;
        for (counter, period) in self.counters() {
            let event = self.event(counter);
            check_counter(counter, event, capabilities)?;
            let periods = capabilities.periods(counter, event);
            if !periods.contain(period) {
                return Err(PebsRefusal::Period { counter, period, periods });
            }
            needed += 1 + LATENCY / period;
        }
        self.check_load_latency(capabilities)?;
        match needed {
            0 => Err(PebsRefusal::NoCounters),
            _ if u64::from(spare) < needed => Err(PebsRefusal::Spare { spare, needed }),
            _ => Ok(()),
        }
    }

    fn check_load_latency(&self, capabilities: &PebsCapabilities) -> Result<(), PebsRefusal> {
        let Some((n, threshold)) = self.load_latency else { return Ok(()) };
        let counter = Counter::General(n);
        let facility = capabilities.load_latency.filter(|it| self.event(counter) == Some(it.event));
        let facility = facility.ok_or(PebsRefusal::NoLoadLatency(counter))?;
        if threshold < LoadLatency::LEAST {
            return Err(PebsRefusal::LatencyThreshold { threshold });
        }
        match facility.is_alone && self.counters().count() > 1 {
            true => Err(PebsRefusal::NotAlone(counter)),
            false => Ok(()),
        }
    }

    /// Returns the counter that samples loads by their latency, and the threshold.
    pub(super) const fn latency_threshold(&self) -> Option<(u8, u16)> {
        self.load_latency
    }

    /// Returns the counters that sample, and their periods.
    pub(super) fn counters(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        let general = (0..).zip(&self.general).filter_map(|(n, general)| {
            let (_, period) = (*general)?;
            Some((Counter::General(n), period))
        });
        let fixed = (0..).zip(&self.fixed).filter_map(|(n, period)| Some((Counter::Fixed(n), (*period)?)));
        general.chain(fixed)
    }

    /// Returns the event that a general-purpose counter counts.
    fn event(&self, counter: Counter) -> Option<PreciseEvent> {
        let Counter::General(n) = counter else { return None };
        let (event, _) = self.general.get(usize::from(n)).copied().flatten()?;
        Some(event)
    }

    /// Returns the value for IA32_PERFEVTSELx of a counter that samples.
    pub(super) fn select(&self, n: u8, adaptive: bool) -> Ia32PerfEvtSel {
        let event = self.event(Counter::General(n));
        let mut select =
            event.map_or(Ia32PerfEvtSel::empty(), |event| Ia32PerfEvtSel::event(event.select, event.umask));
        select.insert(Ia32PerfEvtSel::EN);
        select.set(Ia32PerfEvtSel::OS, self.os);
        select.set(Ia32PerfEvtSel::USR, self.user);
        select.set(Ia32PerfEvtSel::ADAPTIVE_RECORD, adaptive);
        select
    }

    /// Returns whether events at CPL 0 and above CPL 0 count.
    pub(super) const fn levels(&self) -> (bool, bool) {
        (self.os, self.user)
    }
}

impl Default for PebsConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The maximum number of events that are counted until a PMI is served: about as many as the branch records that are
/// kept free for that time represent.
const LATENCY: u64 = 1024;

/// Checks that a counter is there and samples its event.
fn check_counter(
    counter: Counter,
    event: Option<PreciseEvent>,
    capabilities: &PebsCapabilities,
) -> Result<(), PebsRefusal> {
    let there = match counter {
        Counter::General(n) => n < capabilities.general_counters,
        Counter::Fixed(n) => n < capabilities.fixed_counters,
    };
    if !there {
        return Err(PebsRefusal::NoCounter(counter));
    }
    let (Counter::General(n), Some(event)) = (counter, event) else { return Ok(()) };
    if capabilities.microcode_counters >> n & 1 == 1 {
        return Err(PebsRefusal::Microcode(counter));
    }
    let counters = capabilities.counters_for(event);
    match counters >> n & 1 {
        0 => Err(PebsRefusal::NotPrecise { event, counter, counters }),
        _ => Ok(()),
    }
}

/// The reason why counters cannot sample as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PebsRefusal {
    /// No counter was requested.
    NoCounters,
    /// Neither CPL 0 nor the levels above it were requested.
    NoLevel,
    /// The counter does not exist, or does not sample.
    NoCounter(Counter),
    /// The event does not sample on this counter: the event would be counted, but produce no records.
    NotPrecise {
        /// The event.
        event: PreciseEvent,
        /// The requested counter.
        counter: Counter,
        /// The general-purpose counters that sample it, as bits; 0 if it is not precise on this processor.
        counters: u8,
    },
    /// The processor's microcode uses the counter for transactions (TSX) now: `CPUID.07H.0:EDX[13]` is 1, and
    /// IA32_TSX_FORCE_ABORT does not abort all transactions.
    Microcode(Counter),
    /// The counter does not take this period: the period is 0, too long, or useless by an erratum.
    Period {
        /// The counter.
        counter: Counter,
        /// The requested period.
        period: u64,
        /// The periods that the counter takes.
        periods: Periods,
    },
    /// The processor has no load-latency facility that this driver knows, or the counter's event is not the facility's.
    NoLoadLatency(Counter),
    /// Loads are sampled by a latency above 3 core cycles at least.
    LatencyThreshold {
        /// The requested threshold.
        threshold: u16,
    },
    /// While this counter samples loads by their latency, no other one may sample.
    NotAlone(Counter),
    /// The buffer keeps fewer records free than may be stored until a PMI is served.
    Spare {
        /// The number of records kept free.
        spare: u32,
        /// The number of records that may be stored.
        needed: u64,
    },
}

impl fmt::Display for PebsRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCounters => f.write_str("no counter is to sample"),
            Self::NoLevel => f.write_str("neither CPL 0 nor what is above it is to be sampled"),
            Self::NoCounter(counter) => write!(f, "{counter} does not sample"),
            Self::NotPrecise { event: PreciseEvent { select, umask }, counters: 0, .. } => {
                write!(f, "event {select:#04x}, unit mask {umask:#04x}, is not precise on this processor")
            }
            Self::NotPrecise { event: PreciseEvent { select, umask }, counter, counters } => write!(
                f,
                "event {select:#04x}, unit mask {umask:#04x}, does not sample on {counter}, \
                 but on those of {counters:#b}"
            ),
            Self::Microcode(counter) => {
                write!(f, "the processor's microcode uses {counter} for transactions")
            }
            Self::Period { counter, period, periods } => {
                write!(f, "a period of {period} for {counter}, which takes {periods}")
            }
            Self::NoLoadLatency(counter) => write!(f, "{counter} does not sample loads by their latency"),
            Self::LatencyThreshold { threshold } => {
                write!(f, "a latency threshold of {threshold} cycles, the lowest is {}", LoadLatency::LEAST)
            }
            Self::NotAlone(counter) => {
                write!(
                    f,
                    "{counter} samples loads by their latency, and no other counter may sample meanwhile"
                )
            }
            Self::Spare { spare, needed } => write!(
                f,
                "the PEBS buffer keeps {spare} records free, and {needed} may come until a PMI is served"
            ),
        }
    }
}

impl core::error::Error for PebsRefusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intel::pebs::{PeriodRules, PreciseEvents};
    use pugmark_decoder_core::pebs::Format;

    const SKYLAKE: PebsCapabilities = PebsCapabilities {
        format: Format::Time,
        general_resets: 8,
        general_counters: 4,
        fixed_counters: 0,
        general_bits: 48,
        fixed_bits: 48,
        trace_output: false,
        counter_values: false,
        load_latency: None,
        full_width: true,
        precise: PreciseEvents::Skylake,
        period_rules: PeriodRules::All,
        microcode_counters: 0,
        memory_events_disturb: false,
        counters_need_clearing: false,
        global_in_use: true,
    };
    const ICE_LAKE: PebsCapabilities = PebsCapabilities {
        format: Format::Adaptive,
        general_counters: 8,
        fixed_counters: 4,
        precise: PreciseEvents::Extended,
        ..SKYLAKE
    };
    const NEHALEM: PebsCapabilities = PebsCapabilities {
        format: Format::Latency,
        trace_output: false,
        full_width: false,
        precise: PreciseEvents::Nehalem,
        ..SKYLAKE
    };

    #[test]
    fn a_counter_that_no_processor_has_is_ignored() {
        let (general, fixed) = (PebsConfig::new().general(0, PreciseEvent::INST_RETIRED, 100), 200);
        for n in [16, 17, u8::MAX] {
            let config = general.general(n, PreciseEvent::INST_RETIRED, 100).fixed(n, fixed);
            assert_eq!(config, general, "{n}");
        }
        let config = general.general(8, PreciseEvent::INST_RETIRED, 100).fixed(15, fixed);
        assert_eq!(
            config.counters().collect::<Vec<_>>(),
            [(Counter::General(0), 100), (Counter::Fixed(15), 200)]
        );
    }

    #[test]
    fn refuses_what_the_processor_does_not_do() {
        let branches = |n, period| PebsConfig::new().general(n, PreciseEvent::BR_INST_RETIRED_PEBS, period);
        let period = |counter, period, longest| {
            Err(PebsRefusal::Period { counter, period, periods: Periods { shortest: 1, longest, step: 1 } })
        };
        let (zero, fixed) = (Counter::General(0), Counter::Fixed(3));
        let table = [
            (branches(0, 2000), SKYLAKE, 1, Ok(())),
            (branches(3, 2000), SKYLAKE, 1, Ok(())),
            (branches(4, 2000), SKYLAKE, 1, Err(PebsRefusal::NoCounter(Counter::General(4)))),
            (branches(7, 2000), ICE_LAKE, 1, Ok(())),
            // No processor has such a counter.
            (branches(8, 2000), ICE_LAKE, 1, Err(PebsRefusal::NoCounters)),
            (branches(0, 2000).fixed(0, 2000), SKYLAKE, 2, Err(PebsRefusal::NoCounter(Counter::Fixed(0)))),
            (PebsConfig::new().fixed(3, 2000), ICE_LAKE, 1, Ok(())),
            (PebsConfig::new(), ICE_LAKE, 100, Err(PebsRefusal::NoCounters)),
            (branches(0, 2000).os(false).user(false), SKYLAKE, 1, Err(PebsRefusal::NoLevel)),
            (branches(0, 0), SKYLAKE, 9999, period(zero, 0, (1 << 48) - 1)),
            (branches(0, 1 << 48), SKYLAKE, 1, period(zero, 1 << 48, (1 << 48) - 1)),
            (branches(0, (1 << 48) - 1), SKYLAKE, 1, Ok(())),
            (branches(0, 1 << 31), NEHALEM, 1, Ok(())),
            (branches(0, (1 << 31) + 1), NEHALEM, 1, period(zero, (1 << 31) + 1, 1 << 31)),
            (PebsConfig::new().fixed(3, 1 << 48), ICE_LAKE, 1, period(fixed, 1 << 48, (1 << 48) - 1)),
        ];
        for (config, capabilities, spare, expected) in table {
            assert_eq!(config.check(&capabilities, spare), expected, "{config:?}");
        }
    }

    #[test]
    fn a_period_that_an_erratum_makes_useless_is_refused_with_those_that_are_not() {
        let broadwell = PebsCapabilities {
            precise: PreciseEvents::Haswell,
            period_rules: PeriodRules::Broadwell,
            ..SKYLAKE
        };
        let periods = Periods { shortest: 128, longest: (1 << 48) - 1, step: 64 };
        let config = |period| PebsConfig::new().general(1, PreciseEvent::INST_RETIRED_PREC_DIST, period);
        for period in [1, 99, 100, 127, 129, 1000] {
            let refusal = PebsRefusal::Period { counter: Counter::General(1), period, periods };
            assert_eq!(config(period).check(&broadwell, u32::MAX), Err(refusal));
            assert_eq!(config(periods.at_most(period)).check(&broadwell, u32::MAX), Ok(()));
        }
    }

    #[test]
    fn a_counter_of_the_microcode_is_refused() {
        let taken = PebsCapabilities { microcode_counters: 1 << 3, ..SKYLAKE };
        let config = |n| PebsConfig::new().general(n, PreciseEvent::BR_INST_RETIRED_PEBS, 2000);
        let refusal = PebsRefusal::Microcode(Counter::General(3));
        assert_eq!(config(3).check(&taken, 1), Err(refusal));
        assert_eq!((config(2).check(&taken, 1), config(3).check(&SKYLAKE, 1)), (Ok(()), Ok(())));
        assert_eq!(taken.counters_for(PreciseEvent::BR_INST_RETIRED_PEBS), 0b111);
    }

    #[test]
    fn an_event_that_is_not_precise_is_refused() {
        let (plain, precise) = (PreciseEvent::INST_RETIRED, PreciseEvent::INST_RETIRED_PREC_DIST);
        let one = |n, event| PebsConfig::new().general(n, event, 2000);
        let refused = |n, event, counters| {
            Err(PebsRefusal::NotPrecise { event, counter: Counter::General(n), counters })
        };
        for (config, capabilities, expected) in [
            (one(0, plain), NEHALEM, Ok(())),
            (one(0, plain), ICE_LAKE, Ok(())),
            (one(1, plain), SKYLAKE, refused(1, plain, 0)),
            (one(1, precise), SKYLAKE, Ok(())),
            (one(0, precise), SKYLAKE, refused(0, precise, 0b10)),
            (one(0, PreciseEvent::BR_INST_RETIRED), SKYLAKE, refused(0, PreciseEvent::BR_INST_RETIRED, 0)),
            // One refused counter of two is enough.
            (one(1, precise).general(0, plain, 2000), SKYLAKE, refused(0, plain, 0)),
        ] {
            assert_eq!(config.check(&capabilities, 2), expected, "{config:?}");
        }
    }

    #[test]
    fn the_buffer_keeps_room_for_one_interrupts_latency() {
        let event = PreciseEvent::BR_INST_RETIRED_PEBS;
        let all = (0..4).fold(PebsConfig::new(), |all, n| all.general(n, event, 1 << 20));
        let often = PebsConfig::new().general(0, event, 100);
        for (config, needed) in [(all, 4), (often, 11)] {
            assert_eq!(config.check(&SKYLAKE, needed), Ok(()));
            let refusal = PebsRefusal::Spare { spare: needed - 1, needed: u64::from(needed) };
            assert_eq!(config.check(&SKYLAKE, needed - 1), Err(refusal));
        }
    }

    #[test]
    fn a_counter_that_samples_has_only_the_bits_that_it_may_have() {
        let config = PebsConfig::new().general(2, PreciseEvent { select: 0xc5, umask: 0x11 }, 7);
        // (configuration, adaptive, IA32_PERFEVTSEL2)
        let table = [
            (config, false, 0x43_11c5),
            (config.os(false), false, 0x41_11c5),
            (config.user(false), false, 0x42_11c5),
            (config, true, 0x4_0043_11c5),
        ];
        for (config, adaptive, bits) in table {
            assert_eq!(config.select(2, adaptive).bits(), bits);
        }
    }
}
