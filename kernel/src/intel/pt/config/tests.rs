use super::*;
use crate::fake::capabilities;
use crate::intel::pt::CpuidRegister;

/// Returns one row per option: (option, the feature it needs, the bits it sets without the encodings).
fn options() -> [(PtConfig, Feature, u64); 16] {
    let new = PtConfig::new();
    [
        (new.cycles(0), Feature::CycleAccurate, 1 << 1),
        (new.cycles(5), Feature::CycleAccurate, 1 << 1 | 5 << 19),
        (new.psb_freq(3), Feature::CycleAccurate, 3 << 24),
        (new.mtc(9), Feature::Mtc, 1 << 9 | 9 << 14),
        (new.branches(false), Feature::Mtc, 0),
        (new.ptwrite(true), Feature::Ptwrite, 1 << 12),
        (new.fup_on_ptw(true), Feature::Ptwrite, 1 << 5),
        (new.power_events(true), Feature::PowerEventTrace, 1 << 4),
        (new.trace_transport(true), Feature::TraceTransport, 1 << 6),
        (new.cr3(0x1000), Feature::Cr3Filtering, 1 << 7),
        (new.events(true), Feature::EventTrace, 1 << 31),
        (new.tnt(false), Feature::TntDisable, 1 << 55),
        (new.inject_psb_pmi_on_enable(true), Feature::PsbPmiPreservation, 1 << 56),
        (new.filter(0x1000, 0x1fff), Feature::IpFiltering, 1 << 32),
        (new.trace_stop(0x1000, 0x1fff), Feature::IpFiltering, 2 << 32),
        (new.filter(0, 1).filter(2, 3).trace_stop(4, 5).filter(6, 7), Feature::IpFiltering, 0x1211 << 32),
    ]
}

#[test]
fn an_option_sets_its_bits_and_no_other() {
    for (config, _, bits) in options() {
        let branches = if config == PtConfig::new().branches(false) { 0 } else { 1 << 13 };
        let checked = config.checked(&capabilities()).unwrap();
        assert_eq!(checked.ctl.bits(), bits | branches, "{config:?}");
    }
    let plain = PtConfig::new().os(true).user(true).tsc(true).return_compression(false);
    assert_eq!(
        plain.checked(&capabilities()).unwrap().ctl.bits(),
        1 << 2 | 1 << 3 | 1 << 10 | 1 << 11 | 1 << 13
    );
    let undone = plain.os(false).user(false).tsc(false).return_compression(true);
    assert_eq!(undone, PtConfig::new());
}

#[test]
fn an_option_without_its_feature_is_refused_by_the_features_name() {
    for (config, feature, _) in options() {
        let field = feature.field();
        let mut without = capabilities();
        match field.register {
            CpuidRegister::Ebx => without.ebx &= !(1 << field.low),
            _ => without.ecx &= !(1 << field.low),
        }
        assert_eq!(config.checked(&without), Err(PtConfigRefusal::Missing(feature)), "{config:?}");
    }
    let refusal = PtConfigRefusal::Missing(Feature::CycleAccurate);
    assert_eq!(refusal.to_string(), "CPUID.14H.0:EBX[1] (cycle-accurate mode) is not there");
}

#[test]
fn every_option_and_no_feature_leaves_what_every_processor_has() {
    let bare = PtCapabilities { ebx: 0, ecx: 1, ..capabilities() };
    let config = PtConfig::new().os(true).user(true).tsc(true).return_compression(false);
    assert!(config.checked(&bare).is_ok());
}

