//! The rules typed from the manual a second time, as rows of legal and illegal values.

use super::*;

fn profile(name: &str) -> &'static IntelProfile {
    IntelProfile::by_name(name).expect(name)
}

/// A legal value as the base of the others: TraceEn, OS, BranchEn, ToPA.
const BASE: u64 = 0x2105;

#[test]
fn ctl_accepts_each_bit_only_with_its_capability() {
    // Bit; `true` if broadwell, skylake, icelake and sapphire-rapids have it. TraceEn is clear.
    let rows: [(u32, [bool; 4]); 64] = {
        const N: [bool; 4] = [false; 4];
        const ALL: [bool; 4] = [true; 4];
        const SKYLAKE: [bool; 4] = [false, true, true, true];
        const ICELAKE: [bool; 4] = [false, false, true, true];
        const SAPPHIRE: [bool; 4] = [false, false, false, true];
        let mut rows = [(0, N); 64];
        let mut bit = 0;
        while bit < 64 {
            rows[bit as usize] = (
                bit,
                match bit {
                    2 | 3 | 7 | 8 | 10 | 11 | 13 => ALL,
                    1 | 9 => SKYLAKE,
                    // MTCFreq 3, 6 and 9 are enumerated; a single bit makes 1, 2, 4 or 8.
                    14..=17 => N,
                    // CycThresh 1, 2, 4, 8.
                    19..=22 => SKYLAKE,
                    // PSBFreq 1, 2, 4 are enumerated, 8 is not.
                    24..=26 => SKYLAKE,
                    5 | 12 => ICELAKE,
                    // ADDR0_CFG and ADDR1_CFG 1 and 2.
                    32 | 33 | 36 | 37 => SKYLAKE,
                    40 | 41 | 44 | 45 => SAPPHIRE,
                    4 | 6 | 31 | 55 => SAPPHIRE,
                    56 => ICELAKE,
                    _ => N,
                },
            );
            bit += 1;
        }
        rows
    };
    for (bit, legal) in rows.into_iter().skip(1) {
        for (name, legal) in ["broadwell", "skylake", "icelake", "sapphire-rapids"].into_iter().zip(legal) {
            assert_eq!(check_ctl(profile(name), 0, 1 << bit).is_ok(), legal, "{name} bit {bit}");
        }
    }
}

#[test]
fn ctl_rules() {
    // Profile, old value, new value, legal.
    let rows: [(&str, u64, u64, bool); 43] = [
        // Enabling needs an existing output scheme.
        ("skylake", 0, BASE, true),
        ("skylake", 0, 0x2005, true),
        ("broadwell", 0, BASE, true),
        ("broadwell", 0, 0x2005, false),
        ("broadwell", 0, 0x2004, true),
        ("sapphire-rapids", 0, 0x2045, true),
        ("skylake", 0, 0x2045, false),
        // BranchEn may be clear only if COFI packets can be suppressed.
        ("skylake", 0, 0x0105, true),
        ("broadwell", 0, 0x0105, false),
        ("broadwell", 0, 0x0104, true),
        ("broadwell", BASE, 0, true),
        // While TraceEn is set: the same value, or TraceEn cleared with anything else changed.
        ("skylake", BASE, BASE, true),
        ("skylake", BASE, BASE | 8, false),
        ("skylake", BASE, BASE & !4, false),
        ("skylake", BASE, BASE & !1, true),
        ("skylake", BASE, 0, true),
        ("skylake", BASE, 0x0408, true),
        ("skylake", BASE, BASE & !1 | 1 << 63, false),
        // MTCFreq: 0, 3, 6 and 9 are enumerated.
        ("skylake", 0, BASE | 3 << 14, true),
        ("skylake", 0, BASE | 6 << 14, true),
        ("skylake", 0, BASE | 9 << 14, true),
        ("skylake", 0, BASE | 1 << 14, false),
        ("skylake", 0, BASE | 15 << 14, false),
        ("skylake", 0, 5 << 14, false),
        ("broadwell", 0, BASE | 3 << 14, false),
        // CycThresh: 0 to 13.
        ("skylake", 0, BASE | 13 << 19, true),
        ("skylake", 0, BASE | 14 << 19, false),
        ("skylake", 0, BASE | 15 << 19, false),
        ("broadwell", 0, BASE | 1 << 19, false),
        // PSBFreq: 0 to 5.
        ("skylake", 0, BASE | 5 << 24, true),
        ("skylake", 0, BASE | 6 << 24, false),
        ("skylake", 0, BASE | 15 << 24, false),
        ("broadwell", 0, BASE | 1 << 24, false),
        // ADDRn_CFG: 0, 1, 2 for the ranges that exist.
        ("skylake", 0, BASE | 2 << 32, true),
        ("skylake", 0, BASE | 3 << 32, false),
        ("skylake", 0, BASE | 8 << 32, false),
        ("skylake", 0, BASE | 2 << 36, true),
        ("skylake", 0, BASE | 3 << 36, false),
        ("skylake", 0, BASE | 1 << 40, false),
        ("sapphire-rapids", 0, BASE | 2 << 40 | 1 << 44, true),
        ("sapphire-rapids", 0, BASE | 3 << 44, false),
        ("broadwell", 0, BASE | 1 << 32, false),
        // Adjacent fields do not affect each other.
        ("skylake", 0, BASE | 3 << 14 | 13 << 19 | 5 << 24 | 1 << 32 | 2 << 36 | 0x202, true),
    ];
    for (name, old, new, legal) in rows {
        assert_eq!(check_ctl(profile(name), old, new).is_ok(), legal, "{name} {old:#x} -> {new:#x}");
    }
}

