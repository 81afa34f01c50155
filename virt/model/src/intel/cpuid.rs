//! The answers of the profile's processor to CPUID.

use crate::CpuidResult;
use crate::intel::IntelProfile;

/// The highest extended leaf of an Intel processor.
const HIGHEST_EXTENDED: u32 = 0x8000_0008;

/// The number of the state component of Intel PT's MSRs.
const PT_STATE: u32 = 8;

/// Lays the profile's leaves over `hardware`, which is what the physical processor reports for the same leaf. Whatever
/// does not concern tracing, time or identity stays as in `hardware`, except for what this Intel processor does not
/// have.
pub(crate) fn overlay(profile: &IntelProfile, leaf: u32, subleaf: u32, hardware: CpuidResult) -> CpuidResult {
    match leaf {
        0 => vendor(profile),
        1 => version_and_features(profile, hardware),
        0x02..=0x3fff_ffff if leaf > profile.highest_leaf => CpuidResult::default(),
        7 if subleaf == 0 => structured_features(profile, hardware),
        0x0a => perfmon(profile),
        0x0d if subleaf == 1 => without_pt_state(hardware),
        // A sub-leaf of a state component that is not supported returns zeros.
        0x0d if subleaf == PT_STATE => CpuidResult::default(),
        0x14 if subleaf == 0 => pt_main(profile),
        0x14 if subleaf == 1 && has_second_pt_leaf(profile) => pt_encodings(profile),
        0x15 if profile.highest_leaf >= 0x15 => {
            let (ebx, eax) = profile.tsc_ratio;
            CpuidResult { eax, ebx, ecx: profile.crystal_hz, edx: 0 }
        }
        0x16 if profile.highest_leaf >= 0x16 => {
            let base = u32::from(profile.non_turbo_ratio) * 100;
            CpuidResult { eax: base, ebx: profile.max_mhz, ecx: 100, edx: 0 }
        }
        // The physical processor may not have these leaves, and then it answers with another leaf's data.
        0x0e..=0x3fff_ffff => CpuidResult::default(),
        0x8000_0000 => CpuidResult { eax: HIGHEST_EXTENDED, ..CpuidResult::default() },
        0x8000_0001 => extended_features(profile, hardware),
        // InvariantTSC.
        0x8000_0007 => CpuidResult { edx: 1 << 8, ..CpuidResult::default() },
        0x8000_0008 => CpuidResult {
            eax: hardware.eax & !0xff | profile.physical_address_bits,
            ..CpuidResult::default()
        },
        0x8000_0009.. => CpuidResult::default(),
        _ => hardware,
    }
}

/// Clears the state component of Intel PT's MSRs, which the model's XSAVES does not save: bit 8 of ECX, the components
/// that IA32_XSS can enable. Source: SDM vol. 1, Managing State Using the XSAVE Feature Set, "Enumeration of CPU
/// Support for XSAVE Instructions and XSAVE-Supported Features".
fn without_pt_state(hardware: CpuidResult) -> CpuidResult {
    CpuidResult { ecx: hardware.ecx & !(1 << PT_STATE), ..hardware }
}

fn vendor(profile: &IntelProfile) -> CpuidResult {
    let word = |bytes| u32::from_le_bytes(bytes);
    CpuidResult { eax: profile.highest_leaf, ebx: word(*b"Genu"), edx: word(*b"ineI"), ecx: word(*b"ntel") }
}

fn version_and_features(profile: &IntelProfile, hardware: CpuidResult) -> CpuidResult {
    let store = profile.debug_store.as_ref();
    // DTES64, DS-CPL, VMX, SMX, PDCM, "a hypervisor is present".
    let own_ecx = 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 15 | 1 << 31;
    // FMA, XSAVE, OSXSAVE, AVX, F16C: features that need leaf 0DH.
    let extended_state = 1 << 12 | 1 << 26 | 1 << 27 | 1 << 28 | 1 << 29;
    let mut ecx = hardware.ecx & !own_ecx;
    if profile.highest_leaf < 0x0d {
        ecx &= !extended_state;
    }
    for (there, bit) in [
        (store.is_some_and(|store| store.dtes64), 1 << 2),
        (store.is_some_and(|store| store.ds_cpl), 1 << 4),
        (profile.perf_capabilities.is_some(), 1 << 15),
    ] {
        ecx |= if there { bit } else { 0 };
    }
    // DS.
    let ds = if store.is_some() { 1 << 21 } else { 0 };
    let edx = hardware.edx & !(1 << 21) | ds;
    CpuidResult { eax: profile.signature, ecx, edx, ..hardware }
}

