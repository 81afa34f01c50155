//! Counters and the events that they count.

use super::capabilities::MOST;
use super::event::Assigned;
use super::registers::{self, bit, width, write, write_at};
use super::{IntelCounterStopped, IntelCounterUnit, IntelCountersRefusal};
use crate::lifecycle::{Halted, Recording, Sealed, StartError};
use crate::msr::{
    Counter, GeneralProtection, GlobalCtrl, GlobalStatus, GlobalStatusReset, Ia32PerfEvtSel, Msr, TypedMsr,
    fixed_counter, pmc,
};
use crate::pmi::Abandoned;

/// The maximum number of events.
pub(super) const EVENTS: usize = 2 * MOST as usize;

/// The events of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventList {
    list: [Option<Assigned>; EVENTS],
    len: usize,
}

impl EventList {
    pub(super) const NONE: Self = Self { list: [None; EVENTS], len: 0 };

    /// Appends an event. The list must not be full.
    pub(super) fn push(&mut self, event: Assigned) {
        if let Some(place) = self.list.get_mut(self.len) {
            *place = Some(event);
            self.len += 1;
        }
    }

    fn iter(self) -> impl Iterator<Item = Assigned> {
        self.list.into_iter().flatten()
    }
}

/// The counters with their events.
#[derive(Debug)]
pub struct IntelCounterSession<M: Msr> {
    pub(super) unit: IntelCounterUnit<M>,
    events: EventList,
    /// The counters' bits in IA32_PERF_GLOBAL_CTRL.
    counters: u64,
    /// IA32_PERF_GLOBAL_CTRL before the start, once the counters are this session's.
    before: Option<u64>,
    /// True while the driver has the counters turned on.
    on: bool,
    turned_off: bool,
    /// The number of times that each counter has wrapped.
    wraps: [u64; EVENTS],
    totals: [u64; EVENTS],
}

impl<M: Msr> IntelCounterSession<M> {
    pub(super) fn new(unit: IntelCounterUnit<M>, events: EventList) -> Self {
        let counters = events.iter().fold(0, |bits, it| bits | bit(it.counter));
        let (wraps, totals) = ([0; EVENTS], [0; EVENTS]);
        Self { unit, events, counters, before: None, on: false, turned_off: false, wraps, totals }
    }

    pub(super) fn counter(&self, event: usize) -> Option<Counter> {
        self.events.list.get(event).copied().flatten().map(|it| it.counter)
    }

    /// Returns the count of an event.
    pub(super) fn count(&mut self, event: usize) -> Result<Option<u64>, GeneralProtection> {
        let (Some(counter), Some(wraps)) = (self.counter(event), self.wraps.get_mut(event)) else {
            return Ok(None);
        };
        let (register, bits) = match counter {
            Counter::General(n) => (pmc(n), self.unit.capabilities().general_bits),
            Counter::Fixed(n) => (fixed_counter(n), self.unit.capabilities().fixed_bits),
        };
        let overflow = GlobalStatus::from_bits_retain(bit(counter));
        let msr = &mut self.unit.msr;
        let mut value = msr.read_at(register)?;
        if msr.read::<GlobalStatus>()?.contains(overflow) {
            write(msr, GlobalStatusReset(overflow))?;
            *wraps += 1;
            // It may have wrapped after it was read.
            value = msr.read_at(register)?;
        }
        let wrapped = wraps.checked_shl(bits.into()).unwrap_or(0);
        Ok(Some(wrapped.wrapping_add(value & width(bits))))
    }

    /// Writes the counters and their events; nothing counts yet.
    fn prepare(&mut self) -> Result<(), GeneralProtection> {
        let needs_clearing = self.unit.capabilities().need_clearing;
        let msr = &mut self.unit.msr;
        let GlobalCtrl(counting) = msr.read()?;
        self.before = Some(counting);
        // After a reset, all general-purpose counters are enabled in this register.
        write(msr, GlobalCtrl(counting & !self.counters))?;
        for Assigned { event, counter } in self.events.iter() {
            match counter {
                Counter::General(n) => {
                    if needs_clearing {
                        registers::clear(msr, n)?;
                    }
                    write_at(msr, pmc(n), 0)?;
                    write_at(msr, Ia32PerfEvtSel::at(n), event.select())?;
                }
                Counter::Fixed(n) => {
                    write_at(msr, fixed_counter(n), 0)?;
                    registers::set_fixed(msr, n, event.fixed_fields(n))?;
                }
            }
        }
        write(msr, GlobalStatusReset(GlobalStatus::from_bits_retain(self.counters)))
    }
}

impl<M: Msr> Sealed for IntelCounterSession<M> {}

impl<M: Msr> Recording for IntelCounterSession<M> {
    type Unit = IntelCounterUnit<M>;
    type Memory = ();
    type Stopped = IntelCounterStopped<M>;
    type Refusal = IntelCountersRefusal;

    const WRITES_MEMORY: bool = false;

    fn begin(&mut self) -> Result<(), StartError<IntelCountersRefusal>> {
        self.prepare()?;
        self.on = true;
        let GlobalCtrl(counting) = self.unit.msr.read()?;
        write(&mut self.unit.msr, GlobalCtrl(counting | self.counters))?;
        Ok(())
    }

    /// Turns the counters off, and notes if something else had already done so.
    fn halt(&mut self) -> Result<(), GeneralProtection> {
        if !self.on {
            return Ok(());
        }
        let msr = &mut self.unit.msr;
        let GlobalCtrl(counting) = msr.read()?;
        write(msr, GlobalCtrl(counting & !self.counters))?;
        self.on = false;
        let frozen = msr.read::<GlobalStatus>()?.contains(GlobalStatus::CTR_FRZ);
        self.turned_off |= frozen || counting & self.counters != self.counters;
        Ok(())
    }

    fn finish(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        for event in 0..self.events.len {
            let count = self.count(event)?.unwrap_or_default();
            if let Some(total) = self.totals.get_mut(event) {
                *total = count;
            }
        }
        Ok(())
    }

    fn leave(&mut self, _: &Halted) -> Result<(), GeneralProtection> {
        let Some(before) = self.before else { return Ok(()) };
        let msr = &mut self.unit.msr;
        self.events.iter().try_for_each(|it| registers::release(msr, it.counter))?;
        let GlobalCtrl(counting) = msr.read()?;
        write(msr, GlobalCtrl(counting & !self.counters | before & self.counters))
    }

    fn abandon(&mut self, _: Abandoned) {
        // A counter that cannot be turned off goes on: it writes to no memory.
        self.turned_off |= self.halt().is_ok();
    }

    fn into_stopped(self) -> IntelCounterStopped<M> {
        let Self { unit, turned_off, totals, events, .. } = self;
        IntelCounterStopped { unit, turned_off, totals, len: events.len }
    }

    fn into_parts(self) -> (IntelCounterUnit<M>, ()) {
        (self.unit, ())
    }
}
