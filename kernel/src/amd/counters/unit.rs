//! Performance counters that are off: detection and start.

use super::assign::{assign, needed};
use super::constraints::Need;
use super::registers::Bank;
use super::running::CounterRunning;
use super::session::CounterSession;
use super::{CountedEvent, CountersRefusal, MAX_COUNTERS};
use crate::amd::AmdCapabilities;
use crate::cpuid::CpuIdReader;
use crate::lifecycle::{self, Absent, InUse, Missing, NotStarted, StartError};
use crate::msr::amd::Efer;
use crate::msr::amd::PerfEvtSel;
use crate::msr::{GeneralProtection, Msr, TypedMsr};
use core::marker::PhantomData;

/// The performance counters of one logical processor, off.
///
/// The value cannot be sent to another thread of execution: it belongs to the processor on which it was found.
#[derive(Debug)]
pub struct CounterUnit<M: Msr> {
    pub(super) msr: M,
    pub(super) capabilities: AmdCapabilities,
    /// Bit n is set if counter n belongs to another owner, although it is off.
    reserved: u16,
    of_this_processor: PhantomData<*const ()>,
}

impl<M: Msr> CounterUnit<M> {
    /// Detects the counters: first by CPUID, then by checking that a register of a free counter works.
    ///
    /// # Errors
    ///
    /// There are no counters, or other owners use them all.
    pub fn detect(cpuid: impl CpuIdReader, msr: M) -> Result<Self, Absent> {
        let capabilities = AmdCapabilities::read(cpuid)?;
        if capabilities.counters == 0 {
            return Err(Missing::Counters.into());
        }
        let mut unit = Self { msr, capabilities, reserved: 0, of_this_processor: PhantomData };
        let free = unit.free()?;
        match (0..MAX_COUNTERS as u8).find(|n| free >> n & 1 == 1) {
            None => Err(InUse::AllCounters.into()),
            Some(counter) => {
                unit.probe(counter)?;
                Ok(unit)
            }
        }
    }

    /// Returns the processor's capabilities.
    #[must_use]
    pub const fn capabilities(&self) -> &AmdCapabilities {
        &self.capabilities
    }

    /// Reserves counters that another owner uses from time to time; bit n is counter n. Counters that count now are
    /// left alone without it.
    pub const fn reserve(&mut self, counters: u16) {
        self.reserved = counters;
    }

    /// Returns the unused counters; bit n is counter n.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    pub fn free(&mut self) -> Result<u16, GeneralProtection> {
        let bank = Bank::of(&self.capabilities);
        let mut free = 0;
        for n in 0..self.capabilities.counters {
            let select = self.msr.read_at(bank.select(n))?;
            free |= u16::from(!select.contains(PerfEvtSel::EN)) << n;
        }
        Ok(free & !self.reserved)
    }

    /// Counts the events, each in its own counter, from 0.
    ///
    /// # Errors
    ///
    /// The processor refuses, or there are not enough free counters. The unit is returned, and the counters that can be
    /// turned off are off.
    #[allow(clippy::result_large_err, reason = "it gives back what it was given")]
    pub fn start(
        mut self,
        events: &[CountedEvent],
    ) -> Result<CounterRunning<M>, NotStarted<CounterSession<M>>> {
        let (free, svm) = match self.free().and_then(|free| Ok((free, self.svm()?))) {
            Ok(found) => found,
            Err(fault) => return Err(not_started(self, StartError::Fault(fault))),
        };
        match plan(events, &self.capabilities, free) {
            Ok(counters) => CounterRunning::start(CounterSession::new(self, svm, events, counters)),
            Err(refusal) => Err(not_started(self, StartError::Refused(refusal))),
        }
    }

    /// Returns EFER.SVME.
    pub(super) fn svm(&mut self) -> Result<bool, GeneralProtection> {
        Ok(self.msr.read::<Efer>()?.svm())
    }

    /// Checks that a free counter keeps the value written to it. Its old value is restored.
    fn probe(&mut self, n: u8) -> Result<(), Absent> {
        let counter = Bank::of(&self.capabilities).counter(n);
        // SAFETY: this counter is off and unused.
        unsafe { lifecycle::probe(&mut self.msr, counter, |_| PATTERN, u64::MAX) }
    }
}

const fn not_started<M: Msr>(
    unit: CounterUnit<M>,
    error: StartError<CountersRefusal>,
) -> NotStarted<CounterSession<M>> {
    NotStarted::Off { unit, memory: (), error }
}

/// Returns the counter of each event, and true if the event also needs the next counter.
fn plan(
    events: &[CountedEvent],
    capabilities: &AmdCapabilities,
    free: u16,
) -> Result<impl Iterator<Item = (u8, bool)> + use<>, CountersRefusal> {
    let mut needs = [Need::default(); MAX_COUNTERS];
    for (n, event) in events.iter().enumerate() {
        event.check(n, capabilities)?;
        let need = Need::of(event, capabilities);
        if need.counters == 0 {
            return Err(CountersRefusal::NoCounter { event: n });
        }
        if let Some(place) = needs.get_mut(n) {
            *place = need;
        }
    }
    let all = events.len() as u32;
    let used = match needs.get(..events.len()) {
        Some([]) => return Err(CountersRefusal::Nothing),
        Some(used) => used,
        None => return Err(CountersRefusal::NotEnough { needed: all, free }),
    };
    let counters = assign(used, free).ok_or(CountersRefusal::NotEnough { needed: needed(used), free })?;
    Ok(counters.into_iter().zip(needs.map(|need| need.pair)))
}

/// An arbitrary count.
const PATTERN: u64 = 0x5a5a_a5a5;
