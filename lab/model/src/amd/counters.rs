//! The core performance counters.
//!
//! Source: APM vol. 2, Debug and Performance Resources, "Performance Counter MSRs", "Core Performance Event-Select
//! Registers", "Core Performance Global Control Register", "Core Performance Counter Status Registers".

use super::events::AmdEvent;
use super::execution::Execution;
use super::registers::{debug_ctl, evtsel, global_status, msr};
use super::{AmdProfile, AmdViolations};
use crate::{DeliveryKind, GeneralProtection};

/// The number of counters of the largest processor.
const MAX_COUNTERS: usize = 6;
const LEGACY_COUNTERS: u32 = 4;
/// The width of a counter in bits.
const WIDTH: u32 = 48;
const VALUE_MASK: u64 = (1 << WIDTH) - 1;
/// Distance from its overflow at which a counter of cycles is read instead of stepped. Such an overflow is noticed some
/// milliseconds late; sampling by cycles has periods of some hundred thousand.
const FAR: u64 = 1 << 26;
/// Maximum number of events that are counted in one cycle.
const MAX_EVENTS_IN_A_CYCLE: u64 = 32;

/// A set of counters, one bit each.
pub(super) type CounterSet = u64;

#[derive(Debug)]
pub(super) struct AmdCounters {
    profile: &'static AmdProfile,
    select: [u64; MAX_COUNTERS],
    value: [u64; MAX_COUNTERS],
    /// The event of each counter, if any.
    event: [Option<&'static AmdEvent>; MAX_COUNTERS],
    /// The counter's condition was true in the last cycle.
    asserted: [bool; MAX_COUNTERS],
    /// PerfCntGlobalCtl.
    global: CounterSet,
    /// PerfCntGlobalStatus.
    status: CounterSet,
    /// The bits of DebugCtl that are modelled.
    debug_ctl: u64,
    /// EFER.SVME.
    svme: bool,
    /// The counters that can count at some privilege level, by all of the above.
    counting: CounterSet,
    /// Of these counters, those that count cycles at all privilege levels.
    timed: CounterSet,
    /// The counters that were far from their overflow when they were written or overflowed.
    far: CounterSet,
    /// The TSC up to which the counters have counted cycles.
    time: u64,
    /// One of these counters needs the data accesses of instructions.
    wants_data: bool,
}

/// One of the registers.
enum AmdCounterRegister {
    Select(usize),
    Value(usize),
    Status,
    DebugCtl,
    Control,
    StatusClear,
    StatusSet,
}

impl AmdCounters {
    pub(super) fn new(profile: &'static AmdProfile) -> Self {
        Self {
            profile,
            select: [0; MAX_COUNTERS],
            value: [0; MAX_COUNTERS],
            event: [None; MAX_COUNTERS],
            asserted: [false; MAX_COUNTERS],
            // Software that does not know the global registers must find the counters enabled, as on earlier
            // processors.
            global: (1 << profile.counters) - 1,
            status: 0,
            debug_ctl: 0,
            svme: false,
            counting: 0,
            timed: 0,
            far: !0,
            time: 0,
            wants_data: false,
        }
    }

    pub(super) fn owns_msr(&self, number: u32) -> bool {
        self.register(number).is_some()
    }

    fn register(&self, number: u32) -> Option<AmdCounterRegister> {
        let legacy = |first: u32| number.checked_sub(first).filter(|index| *index < LEGACY_COUNTERS);
        if let Some(index) = legacy(msr::PERF_EVT_SEL0) {
            return Some(AmdCounterRegister::Select(index as usize));
        }
        if let Some(index) = legacy(msr::PERF_CTR0) {
            return Some(AmdCounterRegister::Value(index as usize));
        }
        if let Some(offset) = number.checked_sub(msr::PERF_EVT_SEL0_EXT)
            && self.profile.has_extended_counters()
            && offset / 2 < self.profile.counters
        {
            let index = offset as usize / 2;
            return Some(if offset.is_multiple_of(2) {
                AmdCounterRegister::Select(index)
            } else {
                AmdCounterRegister::Value(index)
            });
        }
        match number {
            _ if !self.profile.perf_mon_v2 => None,
            msr::DEBUG_CTL => Some(AmdCounterRegister::DebugCtl),
            msr::PERF_CNT_GLOBAL_STATUS => Some(AmdCounterRegister::Status),
            msr::PERF_CNT_GLOBAL_CTL => Some(AmdCounterRegister::Control),
            msr::PERF_CNT_GLOBAL_STATUS_CLR => Some(AmdCounterRegister::StatusClear),
            msr::PERF_CNT_GLOBAL_STATUS_SET => Some(AmdCounterRegister::StatusSet),
            _ => None,
        }
    }

