//! The global performance-monitoring registers, the local APIC's LVT entry, and the in-flight performance-monitoring
//! interrupts (PMIs).
//!
//! All units share this module: each one signals here that a PMI is raised. After a skid the PMI reaches the local
//! APIC, which drops or delivers it as its LVT entry selects. The rules for writes of the IA32_PERF_GLOBAL registers
//! are here. The counters are a unit of their own, with the rules for their event selects and values: the
//! general-purpose counters in `counters.rs`, with the fixed-function counters (`fixed.rs`), the clocks that both count
//! (`clocks.rs`), and Auto Counter Reload (`reload.rs`).
//!
//! Source: SDM vol. 3, "Architectural Performance Monitoring", and Advanced Programmable Interrupt Controller, "Local
//! Vector Table".

mod clocks;
mod counters;
mod fixed;
mod reload;

use crate::intel::debugctl::DebugCtl;
use crate::intel::registers::{
    CTR_FRZ, LBR_FRZ, OVF_DS_BUFFER, TRACE_TOPA_PMI, fixed::FIRST_STATUS_BIT, msr,
};
use crate::intel::{CounterProfile, IntelProfile, IntelViolations};
use crate::{GeneralProtection, Pmi};
pub(crate) use counters::IntelCounters;

const LVT_MASK: u32 = 1 << 16;
const LVT_WRITABLE: u32 = LVT_MASK | 0x7ff;
const DELIVERY_FIXED: u32 = 0;
const DELIVERY_NMI: u32 = 4;

/// Maximum number of in-flight PMIs; further PMIs merge with them.
const MAX_ON_THE_WAY: usize = 2;

#[derive(Debug)]
pub(crate) struct Perfmon {
    version: u32,
    /// A bit for each counter.
    counters: u64,
    has_pt: bool,
    status: u64,
    ctrl: u64,
    /// Number of changes by software of the set of counters that may count.
    changes: u64,
    lvt: u32,
    skid: u32,
    pmis: [Option<PmiOnTheWay>; MAX_ON_THE_WAY],
    delivered: Option<Pmi>,
}

/// An in-flight PMI.
#[derive(Clone, Copy, Debug)]
struct PmiOnTheWay {
    /// Instructions to retire before it reaches the local APIC.
    instructions_left: u32,
    /// A filled ToPA region raised it.
    topa: bool,
}

impl Perfmon {
    pub(crate) fn new(profile: &IntelProfile, skid: u32) -> Self {
        Self {
            version: profile.perfmon_version,
            counters: profile
                .counters
                .as_ref()
                .map_or(0, |counters| counters.general_mask() | counters.fixed_mask() << FIRST_STATUS_BIT),
            has_pt: profile.has_pt(),
            status: 0,
            // After reset the general-purpose counters are enabled here, so that each is controlled only by its own
            // event select.
            ctrl: profile.counters.as_ref().map_or(0, CounterProfile::general_mask),
            changes: 0,
            lvt: LVT_MASK,
            skid,
            pmis: [None; MAX_ON_THE_WAY],
            delivered: None,
        }
    }

    pub(crate) fn read(&self, number: u32) -> Result<u64, GeneralProtection> {
        match number {
            _ if self.version < 2 => Err(GeneralProtection),
            msr::IA32_PERF_GLOBAL_STATUS => Ok(self.status),
            msr::IA32_PERF_GLOBAL_CTRL => Ok(self.ctrl),
            msr::IA32_PERF_GLOBAL_STATUS_RESET => Ok(0),
            msr::IA32_PERF_GLOBAL_STATUS_SET if self.version >= 4 => Ok(0),
            _ => Err(GeneralProtection),
        }
    }

    pub(crate) fn write(&mut self, number: u32, value: u64) -> Result<(), GeneralProtection> {
        let legal = match number {
            _ if self.version < 2 => return Err(GeneralProtection),
            msr::IA32_PERF_GLOBAL_CTRL => self.counters,
            // Clearing CondChgd is legal; setting it is not.
            msr::IA32_PERF_GLOBAL_STATUS_RESET => self.status_bits() | 1 << 63,
            msr::IA32_PERF_GLOBAL_STATUS_SET if self.version >= 4 => self.status_bits(),
            _ => return Err(GeneralProtection),
        };
        if value & !legal != 0 {
            return Err(GeneralProtection);
        }
        self.changes += 1;
        match number {
            msr::IA32_PERF_GLOBAL_CTRL => self.ctrl = value,
            msr::IA32_PERF_GLOBAL_STATUS_RESET => self.status &= !value,
            _ => self.status |= value,
        }
        Ok(())
    }

