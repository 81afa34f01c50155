//! What only a processor's model tells: errata, and restrictions that CPUID does not enumerate, as far as a driver must
//! care.

use bitflags::bitflags;

bitflags! {
    /// Errata and restrictions of one processor model.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Errata: u32 {
        /// BDM106 (Broadwell): IA32_RTIT_CTL with TraceEn and without BranchEn raises #GP.
        const BRANCH_EN_MUST_BE_SET = 1 << 0;
        /// TGL052, ADL037, RPL017: single-range output of more than 4 KiB may hold wrong data.
        const SINGLE_RANGE_ABOVE_4K = 1 << 1;
        /// While TraceEn is set neither last branches nor branch trace messages are recorded, and their registers read 0:
        /// PT and LBR, BTS and TR exclude each other. On other processors they go beside each other.
        ///
        /// Source: SDM vol. 3, Intel Processor Trace, "Model Specific Capability Restrictions". Its list has the client
        /// and server parts of Broadwell and the first of Skylake. The later parts with Skylake's core (55H, 66H, 8EH,
        /// 9EH, A5H, A6H) are not in it. Linux takes 55H, 8EH, 9EH, A5H and A6H for alike in everything, and lets PT and
        /// LBR be used beside each other on none of them, nor on 66H, which it does not name
        /// (arch/x86/events/intel/core.c, `intel_pmu_init`: `lbr_pt_coexist`, which Goldmont and its successors have, and
        /// Ice Lake and its). So does this: refused beside each other, nothing is lost unseen.
        const TRACE_EXCLUDES_BRANCH_RECORDS = 1 << 2;
    }
}

impl Errata {
    /// Those of a display family and model.
    ///
    /// Source: Intel's specification updates of the processors named at each flag, or what is named there.
    #[must_use]
    pub const fn of(family: u8, model: u8) -> Self {
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
        // "Model Specific Capability Restrictions", typed from the manual.
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
