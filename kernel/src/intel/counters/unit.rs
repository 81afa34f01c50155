//! Counters that are off: detection, the choice of a counter for each event, and start.

use super::capabilities::{FIXED, GENERAL};
use super::event::{Assigned, Reload};
use super::session::{EVENTS, EventList};
use super::{IntelCounterCapabilities, IntelCounterSession, IntelCountersRefusal, IntelEvent, registers};
use crate::cpuid::CpuIdReader;
use crate::lifecycle::{self, Absent, NotStarted, StartError};
use crate::msr::{Counter, GeneralProtection, Msr};
use core::marker::PhantomData;

/// The counters of one logical processor, off.
///
/// The value cannot be sent to another thread of execution: it belongs to the processor on which it was found.
#[derive(Debug)]
pub struct IntelCounterUnit<M: Msr> {
    pub(super) msr: M,
    pub(super) capabilities: IntelCounterCapabilities,
    of_this_processor: PhantomData<*const ()>,
}

impl<M: Msr> IntelCounterUnit<M> {
    /// Detects the counters. Writes no register.
    ///
    /// # Errors
    ///
    /// There are no counters, or an access raised #GP.
    pub fn detect(cpuid: impl CpuIdReader, mut msr: M) -> Result<Self, Absent> {
        let capabilities = IntelCounterCapabilities::read(cpuid, &mut msr)?;
        Ok(Self { msr, capabilities, of_this_processor: PhantomData })
    }

    /// Returns the capabilities of the counters.
    #[must_use]
    pub const fn capabilities(&self) -> &IntelCounterCapabilities {
        &self.capabilities
    }

    /// Counts the events, each in a counter of its own, from 0. All begin with the same write.
    ///
    /// # Errors
    ///
    /// The processor lacks an event, or no counter is free for one: counters of other owners are left alone. The unit
    /// is returned, unless it cannot be stopped.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn start(
        mut self,
        events: &[IntelEvent],
    ) -> Result<IntelCounterRunning<M>, NotStarted<IntelCounterSession<M>>> {
        match self.assign(events) {
            Ok(events) => IntelCounterRunning::start(IntelCounterSession::new(self, events)),
            Err(error) => Err(NotStarted::Off { unit: self, memory: (), error }),
        }
    }

    /// Chooses a free counter for each event: a fixed-function counter where one counts the event.
    fn assign(&mut self, events: &[IntelEvent]) -> Result<EventList, StartError<IntelCountersRefusal>> {
        let refuse = |refusal| Err(StartError::Refused(refusal));
        if events.is_empty() {
            return refuse(IntelCountersRefusal::Nothing);
        }
        for n in 0..events.len() {
            self.check(events, n).map_err(StartError::Refused)?;
        }
        let reported = registers::reported(&mut self.msr, self.capabilities.global_in_use);
        let mut free = self.free(reported).map_err(StartError::Fault)?;
        let mut assigned = EventList::NONE;
        // Events that not all counters take come first.
        for restricted in [true, false] {
            for (n, event) in events.iter().enumerate() {
                let takes = self.takes(events, n);
                if (takes != u64::MAX) != restricted {
                    continue;
                }
                let fixed = event.fixed().map(Counter::Fixed);
                let mut counters = fixed.into_iter().chain((0..GENERAL).map(Counter::General));
                let Some(counter) = counters.find(|counter| free & takes & registers::bit(*counter) != 0)
                else {
                    return refuse(IntelCountersRefusal::NoCounter { event: n });
                };
                free &= !registers::bit(counter);
                assigned.set(n, Assigned { event: *event, counter });
            }
        }
        Ok(assigned)
    }

    /// Checks that the processor counts event `n` of the list.
    fn check(&self, events: &[IntelEvent], n: usize) -> Result<(), IntelCountersRefusal> {
        let Some(event) = events.get(n) else { return Ok(()) };
        if event.is_nowhere() {
            return Err(IntelCountersRefusal::NoLevel { event: n });
        }
        if let Some(feature) = event.needs().find(|feature| !self.capabilities.has_feature(*feature)) {
            return Err(IntelCountersRefusal::NoFeature { event: n, feature });
        }
        if !self.capabilities.has(event) {
            return Err(IntelCountersRefusal::NoEvent { event: n });
        }
        let Some(Reload { places, period }) = event.reload() else { return Ok(()) };
        let beyond = u64::MAX.checked_shl(events.len() as u32).unwrap_or(0);
        if places == 0 || places & beyond != 0 {
            return Err(IntelCountersRefusal::ReloadPlaces { event: n, places });
        }
        match period > Reload::LONGEST {
            true => Err(IntelCountersRefusal::ReloadPeriod { event: n, period }),
            false => Ok(()),
        }
    }

    /// Returns the counters that event `n` of the list takes, by their bits in IA32_PERF_GLOBAL_CTRL; all bits are set
    /// if nothing restricts it.
    fn takes(&self, events: &[IntelEvent], n: usize) -> u64 {
        let reloaded = events.get(n).is_some_and(|event| event.reload().is_some());
        let reloads = events.iter().filter_map(IntelEvent::reload).any(|it| it.places >> n & 1 == 1);
        let mut takes = u64::MAX;
        if reloaded {
            takes &= self.capabilities.reloadable;
        }
        if events.get(n).is_some_and(IntelEvent::is_in_branch_records) {
            takes &= u64::from(self.capabilities.branch_records);
        }
        if reloads {
            takes &= self.capabilities.reload_causes;
        }
        takes
    }

    /// Returns the counters without an owner, by their bits in IA32_PERF_GLOBAL_CTRL.
    fn free(&mut self, reported: u64) -> Result<u64, GeneralProtection> {
        let IntelCounterCapabilities { general, fixed, addresses, .. } = self.capabilities;
        let there = u64::from(general) | u64::from(fixed) << 32;
        let all = (0..GENERAL).map(Counter::General).chain((0..FIXED).map(Counter::Fixed));
        let mut free = 0;
        for counter in all.filter(|counter| there & registers::bit(*counter) != 0) {
            if registers::owner(&mut self.msr, addresses, counter, reported)?.is_none() {
                free |= registers::bit(counter);
            }
        }
        Ok(free)
    }
}