    /// Returns the status bits that exist: those of the counters, OvfDSBuffer and Trace_ToPA_PMI; from version 3
    /// Ovf_Uncore; from version 4 LBR_FRZ, CTR_FRZ and ASCI.
    fn status_bits(&self) -> u64 {
        let topa = if self.has_pt { TRACE_TOPA_PMI } else { 0 };
        let uncore = if self.version >= 3 { 1 << 61 } else { 0 };
        let frozen = if self.version >= 4 { LBR_FRZ | CTR_FRZ | 1 << 60 } else { 0 };
        self.counters | topa | OVF_DS_BUFFER | uncore | frozen
    }

    /// Returns true if these bits of IA32_PERF_GLOBAL_STATUS are set.
    pub(crate) fn has(&self, bits: u64) -> bool {
        self.status & bits == bits
    }

    pub(crate) fn status(&self) -> u64 {
        self.status
    }

    /// Clears bits of IA32_PERF_GLOBAL_STATUS, as the processor does.
    pub(crate) fn clear_status(&mut self, bits: u64) {
        self.status &= !bits;
    }

    /// Sets the status bits of counters that have overflowed, without a PMI.
    pub(crate) fn set_status(&mut self, bits: u64) {
        self.status |= bits;
    }

    /// Returns the counters that may count.
    pub(crate) fn enabled_counters(&self) -> u64 {
        if self.has(CTR_FRZ) { 0 } else { self.ctrl }
    }

