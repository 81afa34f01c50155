//! Counters that are off, and the way to start them.

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
use crate::msr::{GeneralProtection, Msr};
use core::marker::PhantomData;

/// The performance counters of one logical processor, off.
///
/// They cannot be sent to another thread of execution: they stand for the processor that they were found on.
#[derive(Debug)]
pub struct CounterUnit<M: Msr> {
    pub(super) msr: M,
    pub(super) capabilities: AmdCapabilities,
    /// Bit n: counter n is somebody else's, though it is off.
    reserved: u16,
    of_this_processor: PhantomData<*const ()>,
}

impl<M: Msr> CounterUnit<M> {
    /// Finds them: CPUID first, then whether a register of a free one holds what is written.
    ///
    /// # Errors
    ///
    /// They are not there, or somebody uses them all.
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

    /// What the processor has.
    #[must_use]
    pub const fn capabilities(&self) -> &AmdCapabilities {
        &self.capabilities
    }

    /// Leaves counters alone that somebody uses now and then; bit n is counter n. One that counts is left alone without
    /// that.
    pub const fn reserve(&mut self, counters: u16) {
        self.reserved = counters;
    }

    /// The counters that nobody uses; bit n is counter n.
    ///
    /// # Errors
    ///
    /// An access raised #GP.
    pub fn free(&mut self) -> Result<u16, GeneralProtection> {
        let bank = Bank::of(&self.capabilities);
        let mut free = 0;
        for n in 0..self.capabilities.counters {
            let select = PerfEvtSel::from_bits_retain(self.msr.rdmsr(bank.select(n))?);
            free |= u16::from(!select.contains(PerfEvtSel::EN)) << n;
        }
        Ok(free & !self.reserved)
    }

    /// Counts the events, each in a counter of its own, from 0 on.
    ///
    /// # Errors
    ///
    /// The processor says no, or the free counters do not suffice. The unit comes back, and the counters are off as far
    /// as they let themselves be.
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

    /// EFER.SVME.
    pub(super) fn svm(&mut self) -> Result<bool, GeneralProtection> {
        Ok(self.msr.read::<Efer>()?.svm())
    }

    /// Whether a free counter holds what is written to it. It has its old value afterwards.
    fn probe(&mut self, n: u8) -> Result<(), Absent> {
        let counter = Bank::of(&self.capabilities).counter(n);
        // SAFETY: a counter that is off, and that nobody uses.
        unsafe { lifecycle::probe(&mut self.msr, counter, |_| PATTERN, u64::MAX) }
    }
}

const fn not_started<M: Msr>(
    unit: CounterUnit<M>,
    error: StartError<CountersRefusal>,
) -> NotStarted<CounterSession<M>> {
    NotStarted::Off { unit, memory: (), error }
}

/// The counters of the events, and whether each needs the one behind it, too.
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

/// A count.
const PATTERN: u64 = 0x5a5a_a5a5;
