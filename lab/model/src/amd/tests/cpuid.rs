//! CPUID.

use crate::amd::{AmdProcessor, AmdProfile, AmdSettings, Northbridge};
use crate::{CpuidResult, Processor as _};

const ONES: CpuidResult = CpuidResult { eax: !0, ebx: !0, ecx: !0, edx: !0 };

fn cpuid(name: &str, leaf: u32) -> CpuidResult {
    let profile = AmdProfile::by_name(name).expect(name);
    let northbridge = Northbridge::new(profile);
    AmdProcessor::new(profile, AmdSettings::default(), &northbridge).cpuid(leaf, 0, ONES)
}

#[test]
fn all_are_authentic() {
    for profile in AmdProfile::all() {
        for leaf in [0, 0x8000_0000] {
            let CpuidResult { ebx, ecx, edx, .. } = cpuid(profile.name, leaf);
            let name = [ebx, edx, ecx].map(u32::to_le_bytes).concat();
            assert_eq!(name, b"AuthenticAMD", "{}", profile.name);
        }
    }
}

#[test]
fn each_family_has_its_leaves() {
    // Family, model, highest leaves, 8000_0001 ECX, 8000_001B EAX, 8000_0022 EAX and EBX.
    let rows = [
        ("k8", 0x0f, 0x43, (1, 0x8000_0018), 0x0000_0008, 0, (0, 0)),
        ("barcelona", 0x10, 0x02, (5, 0x8000_001a), 0x0000_0408, 0, (0, 0)),
        ("trinity", 0x15, 0x10, (0xd, 0x8000_001e), 0x0080_0408, 0xff, (0, 0)),
        ("zen2", 0x17, 0x31, (0x10, 0x8000_0020), 0x0080_0408, 0x3ff, (0, 0)),
        ("zen3", 0x19, 0x01, (0x10, 0x8000_0023), 0x0080_0408, 0x3ff, (0, 0)),
        ("zen4", 0x19, 0x11, (0x10, 0x8000_0028), 0x0080_0408, 0xbff, (7, 0x106)),
        ("zen5", 0x1a, 0x02, (0x10, 0x8000_0028), 0x0080_0408, 0x8_1bff, (7, 0x106)),
        ("zen6", 0x1a, 0x50, (0x10, 0x8000_0028), 0x0080_0408, 0x9_fbff, (7, 0x106)),
    ];
    for (name, family, model, highest, features, ibs, perf) in rows {
        let signature = cpuid(name, 1).eax;
        assert_eq!(signature, cpuid(name, 0x8000_0001).eax, "{name}");
        assert_eq!((signature >> 8 & 0xf) + (signature >> 20 & 0xff), family, "{name}");
        assert_eq!(signature >> 4 & 0xf | signature >> 12 & 0xf0, model, "{name}");
        assert_eq!((cpuid(name, 0).eax, cpuid(name, 0x8000_0000).eax), highest, "{name}");
        // Features that the physical processor reports: LAHF, MOV CR8, LZCNT, SSE4A, misaligned SSE, PREFETCHW.
        assert_eq!(cpuid(name, 0x8000_0001).ecx, features | 0x1f1, "{name}");
        assert_eq!(cpuid(name, 0x8000_001b), CpuidResult { eax: ibs, ..CpuidResult::default() }, "{name}");
        let (eax, ebx) = perf;
        assert_eq!(cpuid(name, 0x8000_0022), CpuidResult { eax, ebx, ..CpuidResult::default() }, "{name}");
    }
}

#[test]
fn nothing_of_intel_s_shows() {
    for name in ["k8", "zen4"] {
        for leaf in [2, 4, 0xa, 0x14, 0x15, 0x16, 0x1c, 0x3fff_ffff, 0x8000_000a, 0x8fff_ffff] {
            assert_eq!(cpuid(name, leaf), CpuidResult::default(), "{name} {leaf:#x}");
        }
        let CpuidResult { ecx, edx, .. } = cpuid(name, 1);
        // DTES64, DS-CPL, VMX, PDCM, DS.
        assert_eq!((ecx & (1 << 2 | 1 << 4 | 1 << 5 | 1 << 15), edx & 1 << 21), (0, 0), "{name}");
        // Intel PT.
        assert_eq!(cpuid(name, 7).ebx & 1 << 25, 0, "{name}");
    }
    // XSAVE needs leaf 0DH.
    assert_eq!((cpuid("k8", 1).ecx >> 26 & 1, cpuid("zen4", 1).ecx >> 26 & 1), (0, 1));
    for (name, there) in
        [("k8", false), ("barcelona", false), ("trinity", true), ("zen2", true), ("zen4", true)]
    {
        assert_eq!(cpuid(name, 0xd), if there { ONES } else { CpuidResult::default() }, "{name}");
        assert_eq!(cpuid(name, 0xe), CpuidResult::default(), "{name}");
    }
    assert_eq!((cpuid("k8", 7), cpuid("zen4", 7).ebx & 1), (CpuidResult::default(), 1));
}