    pub(super) fn read(&self, number: u32) -> Result<u64, GeneralProtection> {
        Ok(match self.register(number).ok_or(GeneralProtection)? {
            AmdCounterRegister::Select(index) => self.select[index],
            AmdCounterRegister::Value(index) => self.value[index],
            AmdCounterRegister::Status => self.status,
            AmdCounterRegister::DebugCtl => self.debug_ctl,
            AmdCounterRegister::Control => self.global,
            // Write-only.
            AmdCounterRegister::StatusClear | AmdCounterRegister::StatusSet => 0,
        })
    }

    pub(super) fn write(
        &mut self,
        number: u32,
        value: u64,
        violations: &mut AmdViolations,
    ) -> Result<(), GeneralProtection> {
        let all = (1 << self.profile.counters) - 1;
        match self.register(number).ok_or(GeneralProtection)? {
            AmdCounterRegister::Select(index) => {
                let bits = self.profile.event_select_bits;
                violations.reserved_event_bits += u32::from(value & !bits != 0);
                self.select[index] = value & bits;
                self.event[index] = self.selected(index);
            }
            AmdCounterRegister::Value(index) => {
                self.value[index] = value & VALUE_MASK;
                let is_far = VALUE_MASK - self.value[index] >= FAR;
                self.far = self.far & !(1 << index) | CounterSet::from(is_far) << index;
            }
            AmdCounterRegister::Status => return Err(GeneralProtection),
            AmdCounterRegister::DebugCtl if value & !(debug_ctl::FREEZE_LBR | debug_ctl::FREEZE_PMC) != 0 => {
                return Err(GeneralProtection);
            }
            AmdCounterRegister::DebugCtl => self.debug_ctl = value,
            AmdCounterRegister::Control => self.global = value & all,
            AmdCounterRegister::StatusClear => self.status &= !value,
            AmdCounterRegister::StatusSet => self.status |= value & all,
        }
        self.update_counting();
        Ok(())
    }

    /// Returns the counters to which a write of `number` gives a new value or a new event.
    pub(super) fn counters_written_by(&self, number: u32) -> CounterSet {
        match self.register(number) {
            Some(AmdCounterRegister::Select(index) | AmdCounterRegister::Value(index)) => 1 << index,
            _ => 0,
        }
    }

    /// Returns the event select and unit mask if `msr` selects an event that is not modelled, for an enabled counter.
    pub(super) fn event_that_is_not_counted(&self, msr: u32) -> Option<u64> {
        let Some(AmdCounterRegister::Select(index)) = self.register(msr) else { return None };
        let select = self.select[index];
        (select & evtsel::EN != 0 && self.event[index].is_none())
            .then_some(select & (evtsel::EVENT_HIGH | 0xffff))
    }

    /// Executes RDPMC.
    pub(super) fn rdpmc(&self, index: u32) -> Result<u64, GeneralProtection> {
        if index < self.profile.counters { Ok(self.value[index as usize]) } else { Err(GeneralProtection) }
    }

    pub(super) fn set_svme(&mut self, svme: bool) {
        self.svme = svme;
        self.update_counting();
    }

    fn selected(&self, index: usize) -> Option<&'static AmdEvent> {
        let select = self.select[index];
        self.profile.events.iter().find(|event| event.select == evtsel::event(select))
    }

    /// Returns the counters that can count at some privilege level.
    pub(super) const fn counting(&self) -> CounterSet {
        self.counting
    }

    /// Returns whether a counter must see each instruction. A counter of cycles at all privilege levels that is far
    /// from its overflow need not: [`Self::pass_time`] counts the cycles that passed meanwhile. If it overflows then,
    /// the interrupt is late.
    pub(super) const fn need_each_instruction(&self) -> bool {
        self.counting & !(self.timed & self.far) != 0
    }

    /// Starts to count cycles at this time.
    pub(super) const fn begin_time(&mut self, tsc: u64) {
        self.time = tsc;
    }

    /// Counts the cycles since [`Self::begin_time`], in which no instruction needed to be seen. The core's clock is the
    /// TSC's. Returns the counters that overflowed and must interrupt.
    pub(super) fn pass_time(&mut self, tsc: u64) -> CounterSet {
        let cycles = tsc.saturating_sub(core::mem::replace(&mut self.time, tsc));
        let mut interrupts = 0;
        for index in 0..MAX_COUNTERS {
            if self.timed & 1 << index != 0 {
                interrupts |= self.add(index, cycles);
            }
        }
        if interrupts != 0 {
            self.freeze();
        }
        interrupts
    }

    /// Returns true if one of the counters needs the data accesses of instructions.
    pub(super) const fn wants_data(&self) -> bool {
        self.wants_data
    }