#[test]
fn an_encoding_must_be_enumerated() {
    let sparse =
        PtCapabilities { mtc_freqs: 0x0249, cyc_thresholds: 0x1fff, psb_freqs: 0x003f, ..capabilities() };
    // (field, configuration with the encoding, bits)
    type Row = (CpuidField, fn(u8) -> PtConfig, u16);
    let table: [Row; 3] = [
        (CpuidField::MTC_FREQS, |n| PtConfig::new().mtc(n), 0x0249),
        (CpuidField::CYC_THRESHOLDS, |n| PtConfig::new().cycles(n), 0x1fff),
        (CpuidField::PSB_FREQS, |n| PtConfig::new().psb_freq(n), 0x003f),
    ];
    for (field, config, allowed) in table {
        for value in (0..=17).chain([0xff]) {
            let refusal = Err(PtConfigRefusal::Encoding { field, value, allowed });
            let expected = value < 16 && allowed >> value & 1 == 1;
            let result = config(value).checked(&sparse);
            assert_eq!(result.is_ok(), expected, "{field} {value}");
            assert!(expected || result == refusal);
        }
    }
    let refusal = PtConfigRefusal::Encoding { field: CpuidField::MTC_FREQS, value: 1, allowed: 0x249 };
    assert_eq!(
        refusal.to_string(),
        "CPUID.14H.1:EAX[31:16] (MTC frequencies) is 0x0249, a bit for each value: 1 is not allowed"
    );
}

#[test]
fn an_encoding_nobody_asked_for_is_the_lowest_that_is_allowed() {
    let odd = PtCapabilities { mtc_freqs: 0x8, cyc_thresholds: 0x2, psb_freqs: 0x10, ..capabilities() };
    let ctl = PtConfig::new().checked(&odd).unwrap().ctl.bits();
    assert_eq!(ctl, 1 << 13 | 3 << 14 | 1 << 19 | 4 << 24);
    // A field without any encoding stays 0.
    assert_eq!(encoding(Feature::Mtc.field(), true, 0, None), Ok(0));
    let empty = PtCapabilities { mtc_freqs: 0, cyc_thresholds: 0, psb_freqs: 0, ..capabilities() };
    assert_eq!(PtConfig::new().checked(&empty).unwrap().ctl.bits(), 1 << 13);
    let none = PtCapabilities { ebx: 0, ..odd };
    assert_eq!(PtConfig::new().checked(&none).unwrap().ctl.bits(), 1 << 13);
}

#[test]
fn ranges_are_counted_and_must_be_canonical_and_forward() {
    const HIGH: u64 = 0xffff_8000_0000_0000;
    let two = PtCapabilities { address_ranges: 2, ..capabilities() };
    let filters = |n| (0..n).fold(PtConfig::new(), |config, _| config.filter(0, 1));
    assert!(filters(2).checked(&two).is_ok());
    assert_eq!(filters(3).checked(&two), Err(PtConfigRefusal::Ranges { wanted: 3, there: 2 }));
    assert_eq!(filters(5).checked(&capabilities()), Err(PtConfigRefusal::Ranges { wanted: 5, there: 4 }));
    let table = [
        (0, HIGH - 1, Err(PtConfigRefusal::NotCanonical { address: HIGH - 1 })),
        (1 << 47, HIGH, Err(PtConfigRefusal::NotCanonical { address: 1 << 47 })),
        (0, (1 << 47) - 1, Ok(())),
        (HIGH, u64::MAX, Ok(())),
        (0x2000, 0x1fff, Err(PtConfigRefusal::RangeReversed { first: 0x2000, last: 0x1fff })),
        (0x2000, 0x2000, Ok(())),
    ];
    for (first, last, result) in table {
        assert_eq!(
            PtConfig::new().filter(first, last).checked(&two).map(|_| ()),
            result,
            "{first:#x}..={last:#x}"
        );
    }
    let la57 = PtCapabilities { linear_address_bits: 57, ..capabilities() };
    assert!(PtConfig::new().filter(1 << 47, 1 << 48).checked(&la57).is_ok());
}

#[test]
fn a_cr3_with_low_bits_is_refused() {
    for (cr3, good) in [(0, true), (0x1234_5020, true), (0x1234_5010, false), (1, false)] {
        let result = PtConfig::new().cr3(cr3).checked(&capabilities());
        assert_eq!(result.is_ok(), good);
        assert!(good || result == Err(PtConfigRefusal::Cr3 { cr3 }));
    }
}

#[test]
fn erratum_bdm106_keeps_branch_packets_on() {
    let broadwell = PtCapabilities { errata: Errata::BRANCH_EN_MUST_BE_SET, ..capabilities() };
    assert_eq!(PtConfig::new().branches(false).checked(&broadwell), Err(PtConfigRefusal::BranchEnErratum));
    assert!(PtConfig::new().checked(&broadwell).is_ok());
}
