//! The general-purpose performance counters, which here count instructions and branches.
//!
//! Counters with CMASK, INV or E set count conditions over cycles: they stand still here, as do counters of events that
//! no profile lists. AnyThread makes no difference: there is one logical processor. Interrupts and exceptions are not
//! counted, except those that an instruction makes: INT n, INT3, INTO, INT1.
//!
//! Source: SDM vol. 3, Performance Monitoring, "Architectural Performance Monitoring" and "Full-Width Writes to
//! Performance Counter Registers"; vol. 4, the table "IA-32 Architectural MSRs".

use crate::branch::InstructionKind;
use crate::intel::pebs::PebsSampler;
use crate::intel::profile::{CountedEvent, IntelEvent};
use crate::intel::registers::{evtsel, fixed::FIRST_STATUS_BIT, msr};
use crate::intel::taken_branch::{TakenBranch, TakenBranchKind};
use crate::intel::unit::{Bus, InstructionInfo, SharedState, TracingUnit};
use crate::intel::{IntelProfile, Registers};
use crate::{Delivery, DeliveryKind, GeneralProtection, Retired};

/// The largest number of counters in any profile.
const MAX_COUNTERS: usize = 8;

#[derive(Debug)]
pub(crate) struct IntelCounters {
    profile: &'static IntelProfile,
    count: usize,
    /// The bits that a counter has.
    mask: u64,
    full_width: bool,
    events: &'static [IntelEvent],
    select: [u64; MAX_COUNTERS],
    value: [u64; MAX_COUNTERS],
    /// Counters that count something if IA32_PERF_GLOBAL_CTRL enables them.
    counting: u64,
    sampler: PebsSampler,
}

/// One of the registers.
enum CounterRegister {
    Select(usize),
    Value(usize),
    FullWidth(usize),
    PebsEnable,
    PebsDataCfg,
    Reload(usize),
}

impl IntelCounters {
    pub(crate) fn new(profile: &'static IntelProfile) -> Self {
        let counters = profile.counters.as_ref();
        Self {
            profile,
            count: counters.map_or(0, |counters| counters.count as usize).min(MAX_COUNTERS),
            mask: counters.map_or(0, |counters| (1 << counters.width) - 1),
            full_width: counters.is_some_and(|counters| counters.full_width),
            events: counters.map_or(&[], |counters| counters.events),
            select: [0; MAX_COUNTERS],
            value: [0; MAX_COUNTERS],
            counting: 0,
            sampler: PebsSampler::new(profile),
        }
    }

    /// Whether the registers are needed for a record at the next event.
    pub(crate) fn wants_registers(&self) -> bool {
        self.sampler.is_armed()
    }

    /// Returns their bits of IA32_PERF_GLOBAL_INUSE.
    pub(crate) fn in_use(&self) -> u64 {
        let used = |index: &usize| self.select[*index] & evtsel::EVENT != 0;
        let bits = (0..self.count).filter(used).fold(0, |bits, index| bits | 1 << index);
        let interrupts = self.select.iter().any(|select| select & evtsel::INT != 0);
        let pmi = interrupts || self.sampler.enable() & self.sampler.counters() != 0;
        bits | if pmi { PMI_IN_USE } else { 0 }
    }

    /// The counters that count and are sampled, fixed-function counters among them.
    pub(crate) fn sampled_by(&self, shared: &SharedState) -> u64 {
        shared.perfmon.enabled_counters() & self.sampler.enable() & self.sampler.counters()
    }

    /// How many instructions retire at least before one that may be sampled, as far as these counters know; 0 if the
    /// next one may be. An instruction counts once at most.
    pub(crate) fn instructions_until_sample(&self, shared: &SharedState) -> u64 {
        if self.sampler.is_armed() {
            return 0;
        }
        let sampled = self.sampled_by(shared) & self.counting;
        let until_overflow = |index: usize| self.mask.wrapping_sub(self.value[index]).saturating_add(1);
        (0..self.count)
            .filter(|index| sampled & 1 << index != 0)
            .map(until_overflow)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Sets the registers as they are after the instruction that retires next.
    pub(crate) fn set_registers(&mut self, registers: Registers, xmm: &[u8; 256]) {
        self.sampler.set_registers(registers, xmm);
    }

    fn register(&self, number: u32) -> Option<CounterRegister> {
        let of = |first: u32| {
            number.checked_sub(first).map(|index| index as usize).filter(|index| *index < self.count)
        };
        if let Some(index) = of(msr::IA32_PERFEVTSEL0) {
            Some(CounterRegister::Select(index))
        } else if let Some(index) = of(msr::IA32_PMC0) {
            Some(CounterRegister::Value(index))
        } else if let Some(index) = of(msr::IA32_A_PMC0).filter(|_| self.full_width) {
            Some(CounterRegister::FullWidth(index))
        } else if number == msr::IA32_PEBS_ENABLE && self.sampler.is_present() {
            Some(CounterRegister::PebsEnable)
        } else if number == msr::MSR_PEBS_DATA_CFG && self.sampler.is_adaptive() {
            Some(CounterRegister::PebsDataCfg)
        } else if let Some(index) = of(msr::MSR_RELOAD_PMC0) {
            self.sampler.has_reload(index).then_some(CounterRegister::Reload(index))
        } else {
            let index = number.checked_sub(msr::MSR_RELOAD_FIXED_CTR0)?;
            let bit = FIRST_STATUS_BIT as usize + index as usize;
            self.sampler.has_reload(bit).then_some(CounterRegister::Reload(bit))
        }
    }

    /// The bits that are reserved in IA32_PERFEVTSELx; AnyThread exists from version 3.
    fn select_reserved(&self) -> u64 {
        let any_thread = if self.profile.perfmon_version < 3 { evtsel::ANY_THREAD } else { 0 };
        let adaptive = if self.profile.pebs_baseline() { evtsel::ADAPTIVE_RECORD } else { 0 };
        evtsel::RESERVED & !adaptive | any_thread
    }

    /// Counters whose records are adaptive.
    fn adaptive(&self) -> u64 {
        let is = |index: &usize| self.select[*index] & evtsel::ADAPTIVE_RECORD != 0;
        (0..self.count).filter(is).fold(0, |counters, index| counters | 1 << index)
    }

    /// The event that a counter counts, if its event select enables it.
    fn event(&self, index: usize) -> Option<&'static IntelEvent> {
        let select = self.select[index];
        let plain = select & (evtsel::CMASK | evtsel::INV | evtsel::EDGE) == 0;
        let is = |event: &&IntelEvent| select as u8 == event.select && (select >> 8) as u8 == event.umask;
        self.events.iter().find(is).filter(|_| plain && select & evtsel::EN != 0)
    }