#[test]
fn features_of_leaf_1_are_those_that_amds_manual_has() {
    // APM vol. 3, "CPUID Fn0000_0001_ECX Feature Identifiers" and "CPUID Fn0000_0001_EDX Feature Identifiers": the
    // named bits. EXTENDED_STATE has those bits of ECX that depend on XSAVE, which needs leaf 0DH.
    const ECX: [u32; 17] = [0, 1, 3, 9, 12, 13, 19, 20, 21, 22, 23, 25, 26, 27, 28, 29, 30];
    const EXTENDED_STATE: [u32; 5] = [12, 26, 27, 28, 29];
    const EDX: [u32; 23] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 19, 23, 24, 25, 26, 28];
    // Some AMD processors have PCID too, but it is not modelled. Intel's bits: SDM vol. 2, "CPUID—CPU
    // Identification", the tables of the features in ECX and EDX.
    const INTEL_ECX: [u32; 13] = [2, 4, 5, 6, 7, 8, 10, 11, 14, 15, 17, 18, 24];
    const INTEL_EDX: [u32; 6] = [18, 21, 22, 27, 29, 31];
    for (name, extended) in [("k8", false), ("barcelona", false), ("trinity", true), ("zen4", true)] {
        let CpuidResult { ebx, ecx, edx, .. } = cpuid(name, 1);
        for bit in ECX {
            let there = extended || !EXTENDED_STATE.contains(&bit);
            assert_eq!(ecx >> bit & 1, u32::from(there), "{name} ECX[{bit}]");
        }
        for bit in EDX {
            assert_eq!(edx >> bit & 1, 1, "{name} EDX[{bit}]");
        }
        // The bit that a hypervisor is present is clear, too: the guest must not see one.
        for bit in INTEL_ECX.into_iter().chain([31]) {
            assert_eq!(ecx >> bit & 1, 0, "{name} ECX[{bit}]");
        }
        for bit in INTEL_EDX {
            assert_eq!(edx >> bit & 1, 0, "{name} EDX[{bit}]");
        }
        assert_eq!(ebx, !0, "{name}: the APIC ID and the rest are the processor's below");
    }
}

#[test]
fn features_of_leaf_7_and_of_the_extended_leaves_are_masked_too() {
    // FSGSBASE, BMI1, AVX2, SMEP, BMI2, ERMS, RDSEED, ADX, CLFLUSHOPT, CLWB, SHA.
    let kept = [0, 3, 5, 7, 8, 9, 18, 19, 23, 24, 29].map(|bit| 1u32 << bit).iter().sum();
    assert_eq!(cpuid("zen4", 7), CpuidResult { ebx: kept, ..CpuidResult::default() });
    // No FFXSR: it needs a bit of EFER that the physical processor may not have.
    let CpuidResult { ebx, edx, .. } = cpuid("zen4", 0x8000_0001);
    assert_eq!((ebx, edx), (0, !(1 << 25)));
    for profile in AmdProfile::all() {
        let CpuidResult { eax, ebx, ecx, edx } = cpuid(profile.name, 0x8000_0008);
        assert_eq!(eax & !0xff, !0xff, "{}: linear addresses are the processor's below", profile.name);
        // Branch sampling.
        assert_eq!((ebx, ecx, edx), (u32::from(profile.name == "zen3") << 31, 0, 0), "{}", profile.name);
    }
}

#[test]
fn sizes_and_clocks() {
    for (name, bits, invariant) in [("k8", 40, 0), ("barcelona", 48, 1 << 8), ("zen4", 52, 1 << 8)] {
        assert_eq!(cpuid(name, 0x8000_0008).eax & 0xff, bits, "{name}");
        assert_eq!(cpuid(name, 0x8000_0007).edx, invariant, "{name}");
    }
}