fn structured_features(profile: &IntelProfile, hardware: CpuidResult) -> CpuidResult {
    // SGX, HLE and RTM are always absent; Intel PT depends on the profile.
    let pt = if profile.has_pt() { 1 << 25 } else { 0 };
    CpuidResult { ebx: hardware.ebx & !(1 << 2 | 1 << 4 | 1 << 11 | 1 << 25) | pt, ..hardware }
}

/// The counters. No profile has this leaf without them. A set bit in EBX is an architectural event that the
/// general-purpose counters cannot count. If there is one, instructions retired (bit 1), branches retired (5) and
/// mispredicted branches retired (6) can be counted. EDX is reserved in version 1, and has the number of fixed-function
/// counters (bits 4:0) and their width (12:5) after it.
fn perfmon(profile: &IntelProfile) -> CpuidResult {
    let (number, width, ebx, fixed) = match &profile.counters {
        Some(counters) => {
            (counters.count, counters.width, 0x7f & !(1 << 1 | 1 << 5 | 1 << 6), counters.fixed)
        }
        None => (0, 48, 0x7f, 0),
    };
    let edx = if fixed == 0 { 0 } else { fixed | width << 5 };
    let eax = profile.perfmon_version | number << 8 | width << 16 | 7 << 24;
    CpuidResult { eax, ebx, ecx: 0, edx }
}

fn has_second_pt_leaf(profile: &IntelProfile) -> bool {
    profile.address_ranges != 0 || profile.psb_freqs != 0
}

fn pt_main(profile: &IntelProfile) -> CpuidResult {
    let eax = u32::from(has_second_pt_leaf(profile));
    CpuidResult { eax, ebx: profile.pt_features, ecx: profile.pt_outputs, edx: 0 }
}

fn pt_encodings(profile: &IntelProfile) -> CpuidResult {
    CpuidResult {
        eax: profile.address_ranges | u32::from(profile.mtc_freqs) << 16,
        ebx: u32::from(profile.cyc_thresholds) | u32::from(profile.psb_freqs) << 16,
        ecx: 0,
        edx: 0,
    }
}

