//! CPUID leaf 23H, which extends the enumeration of the counters.
//!
//! Source: SDM vol. 2, CPUID, "Architectural Performance Monitoring Extended Leaf"; Linux,
//! `arch/x86/include/asm/perf_event.h`, `union cpuid35_eax` and `union cpuid35_ebx`, and
//! `arch/x86/events/intel/core.c`, `update_pmu_cap`.

use crate::cpuid::{CpuIdReader, CpuIdResult};

/// A sub-leaf of leaf 23H.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubLeaf {
    /// The sub-leaves that there are, and further fields of event selects.
    Main = 0,
    /// The counters.
    Counters = 1,
    /// The counters that auto counter reload reloads, and those that cause it.
    Reload = 2,
    /// The groups of fields that records of architectural PEBS can have.
    PebsGroups = 4,
    /// The counters that sample by architectural PEBS.
    PebsCounters = 5,
}

/// Returns a sub-leaf of leaf 23H; `None` if the processor does not have it. The leaf exists with `CPUID.07H.1:EAX[8]`.
pub(crate) fn read(cpuid: &impl CpuIdReader, sub_leaf: SubLeaf) -> Option<CpuIdResult> {
    const LEAF: u32 = 0x23;
    let is_there =
        cpuid.cpuid1(0).eax >= LEAF && cpuid.cpuid2(7, 0).eax >= 1 && cpuid.cpuid2(7, 1).eax >> 8 & 1 == 1;
    if !is_there {
        return None;
    }
    let main = cpuid.cpuid2(LEAF, 0);
    match sub_leaf {
        SubLeaf::Main => Some(main),
        _ if main.eax >> sub_leaf as u32 & 1 == 1 => Some(cpuid.cpuid2(LEAF, sub_leaf as u32)),
        _ => None,
    }
}
