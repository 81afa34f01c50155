//! Performance counters while they count: the steps of start, handler and stop.

mod left_on;

use super::event::{CountedEvent, CountersRefusal};
use super::overflow::{Overflow, OverflowCounts, OverflowSink};
use super::registers::Bank;
use super::{CounterStopped, CounterUnit, LONGEST, MASK, MAX_COUNTERS, Rdpmc, WIDTH};
use crate::lifecycle::{Halted, LateNmis, Recording, Sealed, Serve, StartError};
use crate::msr::amd::PerfEvtSel;
use crate::msr::amd::{PerfCntrGlobalCtl, PerfCntrGlobalStatus, PerfCntrGlobalStatusClr};
use crate::msr::{GeneralProtection, Msr, Register, RegisterAt, RegisterValue, TypedMsr};
use crate::pmi::{Abandoned, Requests};

/// The counters with their events.
#[derive(Debug)]
pub struct CounterSession<M: Msr> {
    unit: CounterUnit<M>,
    bank: Bank,
    svm: bool,
    /// PerfCntrGlobalCtl before the start: the counters' bits may be set although no owner uses them.
    found: Option<u64>,
    /// The counters of the list, without gaps between them.
    slots: [Option<CounterSlot>; MAX_COUNTERS],
    counts: OverflowCounts,
    /// The number of counters that were served in this interrupt.
    served: u8,
    /// True while the driver lets the counters count.
    on: bool,
}

/// A counter with its event.
#[derive(Clone, Copy, Debug)]
struct CounterSlot {
    event: CountedEvent,
    counter: u8,
    /// True if the next counter holds the upper bits.
    pair: bool,
    /// The counter's value at the start of this period.
    begin: u64,
    /// The number of events before this period.
    total: u64,
    state: CounterState,
    /// True if the counter was found off, and is not resumed yet.
    off: bool,
}

/// The state of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CounterState {
    Off,
    /// The counter counts, or is stopped for a while.
    Armed,
    /// The counter's overflow was delivered. The value is where the next period begins.
    Taken(u64),
    /// The counter was read for the last time.
    Read,
    /// Another owner has changed its event: its registers are written again when they are free.
    Lost,
}

/// The event of the second counter of a pair: Merge, FFFh.
const MERGE: PerfEvtSel = PerfEvtSel::EN.with_event(0xfff);
/// The start value of the second counter, which has bits 63:48 of the count: the count is negative.
const MERGE_BEGIN: u64 = 0xffff;

impl<M: Msr> CounterSession<M> {
    /// Makes a session. `counters` has the counter of each event, and true if the event also needs the next counter.
    /// `svm` is EFER.SVME.
    pub(super) fn new(
        unit: CounterUnit<M>,
        svm: bool,
        events: &[CountedEvent],
        counters: impl Iterator<Item = (u8, bool)>,
    ) -> Self {
        let bank = Bank::of(&unit.capabilities);
        let mut slots = [None; MAX_COUNTERS];
        for ((slot, &event), (counter, pair)) in slots.iter_mut().zip(events).zip(counters) {
            let begin = begin_of(&event);
            *slot = Some(CounterSlot {
                event,
                counter,
                pair,
                begin,
                total: 0,
                state: CounterState::Off,
                off: false,
            });
        }
        let counts = OverflowCounts::default();
        Self { unit, bank, svm, found: None, slots, counts, served: 0, on: false }
    }

    /// Returns the number of events.
    pub(super) fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    pub(super) const fn counts(&self) -> &OverflowCounts {
        &self.counts
    }

    /// Notes that another interrupt begins.
    pub(super) const fn begin_interrupt(&mut self) {
        self.served = 0;
    }

    /// Returns the counter of an event.
    pub(super) fn counter(&self, event: usize) -> Option<u8> {
        self.slot(event).map(|slot| slot.counter)
    }

    /// Returns the number of events since the start.
    pub(super) fn value(&mut self, event: usize) -> Result<Option<u64>, GeneralProtection> {
        if event < self.len() && self.on {
            let global = self.global()?;
            if self.look_at(event, global)? {
                let halted = Halted::halt(self)?;
                self.go_on(halted)?;
            }
        }
        let Some(slot) = self.slot(event) else { return Ok(None) };
        match slot.state {
            CounterState::Armed => {
                let counter = self.unit.msr.read_at(self.bank.counter(slot.counter))?;
                Ok(Some(slot.total.wrapping_add(slot.since_begin(counter))))
            }
            CounterState::Off | CounterState::Taken(_) | CounterState::Read | CounterState::Lost => {
                Ok(Some(slot.total))
            }
        }
    }