    /// Updates the sets of active counters after a change of a register.
    fn update_counting(&mut self) {
        (self.counting, self.timed, self.wants_data) = (0, 0, false);
        if self.status & global_status::PMC_FROZEN != 0 {
            return;
        }
        for index in 0..MAX_COUNTERS {
            let select = self.select[index];
            let on = select & evtsel::EN != 0 && self.global & 1 << index != 0;
            let somewhere = select & (evtsel::USR | evtsel::OS) != 0;
            if let Some(event) = self.event[index].filter(|_| on && somewhere && self.counts_here(select)) {
                self.counting |= 1 << index;
                let plain = select & (evtsel::EDGE | evtsel::INV) == 0 && evtsel::cnt_mask(select) == 0;
                let all_levels = select & evtsel::USR != 0 && select & evtsel::OS != 0;
                let timed = plain && all_levels && event.is_cycles();
                self.timed |= CounterSet::from(timed) << index;
                self.wants_data |= event.wants_data(evtsel::unit_mask(select));
            }
        }
    }

    /// Returns true if an overflow has frozen the last branches.
    pub(super) const fn freezes_branches(&self) -> bool {
        self.status & global_status::LBR_FROZEN != 0
    }

    /// Applies HG_ONLY: with either bit a counter counts only while SVM is on, and the host is what runs then.
    fn counts_here(&self, select: u64) -> bool {
        match select & (evtsel::HOST_ONLY | evtsel::GUEST_ONLY) {
            0 => true,
            evtsel::GUEST_ONLY => false,
            _ => self.svme,
        }
    }

    /// Lets the counters in `set` count an instruction that retired. Returns those that overflowed and must interrupt.
    pub(super) fn retire(&mut self, execution: &Execution, set: CounterSet) -> CounterSet {
        let further = execution.stall();
        self.count(set, execution.cpl, |event, unit_mask| {
            (event.in_first_cycle(unit_mask, execution), event.in_stall_cycle(unit_mask), further)
        })
    }

    /// Lets all counters count an interrupt or exception taken at privilege level `cpl`.
    pub(super) fn deliver(&mut self, kind: DeliveryKind, cpl: u8) -> CounterSet {
        let as_instruction = self.profile.counts_events_as_instructions();
        self.count(!0, cpl, |event, unit_mask| (event.in_delivery(unit_mask, kind, as_instruction), 0, 0))
    }

    /// Counts events; `events` returns the number of events in the first cycle, in each further cycle, and the number
    /// of further cycles.
    fn count(
        &mut self,
        set: CounterSet,
        cpl: u8,
        events: impl Fn(&AmdEvent, u8) -> (u64, u64, u32),
    ) -> CounterSet {
        let counting = self.counting() & set;
        let level = if cpl == 0 { evtsel::OS } else { evtsel::USR };
        let mut interrupts = 0;
        let mut left = counting;
        while left != 0 {
            let index = left.trailing_zeros() as usize;
            left &= left - 1;
            let select = self.select[index];
            let Some(event) = self.event[index].filter(|_| select & level != 0) else { continue };
            let (first, then, further) = events(event, evtsel::unit_mask(select));
            let increment = self.increment(index, first, then, further);
            interrupts |= self.add(index, increment);
        }
        if interrupts != 0 {
            self.freeze();
        }
        interrupts
    }

    /// Adds events to a counter. Returns the counter if it overflowed and must interrupt.
    fn add(&mut self, index: usize, events: u64) -> CounterSet {
        let sum = self.value[index].saturating_add(events);
        self.value[index] = sum & VALUE_MASK;
        if sum <= VALUE_MASK {
            return 0;
        }
        self.status |= 1 << index;
        self.far |= 1 << index;
        CounterSet::from(self.select[index] & evtsel::INT != 0) << index
    }

    /// Applies the freezes that DebugCtl selects, because of an overflow.
    fn freeze(&mut self) {
        for (by, what) in [
            (debug_ctl::FREEZE_LBR, global_status::LBR_FROZEN),
            (debug_ctl::FREEZE_PMC, global_status::PMC_FROZEN),
        ] {
            self.status |= if self.debug_ctl & by != 0 { what } else { 0 };
        }
        self.update_counting();
    }

    /// Returns the increment for a cycle with `first` events and `further` cycles with `then` events each.
    fn increment(&mut self, index: usize, first: u64, then: u64, further: u32) -> u64 {
        let select = self.select[index];
        let mask = u64::from(evtsel::cnt_mask(select));
        let edge = select & evtsel::EDGE != 0;
        if mask == 0 && !edge {
            return first.min(MAX_EVENTS_IN_A_CYCLE) + then.min(MAX_EVENTS_IN_A_CYCLE) * u64::from(further);
        }
        // With EDGE alone, the condition is that there is any event.
        let condition = |events: u64| match mask {
            0 => events != 0,
            _ if select & evtsel::INV != 0 => events < mask,
            _ => events >= mask,
        };
        let (now, later) = (condition(first), condition(then));
        let before = core::mem::replace(&mut self.asserted[index], if further == 0 { now } else { later });
        if edge {
            u64::from(now && !before) + u64::from(further != 0 && later && !now)
        } else {
            u64::from(now) + u64::from(later) * u64::from(further)
        }
    }
}
