//! The performance counters: the general-purpose counters, which here count instructions, branches and time, and with
//! them the fixed-function counters.
//!
//! Counters with CMASK, INV or E set count conditions over cycles: they do not count here, nor do counters of events
//! that no profile lists. AnyThread makes no difference: there is one logical processor. Interrupts and exceptions are
//! not counted, except those that an instruction raises: INT n, INT3, INTO, INT1.
//!
//! A counter of time at all privilege levels that is not sampled and far from its overflow does not need to see each
//! instruction: [`IntelCounters::pass_time`] counts the time that passed meanwhile. If it overflows then, the interrupt
//! is late.
//!
//! Source: SDM vol. 3, Performance Monitoring, "Architectural Performance Monitoring" and "Full-Width Writes to
//! Performance Counter Registers"; vol. 4, the table "IA-32 Architectural MSRs". For version 6 no manual was available:
//! its registers are those that Linux uses, `arch/x86/include/asm/msr-index.h` (MSR_IA32_PMC_V6_GP0_CTR and following).

use super::clocks::{Clocks, Elapsed};
use super::fixed::{Counted, FixedCounters, FixedRegister, indices};
use super::reload::AutoReload;
use crate::branch::InstructionKind;
use crate::intel::pebs::{PebsSampler, SAMPLED_GENERAL};
use crate::intel::profile::{CountedEvent, CounterProfile, IntelEvent};
use crate::intel::registers::{evtsel, fixed, msr, v6};
use crate::intel::taken_branch::{TakenBranch, TakenBranchKind};
use crate::intel::unit::{Bus, InstructionInfo, SharedState, TracingUnit};
use crate::intel::{IntelProfile, IntelSettings, Registers};
use crate::{Delivery, DeliveryKind, GeneralProtection, Retired};

/// The largest number of general-purpose counters in any profile.
const MAX_COUNTERS: usize = 10;
/// Number of counters that have registers in the ranges before version 6.
const BEFORE_VERSION_6: usize = 8;

/// Distance from its overflow at which a counter of time is read instead of stepped. Such an overflow is noticed some
/// milliseconds late; sampling by time has periods of some hundred thousand clocks.
const FAR: u64 = 1 << 26;

#[derive(Debug)]
pub(crate) struct IntelCounters {
    profile: &'static IntelProfile,
    /// The general-purpose counters that exist, a bit each.
    exist: u64,
    /// The bits of a counter.
    mask: u64,
    full_width: bool,
    events: &'static [IntelEvent],
    select: [u64; MAX_COUNTERS],
    value: [u64; MAX_COUNTERS],
    fixed: FixedCounters,
    clocks: Clocks,
    /// The issue slots of a core clock.
    slots: u64,
    /// Counters that count events if IA32_PERF_GLOBAL_CTRL enables them; this and the next ones are bits as in that
    /// register.
    counting: u64,
    /// Counters that count time at all privilege levels.
    timed: u64,
    /// Counters that were far from their overflow when they were written or overflowed.
    far: u64,
    reload: AutoReload,
    sampler: PebsSampler,
}

/// One of the registers.
enum CounterRegister {
    Select(usize),
    Value(usize),
    FullWidth(usize),
    Fixed(FixedRegister),
    PebsEnable,
    PebsDataCfg,
    Reload(usize),
    /// Of Auto Counter Reload: the counter's bit in the IA32_PERF_GLOBAL registers.
    ReloadMask(usize),
    ReloadValue(usize),
}

impl IntelCounters {
    pub(crate) fn new(profile: &'static IntelProfile, settings: IntelSettings) -> Self {
        let counters = profile.counters.as_ref();
        Self {
            profile,
            exist: counters.map_or(0, CounterProfile::general_mask) & ((1 << MAX_COUNTERS) - 1),
            mask: counters.map_or(0, |counters| (1 << counters.width) - 1),
            full_width: counters.is_some_and(|counters| counters.full_width),
            events: counters.map_or(&[], |counters| counters.events),
            select: [0; MAX_COUNTERS],
            value: [0; MAX_COUNTERS],
            fixed: FixedCounters::new(profile),
            clocks: Clocks::new(profile, settings),
            slots: counters.map_or(0, |counters| counters.slots.into()),
            counting: 0,
            timed: 0,
            far: !0,
            reload: AutoReload::new(counters),
            sampler: PebsSampler::new(profile),
        }
    }

