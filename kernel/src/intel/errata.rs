//! Properties that only the processor's model shows: the errata, and the restrictions not enumerated by CPUID, that
//! matter to this driver.

use bitflags::bitflags;

bitflags! {
    /// Errata and restrictions of one processor model.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Errata: u32 {
        /// BDM106 (Broadwell): IA32_RTIT_CTL with TraceEn and without BranchEn raises #GP.
        const BRANCH_EN_MUST_BE_SET = 1 << 0;
        /// TGL052, ADL037, RPL017: single-range output of more than 4 KiB may hold wrong data.
        const SINGLE_RANGE_ABOVE_4K = 1 << 1;
        /// While TraceEn is set, neither last branch records nor branch trace messages are recorded, and their
        /// registers read 0: PT excludes LBR, BTS and TR, and they exclude PT. On other processors they can be used
        /// together.
        ///
        /// Source: SDM vol. 3, Intel Processor Trace, "Model Specific Capability Restrictions". Its list has the client
        /// and server parts of Broadwell and the first parts of Skylake. The later parts with Skylake's core (55H, 66H,
        /// 8EH, 9EH, A5H, A6H) are not in it. Linux treats 55H, 8EH, 9EH, A5H and A6H alike. It allows PT together with
        /// LBR on none of these, nor on 66H, which it does not name (arch/x86/events/intel/core.c, `intel_pmu_init`:
        /// `lbr_pt_coexist` is set for Goldmont, Ice Lake and their successors). This driver does the same: refusing
        /// the combination rules out an unnoticed loss.
        const TRACE_EXCLUDES_BRANCH_RECORDS = 1 << 2;
        /// Core 2 of 65 nm: samples of the wrong privilege level (AJ67, AR63), a PMI that comes an event late (AJ68,
        /// AR64), a status bit that may stay 0 (AJ69), and last branches that are not frozen (AJ106). Linux does not
        /// sample there (`intel_clovertown_quirk`).
        const PEBS_IS_UNRELIABLE = 1 << 3;
        /// Nehalem and Westmere: bits 6 and 7 of MSR_LBR_SELECT leave calls and returns out together with jumps; on
        /// later processors they leave out jumps alone.
        ///
        /// Source: SDM vol. 3, Debug, Branch Profile, TSC, and Intel Resource Director Technology Features, "Last
        /// Branch, Interrupt, and Exception Recording for Processors based on Intel Microarchitecture code name Sandy
        /// Bridge" with its table of MSR_LBR_SELECT; Linux, arch/x86/events/intel/lbr.c, `nhm_lbr_sel_map`.
        const LBR_CALLS_NEED_JUMPS = 1 << 4;
        /// BJ122, BV98, HSD29 (Sandy Bridge, Ivy Bridge, Haswell): a counter that counts memory accesses (events D0H to
        /// D3H) changes the counter with the same number of the core's other thread.
        const MEMORY_EVENTS_DISTURB_OTHER_THREAD = 1 << 5;
        /// AAK100, AAP53, BD53 (Nehalem, Westmere): a general-purpose counter may count clocks or nothing at all,
        /// unless three other events were programmed into its select register before its own.
        const COUNTERS_NEED_CLEARING = 1 << 6;
    }
}

impl Errata {
    /// Returns the errata of a display family and model.
    ///
    /// Source: Intel's specification updates of the processors named at each flag, or the source named there.
    pub(crate) const fn of(family: u8, model: u8) -> Self {
        match (family, model) {
            (6, 0x0f) => Self::PEBS_IS_UNRELIABLE,
            (6, 0x2a | 0x2d | 0x3a | 0x3e | 0x3c | 0x3f | 0x45 | 0x46) => {
                Self::MEMORY_EVENTS_DISTURB_OTHER_THREAD
            }
            (6, 0x1a | 0x1e | 0x1f | 0x2e | 0x25 | 0x2c | 0x2f) => {
                Self::LBR_CALLS_NEED_JUMPS.union(Self::COUNTERS_NEED_CLEARING)
            }
            (6, 0x3d | 0x47 | 0x4f | 0x56) => {
                Self::BRANCH_EN_MUST_BE_SET.union(Self::TRACE_EXCLUDES_BRANCH_RECORDS)
            }
            (6, 0x4e | 0x5e | 0x55 | 0x66 | 0x8e | 0x9e | 0xa5 | 0xa6) => Self::TRACE_EXCLUDES_BRANCH_RECORDS,
            (6, 0x8c | 0x8d | 0x97 | 0x9a | 0xb7 | 0xba | 0xbf) => Self::SINGLE_RANGE_ABOVE_4K,
            _ => Self::empty(),
        }
    }
}

/// Returns the microcode revision from which on PEBS works, on processors where it depends on that: Sandy Bridge.
/// Steppings that were not sold have none.
///
/// Source: Linux, arch/x86/events/intel/core.c, `pebs_ucodes`.
pub(crate) const fn least_pebs_microcode(family: u8, model: u8, stepping: u8) -> Option<u32> {
    match (family, model, stepping) {
        (6, 0x2a, _) => Some(0x28),
        (6, 0x2d, 6) => Some(0x618),
        (6, 0x2d, 7) => Some(0x70c),
        (6, 0x2d, _) => Some(u32::MAX),
        _ => None,
    }
}

/// Returns whether FREEZE_LBRS_ON_PMI freezes nothing on this processor although its family has it: the first Atoms.
///
/// Source: Linux, arch/x86/events/intel/lbr.c, `intel_pmu_lbr_init_atom`.
pub(crate) const fn lbrs_do_not_freeze(family: u8, model: u8, stepping: u8) -> bool {
    matches!((family, model), (6, 0x1c)) && stepping < 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_events_disturb_the_other_thread_from_sandy_bridge_to_haswell() {
        for (models, disturb) in [
            (&[0x2a, 0x2d, 0x3a, 0x3e, 0x3c, 0x3f, 0x45, 0x46][..], true),
            (&[0x1a, 0x2c, 0x3d, 0x47, 0x4f, 0x56, 0x5e], false),
        ] {
            for &model in models {
                let found = Errata::of(6, model).contains(Errata::MEMORY_EVENTS_DISTURB_OTHER_THREAD);
                assert_eq!(found, disturb, "{model:#x}");
            }
        }
    }

    #[test]
    fn trace_and_branch_records_exclude_each_other_on_broadwell_and_skylake_alone() {
        // "Model Specific Capability Restrictions", copied from the manual.
        let manual = [0x3d, 0x47, 0x4e, 0x4f, 0x56, 0x5e];
        let same_core = [0x55, 0x66, 0x8e, 0x9e, 0xa5, 0xa6];
        // Goldmont, Goldmont Plus, Tremont; Ice Lake, Tiger Lake, Sapphire Rapids, Alder Lake.
        let together = [0x5c, 0x5f, 0x7a, 0x86, 0x96, 0x6a, 0x7d, 0x7e, 0x8c, 0x8f, 0x97];
        let all = [(&manual[..], true), (&same_core, true), (&together, false)];
        for (models, excludes) in all {
            for &model in models {
                let found = Errata::of(6, model).contains(Errata::TRACE_EXCLUDES_BRANCH_RECORDS);
                assert_eq!(found, excludes, "{model:#x}");
            }
        }
    }
}