    pub(super) fn rdpmc(&self, event: usize) -> Option<Rdpmc> {
        let slot = self.slot(event)?;
        // RDPMC indices from 6 on belong to the northbridge and the L3 cache.
        (slot.counter < 6).then_some(Rdpmc {
            index: slot.counter.into(),
            begin: slot.begin,
            total: slot.total,
        })
    }

    /// Resumes the counters that have a period to count.
    fn go_on(&mut self, _: Halted) -> Result<(), GeneralProtection> {
        for n in 0..self.len() {
            self.reclaim(n)?;
        }
        if self.version_2() {
            self.change_global(self.mask(), 0)?;
        } else {
            self.each(|session, slot| match slot.state {
                CounterState::Armed => session.select(slot.counter, session.selected(&slot) | PerfEvtSel::EN),
                _ => Ok(()),
            })?;
        }
        self.on = true;
        Ok(())
    }

    /// Stops all counters except those of another owner.
    fn stop(&mut self) -> Result<(), GeneralProtection> {
        if self.found.is_some() {
            return self.change_global(0, self.mask());
        }
        self.each(|session, slot| match slot.state {
            // An earlier attempt to stop has cleared the counter, or it is another owner's.
            CounterState::Off | CounterState::Lost => Ok(()),
            _ => session.select(slot.counter, session.selected(&slot)),
        })
    }

    /// Serves the counters that have overflowed; returns whether there was one.
    fn take(
        &mut self,
        sink: &mut (impl OverflowSink + ?Sized),
        _: &Halted,
    ) -> Result<bool, GeneralProtection> {
        let served = self.served;
        let status = self.status()?;
        for n in 0..self.len() {
            let Some(slot) = self.slot(n) else { break };
            if slot.state != CounterState::Armed {
                continue;
            }
            if let Some(counter) = self.overflowed(&slot, status)? {
                self.served = self.served.saturating_add(1);
                self.hand_on(n, counter, sink);
            }
        }
        // This includes counters whose registers faulted the last time.
        for n in 0..self.len() {
            let Some(slot) = self.slot(n) else { break };
            let CounterState::Taken(begin) = slot.state else { continue };
            self.load(slot, begin)?;
            if self.version_2() {
                self.write(PerfCntrGlobalStatusClr(1 << slot.counter))?;
            }
            if let Some(slot) = self.slot_mut(n) {
                (slot.begin, slot.state) = (begin, CounterState::Armed);
            }
        }
        Ok(self.served > served)
    }