    /// Returns whether the registers are needed for a record at the next event.
    pub(crate) fn wants_registers(&self) -> bool {
        self.sampler.is_armed()
    }

    /// Returns the counters' bits of IA32_PERF_GLOBAL_INUSE.
    pub(crate) fn in_use(&self) -> u64 {
        let used = |index: &usize| self.select[*index] & evtsel::EVENT != 0;
        let bits =
            indices(self.exist).filter(used).fold(self.fixed.counting(), |bits, index| bits | 1 << index);
        let interrupts = self.select.iter().any(|select| select & evtsel::INT != 0);
        let pmi = interrupts || self.fixed.interrupts() || self.sampler.sampled() != 0;
        bits | if pmi { PMI_IN_USE } else { 0 }
    }

    /// Returns the minimum number of instructions before one that may be sampled; 0 if the next one may be. An
    /// instruction counts at most once.
    pub(crate) fn instructions_until_sample(&self, shared: &SharedState) -> u64 {
        if self.sampler.is_armed() {
            return 0;
        }
        let sampled = shared.perfmon.enabled_counters() & self.counting & self.sampler.sampled();
        if sampled == 0 {
            return u64::MAX;
        }
        let until_overflow = |index: usize| {
            let is_clock = self.event(index).is_some_and(|event| event.counts.is_clock());
            if is_clock { 0 } else { self.until_overflow(index) }
        };
        indices(self.exist)
            .filter(|index| sampled & 1 << index != 0)
            .map(until_overflow)
            .min()
            .unwrap_or(u64::MAX)
            .min(self.fixed.instructions_until_overflow(sampled))
    }

    fn until_overflow(&self, index: usize) -> u64 {
        (self.mask - self.value[index]).saturating_add(1)
    }

    /// Returns the event select, unit mask, CMASK, INV and E if `msr` selects an event that is not modelled, for an
    /// enabled counter.
    pub(crate) fn event_that_is_not_counted(&self, msr: u32) -> Option<u64> {
        const EVENT: u64 = 0xffff | evtsel::CMASK | evtsel::INV | evtsel::EDGE | evtsel::UMASK2;
        let Some(CounterRegister::Select(index)) = self.register(msr) else { return None };
        let select = self.select[index];
        (select & evtsel::EN != 0 && self.event(index).is_none()).then_some(select & EVENT)
    }

    /// Returns whether a counter counts instructions or time.
    pub(crate) fn is_counting(&self, shared: &SharedState) -> bool {
        shared.perfmon.enabled_counters() & self.counting != 0
    }

    /// Starts to count time at this time.
    pub(crate) fn begin_time(&mut self, tsc: u64, shared: &SharedState) {
        self.clocks.begin(tsc, shared);
    }

    /// Counts the time since [`Self::begin_time`], in which no instruction needed to be seen. Returns whether a counter
    /// that interrupts has overflowed.
    pub(crate) fn pass_time(&mut self, tsc: u64, bus: &mut Bus) -> bool {
        let time = self.clocks.pass(tsc, bus.shared);
        let enabled = bus.shared.perfmon.enabled_counters() & self.counting & self.timed;
        // These counters count at all levels.
        let counted = self.count_events(0, time, 0, enabled, &|_| false);
        self.overflow(counted, bus)
    }

    /// Sets the registers after the instruction that retires next.
    pub(crate) fn set_registers(&mut self, registers: Registers, xmm: &[u8; 256]) {
        self.sampler.set_registers(registers, xmm);
    }

    fn register(&self, number: u32) -> Option<CounterRegister> {
        let of = |first: u32| {
            number
                .checked_sub(first)
                .map(|index| index as usize)
                .filter(|index| *index < BEFORE_VERSION_6 && self.exist >> index & 1 != 0)
        };
        if let Some(index) = of(msr::IA32_PERFEVTSEL0) {
            Some(CounterRegister::Select(index))
        } else if let Some(index) = of(msr::IA32_PMC0) {
            Some(CounterRegister::Value(index))
        } else if let Some(index) = of(msr::IA32_A_PMC0).filter(|_| self.full_width) {
            Some(CounterRegister::FullWidth(index))
        } else if let Some(register) = self.fixed.register(number) {
            Some(CounterRegister::Fixed(register))
        } else if number == msr::IA32_PEBS_ENABLE && self.sampler.is_present() {
            Some(CounterRegister::PebsEnable)
        } else if number == msr::MSR_PEBS_DATA_CFG && self.sampler.is_adaptive() {
            Some(CounterRegister::PebsDataCfg)
        } else if let Some(register) = self.version_6_register(number) {
            Some(register)
        } else {
            let fixed = || self.fixed.index(msr::MSR_RELOAD_FIXED_CTR0, number).map(|n| SAMPLED_GENERAL + n);
            let reload = of(msr::MSR_RELOAD_PMC0).or_else(fixed);
            reload.filter(|_| self.sampler.has_reloads()).map(CounterRegister::Reload)
        }
    }