    /// Returns a number that changes whenever the software may have changed the set of active counters.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn lvt(&self) -> u32 {
        self.lvt
    }

    pub(crate) fn set_lvt(&mut self, value: u32) {
        self.lvt = value & LVT_WRITABLE;
    }

    /// Returns true if a PMI was raised that has not reached the local APIC.
    pub(crate) fn has_interrupt_on_the_way(&self) -> bool {
        self.pmis.iter().any(Option::is_some)
    }

    /// Processes INIT. Source: SDM vol. 3, Advanced Programmable Interrupt Controller, "Local APIC State After an INIT
    /// Reset": the state is that after power-up, in which LVT registers are 0 except for their mask bits.
    pub(crate) fn init(&mut self) {
        self.lvt = LVT_MASK;
    }

    /// Raises a PMI: sets status bits, puts the PMI in flight, and applies the freezes that IA32_DEBUGCTL selects.
    pub(crate) fn raise_pmi(&mut self, status: u64, debugctl: &mut DebugCtl) {
        self.status |= status;
        let topa = status == TRACE_TOPA_PMI;
        if let Some(free) = self.pmis.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(PmiOnTheWay { instructions_left: self.skid, topa });
        }
        // From version 4 the processor freezes by a status bit; before that it clears the software's enable bits.
        if debugctl.freezes_lbrs() {
            match self.version {
                4.. => self.status |= LBR_FRZ,
                _ => debugctl.clear_lbr(),
            }
        }
        if debugctl.freezes_perfmon() {
            match self.version {
                4.. => self.status |= CTR_FRZ,
                _ => self.ctrl = 0,
            }
        }
    }

    pub(crate) fn has_pmi_on_the_way(&self) -> bool {
        self.pmis.iter().any(Option::is_some)
    }

    /// Returns the number of instructions to retire, including the one at which the next PMI reaches the local APIC.
    pub(crate) fn instructions_until_pmi(&self) -> u32 {
        let left = self.pmis.iter().flatten().map(|waiting| waiting.instructions_left.saturating_add(1));
        left.min().unwrap_or(u32::MAX)
    }

    /// Recalls the in-flight PMIs of ToPA regions, for PendToPAPMI. Returns whether there were any.
    pub(crate) fn recall_topa_pmis(&mut self) -> bool {
        let topa = |slot: &Option<PmiOnTheWay>| slot.is_some_and(|waiting| waiting.topa);
        let any = self.pmis.iter().any(topa);
        self.pmis.iter_mut().filter(|slot| topa(slot)).for_each(|slot| *slot = None);
        any
    }

    /// Counts an instruction that retired: each in-flight PMI is one instruction closer.
    pub(crate) fn instruction_retired(&mut self, violations: &mut IntelViolations) {
        if !self.has_pmi_on_the_way() {
            return;
        }
        for index in 0..MAX_ON_THE_WAY {
            match self.pmis[index] {
                Some(PmiOnTheWay { instructions_left: 0, .. }) => {
                    self.pmis[index] = None;
                    self.reach_apic(violations);
                }
                Some(waiting) => {
                    self.pmis[index] =
                        Some(PmiOnTheWay { instructions_left: waiting.instructions_left - 1, ..waiting });
                }
                None => {}
            }
        }
    }

    /// Delivers all in-flight PMIs, because tracing ended.
    pub(crate) fn deliver_all(&mut self, violations: &mut IntelViolations) {
        for index in 0..MAX_ON_THE_WAY {
            if self.pmis[index].take().is_some() {
                self.reach_apic(violations);
            }
        }
    }

    /// Passes the interrupt to the local APIC, which drops it if the entry is masked, and masks the entry on delivery.
    fn reach_apic(&mut self, violations: &mut IntelViolations) {
        if self.lvt & LVT_MASK != 0 {
            violations.pmis_dropped += 1;
            return;
        }
        self.delivered = match self.lvt >> 8 & 7 {
            DELIVERY_FIXED => Some(Pmi::Fixed(self.lvt as u8)),
            DELIVERY_NMI => Some(Pmi::Nmi),
            _ => {
                violations.pmis_misprogrammed += 1;
                return;
            }
        };
        self.lvt |= LVT_MASK;
    }

    pub(crate) fn take_delivered(&mut self) -> Option<Pmi> {
        self.delivered.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn perfmon(name: &str, skid: u32) -> Perfmon {
        Perfmon::new(IntelProfile::by_name(name).expect(name), skid)
    }

    fn signal_topa(perfmon: &mut Perfmon) {
        perfmon.raise_pmi(1 << 55, &mut DebugCtl::new(IntelProfile::by_name("skylake").expect("skylake")));
    }

    #[test]
    fn a_pmi_comes_after_the_skid_and_masks_the_entry() {
        for (lvt, expected) in [(0x0f0, Pmi::Fixed(0xf0)), (0x400, Pmi::Nmi)] {
            let mut violations = IntelViolations::default();
            let mut perfmon = perfmon("skylake", 3);
            perfmon.set_lvt(lvt);
            signal_topa(&mut perfmon);
            assert_eq!(perfmon.read(0x38e), Ok(1 << 55));
            for left in [4, 3, 2] {
                assert_eq!(perfmon.instructions_until_pmi(), left);
                perfmon.instruction_retired(&mut violations);
                assert_eq!(perfmon.take_delivered(), None);
            }
            assert_eq!(perfmon.instructions_until_pmi(), 1);
            perfmon.instruction_retired(&mut violations);
            assert_eq!(perfmon.lvt(), lvt | 1 << 16);
            assert_eq!(perfmon.take_delivered(), Some(expected));
            assert_eq!(perfmon.take_delivered(), None);
        }
    }

    #[test]
    fn a_pmi_is_dropped_while_the_entry_is_masked_and_its_status_stays() {
        let mut violations = IntelViolations::default();
        let mut perfmon = perfmon("skylake", 0);
        perfmon.set_lvt(0x400 | 1 << 16);
        signal_topa(&mut perfmon);
        perfmon.instruction_retired(&mut violations);
        perfmon.set_lvt(0x400);
        assert_eq!(perfmon.take_delivered(), None);
        assert_eq!(perfmon.read(0x38e), Ok(1 << 55));
        assert_eq!(violations.pmis_dropped, 1);
    }

    #[test]
    fn a_second_pmi_can_be_pending_when_the_first_is_handled() {
        let mut violations = IntelViolations::default();
        let mut perfmon = perfmon("skylake", 2);
        perfmon.set_lvt(0x400);
        signal_topa(&mut perfmon);
        perfmon.instruction_retired(&mut violations);
        signal_topa(&mut perfmon);
        perfmon.instruction_retired(&mut violations);
        perfmon.instruction_retired(&mut violations);
        assert_eq!(perfmon.take_delivered(), Some(Pmi::Nmi));
        // The handler unmasks the entry before the second PMI arrives.
        perfmon.set_lvt(0x400);
        perfmon.deliver_all(&mut violations);
        assert_eq!(perfmon.take_delivered(), Some(Pmi::Nmi));
        assert_eq!(violations.pmis_dropped, 0);
    }

    #[test]
    fn refuses_a_delivery_mode_that_is_no_interrupt() {
        let mut violations = IntelViolations::default();
        let mut perfmon = perfmon("skylake", 0);
        perfmon.set_lvt(0x500);
        signal_topa(&mut perfmon);
        perfmon.instruction_retired(&mut violations);
        assert_eq!((perfmon.take_delivered(), violations.pmis_misprogrammed), (None, 1));
    }

    #[test]
    fn global_registers_refuse_what_is_reserved() {
        let rows: [(&str, u32, u64, bool); 16] = [
            ("skylake", 0x38e, 0, false),
            ("skylake", 0x38f, 0, true),
            ("skylake", 0x38f, 7 << 32 | 0xf, true),
            ("skylake", 0x38f, 1 << 35, false),
            ("skylake", 0x390, 7 << 32, true),
            ("sapphire-rapids", 0x38f, 1 << 36, false),
            ("icelake", 0x38f, 1 << 8, false),
            ("skylake", 0x390, 1 << 55, true),
            ("skylake", 0x390, 1 << 63, true),
            ("skylake", 0x390, 1 << 58, true),
            ("skylake", 0x390, 1 << 54, false),
            ("skylake", 0x391, 1 << 55, true),
            ("skylake", 0x391, 1 << 63, false),
            ("broadwell", 0x390, 1 << 55, true),
            ("broadwell", 0x390, 1 << 58, false),
            ("broadwell", 0x391, 1 << 55, false),
        ];
        for (name, number, value, legal) in rows {
            let mut perfmon = perfmon(name, 0);
            assert_eq!(perfmon.write(number, value).is_ok(), legal, "{name} {number:x} {value:x}");
        }
    }

    /// Checks SDM vol. 3, Performance Monitoring, "Architectural Performance Monitoring Version 2" to "Version 5".
    #[test]
    fn each_bit_of_the_global_registers_is_there_or_faults() {
        const FIXED: u64 = 7 << 32;
        const FOUR: u64 = 0xf << 32;
        // Trace_ToPA_PMI; LBR_FRZ, CTR_FRZ and ASCI; Ovf_Uncore; OvfBuf and CondChgd.
        const TOPA: u64 = 1 << 55;
        const FROZEN: u64 = 0b111 << 58;
        const UNCORE: u64 = 1 << 61;
        const REST: u64 = 0b11 << 62;
        // IA32_PERF_GLOBAL_CTRL, IA32_PERF_GLOBAL_STATUS_RESET; `true` if IA32_PERF_GLOBAL_STATUS_SET exists.
        let rows: [(&str, Option<[u64; 2]>, bool); 9] = [
            ("prescott", None, false),
            ("pentium-m", None, false),
            ("core2", Some([FIXED | 0b11, FIXED | 0b11 | REST]), false),
            ("nehalem", Some([FIXED | 0xf, FIXED | 0xf | UNCORE | REST]), false),
            ("broadwell", Some([FIXED | 0xf, FIXED | 0xf | TOPA | UNCORE | REST]), false),
            ("skylake", Some([FIXED | 0xf, FIXED | 0xf | TOPA | FROZEN | UNCORE | REST]), true),
            ("icelake", Some([FOUR | 0xff, FOUR | 0xff | TOPA | FROZEN | UNCORE | REST]), true),
            ("tremont", Some([FIXED | 0xf, FIXED | 0xf | TOPA | FROZEN | UNCORE | REST]), true),
            ("sapphire-rapids", Some([FOUR | 0xff, FOUR | 0xff | TOPA | FROZEN | UNCORE | REST]), true),
        ];
        for (name, bits, sets) in rows {
            let [ctrl, reset] = bits.unwrap_or_default();
            // CondChgd can be cleared, but not set.
            let set = sets.then_some(reset & !(1 << 63));
            for (number, legal) in [
                (0x38e, None),
                (0x38f, bits.map(|_| ctrl)),
                (0x390, bits.map(|_| reset)),
                (0x391, set),
                (0x392, None),
            ] {
                for bit in 0..64 {
                    let fits = legal.is_some_and(|legal| legal >> bit & 1 != 0);
                    let written = perfmon(name, 0).write(number, 1 << bit);
                    assert_eq!(written.is_ok(), fits, "{name} {number:x} {bit}");
                }
                let mut perfmon = perfmon(name, 0);
                let all = legal.unwrap_or(0);
                assert_eq!(perfmon.write(number, all).is_ok(), legal.is_some(), "{name} {number:x}");
                let (found, expected) = match number {
                    0x38f => (perfmon.read(0x38f), legal),
                    _ => (perfmon.read(0x38e), bits.map(|_| if number == 0x391 { all } else { 0 })),
                };
                assert_eq!(found.ok(), expected, "{name} {number:x}");
            }
        }
    }

    #[test]
    fn reset_clears_and_set_sets() {
        let mut perfmon = perfmon("skylake", 0);
        perfmon.write(0x391, 1 << 55 | 1 << 62).expect("set");
        perfmon.write(0x390, 1 << 55).expect("reset");
        assert_eq!(perfmon.read(0x38e), Ok(1 << 62));
    }
}