/// Counters that count.
pub type IntelCounterRunning<M> = lifecycle::Running<IntelCounterSession<M>>;

impl<M: Msr> IntelCounterRunning<M> {
    /// Returns the count of an event of the list so far, or since its counter was reloaded; `None` if the list is
    /// shorter. The counter goes on meanwhile.
    ///
    /// # Errors
    ///
    /// An access raised #GP; the next call tries again.
    pub fn count(&mut self, event: usize) -> Result<Option<u64>, GeneralProtection> {
        self.session_mut().count(event)
    }

    /// Returns the RDPMC index of an event's counter, for ECX: bit 30 selects the fixed-function counters. `None` if
    /// the list is shorter.
    #[must_use]
    pub fn rdpmc(&self, event: usize) -> Option<u32> {
        self.session().counter(event).map(|counter| match counter {
            Counter::General(n) => n.into(),
            Counter::Fixed(n) => 1 << 30 | u32::from(n),
        })
    }
}

/// Counters that were stopped.
#[derive(Debug)]
pub struct IntelCounterStopped<M: Msr> {
    /// The counters, off.
    pub unit: IntelCounterUnit<M>,
    /// True if something else has turned a counter off or frozen it, so that counts are too low: another owner, or a
    /// PMI with FREEZE_PERFMON_ON_PMI.
    pub turned_off: bool,
    pub(super) totals: [u64; EVENTS],
    pub(super) len: usize,
}

impl<M: Msr> IntelCounterStopped<M> {
    /// Returns the count of each event, in the order of the list.
    #[must_use]
    pub fn totals(&self) -> &[u64] {
        self.totals.get(..self.len).unwrap_or_default()
    }
}