    /// Returns the register in the ranges that exist from version 6 on: all of a counter's registers are in one place.
    fn version_6_register(&self, number: u32) -> Option<CounterRegister> {
        if self.profile.perfmon_version < 6 {
            return None;
        }
        let place = |first: u32| {
            number.checked_sub(first).map(|offset| ((offset / v6::STEP) as usize, offset % v6::STEP))
        };
        if let Some((index, register)) = place(v6::IA32_PMC_FX0_CTR) {
            let counter = fixed::FIRST_STATUS_BIT as usize + index;
            let register = match register {
                v6::CTR => CounterRegister::Fixed(FixedRegister::Value(index)),
                v6::CFG_B if self.reload.has(counter) => CounterRegister::ReloadMask(counter),
                v6::CFG_C if self.reload.has(counter) => CounterRegister::ReloadValue(counter),
                _ => return None,
            };
            return self.fixed.has(index).then_some(register);
        }
        let (index, register) = place(v6::IA32_PMC_GP0_CTR)?;
        let register = match register {
            v6::CTR => CounterRegister::FullWidth(index),
            v6::CFG_A => CounterRegister::Select(index),
            v6::CFG_B if self.reload.has(index) => CounterRegister::ReloadMask(index),
            v6::CFG_C if self.reload.has(index) => CounterRegister::ReloadValue(index),
            _ => return None,
        };
        (index < MAX_COUNTERS && self.exist >> index & 1 != 0).then_some(register)
    }

    /// Executes RDPMC of a general-purpose counter.
    pub(crate) fn rdpmc(&self, index: u32) -> Option<u64> {
        let index = index as usize;
        (index < MAX_COUNTERS && self.exist >> index & 1 != 0).then(|| self.value[index])
    }

    /// Returns the reserved bits of IA32_PERFEVTSELx; AnyThread exists from version 3 on, until it is deprecated.
    fn select_reserved(&self) -> u64 {
        let deprecated = self.profile.counters.as_ref().is_some_and(|it| it.any_thread_deprecated);
        let has_any_thread = self.profile.perfmon_version >= 3 && !deprecated;
        let any_thread = if has_any_thread { 0 } else { evtsel::ANY_THREAD };
        let adaptive = if self.profile.pebs_baseline() { evtsel::ADAPTIVE_RECORD } else { 0 };
        let features =
            self.profile.counters.as_ref().and_then(|it| it.extended.as_ref()).map_or(0, |it| it.features);
        let umask2 = if features & v6::UNIT_MASK2 != 0 { evtsel::UMASK2 } else { 0 };
        let eq = if features & v6::EQ != 0 { evtsel::EQ } else { 0 };
        evtsel::RESERVED & !(adaptive | umask2 | eq) | any_thread
    }

    /// Returns the counters whose records are adaptive.
    fn adaptive(&self) -> u64 {
        let is = |index: &usize| self.select[*index] & evtsel::ADAPTIVE_RECORD != 0;
        indices(self.exist).filter(is).fold(self.fixed.adaptive(), |counters, index| counters | 1 << index)
    }

    /// Updates the sets of active counters after a change of a register.
    fn update(&mut self) {
        (self.counting, self.timed) = (self.fixed.counting(), self.fixed.clocks());
        self.far = self.fixed.far_from_overflow(FAR);
        for index in indices(self.exist) {
            let bit = 1 << index;
            self.far |= if self.until_overflow(index) >= FAR { bit } else { 0 };
            let Some(event) = self.event(index) else { continue };
            self.counting |= bit;
            let all_levels = self.counts_level(index, 0) && self.counts_level(index, 3);
            self.timed |= if all_levels && event.counts.is_clock() { bit } else { 0 };
        }
    }

