//! Hides CPUID features of the processor below that the guest must not see.

use pugmark_model::CpuidResult;

/// Returns the answer `below` to CPUID leaf `leaf` without the features that the monitor reserves and those that only
/// AMD's processors report. `x2apic`: the guest may use x2APIC mode.
///
/// Source: AMD64 Architecture Programmer's Manual vol. 3, "CPUID Function 8000_0005h" and the like; SDM vol. 2,
/// "CPUID", on the same leaves.
#[must_use]
pub const fn without_monitor(leaf: u32, below: CpuidResult, x2apic: bool) -> CpuidResult {
    const NOTHING: CpuidResult = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    match leaf {
        1 => CpuidResult { ecx: below.ecx & !X2APIC | if x2apic { X2APIC } else { 0 }, ..below },
        // The leaves of hypervisors.
        0x4000_0000..=0x4fff_ffff => NOTHING,
        0x8000_0001 => CpuidResult { ecx: below.ecx & !(SVM | SKINIT), ..below },
        // AMD: the level-1 caches and TLBs.
        0x8000_0005 => NOTHING,
        // The level-2 cache. AMD also reports its TLBs and the level-3 cache here.
        0x8000_0006 => CpuidResult { ecx: below.ecx, ..NOTHING },
        0x8000_000a => NOTHING,
        _ => below,
    }
}

/// CPUID.01H:ECX.
const X2APIC: u32 = 1 << 21;
/// CPUID.80000001H:ECX.
const SVM: u32 = 1 << 2;
/// CPUID.80000001H:ECX.
const SKINIT: u32 = 1 << 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_svm_and_what_only_amd_has() {
        let rows = [
            (0, [!0; 4]),
            (1, [!0, !0, !(1 << 21), !0]),
            (7, [!0; 4]),
            (0x4000_0000, [0; 4]),
            (0x4000_0001, [0; 4]),
            (0x8000_0001, [!0, !0, !0x1004, !0]),
            (0x8000_0005, [0; 4]),
            (0x8000_0006, [0, 0, !0, 0]),
            (0x8000_000a, [0; 4]),
        ];
        for (leaf, [eax, ebx, ecx, edx]) in rows {
            let below = CpuidResult { eax: !0, ebx: !0, ecx: !0, edx: !0 };
            assert_eq!(without_monitor(leaf, below, false), CpuidResult { eax, ebx, ecx, edx }, "{leaf:#x}");
            // The monitor offers x2APIC mode even if the processor below lacks it.
            let x2apic = |below| without_monitor(leaf, below, true).ecx >> 21 & 1;
            let nothing = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
            let shown = [x2apic(below), x2apic(nothing)];
            assert_eq!(shown, if leaf == 1 { [1, 1] } else { [ecx >> 21 & 1, 0] }, "{leaf:#x}");
        }
    }
}