fn extended_features(profile: &IntelProfile, hardware: CpuidResult) -> CpuidResult {
    // LAHF, LZCNT, PREFETCHW; SYSCALL, NX, 1 GiB pages, RDTSCP, long mode. The other bits are AMD's.
    let ecx = hardware.ecx & (1 << 0 | 1 << 5 | 1 << 8);
    let mut edx = hardware.edx & (1 << 11 | 1 << 20 | 1 << 26 | 1 << 27 | 1 << 29);
    if !profile.long_mode {
        edx &= !(1 << 29);
    }
    CpuidResult { eax: 0, ebx: 0, ecx, edx }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONES: CpuidResult = CpuidResult { eax: !0, ebx: !0, ecx: !0, edx: !0 };

    /// Typed from the manual and from the output of real parts, not from the profile table.
    #[test]
    fn answers_the_leaves_of_each_profile() {
        let rows: [(&str, u32, u32, [u32; 4]); 40] = [
            ("broadwell", 0, 0, [0x14, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
            ("broadwell", 0x0a, 0, [0x0730_0403, 0x1d, 0, 0x603]),
            ("broadwell", 0x14, 0, [0, 1, 1, 0]),
            ("broadwell", 0x14, 1, [0; 4]),
            ("broadwell", 0x15, 0, [0; 4]),
            ("broadwell", 0x16, 0, [0; 4]),
            ("skylake", 0, 0, [0x16, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
            ("skylake", 0x0a, 0, [0x0730_0404, 0x1d, 0, 0x603]),
            ("icelake", 0x0a, 0, [0x0730_0805, 0x1d, 0, 0]),
            ("prescott", 0, 0, [5, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
            ("prescott", 7, 0, [0; 4]),
            ("prescott", 0x0a, 0, [0; 4]),
            ("core2", 0x0a, 0, [0x0728_0202, 0x1d, 0, 0x503]),
            ("core2", 0x0d, 8, [0; 4]),
            ("core2", 0x14, 0, [0; 4]),
            ("nehalem", 0x0a, 0, [0x0730_0403, 0x1d, 0, 0x603]),
            ("nehalem", 0x14, 1, [0; 4]),
            ("skylake", 0x0d, 0, [!0; 4]),
            ("skylake", 0x0d, 1, [!0, !0, !(1 << 8), !0]),
            ("skylake", 0x0d, 2, [!0; 4]),
            ("skylake", 0x0d, 8, [0; 4]),
            ("skylake", 0x14, 0, [1, 0x0f, 7, 0]),
            ("skylake", 0x14, 1, [0x0249_0002, 0x003f_3fff, 0, 0]),
            ("skylake", 0x14, 2, [0; 4]),
            ("skylake", 0x15, 0, [2, 250, 0, 0]),
            ("skylake", 0x16, 0, [3000, 3600, 100, 0]),
            ("icelake", 0x14, 0, [1, 0x5f, 7, 0]),
            ("icelake", 0x15, 0, [2, 208, 25_000_000, 0]),
            ("sapphire-rapids", 0x14, 0, [1, 0x1ff, 0xf, 0]),
            ("sapphire-rapids", 0x14, 1, [0x0249_0004, 0x003f_3fff, 0, 0]),
            ("sapphire-rapids", 0x15, 0, [2, 160, 25_000_000, 0]),
            // Jasper Lake's, but for LIP, for events of leaf 0AH that are not counted, and for fixed-function counters.
            ("tremont", 0, 0, [0x1b, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
            ("tremont", 0x0a, 0, [0x0730_0405, 0x1d, 0, 0x603]),
            ("tremont", 0x14, 0, [1, 0x7f, 7, 0]),
            ("tremont", 0x14, 1, [0x0249_0002, 0x003f_ffff, 0, 0]),
            ("tremont", 0x15, 0, [2, 0x68, 0x0249_f000, 0]),
            ("skylake", 0x17, 0, [0; 4]),
            ("skylake", 0x8000_0000, 0, [0x8000_0008, 0, 0, 0]),
            ("skylake", 0x8000_0007, 0, [0, 0, 0, 0x100]),
            ("skylake", 0x8000_001b, 0, [0; 4]),
        ];
        for (name, leaf, subleaf, [eax, ebx, ecx, edx]) in rows {
            let profile = IntelProfile::by_name(name).expect(name);
            let got = overlay(profile, leaf, subleaf, ONES);
            assert_eq!(got, CpuidResult { eax, ebx, ecx, edx }, "{name} {leaf:x}.{subleaf}");
        }
    }

    #[test]
    fn shows_the_debug_store_where_it_is() {
        const XSAVE: u32 = 1 << 12 | 0xf << 26;
        // The bits among DTES64, DS-CPL and PDCM that are set; whether DS is set; whether XSAVE remains.
        let rows: [(&str, u32, bool, bool); 9] = [
            ("prescott", 0x14, true, false),
            ("core2", 0x8014, true, false),
            ("nehalem", 0x8014, true, false),
            ("skylake", 0x8014, true, true),
            ("broadwell", 0x8014, true, true),
            ("icelake", 0x8014, true, true),
            ("tremont", 0x8014, true, true),
            ("sapphire-rapids", 0x8000, false, true),
            ("pentium-m", 0, true, false),
        ];
        for (name, ecx, ds, xsave) in rows {
            let profile = IntelProfile::by_name(name).expect(name);
            let bare = overlay(profile, 1, 0, CpuidResult::default());
            assert_eq!((bare.ecx, bare.edx), (ecx, if ds { 1 << 21 } else { 0 }), "{name}");
            let full = overlay(profile, 1, 0, ONES);
            assert_eq!(full.ecx & 0x8014, ecx, "{name}");
            assert_eq!(full.edx >> 21 & 1 != 0, ds, "{name}");
            assert_eq!(full.ecx & XSAVE, if xsave { XSAVE } else { 0 }, "{name}");
            let long_mode = overlay(profile, 0x8000_0001, 0, ONES).edx >> 29 & 1 != 0;
            assert_eq!(long_mode, name != "pentium-m", "{name}");
        }
    }

    /// SDM vol. 2, "CPUID—CPU Identification", the tables of leaves 01H, 07H, 0AH, 80000001H and 80000008H.
    #[test]
    fn each_bit_is_that_of_the_profile_of_the_processor_or_clear() {
        const ZEROS: CpuidResult = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
        // The signature; leaf 01H ECX with nothing below and with everything; leaf 07H EBX, the same; leaf 0AH EAX, EBX
        // and EDX; physical address bits; long mode.
        type Row = (&'static str, u32, [u32; 2], Option<[u32; 2]>, Option<[u32; 3]>, u32, bool);
        let rows: [Row; 9] = [
            ("prescott", 0xf43, [0x14, 0x43ff_6f9f], None, None, 36, true),
            (
                "core2",
                0x1_0676,
                [0x8014, 0x43ff_ef9f],
                Some([0, !0x0200_0814]),
                Some([0x0728_0202, 0x1d, 0x503]),
                36,
                true,
            ),
            (
                "nehalem",
                0x1_06a5,
                [0x8014, 0x43ff_ef9f],
                Some([0, !0x0200_0814]),
                Some([0x0730_0403, 0x1d, 0x603]),
                36,
                true,
            ),
            (
                "broadwell",
                0x3_06d4,
                [0x8014, 0x7fff_ff9f],
                Some([1 << 25, !0x814]),
                Some([0x0730_0403, 0x1d, 0x603]),
                39,
                true,
            ),
            (
                "skylake",
                0x5_06e3,
                [0x8014, 0x7fff_ff9f],
                Some([1 << 25, !0x814]),
                Some([0x0730_0404, 0x1d, 0x603]),
                39,
                true,
            ),
            (
                "icelake",
                0x6_06a6,
                [0x8014, 0x7fff_ff9f],
                Some([1 << 25, !0x814]),
                Some([0x0730_0805, 0x1d, 0]),
                46,
                true,
            ),
            (
                "tremont",
                0x9_06c0,
                [0x8014, 0x7fff_ff9f],
                Some([1 << 25, !0x814]),
                Some([0x0730_0405, 0x1d, 0x603]),
                39,
                true,
            ),
            (
                "sapphire-rapids",
                0x8_06f8,
                [0x8000, 0x7fff_ff8b],
                Some([1 << 25, !0x814]),
                Some([0x0730_0005, 0x7f, 0]),
                46,
                true,
            ),
            ("pentium-m", 0x6d8, [0, 0x43ff_6f8b], None, None, 32, false),
        ];
        for (name, signature, ecx, features, counters, bits, long_mode) in rows {
            let profile = IntelProfile::by_name(name).expect(name);
            for (hardware, (index, all)) in [ZEROS, ONES].into_iter().zip([0, !0].into_iter().enumerate()) {
                let ds = if name == "sapphire-rapids" { 0 } else { 1 << 21 };
                let one = overlay(profile, 1, 0, hardware);
                let expected =
                    CpuidResult { eax: signature, ebx: all, ecx: ecx[index], edx: all & !(1 << 21) | ds };
                assert_eq!(one, expected, "{name} 1");
                let seven = features.map_or(ZEROS, |ebx| CpuidResult { ebx: ebx[index], ..hardware });
                assert_eq!(overlay(profile, 7, 0, hardware), seven, "{name} 7");
                let ten = counters.map_or(ZEROS, |[eax, ebx, edx]| CpuidResult { eax, ebx, ecx: 0, edx });
                assert_eq!(overlay(profile, 0xa, 0, hardware), ten, "{name} a");
                // LAHF, LZCNT, PREFETCHW; SYSCALL, NX, 1 GiB pages, RDTSCP, long mode.
                let edx = all & (0x0c10_0800 | u32::from(long_mode) << 29);
                let extended = CpuidResult { eax: 0, ebx: 0, ecx: all & 0x121, edx };
                assert_eq!(overlay(profile, 0x8000_0001, 0, hardware), extended, "{name} 80000001");
                let eax = all & !0xff | bits;
                assert_eq!(
                    overlay(profile, 0x8000_0008, 0, hardware),
                    CpuidResult { eax, ..ZEROS },
                    "{name}"
                );
                assert_eq!(
                    overlay(profile, 0x8000_0007, 0, hardware),
                    CpuidResult { edx: 0x100, ..ZEROS },
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn shows_pt_and_hides_what_is_not_modelled() {
        let profile = IntelProfile::by_name("skylake").expect("skylake");
        let one = overlay(profile, 1, 0, ONES);
        assert_eq!(one.eax, 0x506e3);
        assert_eq!(!one.ecx, 0x8000_0060, "VMX, SMX, hypervisor");
        assert_eq!(overlay(profile, 7, 0, CpuidResult::default()).ebx, 1 << 25, "Intel PT");
        assert_eq!(!overlay(profile, 7, 0, ONES).ebx, 0x814, "SGX, HLE, RTM");
        assert_eq!(overlay(profile, 0x8000_0001, 0, ONES).ecx & (1 << 2 | 1 << 10), 0, "SVM, IBS");
        assert_eq!(overlay(profile, 0x8000_0008, 0, CpuidResult { eax: 0x3028, ..ONES }).eax, 0x3027);
        let cache = CpuidResult { eax: 5, ..ONES };
        assert_eq!(overlay(profile, 4, 0, cache), cache);
        assert_eq!(overlay(profile, 7, 1, cache), cache);
    }
}