    /// Returns the event of a counter, if its event select enables it.
    fn event(&self, index: usize) -> Option<&'static IntelEvent> {
        let select = self.select[index];
        let plain = select & (evtsel::CMASK | evtsel::INV | evtsel::EDGE | evtsel::UMASK2) == 0;
        let is = |event: &&IntelEvent| select as u8 == event.select && (select >> 8) as u8 == event.umask;
        self.events.iter().find(is).filter(|_| plain && select & evtsel::EN != 0)
    }

    fn counts_level(&self, index: usize, cpl: u8) -> bool {
        self.select[index] & if cpl == 0 { evtsel::OS } else { evtsel::USR } != 0
    }

    /// Counts an instruction in each counter for whose event `occurs` returns true, and the time before it.
    fn count(&mut self, retired: &Retired, occurs: impl Fn(CountedEvent) -> bool, bus: &mut Bus) {
        let time = self.clocks.pass(retired.tsc, bus.shared);
        let enabled = bus.shared.perfmon.enabled_counters() & self.counting;
        let counted = self.count_events(1, time, retired.before.cpl, enabled, &occurs);
        if counted.events | counted.overflows == 0 {
            return;
        }
        // A counter that overflowed earlier samples this event; one that overflows now will sample its next event.
        let adaptive = self.adaptive();
        let resets = self.sampler.sample(counted.events, adaptive, retired, bus);
        for (counter, reset) in resets.into_iter().enumerate() {
            match (reset, counter.checked_sub(SAMPLED_GENERAL)) {
                (None, _) => {}
                (Some(reset), None) => self.value[counter] = reset & self.mask,
                (Some(reset), Some(index)) => self.fixed.reset(index, reset),
            }
        }
        self.sampler.arm(counted.overflows & counted.events);
        self.overflow(counted, bus);
    }

    /// Counts an instruction and the time before it in the `enabled` counters. The returned events are those that can
    /// be sampled.
    fn count_events(
        &mut self,
        instructions: u64,
        time: Elapsed,
        cpl: u8,
        enabled: u64,
        occurs: &dyn Fn(CountedEvent) -> bool,
    ) -> Counted {
        let mut counted = self.fixed.count(instructions, time, cpl, enabled);
        for index in indices(self.exist) {
            let bit = 1_u64 << index;
            if enabled & bit == 0 || !self.counts_level(index, cpl) {
                continue;
            }
            let Some(event) = self.event(index) else { continue };
            let events = match event.counts {
                CountedEvent::CoreClocks => time.core,
                CountedEvent::BusClocks => time.bus,
                CountedEvent::Slots => time.core.saturating_mul(self.slots),
                what => occurs(what).into(),
            };
            if events == 0 {
                continue;
            }
            // AnyThread must also be clear for a precise event.
            let precise = event.precise & 1 << index != 0 && self.select[index] & evtsel::ANY_THREAD == 0;
            counted.events |= if precise { bit } else { 0 };
            let sum = self.value[index].saturating_add(events);
            self.value[index] = sum & self.mask;
            if sum > self.mask {
                counted.overflows |= bit;
                counted.interrupts |= if self.select[index] & evtsel::INT != 0 { bit } else { 0 };
            }
        }
        counted
    }

    /// Sets the status bits of counters that have overflowed, and raises their interrupt. Returns whether there is one.
    fn overflow(&mut self, counted: Counted, bus: &mut Bus) -> bool {
        let shown = !self.reload.self_reloaded();
        bus.shared.perfmon.set_status(counted.overflows & shown);
        self.far |= counted.overflows;
        if counted.interrupts != 0 {
            bus.raise_pmi(counted.interrupts & shown);
        }
        self.reload_counters(counted.overflows);
        counted.interrupts != 0
    }

    /// Sets the counters that these overflows reload.
    fn reload_counters(&mut self, overflows: u64) {
        let reloaded = self.reload.reloaded(overflows);
        for counter in indices(reloaded) {
            let value = self.reload.reload_value(counter) & self.mask;
            match counter.checked_sub(fixed::FIRST_STATUS_BIT as usize) {
                None => self.value[counter] = value,
                Some(index) => self.fixed.reset(index, value),
            }
        }
        if reloaded != 0 {
            self.update();
        }
    }
}

/// IA32_PERF_GLOBAL_INUSE.PMI_InUse.
const PMI_IN_USE: u64 = 1 << 63;

