//! Counters and the events that they count.

use super::capabilities::{FIXED, GENERAL};
use super::event::Assigned;
use super::registers::{self, bit, width, write, write_at};
use super::{IntelCounterStopped, IntelCounterUnit, IntelCountersRefusal};
use crate::lifecycle::{Halted, Recording, Sealed, StartError};
use crate::msr::{
    Counter, GeneralProtection, GlobalCtrl, GlobalStatus, GlobalStatusReset, Msr, TypedMsr, reload_causes,
    reload_value,
};
use crate::pmi::Abandoned;

/// The maximum number of events.
pub(super) const EVENTS: usize = GENERAL as usize + FIXED as usize;

/// The events of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventList {
    list: [Option<Assigned>; EVENTS],
    len: usize,
}

impl EventList {
    pub(super) const NONE: Self = Self { list: [None; EVENTS], len: 0 };

    /// Sets the event at place `n`.
    pub(super) fn set(&mut self, n: usize, event: Assigned) {
        if let Some(place) = self.list.get_mut(n) {
            *place = Some(event);
            self.len = self.len.max(n + 1);
        }
    }

    fn get(&self, n: usize) -> Option<Assigned> {
        self.list.get(n).copied().flatten()
    }

    fn iter(self) -> impl Iterator<Item = Assigned> {
        self.list.into_iter().flatten()
    }

    /// Returns the counters of the events at these places, by their bits in IA32_PERF_GLOBAL_CTRL.
    fn counters_at(&self, places: u64) -> u64 {
        let of = |(n, assigned): (usize, &Option<Assigned>)| match assigned {
            Some(assigned) if places >> n & 1 == 1 => bit(assigned.counter),
            _ => 0,
        };
        self.list.iter().enumerate().map(of).fold(0, |all, counter| all | counter)
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
        self.events.get(event).map(|it| it.counter)
    }

    /// Returns the count of an event.
    pub(super) fn count(&mut self, event: usize) -> Result<Option<u64>, GeneralProtection> {
        let (Some(assigned), Some(wraps)) = (self.events.get(event), self.wraps.get_mut(event)) else {
            return Ok(None);
        };
        let counter = assigned.counter;
        let register = self.unit.capabilities().addresses.value(counter);
        let bits = self.unit.capabilities().bits(counter);
        if let Some(reload) = assigned.event.reload() {
            let value = self.unit.msr.read_at(register)?;
            return Ok(Some(value.wrapping_sub(reload.first_value(bits)) & width(bits)));
        }
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
        let capabilities = *self.unit.capabilities();
        let msr = &mut self.unit.msr;
        let GlobalCtrl(counting) = msr.read()?;
        self.before = Some(counting);
        // After a reset, all general-purpose counters are enabled in this register.
        write(msr, GlobalCtrl(counting & !self.counters))?;
        for Assigned { event, counter } in self.events.iter() {
            if let (true, Counter::General(n)) = (capabilities.need_clearing, counter) {
                registers::clear(msr, n)?;
            }
            let first = event.reload().map_or(0, |reload| reload.first_value(capabilities.bits(counter)));
            write_at(msr, capabilities.addresses.value(counter), first)?;
            // An earlier owner may have left its reload.
            if capabilities.reloadable & bit(counter) != 0 {
                let (causes, value) = event.reload().map_or((0, 0), |reload| {
                    (self.events.counters_at(reload.places), reload.first_value(32))
                });
                write_at(msr, reload_value(counter), value)?;
                write_at(msr, reload_causes(counter), causes)?;
            }
            match counter {
                Counter::General(n) => write_at(msr, capabilities.addresses.select(n), event.select())?,
                Counter::Fixed(n) => registers::set_fixed(msr, n, event.fixed_fields(n))?,
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
        let addresses = self.unit.capabilities.addresses;
        for Assigned { event, counter } in self.events.iter() {
            registers::release(msr, addresses, counter)?;
            if event.reload().is_some() {
                write_at(msr, reload_causes(counter), 0)?;
                write(msr, GlobalStatusReset(GlobalStatus::from_bits_retain(bit(counter))))?;
            }
        }
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