/// Typed from the dumps of InstLatx64 (github.com/InstLatx64/InstLatx64, folder AuthenticAMD): 0040F33_K8_Windsor,
/// 0100F23_K10_Kuma, 0610F01_K15_Piledriver, 0830F10_K17_Rome, 0A00F11_K19_Milan_02, 0A10F11_K19_Genoa_01 and
/// 0B00F21_K20_Turin_01. None of Zen 6 has been published.
#[test]
fn what_is_enumerated_is_what_the_published_dumps_of_these_processors_have() {
    const ALL: [u32; 4] = [!0; 4];
    // Of the features: the extended local APIC, IBS, PerfCtrExtCore.
    const COUNTING: u32 = 1 << 3 | 1 << 10 | 1 << 23;
    // Of the sizes: physical addresses; the counters and last branches, without the counters of the northbridge and of
    // the memory controllers, which are not modelled.
    const PHYSICAL: [u32; 4] = [0xff, 0, 0, 0];
    const CORE: [u32; 4] = [!0, 0x3ff, 0, 0];
    type Row = (&'static str, u32, [u32; 4], [u32; 4]);
    let rows: [Row; 37] = [
        ("k8", 0, [1, 0x6874_7541, 0x444d_4163, 0x6974_6e65], ALL),
        ("k8", 0x8000_0000, [0x8000_0018, 0, 0, 0], [!0, 0, 0, 0]),
        ("k8", 0x8000_0001, [0, 0, 0x1f & COUNTING, 0], [0, 0, COUNTING, 0]),
        ("k8", 0x8000_0005, [0xff08_ff08, 0xff20_ff20, 0x4002_0140, 0x4002_0140], ALL),
        ("k8", 0x8000_0007, [0, 0, 0, 0x3f], [0, 0, 0, 1 << 8]),
        ("k8", 0x8000_0008, [0x3028, 0, 0, 0], PHYSICAL),
        ("barcelona", 0, [5, 0x6874_7541, 0x444d_4163, 0x6974_6e65], ALL),
        ("barcelona", 1, [0x0010_0f23, 0, 0, 0], [!0, 0, 0, 0]),
        ("barcelona", 0x8000_0000, [0x8000_001a, 0, 0, 0], [!0, 0, 0, 0]),
        ("barcelona", 0x8000_0001, [0, 0, 0x7ff & COUNTING, 0], [0, 0, COUNTING, 0]),
        ("barcelona", 0x8000_0006, [0x2080_0000, 0x4200_4200, 0x0200_8140, 0x0010_a140], ALL),
        ("barcelona", 0x8000_0008, [0x3030, 0, 0, 0], PHYSICAL),
        ("trinity", 1, [0x0061_0f01, 0, 0, 0], [!0, 0, 0, 0]),
        ("trinity", 0x8000_0000, [0x8000_001e, 0, 0, 0], [!0, 0, 0, 0]),
        ("trinity", 0x8000_0001, [0, 0, 0x01ab_bfff & COUNTING, 0], [0, 0, COUNTING, 0]),
        ("trinity", 0x8000_0005, [0xff40_ff18, 0xff40_ff30, 0x1004_0140, 0x4002_0140], ALL),
        ("trinity", 0x8000_001b, [0xff, 0, 0, 0], ALL),
        ("zen2", 1, [0x0083_0f10, 0, 0, 0], [!0, 0, 0, 0]),
        ("zen2", 0x8000_0000, [0x8000_0020, 0, 0, 0], [!0, 0, 0, 0]),
        ("zen2", 0x8000_0001, [0, 0, 0x75c2_37ff & COUNTING, 0], [0, 0, COUNTING, 0]),
        ("zen2", 0x8000_0006, [0x4800_6400, 0x6800_6400, 0x0200_6140, 0x0800_9140], ALL),
        ("zen2", 0x8000_0008, [0x3030, 0, 0, 0], PHYSICAL),
        ("zen2", 0x8000_001b, [0x3ff, 0, 0, 0], ALL),
        ("zen3", 0x8000_0000, [0x8000_0023, 0, 0, 0], [!0, 0, 0, 0]),
        ("zen3", 0x8000_0006, [0x4800_2200, 0x6800_4200, 0x0200_6140, 0x0800_9140], ALL),
        ("zen3", 0x8000_0008, [0x3030, 0x91be_f75f, 0, 0], [0xff, 1 << 31, 0, 0]),
        ("zen3", 0x8000_001b, [0x3ff, 0, 0, 0], ALL),
        ("zen3", 0x8000_0022, [0; 4], ALL),
        ("zen4", 1, [0x00a1_0f11, 0, 0, 0], [!0, 0, 0, 0]),
        ("zen4", 0x8000_0005, [0xff48_ff40, 0xff48_ff40, 0x2008_0140, 0x2008_0140], ALL),
        ("zen4", 0x8000_0008, [0x3934, 0x79be_f25f, 0, 0], [0xff, 1 << 31, 0, 0]),
        ("zen4", 0x8000_001b, [0xbff, 0, 0, 0], ALL),
        ("zen4", 0x8000_0022, [7, 0x0030_4106, 0xfff, 0], CORE),
        ("zen5", 1, [0x00b0_0f21, 0, 0, 0], [!0, 0, 0, 0]),
        ("zen5", 0x8000_0006, [0x4080_2040, 0x6080_4040, 0x0400_8140, 0x0800_9140], ALL),
        ("zen5", 0x8000_001b, [0x8_1bff, 0, 0, 0], ALL),
        ("zen5", 0x8000_0022, [7, 0x0030_4106, 0xfff, 0], CORE),
    ];
    for (name, leaf, published, compared) in rows {
        let CpuidResult { eax, ebx, ecx, edx } = cpuid(name, leaf);
        for (register, found) in [eax, ebx, ecx, edx].into_iter().enumerate() {
            let mask = compared[register];
            assert_eq!(found & mask, published[register] & mask, "{name} {leaf:#x} {register}");
        }
    }
}
