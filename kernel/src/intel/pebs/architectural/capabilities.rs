//! Detects architectural PEBS.

use super::ArchPebsGroups;
use crate::cpuid::CpuIdReader;
use crate::intel::counters::IntelCounterCapabilities;
use crate::intel::counters::extended::{self, SubLeaf};
use crate::lifecycle::{Absent, Missing};
use crate::msr::{CounterAddresses, Msr, PerfCapabilities, TypedMsr};
use raw_cpuid::CpuId;

/// The format's number in IA32_PERF_CAPABILITIES that stands for architectural PEBS.
const FORMAT: u8 = 0xf;

/// The capabilities of architectural PEBS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchPebsCapabilities {
    /// The general-purpose counters that sample, a bit for each: `CPUID.23H.5:EAX`.
    pub general: u32,
    /// The fixed-function counters that sample, of the first eight: `CPUID.23H.5:ECX`.
    pub fixed: u8,
    /// The general-purpose counters whose samples are spread precisely (PDIST): `CPUID.23H.5:EBX`.
    pub general_precise: u32,
    /// The fixed-function counters whose samples are spread precisely: `CPUID.23H.5:EDX`.
    pub fixed_precise: u8,
    /// The groups that records can have: `CPUID.23H.4:EBX`.
    pub groups: ArchPebsGroups,
    /// The counters.
    pub(super) counters: IntelCounterCapabilities,
    /// The first physical address that the processor does not reach.
    pub(super) physical_limit: u64,
}

impl ArchPebsCapabilities {
    /// Reads the capabilities. Writes no register.
    ///
    /// # Errors
    ///
    /// The processor does not have architectural PEBS, or an access raised #GP.
    pub fn read(cpuid: impl CpuIdReader, msr: &mut impl Msr) -> Result<Self, Absent> {
        let counters = IntelCounterCapabilities::read(cpuid.clone(), msr)?;
        let id = CpuId::with_cpuid_reader(cpuid.clone());
        if !id.get_feature_info().is_some_and(|features| features.has_pdcm()) {
            return Err(Missing::PerfCapabilities.into());
        }
        let number = msr.read::<PerfCapabilities>()?.pebs_format();
        if number != FORMAT {
            return Err(Missing::PebsFormat { number }.into());
        }
        let groups = extended::read(&cpuid, SubLeaf::PebsGroups);
        let sampling = extended::read(&cpuid, SubLeaf::PebsCounters);
        let (Some(groups), Some(sampling), CounterAddresses::ByCounter) =
            (groups, sampling, counters.addresses)
        else {
            return Err(Missing::ArchitecturalPebs.into());
        };
        let addresses = id.get_processor_capacity_feature_info();
        let bits = addresses.map_or(36, |addresses| addresses.physical_address_bits()).clamp(32, 52);
        let found = Self {
            general: sampling.eax & counters.general,
            fixed: sampling.ecx as u8 & counters.fixed,
            general_precise: sampling.ebx & counters.general,
            fixed_precise: sampling.edx as u8 & counters.fixed,
            groups: ArchPebsGroups::from_bits_truncate(u64::from(groups.ebx) << 32),
            counters,
            physical_limit: 1 << bits,
        };
        match (found.general, found.fixed) {
            (0, 0) => Err(Missing::SamplingCounter.into()),
            _ => Ok(found),
        }
    }
}
