//! The global performance-monitoring registers, the local APIC's LVT entry, and PMIs on their way.
//!
//! Source: SDM vol. 3, "Architectural Performance Monitoring", and Advanced Programmable Interrupt Controller,
//! "Local Vector Table".

use crate::registers::{TRACE_TOPA_PMI, msr};
use crate::{GeneralProtection, Profile, Violations};

/// A performance-monitoring interrupt that the local APIC delivers now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pmi {
    /// Delivery mode Fixed, with this vector.
    Fixed(u8),
    /// Delivery mode NMI.
    Nmi,
}

const LVT_MASK: u32 = 1 << 16;
const LVT_WRITABLE: u32 = LVT_MASK | 0x7ff;
const DELIVERY_FIXED: u32 = 0;
const DELIVERY_NMI: u32 = 4;

/// PMIs that can be on their way at once; more of them merge.
const ON_THE_WAY: usize = 2;

#[derive(Debug)]
pub(crate) struct Perfmon {
    version: u32,
    status: u64,
    ctrl: u64,
    lvt: u32,
    skid: u32,
    /// Instructions until each PMI reaches the local APIC, oldest first.
    waiting: [Option<u32>; ON_THE_WAY],
    due: Option<Pmi>,
}

impl Perfmon {
    pub(crate) fn new(profile: &Profile, skid: u32) -> Self {
        Self {
            version: profile.perfmon_version,
            status: 0,
            ctrl: 0,
            lvt: LVT_MASK,
            skid,
            waiting: [None; ON_THE_WAY],
            due: None,
        }
    }

    pub(crate) fn read(&self, number: u32) -> Result<u64, GeneralProtection> {
        match number {
            msr::IA32_PERF_GLOBAL_STATUS => Ok(self.status),
            msr::IA32_PERF_GLOBAL_CTRL => Ok(self.ctrl),
            msr::IA32_PERF_GLOBAL_STATUS_RESET => Ok(0),
            msr::IA32_PERF_GLOBAL_STATUS_SET if self.version >= 4 => Ok(0),
            _ => Err(GeneralProtection),
        }
    }

    pub(crate) fn write(&mut self, number: u32, value: u64) -> Result<(), GeneralProtection> {
        let legal = match number {
            // No counter is there to be enabled.
            msr::IA32_PERF_GLOBAL_CTRL => 0,
            // Clearing CondChgd is legal; setting it is not.
            msr::IA32_PERF_GLOBAL_STATUS_RESET => self.status_bits() | 1 << 63,
            msr::IA32_PERF_GLOBAL_STATUS_SET if self.version >= 4 => self.status_bits(),
            _ => return Err(GeneralProtection),
        };
        if value & !legal != 0 {
            return Err(GeneralProtection);
        }
        match number {
            msr::IA32_PERF_GLOBAL_CTRL => self.ctrl = value,
            msr::IA32_PERF_GLOBAL_STATUS_RESET => self.status &= !value,
            _ => self.status |= value,
        }
        Ok(())
    }

    /// Trace_ToPA_PMI, Ovf_Uncore, OvfDSBuffer; from version 4 on also LBR_FRZ, CTR_FRZ and ASCI.
    fn status_bits(&self) -> u64 {
        let frozen = if self.version >= 4 { 0b111 << 58 } else { 0 };
        TRACE_TOPA_PMI | 0b11 << 61 | frozen
    }

    pub(crate) fn lvt(&self) -> u32 {
        self.lvt
    }

    pub(crate) fn set_lvt(&mut self, value: u32) {
        self.lvt = value & LVT_WRITABLE;
    }

