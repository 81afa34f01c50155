//! MSRs outside the tracing hardware: those that the guest's processor has, and the values that may be written.
//!
//! Source: SDM vol. 4, Model-Specific Registers, "Architectural MSRs"; AMD64 Architecture Programmer's Manual vol. 2,
//! "MSR Cross-Reference", for additional MSRs of AMD's processors.

use crate::guest::{Cpu, cr0, efer};

/// IA32_APIC_BASE.
pub const APIC_BASE: u32 = 0x1b;
/// IA32_EFER.
pub const EFER: u32 = 0xc000_0080;
const DEBUGCTL: u32 = 0x1d9;
const IA32_MISC_ENABLE: u32 = 0x1a0;

const IA32_TIME_STAMP_COUNTER: u32 = 0x10;

/// The handler of accesses to an MSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MsrHandler {
    /// The processor below, without an exit.
    ProcessorBelow,
    /// IA32_TIME_STAMP_COUNTER: reads return the guest's clock. A write is lost, as on the processor below.
    TimeStampCounter,
    /// IA32_EFER: SVME is hidden from the guest.
    Efer,
    /// IA32_APIC_BASE: the processor below has it, without x2APIC mode. Writes must not move the page from the address
    /// at which it is trapped.
    ApicBase,
    /// A register of x2APIC mode, which the processor below does not use.
    X2Apic,
    /// IA32_DEBUGCTL of a processor whose tracing hardware lacks it: it reads as 0, and none of its bits can be set.
    /// The processor below may have other bits at this number.
    DebugCtl,
    /// The guest's processor has no such MSR, so an access raises #GP.
    Absent,
}

impl MsrHandler {
    /// Returns the handler of `msr` if the guest's processor is one of Intel's and its model does not own the MSR.
    #[must_use]
    pub const fn on_intel(msr: u32) -> Self {
        match msr {
            // MSR_LER_FROM_LIP and MSR_LER_TO_LIP, MSR_LASTBRANCH_TOS, and last branches of NetBurst and P6.
            0x1d7 | 0x1d8 | 0x1da..=0x1de => Self::Absent,
            _ => Self::on_either(msr),
        }
    }

    /// Returns the same as [`MsrHandler::on_intel`], for a processor of AMD's.
    #[must_use]
    pub const fn on_amd(msr: u32) -> Self {
        match msr {
            IA32_MISC_ENABLE => Self::Absent,
            _ => Self::on_either(msr),
        }
    }

    const fn on_either(msr: u32) -> Self {
        if counts_or_traces(msr) {
            return Self::Absent;
        }
        match msr {
            APIC_BASE => Self::ApicBase,
            IA32_TIME_STAMP_COUNTER => Self::TimeStampCounter,
            DEBUGCTL => Self::DebugCtl,
            EFER => Self::Efer,
            0x800..=0x8ff => Self::X2Apic,
            // STAR, LSTAR, CSTAR, FMASK; the bases of FS and GS, KERNEL_GS_BASE, TSC_AUX.
            0..=0x1fff | 0xc000_0081..=0xc000_0084 | 0xc000_0100..=0xc000_0103 => Self::ProcessorBelow,
            _ => Self::Absent,
        }
    }

    /// Returns whether reads must exit, and whether writes must exit.
    #[must_use]
    pub const fn exits(self) -> (bool, bool) {
        match self {
            Self::ProcessorBelow => (false, false),
            Self::TimeStampCounter => (true, false),
            Self::ApicBase | Self::X2Apic | Self::Efer | Self::DebugCtl | Self::Absent => (true, true),
        }
    }
}

/// Returns whether `msr` belongs to Intel's counting and tracing hardware. A processor has some of these MSRs; its
/// model owns them. The counters of NetBurst and of the uncore, which no model has, are not included.
const fn counts_or_traces(msr: u32) -> bool {
    match msr {
        // IA32_PMCx, PLATFORM_INFO, IA32_PERFEVTSELx, fixed-function counters, MSR_PERF_METRICS.
        0xc1..=0xc8 | 0xce | 0x186..=0x18d | 0x309..=0x30f | 0x329 => true,
        // IA32_PERF_CAPABILITIES, the global registers, IA32_PEBS_ENABLE, MSR_PEBS_DATA_CFG, full-width counters.
        0x345 | 0x38d..=0x391 | 0x3f1 | 0x3f2 | 0x4c1..=0x4c8 => true,
        // MSR_RELOAD_FIXED_CTRx, MSR_RELOAD_PMCx; the counters' registers from version 6 on.
        0x1309..=0x130b | 0x14c1..=0x14c8 | 0x1900..=0x19ff => true,
        // Intel PT, IA32_DS_AREA.
        0x560 | 0x561 | 0x570..=0x572 | 0x580..=0x587 | 0x600 => true,
        // Last branch records: Core's, MSR_LBR_SELECT, MSR_LASTBRANCH_TOS, those from Nehalem on, MSR_LBR_INFO_x.
        0x40..=0x47 | 0x60..=0x67 | 0x1c8 | 0x1c9 | 0x680..=0x6df | 0xdc0..=0xddf => true,
        _ => false,
    }
}