    fn counts_level(&self, index: usize, cpl: u8) -> bool {
        self.select[index] & if cpl == 0 { evtsel::OS } else { evtsel::USR } != 0
    }

    /// Counts an instruction in each counter for whose event `occurs` returns true.
    fn count(&mut self, retired: &Retired, occurs: impl Fn(CountedEvent) -> bool, bus: &mut Bus) {
        let enabled = bus.shared.perfmon.enabled_counters() & self.counting;
        let (mut events, mut overflows, mut interrupts) = (0, 0, 0);
        for index in 0..self.count {
            let bit = 1_u64 << index;
            let Some(event) = self.event(index).filter(|_| enabled & bit != 0) else { continue };
            if !self.counts_level(index, retired.before.cpl) || !occurs(event.counts) {
                continue;
            }
            // AnyThread must also be clear for a precise event.
            let precise = event.precise & 1 << index != 0 && self.select[index] & evtsel::ANY_THREAD == 0;
            events |= if precise { bit } else { 0 };
            self.value[index] = self.value[index].wrapping_add(1) & self.mask;
            if self.value[index] == 0 {
                overflows |= bit;
                interrupts |= if self.select[index] & evtsel::INT != 0 { bit } else { 0 };
            }
        }
        let fixed = bus.shared.fixed_events;
        if events | overflows | fixed.counted == 0 {
            return;
        }
        // A counter that overflowed before samples this event; a counter that overflows now will sample its next event.
        let adaptive = self.adaptive() | fixed.adaptive;
        let resets = self.sampler.sample(events | fixed.counted, adaptive, retired, bus);
        for (value, reset) in self.value.iter_mut().zip(resets.general) {
            if let Some(reset) = reset {
                *value = reset & self.mask;
            }
        }
        bus.shared.fixed_events.resets = resets.fixed;
        self.sampler.arm(overflows & events | fixed.overflowed);
        bus.shared.perfmon.set_status(overflows);
        if interrupts != 0 {
            bus.raise_pmi(interrupts);
        }
    }
}

/// IA32_PERF_GLOBAL_INUSE.PMI_InUse.
const PMI_IN_USE: u64 = 1 << 63;

/// Whether an instruction counts as an event of this kind.
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
            CounterRegister::PebsEnable => self.sampler.enable(),
            CounterRegister::PebsDataCfg => self.sampler.data_cfg(),
            CounterRegister::Reload(index) => self.sampler.reload(index),
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
                let bit = 1 << index;
                self.counting = self.counting & !bit | if self.event(index).is_some() { bit } else { 0 };
            }
            // The lower half of the value is written, with its sign extended.
            CounterRegister::Value(index) => self.value[index] = value as u32 as i32 as u64 & self.mask,
            CounterRegister::FullWidth(index) if value & !self.mask == 0 => self.value[index] = value,
            CounterRegister::PebsEnable => self.sampler.write_enable(value)?,
            CounterRegister::PebsDataCfg => self.sampler.write_data_cfg(value)?,
            CounterRegister::Reload(index) if value & !self.mask == 0 => {
                self.sampler.set_reload(index, value)
            }
            CounterRegister::Select(_) | CounterRegister::FullWidth(_) | CounterRegister::Reload(_) => {
                return Err(GeneralProtection);
            }
        }
        Ok(())
    }

    fn needs_each_instruction(&self, shared: &SharedState) -> bool {
        // Samples of fixed-function counters are stored here, too.
        let fixed = self.sampled_by(shared) >> FIRST_STATUS_BIT;
        shared.perfmon.enabled_counters() & self.counting != 0 || fixed != 0
    }

    fn retire(&mut self, retired: &Retired, info: &InstructionInfo, bus: &mut Bus) {
        self.count(retired, |what| occurs(what, info), bus);
    }

    /// INT n and its kin are instructions, which retire; no other delivery is counted.
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