#[test]
fn status_rules() {
    // FilterEn, ContextEn, TriggerEn are ignored; bit 3 is reserved.
    let rows: [(&str, u64, bool); 20] = [
        ("skylake", 0, true),
        ("skylake", 0b111, true),
        ("skylake", 1 << 3, false),
        ("skylake", 1 << 4, true),
        ("skylake", 1 << 5, true),
        ("skylake", 1 << 6, false),
        ("skylake", 1 << 7, false),
        ("icelake", 1 << 6, true),
        ("icelake", 1 << 7, true),
        ("sapphire-rapids", 1 << 6, true),
        ("skylake", 1 << 8, false),
        ("skylake", 1 << 31, false),
        ("skylake", 1 << 32, true),
        ("skylake", 1 << 48, true),
        ("skylake", 1 << 49, false),
        ("skylake", 1 << 63, false),
        ("broadwell", 1 << 32, false),
        ("broadwell", 1 << 48, false),
        ("broadwell", 1 << 4, true),
        ("broadwell", 1 << 5, true),
    ];
    for (name, value, legal) in rows {
        assert_eq!(check_status(profile(name), value).is_ok(), legal, "{name} {value:#x}");
    }
}

#[test]
fn address_register_rules() {
    let base: [(&str, u64, bool); 7] = [
        ("skylake", 0x1000, true),
        ("skylake", 0x80, true),
        ("skylake", 0x40, false),
        ("skylake", 0x1001, false),
        ("skylake", 1 << 38, true),
        ("skylake", 1 << 39, false),
        ("icelake", 1 << 45, true),
    ];
    for (name, value, legal) in base {
        assert_eq!(check_output_base(profile(name), value).is_ok(), legal, "OUTPUT_BASE {name} {value:#x}");
    }
    let cr3: [(&str, u64, bool); 5] = [
        ("broadwell", 0x1000, true),
        ("skylake", 0x20, true),
        ("skylake", 0x10, false),
        ("skylake", 1, false),
        ("skylake", 1 << 63, true),
    ];
    for (name, value, legal) in cr3 {
        assert_eq!(check_cr3_match(profile(name), value).is_ok(), legal, "CR3_MATCH {name} {value:#x}");
    }
    let addr: [(&str, u32, u64, bool); 9] = [
        ("skylake", 0, 0, true),
        ("skylake", 0, 0x7fff_ffff_ffff, true),
        ("skylake", 0, 0x8000_0000_0000, false),
        ("skylake", 1, 0xffff_8000_0000_0000, true),
        ("skylake", 1, 0xffff_7fff_ffff_ffff, false),
        ("skylake", 3, 0, true),
        ("skylake", 4, 0, false),
        ("sapphire-rapids", 7, 0, true),
        ("broadwell", 0, 0, false),
    ];
    for (name, index, value, legal) in addr {
        assert_eq!(check_addr(profile(name), index, value).is_ok(), legal, "ADDR {name} {index} {value:#x}");
    }
}

#[test]
fn registers_are_absent_without_their_capability() {
    let none = IntelProfile {
        pt_features: 0,
        pt_outputs: 0,
        address_ranges: 0,
        mtc_freqs: 0,
        cyc_thresholds: 0,
        psb_freqs: 0,
        perf_capabilities: None,
        counters: None,
        lbr: None,
        debug_store: None,
        ..*profile("broadwell")
    };
    assert_eq!(output_exists(&none), Err(GeneralProtection));
    assert_eq!(check_output_base(&none, 0), Err(GeneralProtection));
    assert_eq!(cr3_match_exists(&none), Err(GeneralProtection));
    assert_eq!(check_cr3_match(&none, 0), Err(GeneralProtection));
    assert_eq!(check_ctl(&none, 0, 1 << 7), Err(GeneralProtection));
    assert_eq!(check_ctl(&none, 0, 1 << 8), Err(GeneralProtection));
}