    /// Returns whether a counter has overflowed, or was not resumed after that. May be called while they count.
    pub(super) fn may_have_overflowed(&mut self) -> Result<bool, GeneralProtection> {
        let status = self.status()?;
        for n in 0..self.len() {
            let Some(slot) = self.slot(n) else { break };
            let may = match slot.state {
                CounterState::Armed => self.overflowed(&slot, status)?.is_some(),
                CounterState::Taken(_) => true,
                CounterState::Off | CounterState::Read | CounterState::Lost => false,
            };
            if may {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Notes that SVM was turned on or off, and updates the counters, because HostOnly depends on it.
    pub(super) fn svm_changed(&mut self) -> Result<(), GeneralProtection> {
        self.svm = self.unit.svm()?;
        self.each(|session, slot| match slot.state {
            CounterState::Armed => session.select(slot.counter, session.selected(&slot) | PerfEvtSel::EN),
            _ => Ok(()),
        })
    }

    /// Returns the counter's value if its period is over.
    fn overflowed(&mut self, slot: &CounterSlot, status: u64) -> Result<Option<u64>, GeneralProtection> {
        if self.version_2() && status >> slot.counter & 1 == 0 {
            return Ok(None);
        }
        let counter = self.unit.msr.read_at(self.bank.counter(slot.counter))?;
        // A period is so short that the sign bit shows an overflow; the status adds nothing to that.
        Ok((counter >> (WIDTH - 1) & 1 == 0).then_some(counter))
    }

    fn hand_on(&mut self, n: usize, counter: u64, sink: &mut (impl OverflowSink + ?Sized)) {
        let Some(slot) = self.slot_mut(n) else { return };
        let events = slot.since_begin(counter);
        slot.total = slot.total.wrapping_add(events);
        let count = slot.total;
        let Some(period) = slot.event.period else {
            slot.state = CounterState::Taken(MASK + 1 - LONGEST);
            return;
        };
        // The counter continued from 0 after the overflow, so the next period is shorter by that.
        slot.state = CounterState::Taken(MASK + 1 - (period - counter % period));
        self.counts.skipped += counter / period;
        // Counted as lost before the call, in case it unwinds.
        self.counts.lost += 1;
        if sink.overflow(Overflow { event: n, count }) {
            self.counts.lost -= 1;
            self.counts.taken += 1;
        }
    }

    fn read_last(&mut self, n: usize, slot: CounterSlot, status: u64) -> Result<(), GeneralProtection> {
        let unseen = slot.event.period.is_some() && self.overflowed(&slot, status)?.is_some();
        let counter = self.unit.msr.read_at(self.bank.counter(slot.counter))?;
        if let Some(slot) = self.slot_mut(n) {
            slot.total = slot.total.wrapping_add(slot.since_begin(counter));
            slot.state = CounterState::Read;
        }
        self.counts.unseen += u64::from(unseen);
        Ok(())
    }

    fn clear(&mut self, slot: &CounterSlot) -> Result<(), GeneralProtection> {
        self.select(slot.counter, PerfEvtSel::empty())?;
        if slot.pair {
            self.select(slot.counter + 1, PerfEvtSel::empty())?;
            self.write_at(self.bank.counter(slot.counter + 1), 0)?;
        }
        self.write_at(self.bank.counter(slot.counter), 0)?;
        match self.version_2() {
            true => self.write(PerfCntrGlobalStatusClr(1 << slot.counter)),
            false => Ok(()),
        }
    }

    fn load(&mut self, slot: CounterSlot, begin: u64) -> Result<(), GeneralProtection> {
        if slot.pair {
            self.write_at(self.bank.counter(slot.counter + 1), MERGE_BEGIN)?;
        }
        self.write_at(self.bank.counter(slot.counter), begin)
    }

    /// Returns PerfCntrGlobalStatus; 0 if it does not exist.
    fn status(&mut self) -> Result<u64, GeneralProtection> {
        match self.version_2() {
            true => Ok(self.unit.msr.read::<PerfCntrGlobalStatus>()?.0),
            false => Ok(0),
        }
    }

    /// Returns the bits of these counters in the global registers, without those that another owner has taken.
    fn mask(&self) -> u64 {
        let mine = self.slots.iter().flatten().filter(|slot| slot.state != CounterState::Lost);
        mine.fold(0, |mask, slot| mask | slot.bits())
    }

    /// Returns a counter's event select without its enable bit.
    fn selected(&self, slot: &CounterSlot) -> PerfEvtSel {
        slot.event.written(self.svm)
    }

    /// Calls `step` for all counters, even if one faults; returns the first fault.
    fn each(
        &mut self,
        mut step: impl FnMut(&mut Self, CounterSlot) -> Result<(), GeneralProtection>,
    ) -> Result<(), GeneralProtection> {
        let mut result = Ok(());
        for n in 0..self.len() {
            if let Some(slot) = self.slot(n) {
                result = result.and(step(self, slot));
            }
        }
        result
    }

    fn change_global(&mut self, set: u64, clear: u64) -> Result<(), GeneralProtection> {
        let PerfCntrGlobalCtl(ctl) = self.unit.msr.read()?;
        self.write(PerfCntrGlobalCtl(ctl & !clear | set))
    }

    const fn version_2(&self) -> bool {
        self.unit.capabilities.perfmon_v2
    }

    fn slot(&self, n: usize) -> Option<CounterSlot> {
        self.slots.get(n).copied().flatten()
    }

    fn slot_mut(&mut self, n: usize) -> Option<&mut CounterSlot> {
        self.slots.get_mut(n)?.as_mut()
    }

    fn set_state(&mut self, n: usize, state: CounterState) {
        if let Some(slot) = self.slot_mut(n) {
            slot.state = state;
        }
    }

    fn select(&mut self, n: u8, select: PerfEvtSel) -> Result<(), GeneralProtection> {
        self.write_at(self.bank.select(n), select)
    }

    fn write<R: Register>(&mut self, value: R) -> Result<(), GeneralProtection> {
        self.write_at(R::AT, value)
    }

    fn write_at<R: RegisterValue>(
        &mut self,
        register: RegisterAt<R>,
        value: R,
    ) -> Result<(), GeneralProtection> {
        // SAFETY: registers and bits of counters that nothing else uses: they write to no memory.
        unsafe { self.unit.msr.write_at(register, value) }
    }
}

impl CounterSlot {
    /// Returns the counter's bits in the global registers.
    const fn bits(&self) -> u64 {
        (1 | (self.pair as u64) << 1) << self.counter
    }

    const fn since_begin(&self, counter: u64) -> u64 {
        counter.wrapping_sub(self.begin) & MASK
    }
}

/// Returns the start value of an event's first period; a counter without a period is also served before it wraps.
fn begin_of(event: &CountedEvent) -> u64 {
    MASK + 1 - event.period.unwrap_or(LONGEST)
}

impl<M: Msr> Sealed for CounterSession<M> {}

impl<M: Msr> Recording for CounterSession<M> {
    type Unit = CounterUnit<M>;
    type Memory = ();
    type Stopped = LateNmis<CounterStopped<M>>;
    type Refusal = CountersRefusal;

    // A counter that cannot be stopped continues to count, and writes to no memory.
    const WRITES_MEMORY: bool = false;

    /// Starts the counters.
    fn begin(&mut self) -> Result<(), StartError<CountersRefusal>> {
        if self.version_2() {
            let PerfCntrGlobalCtl(found) = self.unit.msr.read()?;
            self.found = Some(found);
        }
        let halted = Halted::halt(self)?;
        if self.version_2() {
            self.write(PerfCntrGlobalStatusClr(self.mask()))?;
        }
        for n in 0..self.len() {
            let Some(slot) = self.slot(n) else { break };
            // From here on, a start that fails must clear registers.
            self.set_state(n, CounterState::Armed);
            self.load(slot, slot.begin)?;
            self.program(slot)?;
        }
        Ok(self.go_on(halted)?)
    }

    /// Stops all counters, and notes which of them something else had turned off before.
    fn halt(&mut self) -> Result<(), GeneralProtection> {
        let looked = if core::mem::take(&mut self.on) { self.look() } else { Ok(()) };
        self.stop().and(looked)
    }

    /// Reads the counters for the last time.
    fn finish(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        let status = self.status()?;
        for n in 0..self.len() {
            let Some(slot) = self.slot(n) else { break };
            if slot.state == CounterState::Armed {
                self.read_last(n, slot, status)?;
            }
        }
        Ok(())
    }

    /// Clears the registers of the counters.
    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        let mut result = Ok(());
        for n in 0..self.len() {
            if let Some(slot) = self.slot(n).filter(|slot| slot.state != CounterState::Off) {
                let done = if slot.state == CounterState::Lost { Ok(()) } else { self.clear(&slot) };
                if done.is_ok() {
                    self.set_state(n, CounterState::Off);
                }
                result = result.and(done);
            }
        }
        match self.found {
            Some(found) if found & self.mask() != 0 => {
                result.and_then(|()| self.change_global(found & self.mask(), 0))
            }
            _ => result,
        }
    }

    /// Stops the counters that can be stopped.
    fn abandon(&mut self, _: Abandoned) {
        let _ = self.halt();
        self.counts.abandoned += 1;
    }

    fn into_stopped(self) -> LateNmis<CounterStopped<M>> {
        let nmis = u8::try_from(self.counts.unseen).unwrap_or(u8::MAX);
        let totals = core::array::from_fn(|n| self.slot(n).map_or(0, |slot| slot.total));
        let len = self.len();
        LateNmis::new(nmis, CounterStopped::new(self.unit, self.counts, totals, len))
    }

    fn into_parts(self) -> (CounterUnit<M>, ()) {
        (self.unit, ())
    }
}

/// The counters check their status themselves, because AMD's is a separate register. They are stopped while the handler
/// works.
impl<M: Msr, K: OverflowSink + ?Sized> Serve<&mut K> for CounterSession<M> {
    fn may_ask(&mut self) -> Result<bool, GeneralProtection> {
        self.may_have_overflowed()
    }

    fn serve(&mut self, _: Requests, sink: &mut &mut K, halted: &Halted) -> Result<bool, GeneralProtection> {
        self.take(*sink, halted)
    }

    fn resume(&mut self, halted: Halted) -> Result<(), GeneralProtection> {
        self.go_on(halted)
    }

    fn late_requests(&self) -> u8 {
        self.served
    }
}