    /// A ToPA region with INT was filled: sets the status bit and sends a PMI on its way.
    pub(crate) fn signal_topa(&mut self) {
        self.status |= TRACE_TOPA_PMI;
        if let Some(free) = self.waiting.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(self.skid);
        }
    }

    pub(crate) fn on_the_way(&self) -> bool {
        self.waiting.iter().any(Option::is_some)
    }

    /// Takes the PMIs on their way back, for PendToPAPMI.
    pub(crate) fn recall(&mut self) -> bool {
        let any = self.on_the_way();
        self.waiting = [None; ON_THE_WAY];
        any
    }

    /// An instruction retired: PMIs come one instruction closer.
    pub(crate) fn tick(&mut self, violations: &mut Violations) {
        if !self.on_the_way() {
            return;
        }
        for index in 0..ON_THE_WAY {
            match self.waiting[index] {
                Some(0) => {
                    self.waiting[index] = None;
                    self.reach_apic(violations);
                }
                Some(left) => self.waiting[index] = Some(left - 1),
                None => {}
            }
        }
    }

    /// Tracing ended: what is on its way arrives.
    pub(crate) fn arrive(&mut self, violations: &mut Violations) {
        for index in 0..ON_THE_WAY {
            if self.waiting[index].take().is_some() {
                self.reach_apic(violations);
            }
        }
    }

    /// The local APIC drops the interrupt while the entry is masked, and masks the entry when it delivers.
    fn reach_apic(&mut self, violations: &mut Violations) {
        if self.lvt & LVT_MASK != 0 {
            violations.pmis_dropped += 1;
            return;
        }
        self.due = match self.lvt >> 8 & 7 {
            DELIVERY_FIXED => Some(Pmi::Fixed(self.lvt as u8)),
            DELIVERY_NMI => Some(Pmi::Nmi),
            _ => {
                violations.pmis_misprogrammed += 1;
                return;
            }
        };
        self.lvt |= LVT_MASK;
    }

    pub(crate) fn take(&mut self) -> Option<Pmi> {
        self.due.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn perfmon(name: &str, skid: u32) -> Perfmon {
        Perfmon::new(Profile::by_name(name).expect(name), skid)
    }

    #[test]
    fn a_pmi_comes_after_the_skid_and_masks_the_entry() {
        for (lvt, expected) in [(0x0f0, Pmi::Fixed(0xf0)), (0x400, Pmi::Nmi)] {
            let mut violations = Violations::default();
            let mut perfmon = perfmon("skylake", 3);
            perfmon.set_lvt(lvt);
            perfmon.signal_topa();
            assert_eq!(perfmon.read(0x38e), Ok(1 << 55));
            for _ in 0..3 {
                perfmon.tick(&mut violations);
                assert_eq!(perfmon.take(), None);
            }
            perfmon.tick(&mut violations);
            assert_eq!(perfmon.lvt(), lvt | 1 << 16);
            assert_eq!(perfmon.take(), Some(expected));
            assert_eq!(perfmon.take(), None);
        }
    }

    #[test]
    fn a_pmi_is_dropped_while_the_entry_is_masked_and_its_status_stays() {
        let mut violations = Violations::default();
        let mut perfmon = perfmon("skylake", 0);
        perfmon.set_lvt(0x400 | 1 << 16);
        perfmon.signal_topa();
        perfmon.tick(&mut violations);
        perfmon.set_lvt(0x400);
        assert_eq!(perfmon.take(), None);
        assert_eq!(perfmon.read(0x38e), Ok(1 << 55));
        assert_eq!(violations.pmis_dropped, 1);
    }

    #[test]
    fn a_second_pmi_can_be_pending_when_the_first_is_handled() {
        let mut violations = Violations::default();
        let mut perfmon = perfmon("skylake", 2);
        perfmon.set_lvt(0x400);
        perfmon.signal_topa();
        perfmon.tick(&mut violations);
        perfmon.signal_topa();
        perfmon.tick(&mut violations);
        perfmon.tick(&mut violations);
        assert_eq!(perfmon.take(), Some(Pmi::Nmi));
        // The handler unmasks the entry before the second arrives.
        perfmon.set_lvt(0x400);
        perfmon.arrive(&mut violations);
        assert_eq!(perfmon.take(), Some(Pmi::Nmi));
        assert_eq!(violations.pmis_dropped, 0);
    }

    #[test]
    fn refuses_a_delivery_mode_that_is_no_interrupt() {
        let mut violations = Violations::default();
        let mut perfmon = perfmon("skylake", 0);
        perfmon.set_lvt(0x500);
        perfmon.signal_topa();
        perfmon.tick(&mut violations);
        assert_eq!((perfmon.take(), violations.pmis_misprogrammed), (None, 1));
    }

    #[test]
    fn global_registers_refuse_what_is_reserved() {
        let rows: [(&str, u32, u64, bool); 12] = [
            ("skylake", 0x38e, 0, false),
            ("skylake", 0x38f, 0, true),
            ("skylake", 0x38f, 1, false),
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

    #[test]
    fn reset_clears_and_set_sets() {
        let mut perfmon = perfmon("skylake", 0);
        perfmon.write(0x391, 1 << 55 | 1 << 62).expect("set");
        perfmon.write(0x390, 1 << 55).expect("reset");
        assert_eq!(perfmon.read(0x38e), Ok(1 << 62));
    }
}