/// Returns true if an instruction counts as an event of this kind.
fn occurs(what: CountedEvent, info: &InstructionInfo) -> bool {
    let kind = info.decoded.kind;
    match what {
        CountedEvent::Instructions => true,
        CountedEvent::Branches => info.decoded.may_transfer(),
        CountedEvent::Conditional => kind == InstructionKind::Conditional,
        CountedEvent::NearCalls => {
            matches!(kind, InstructionKind::DirectCall { .. } | InstructionKind::IndirectCall)
        }
        CountedEvent::NearReturns => kind == InstructionKind::Return,
        CountedEvent::NearTaken => info.taken.is_some_and(|taken| taken.kind != TakenBranchKind::FarBranch),
        CountedEvent::FarBranches => matches!(kind, InstructionKind::Far | InstructionKind::InterruptReturn),
        CountedEvent::Mispredicted => info.mispredicted,
        CountedEvent::CoreClocks | CountedEvent::BusClocks | CountedEvent::Slots => false,
    }
}

impl TracingUnit for IntelCounters {
    fn owns_msr(&self, number: u32) -> bool {
        self.register(number).is_some()
    }

    fn read_msr(&self, number: u32, _: &SharedState) -> Result<u64, GeneralProtection> {
        Ok(match self.register(number).ok_or(GeneralProtection)? {
            CounterRegister::Select(index) => self.select[index],
            CounterRegister::Value(index) | CounterRegister::FullWidth(index) => self.value[index],
            CounterRegister::Fixed(register) => self.fixed.read(register),
            CounterRegister::PebsEnable => self.sampler.enable(),
            CounterRegister::PebsDataCfg => self.sampler.data_cfg(),
            CounterRegister::Reload(index) => self.sampler.reload(index),
            CounterRegister::ReloadMask(counter) => self.reload.mask(counter),
            CounterRegister::ReloadValue(counter) => self.reload.value(counter),
        })
    }

    fn write_msr(
        &mut self,
        number: u32,
        value: u64,
        _: &Retired,
        _: &mut Bus,
    ) -> Result<(), GeneralProtection> {
        match self.register(number).ok_or(GeneralProtection)? {
            CounterRegister::Select(index) if value & self.select_reserved() == 0 => {
                self.select[index] = value;
                self.clocks.stop();
            }
            // The lower half of the value is written, with its sign extended.
            CounterRegister::Value(index) => self.value[index] = value as u32 as i32 as u64 & self.mask,
            CounterRegister::FullWidth(index) if value & !self.mask == 0 => self.value[index] = value,
            CounterRegister::Fixed(register) => {
                self.fixed.write(register, value)?;
                if matches!(register, FixedRegister::Control) {
                    self.clocks.stop();
                }
            }
            CounterRegister::PebsEnable => self.sampler.write_enable(value)?,
            CounterRegister::PebsDataCfg => self.sampler.write_data_cfg(value)?,
            CounterRegister::ReloadMask(counter) => self.reload.write_mask(counter, value)?,
            CounterRegister::ReloadValue(counter) => self.reload.write_value(counter, value)?,
            CounterRegister::Reload(index) if value & !self.mask == 0 => {
                self.sampler.set_reload(index, value)
            }
            CounterRegister::Select(_) | CounterRegister::FullWidth(_) | CounterRegister::Reload(_) => {
                return Err(GeneralProtection);
            }
        }
        self.update();
        Ok(())
    }

    fn needs_each_instruction(&self, shared: &SharedState) -> bool {
        let read = self.timed & self.far & !self.sampler.sampled();
        shared.perfmon.enabled_counters() & self.counting & !read != 0
    }

    fn sees_instructions(&self, shared: &SharedState) -> bool {
        self.is_counting(shared)
    }

    fn retire(&mut self, retired: &Retired, info: &InstructionInfo, bus: &mut Bus) {
        self.count(retired, |what| occurs(what, info), bus);
        if matches!(info.decoded.kind, InstructionKind::Hlt | InstructionKind::Mwait) {
            self.clocks.stop();
        }
    }

    /// Counts INT n and its kin, which are instructions and retire; no other delivery is counted.
    fn deliver(&mut self, delivery: &Delivery, _: &TakenBranch, bus: &mut Bus) {
        if delivery.kind != DeliveryKind::SoftwareInterrupt {
            return;
        }
        let &Delivery { before, after, tsc, .. } = delivery;
        let retired = Retired { before, after, bytes: &[], tsc, operand: 0 };
        let is = |what| {
            matches!(what, CountedEvent::Instructions | CountedEvent::Branches | CountedEvent::FarBranches)
        };
        self.count(&retired, is, bus);
    }
}

#[cfg(test)]
mod tests;