/// Returns the content of IA32_EFER after a write of `value`; `None`: the write raises #GP.
///
/// Source: SDM vol. 3, System Architecture Overview, "Extended Feature Enable Register".
#[must_use]
pub const fn efer_after_write(cpu: &Cpu, value: u64) -> Option<u64> {
    const LME: u64 = 1 << 8;
    const KNOWN: u64 = efer::SCE | LME | efer::LMA | efer::NXE;
    let paging = cpu.cr0 & cr0::PG != 0;
    if value & !KNOWN != 0 || (paging && (value ^ cpu.efer) & LME != 0) {
        return None;
    }
    Some(value & !efer::LMA | cpu.efer & efer::LMA)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amds_msrs_are_not_there() {
        let rows = [
            (0x10, MsrHandler::TimeStampCounter),
            (0x1b, MsrHandler::ApicBase),
            (0x2a, MsrHandler::ProcessorBelow),
            (0x3a, MsrHandler::ProcessorBelow),
            (0xe7, MsrHandler::ProcessorBelow),
            (0x174, MsrHandler::ProcessorBelow),
            (0x179, MsrHandler::ProcessorBelow),
            (0x1d9, MsrHandler::DebugCtl),
            (0x200, MsrHandler::ProcessorBelow),
            (0x277, MsrHandler::ProcessorBelow),
            (0x2ff, MsrHandler::ProcessorBelow),
            (0x3b0, MsrHandler::ProcessorBelow),
            (0x6e0, MsrHandler::ProcessorBelow),
            (0x802, MsrHandler::X2Apic),
            (0xda0, MsrHandler::ProcessorBelow),
            (0x1fff, MsrHandler::ProcessorBelow),
            (0x2000, MsrHandler::Absent),
            (0x4b56_4d00, MsrHandler::Absent),
            (0xc000_0080, MsrHandler::Efer),
            (0xc000_0082, MsrHandler::ProcessorBelow),
            (0xc000_0085, MsrHandler::Absent),
            (0xc000_0102, MsrHandler::ProcessorBelow),
            (0xc000_0103, MsrHandler::ProcessorBelow),
            // The ratio of the time-stamp counter, SYSCFG, VM_CR, VM_HSAVE_PA, IBS.
            (0xc000_0104, MsrHandler::Absent),
            (0xc001_0010, MsrHandler::Absent),
            (0xc001_0114, MsrHandler::Absent),
            (0xc001_0117, MsrHandler::Absent),
            (0xc001_1030, MsrHandler::Absent),
        ];
        for (msr, place) in rows {
            assert_eq!(MsrHandler::on_intel(msr), place, "{msr:#x}");
        }
        assert_eq!(MsrHandler::ProcessorBelow.exits(), (false, false));
        assert_eq!(MsrHandler::TimeStampCounter.exits(), (true, false));
        assert_eq!(MsrHandler::Absent.exits(), (true, true));
    }

    #[test]
    fn intels_msrs_are_not_there_on_amd() {
        let rows = [
            (0x10, MsrHandler::TimeStampCounter),
            (0x1b, MsrHandler::ApicBase),
            (0xc1, MsrHandler::Absent),
            (0xc9, MsrHandler::ProcessorBelow),
            (0x174, MsrHandler::ProcessorBelow),
            (0x1dd, MsrHandler::ProcessorBelow),
            (0x186, MsrHandler::Absent),
            (0x1a0, MsrHandler::Absent),
            (0x1d9, MsrHandler::DebugCtl),
            (0x277, MsrHandler::ProcessorBelow),
            (0x345, MsrHandler::Absent),
            (0x38f, MsrHandler::Absent),
            (0x3f1, MsrHandler::Absent),
            (0x570, MsrHandler::Absent),
            (0x587, MsrHandler::Absent),
            (0x600, MsrHandler::Absent),
            (0xc000_0080, MsrHandler::Efer),
            (0xc001_0114, MsrHandler::Absent),
        ];
        for (msr, place) in rows {
            assert_eq!(MsrHandler::on_amd(msr), place, "{msr:#x}");
        }
    }

    #[test]
    fn efer_has_intels_bits_and_lme_only_changes_without_paging() {
        const PAGING: u64 = cr0::PG;
        let rows = [
            (0, 0, 0x901, Some(0x901)),
            (0, 0, 0x400, Some(0)),
            (PAGING, 0x500, 0xd01, Some(0xd01)),
            (PAGING, 0x500, 0x901, Some(0xd01)),
            (PAGING, 0x500, 0x400, None),
            (PAGING, 0, 0x100, None),
            (0, 0, 1 << 12, None),
            // AMD's fast FXSAVE.
            (0, 0, 1 << 14, None),
            (0, 0, 1 << 63, None),
        ];
        for (cr0, efer, value, left) in rows {
            let cpu = Cpu { cr0, efer, ..Cpu::default() };
            assert_eq!(efer_after_write(&cpu, value), left, "{value:#x} over {efer:#x}");
        }
    }
}
