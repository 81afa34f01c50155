//! Properties that only the processor's model shows: errata, and restrictions that CPUID does not enumerate, as far as
//! they matter to this driver.

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
        /// LBR on none of these, and not on 66H either, which it does not name (arch/x86/events/intel/core.c,
        /// `intel_pmu_init`: `lbr_pt_coexist` is set for Goldmont, Ice Lake and their successors). This driver does the
        /// same: where it refuses the combination, no loss can go unnoticed.
        const TRACE_EXCLUDES_BRANCH_RECORDS = 1 << 2;
    }
}

impl Errata {
    /// Returns the errata of a display family and model.
    ///
    /// Source: Intel's specification updates of the processors named at each flag, or the source named there.
    pub(crate) const fn of(family: u8, model: u8) -> Self {
        match (family, model) {
            (6, 0x3d | 0x47 | 0x4f | 0x56) => {
                Self::BRANCH_EN_MUST_BE_SET.union(Self::TRACE_EXCLUDES_BRANCH_RECORDS)
            }
            (6, 0x4e | 0x5e | 0x55 | 0x66 | 0x8e | 0x9e | 0xa5 | 0xa6) => Self::TRACE_EXCLUDES_BRANCH_RECORDS,
            (6, 0x8c | 0x8d | 0x97 | 0x9a | 0xb7 | 0xba | 0xbf) => Self::SINGLE_RANGE_ABOVE_4K,
            _ => Self::empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
