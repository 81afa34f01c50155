//! The profiles: the enumeration of a processor by CPUID and by constant MSRs.

mod branches;
mod table;

pub use branches::{
    AutoReloadProfile, CountedEvent, CounterProfile, DebugCtlLayout, DebugStoreProfile, ExtendedCounters,
    IntelEvent, LbrProfile, PebsProfile,
};

use crate::intel::registers::cap_ebx;

/// A processor's enumerated capabilities.
///
/// Profiles do not enumerate SGX, which the model lacks, nor TSX, VMX and XSAVES, which are optional. IP
/// payloads of Intel PT are RIPs (CPUID.14H.0:ECX\[31\] = 0).
#[derive(Debug)]
pub struct IntelProfile {
    /// Name: `prescott`, `core2`, `nehalem`, `broadwell`, `skylake`, `icelake`, `tremont`, `sapphire-rapids`,
    /// `cougar-cove`, `darkmont` or `pentium-m`.
    pub name: &'static str,
    /// Family, model and stepping, as in CPUID.01H:EAX.
    pub signature: u32,
    /// CPUID.0:EAX.
    pub highest_leaf: u32,
    /// MAXPHYADDR: physical address bits.
    pub physical_address_bits: u32,
    /// The processor has IA-32e mode.
    pub long_mode: bool,
    /// The version of architectural performance monitoring, CPUID.0AH:EAX\[7:0\]; 0 if there is none.
    pub perfmon_version: u32,
    /// IA32_PERF_CAPABILITIES; `None` when there is no such register (CPUID.01H:ECX\[15\]).
    pub perf_capabilities: Option<u64>,
    /// The general-purpose counters, if there are any.
    pub counters: Option<CounterProfile>,
    /// The last branch record stack, if there is one.
    pub lbr: Option<LbrProfile>,
    /// The Debug Store, if there is one.
    pub debug_store: Option<DebugStoreProfile>,
    /// IA32_DEBUGCTL.ENABLE_UNCORE_PMI can be set.
    pub uncore_pmi: bool,
    /// CPUID.14H.0:EBX.
    pub pt_features: u32,
    /// CPUID.14H.0:ECX; 0 if there is no Intel PT.
    pub pt_outputs: u32,
    /// The number of address ranges, CPUID.14H.1:EAX\[2:0\].
    pub address_ranges: u32,
    /// The allowed MTCFreq encodings, CPUID.14H.1:EAX\[31:16\].
    pub mtc_freqs: u16,
    /// The allowed CycThresh encodings, CPUID.14H.1:EBX\[15:0\].
    pub cyc_thresholds: u16,
    /// The allowed PSBFreq encodings, CPUID.14H.1:EBX\[31:16\].
    pub psb_freqs: u16,
    /// The ratio of the TSC to the core crystal clock, CPUID.15H:EBX over EAX; zeros if there is no such leaf.
    pub tsc_ratio: (u32, u32),
    /// The core crystal clock in Hz, CPUID.15H:ECX; 0 if it is not enumerated.
    pub crystal_hz: u32,
    /// The highest frequency in MHz, CPUID.16H:EBX.
    pub max_mhz: u32,
    /// The maximum non-turbo ratio: TSC frequency over the bus clock of 100 MHz, MSR_PLATFORM_INFO\[15:8\].
    pub non_turbo_ratio: u8,
}

impl IntelProfile {
    /// Returns true if MSR_PLATFORM_INFO exists: from Nehalem on. Source: SDM vol. 4, the table of Nehalem's MSRs.
    pub(crate) const fn has_platform_info(&self) -> bool {
        let (family, model) =
            (self.signature >> 8 & 0xf, self.signature >> 12 & 0xf0 | self.signature >> 4 & 0xf);
        family == 6 && model >= 0x1a
    }

    /// Returns the frequency of the TSC in Hz: the crystal's times the ratio of CPUID.15H, or the bus clock's times the
    /// maximum non-turbo ratio.
    pub const fn tsc_hz(&self) -> u64 {
        let (ticks, crystals) = self.tsc_ratio;
        if self.crystal_hz != 0 && crystals != 0 {
            return self.crystal_hz as u64 * ticks as u64 / crystals as u64;
        }
        let bus_hz =
            match (self.signature >> 8 & 0xf, self.signature >> 12 & 0xf0 | self.signature >> 4 & 0xf) {
                (0xf, _) => 200_000_000,
                // Core 2 and Nehalem.
                (6, 0x0f..=0x17) => 333_333_333,
                (6, 0x1a..=0x2f) => 133_333_333,
                _ => 100_000_000,
            };
        bus_hz * self.non_turbo_ratio as u64
    }

    pub(crate) const fn has_pt(&self) -> bool {
        self.pt_outputs != 0
    }

    /// Returns true if IA32_DEBUGCTL.FREEZE_WHILE_SMM can be set, IA32_PERF_CAPABILITIES\[12\].
    pub(crate) const fn smm_freeze(&self) -> bool {
        matches!(self.perf_capabilities, Some(value) if value & 1 << 12 != 0)
    }

    /// Returns IA32_PERF_CAPABILITIES\[14\], PEBS_BASELINE: records are adaptive, and each counter selects whether its
    /// records have the configured groups.
    pub(crate) const fn pebs_baseline(&self) -> bool {
        matches!(self.perf_capabilities, Some(value) if value & 1 << 14 != 0)
    }

    /// Returns IA32_PERF_CAPABILITIES\[16\], PEBS_OUTPUT_PT_AVAIL: PEBS records can go into the trace of Intel PT.
    pub(crate) const fn pebs_output_pt(&self) -> bool {
        matches!(self.perf_capabilities, Some(value) if value & 1 << 16 != 0)
    }

    /// Returns the debug control register's layout, if the register, with the last branch records and the related
    /// functions, is modelled.
    pub(crate) const fn debugctl_layout(&self) -> Option<DebugCtlLayout> {
        match &self.debug_store {
            Some(store) => Some(store.debugctl),
            None => None,
        }
    }

    pub(crate) const fn feature(&self, bit: u32) -> bool {
        self.pt_features & bit != 0
    }

    pub(crate) const fn output(&self, bit: u32) -> bool {
        self.pt_outputs & bit != 0
    }

    pub(crate) const fn counts_packet_bytes(&self) -> bool {
        self.feature(cap_ebx::CONFIGURABLE_PSB)
    }

    /// Returns the bits of a physical address that do not exist.
    pub(crate) const fn beyond_physical(&self) -> u64 {
        !((1 << self.physical_address_bits) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks SDM vol. 3, "Time-Stamp Counter", "Invariant TSC"; the frequencies are those in the names of real parts.
    #[test]
    fn the_tsc_is_as_fast_as_cpuid_and_platform_info_say() {
        let rows = [
            ("prescott", 3_000_000_000),
            ("core2", 2_999_999_997),
            ("nehalem", 2_666_666_660),
            ("broadwell", 2_600_000_000),
            ("skylake", 3_000_000_000),
            ("icelake", 2_600_000_000),
            ("tremont", 1_996_800_000),
            ("sapphire-rapids", 2_000_000_000),
            ("cougar-cove", 2_496_000_000),
            ("darkmont", 2_496_000_000),
        ];
        for (name, hz) in rows {
            let profile = IntelProfile::by_name(name).expect(name);
            assert_eq!(profile.tsc_hz(), hz, "{name}");
            // CPUID.16H has the same in MHz, rounded.
            let base = u64::from(profile.non_turbo_ratio) * 100_000_000;
            assert!(profile.highest_leaf < 0x16 || base.abs_diff(hz) < 5_000_000, "{name}");
        }
    }
}
