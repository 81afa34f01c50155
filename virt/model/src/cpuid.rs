//! CPUID as the profile's processor answers it.

use crate::Profile;

/// What CPUID leaves in the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuidResult {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// The highest extended leaf of an Intel processor.
const HIGHEST_EXTENDED: u32 = 0x8000_0008;

/// Lays the profile's leaves over `hardware`, what the processor below reports for the same leaf. What is not about
/// tracing, time or identity stays as it is below, except what an Intel processor of that kind does not have.
pub(crate) fn overlay(profile: &Profile, leaf: u32, subleaf: u32, hardware: CpuidResult) -> CpuidResult {
    match leaf {
        0 => vendor(profile),
        1 => version_and_features(profile, hardware),
        7 if subleaf == 0 => structured_features(hardware),
        0x0a => perfmon(profile),
        // PT state: nine MSRs in a component of 128 bytes, managed by IA32_XSS.
        0x0d if subleaf == 8 => CpuidResult { eax: 128, ebx: 0, ecx: 1, edx: 0 },
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
        // The processor below may not have these, and then answers with another leaf's data.
        0x0e..=0x3fff_ffff => CpuidResult::default(),
        0x8000_0000 => CpuidResult { eax: HIGHEST_EXTENDED, ..CpuidResult::default() },
        0x8000_0001 => extended_features(hardware),
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

fn vendor(profile: &Profile) -> CpuidResult {
    let word = |bytes| u32::from_le_bytes(bytes);
    CpuidResult { eax: profile.highest_leaf, ebx: word(*b"Genu"), edx: word(*b"ineI"), ecx: word(*b"ntel") }
}

fn version_and_features(profile: &Profile, hardware: CpuidResult) -> CpuidResult {
    // DTES64, DS-CPL, VMX, SMX, "a hypervisor is present".
    let absent_ecx = 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 31;
    // PDCM: IA32_PERF_CAPABILITIES is there.
    let ecx = hardware.ecx & !absent_ecx | 1 << 15;
    // DS.
    let edx = hardware.edx & !(1 << 21);
    CpuidResult { eax: profile.signature, ecx, edx, ..hardware }
}

fn structured_features(hardware: CpuidResult) -> CpuidResult {
    // SGX, HLE, RTM are absent; Intel PT is there.
    CpuidResult { ebx: hardware.ebx & !(1 << 2 | 1 << 4 | 1 << 11) | 1 << 25, ..hardware }
}

/// Counters of 48 bits, none of them there: only the global registers are.
fn perfmon(profile: &Profile) -> CpuidResult {
    CpuidResult { eax: profile.perfmon_version | 48 << 16 | 7 << 24, ebx: 0x7f, ..CpuidResult::default() }
}

fn has_second_pt_leaf(profile: &Profile) -> bool {
    profile.address_ranges != 0 || profile.psb_freqs != 0
}

fn pt_main(profile: &Profile) -> CpuidResult {
    let eax = u32::from(has_second_pt_leaf(profile));
    CpuidResult { eax, ebx: profile.pt_features, ecx: profile.pt_outputs, edx: 0 }
}

fn pt_encodings(profile: &Profile) -> CpuidResult {
    CpuidResult {
        eax: profile.address_ranges | u32::from(profile.mtc_freqs) << 16,
        ebx: u32::from(profile.cyc_thresholds) | u32::from(profile.psb_freqs) << 16,
        ecx: 0,
        edx: 0,
    }
}

fn extended_features(hardware: CpuidResult) -> CpuidResult {
    // LAHF, LZCNT, PREFETCHW; SYSCALL, NX, 1 GiB pages, RDTSCP, long mode. The rest is AMD's.
    let ecx = hardware.ecx & (1 << 0 | 1 << 5 | 1 << 8);
    let edx = hardware.edx & (1 << 11 | 1 << 20 | 1 << 26 | 1 << 27 | 1 << 29);
    CpuidResult { eax: 0, ebx: 0, ecx, edx }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONES: CpuidResult = CpuidResult { eax: !0, ebx: !0, ecx: !0, edx: !0 };

    /// Typed from the manual and from parts' own output, not from the profile table.
    #[test]
    fn answers_the_leaves_of_each_profile() {
        let rows: [(&str, u32, u32, [u32; 4]); 23] = [
            ("broadwell", 0, 0, [0x14, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
            ("broadwell", 0x0a, 0, [0x0730_0003, 0x7f, 0, 0]),
            ("broadwell", 0x14, 0, [0, 1, 1, 0]),
            ("broadwell", 0x14, 1, [0; 4]),
            ("broadwell", 0x15, 0, [0; 4]),
            ("broadwell", 0x16, 0, [0; 4]),
            ("skylake", 0, 0, [0x16, 0x756e_6547, 0x6c65_746e, 0x4965_6e69]),
            ("skylake", 0x0a, 0, [0x0730_0004, 0x7f, 0, 0]),
            ("skylake", 0x0d, 8, [128, 0, 1, 0]),
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
            ("skylake", 0x17, 0, [0; 4]),
            ("skylake", 0x8000_0000, 0, [0x8000_0008, 0, 0, 0]),
            ("skylake", 0x8000_0007, 0, [0, 0, 0, 0x100]),
            ("skylake", 0x8000_001b, 0, [0; 4]),
        ];
        for (name, leaf, subleaf, [eax, ebx, ecx, edx]) in rows {
            let profile = Profile::by_name(name).expect(name);
            let got = overlay(profile, leaf, subleaf, ONES);
            assert_eq!(got, CpuidResult { eax, ebx, ecx, edx }, "{name} {leaf:x}.{subleaf}");
        }
    }

    #[test]
    fn shows_pt_and_hides_what_is_not_modelled() {
        let profile = Profile::by_name("skylake").expect("skylake");
        let one = overlay(profile, 1, 0, ONES);
        assert_eq!(one.eax, 0x506e3);
        assert_eq!(!one.ecx, 0x8000_0074, "DTES64, DS-CPL, VMX, SMX, hypervisor");
        assert_eq!(!one.edx, 1 << 21, "DS");
        assert_eq!(overlay(profile, 1, 0, CpuidResult::default()).ecx, 1 << 15, "PDCM");
        assert_eq!(overlay(profile, 7, 0, CpuidResult::default()).ebx, 1 << 25, "Intel PT");
        assert_eq!(!overlay(profile, 7, 0, ONES).ebx, 0x814, "SGX, HLE, RTM");
        assert_eq!(overlay(profile, 0x8000_0001, 0, ONES).ecx & (1 << 2 | 1 << 10), 0, "SVM, IBS");
        assert_eq!(overlay(profile, 0x8000_0008, 0, CpuidResult { eax: 0x3028, ..ONES }).eax, 0x3027);
        let cache = CpuidResult { eax: 5, ..ONES };
        assert_eq!(overlay(profile, 4, 0, cache), cache);
        assert_eq!(overlay(profile, 7, 1, cache), cache);
    }
}
