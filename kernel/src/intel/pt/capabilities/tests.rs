use super::*;
use crate::intel::pt::CpuidField;

/// Leaf 14H, sub-leaf 0, copied from the manual a second time: (register, bit, feature).
const BITS: [(CpuidRegister, u8, Feature); 15] = [
    (CpuidRegister::Ebx, 0, Feature::Cr3Filtering),
    (CpuidRegister::Ebx, 1, Feature::CycleAccurate),
    (CpuidRegister::Ebx, 2, Feature::IpFiltering),
    (CpuidRegister::Ebx, 3, Feature::Mtc),
    (CpuidRegister::Ebx, 4, Feature::Ptwrite),
    (CpuidRegister::Ebx, 5, Feature::PowerEventTrace),
    (CpuidRegister::Ebx, 6, Feature::PsbPmiPreservation),
    (CpuidRegister::Ebx, 7, Feature::EventTrace),
    (CpuidRegister::Ebx, 8, Feature::TntDisable),
    (CpuidRegister::Ebx, 9, Feature::TriggerTracing),
    (CpuidRegister::Ecx, 0, Feature::Topa),
    (CpuidRegister::Ecx, 1, Feature::TopaMultipleEntries),
    (CpuidRegister::Ecx, 2, Feature::SingleRange),
    (CpuidRegister::Ecx, 3, Feature::TraceTransport),
    (CpuidRegister::Ecx, 31, Feature::LipPayloads),
];

#[test]
fn each_bit_of_leaf_14h_gives_its_feature_and_no_other() {
    for (register, bit, feature) in BITS {
        let mut leaves = machine();
        match register {
            CpuidRegister::Ebx => leaves.push((0x14, 0, [1, 1 << bit, 0, 0])),
            _ => leaves.push((0x14, 0, [1, 0, 1 << bit, 0])),
        }
        let capabilities = PtCapabilities::read(reader(&leaves)).unwrap();
        for other in Feature::ALL {
            assert_eq!(capabilities.has(other), other == feature, "{register:?}[{bit}] {other}");
        }
    }
}

#[test]
fn leaf_14h_1_gives_ranges_and_encodings() {
    // (EAX, address ranges): the driver has registers for four, and the field has three bits.
    for (eax, ranges) in [(0x0249_0002, 2), (0x0249_0004, 4), (0x0249_0007, 4), (0x0249_fff8, 0)] {
        let mut leaves = machine();
        leaves.push((0x14, 0, [1, 0xf, 7, 0]));
        leaves.push((0x14, 1, [eax, 0x003f_1fff, 0, 0]));
        let capabilities = PtCapabilities::read(reader(&leaves)).unwrap();
        assert_eq!(capabilities.address_ranges, ranges, "{eax:#x}");
        assert_eq!(capabilities.mtc_freqs, 0x0249);
        assert_eq!(capabilities.cyc_thresholds, 0x1fff);
        assert_eq!(capabilities.psb_freqs, 0x003f);
    }
}

#[test]
fn a_sub_leaf_above_the_highest_is_not_read() {
    let mut leaves = machine();
    leaves.push((0x14, 0, [0, 0xf, 7, 0]));
    leaves.push((0x14, 1, [u32::MAX, u32::MAX, 0, 0]));
    let capabilities = PtCapabilities::read(reader(&leaves)).unwrap();
    assert_eq!(
        (
            capabilities.address_ranges,
            capabilities.mtc_freqs,
            capabilities.cyc_thresholds,
            capabilities.psb_freqs
        ),
        (0, 0, 0, 0)
    );
}

#[test]
fn a_leaf_above_the_highest_is_not_read() {
    for highest in [0x0d, 0x13] {
        let leaves =
            [(0, 0, [highest, 0, 0, 0]), (7, 0, [0, 1 << 25, 0, 0]), (0x14, 0, [1, u32::MAX, u32::MAX, 0])];
        assert_eq!(PtCapabilities::read(reader(&leaves)), Err(Missing::ProcessorTraceLeaf { highest }));
    }
}

#[test]
fn a_processor_without_pt_is_told_by_leaf_7_however_few_leaves_it_has() {
    for (highest, expected) in [
        (0x06, Missing::ProcessorTraceLeaf { highest: 0x06 }),
        (0x07, Missing::ProcessorTrace),
        (0x0d, Missing::ProcessorTrace),
    ] {
        let leaves = [(0, 0, [highest, 0, 0, 0]), (7, 0, [0, !(1 << 25), 0, 0])];
        assert_eq!(PtCapabilities::read(reader(&leaves)), Err(expected));
    }
}

#[test]
fn leaf_7_decides() {
    let leaves = [(0, 0, [0x16, 0, 0, 0]), (7, 0, [0, !(1 << 25), 0, 0]), (0x14, 0, [1, 0xf, 7, 0])];
    assert_eq!(PtCapabilities::read(reader(&leaves)), Err(Missing::ProcessorTrace));
}

#[test]
fn clocks_come_from_leaves_15h_and_16h_where_they_are() {
    let ratio = |numerator, denominator, crystal_hz| Some(TscRatio { numerator, denominator, crystal_hz });
    // (highest leaf, leaf 15H, leaf 16H, ratio, base frequency)
    let table = [
        (0x16, [2, 168, 24_000_000, 0], [2100, 0, 0, 0], ratio(168, 2, Some(24_000_000)), Some(2100)),
        (0x16, [2, 168, 0, 0], [0, 0, 0, 0], ratio(168, 2, None), None),
        (0x16, [0, 168, 0, 0], [2100, 0, 0, 0], None, Some(2100)),
        (0x16, [2, 0, 0, 0], [0, 0, 0, 0], None, None),
        (0x16, [1, 1, 1, 0], [1, 0, 0, 0], ratio(1, 1, Some(1)), Some(1)),
        (0x15, [2, 168, 0, 0], [2100, 0, 0, 0], ratio(168, 2, None), None),
        (0x14, [2, 168, 0, 0], [2100, 0, 0, 0], None, None),
    ];
    for (highest, leaf_15, leaf_16, tsc_ratio, base_mhz) in table {
        let leaves =
            [(0, 0, [highest, 0, 0, 0]), (7, 0, [0, 1 << 25, 0, 0]), (0x15, 0, leaf_15), (0x16, 0, leaf_16)];
        let capabilities = PtCapabilities::read(reader(&leaves)).unwrap();
        assert_eq!((capabilities.tsc_ratio, capabilities.base_mhz), (tsc_ratio, base_mhz));
    }
}

#[test]
fn address_widths_come_from_leaf_80000008h() {
    let mut leaves = machine();
    assert_eq!(PtCapabilities::read(reader(&leaves)).unwrap().physical_limit(), 1 << 36);
    leaves.push((0x8000_0000, 0, [0x8000_0008, 0, 0, 0]));
    leaves.push((0x8000_0008, 0, [0x3027, 0, 0, 0]));
    let capabilities = PtCapabilities::read(reader(&leaves)).unwrap();
    assert_eq!(capabilities.physical_limit(), 1 << 39);
    assert_eq!(capabilities.linear_address_bits, 48);
    leaves[3].2[0] = 0;
    let silent = PtCapabilities::read(reader(&leaves)).unwrap();
    assert_eq!((silent.physical_address_bits, silent.linear_address_bits), (36, 48));
    leaves[3].2[0] = 0x39ff;
    assert_eq!(PtCapabilities::read(reader(&leaves)).unwrap().physical_limit(), 1 << 52);
}

#[test]
fn the_model_number_gives_the_errata() {
    let broadwell = Errata::BRANCH_EN_MUST_BE_SET | Errata::TRACE_EXCLUDES_BRANCH_RECORDS;
    // (CPUID.1:EAX, errata)
    let table = [
        (0x0003_06d4, broadwell),
        (0x0004_06f1, broadwell),
        (0x0005_06e3, Errata::TRACE_EXCLUDES_BRANCH_RECORDS),
        (0x0005_06c9, Errata::empty()),
        (0x0008_06c1, Errata::SINGLE_RANGE_ABOVE_4K),
        (0x0009_0672, Errata::SINGLE_RANGE_ABOVE_4K),
        (0x000b_0671, Errata::SINGLE_RANGE_ABOVE_4K),
        (0x000a_0f11, Errata::empty()),
    ];
    for (signature, errata) in table {
        let mut leaves = machine();
        leaves.push((1, 0, [signature, 0, 1 << 5, 0]));
        let capabilities = PtCapabilities::read(reader(&leaves)).unwrap();
        assert_eq!(capabilities.errata, errata, "{signature:#x}");
        assert!(capabilities.vmx);
    }
}

#[test]
fn a_field_prints_its_place() {
    let table = [
        (Feature::CycleAccurate.to_string(), "CPUID.14H.0:EBX[1] (cycle-accurate mode)"),
        (Feature::LipPayloads.to_string(), "CPUID.14H.0:ECX[31] (LIP payloads)"),
        (CpuidField::MTC_FREQS.to_string(), "CPUID.14H.1:EAX[31:16] (MTC frequencies)"),
    ];
    for (is, should) in table {
        assert_eq!(is, should);
    }
}

type Leaf = (u32, u32, [u32; 4]);

fn machine() -> Vec<Leaf> {
    vec![(0, 0, [0x16, 0, 0, 0]), (7, 0, [0, 1 << 25, 0, 0])]
}

fn reader(leaves: &[Leaf]) -> impl CpuIdReader + '_ {
    |leaf, subleaf| {
        let found = leaves.iter().find(|(l, s, _)| (*l, *s) == (leaf, subleaf));
        let [eax, ebx, ecx, edx] = found.map_or([0; 4], |(_, _, registers)| *registers);
        CpuIdResult { eax, ebx, ecx, edx }
    }
}

#[test]
fn a_physical_address_has_as_many_bits_as_enumerated_and_52_at_most() {
    for bits in 1..=u8::MAX {
        let capabilities = PtCapabilities { physical_address_bits: bits, ..crate::fake::capabilities() };
        assert_eq!(capabilities.physical_limit(), 1 << bits.min(52), "{bits}");
    }
}

#[test]
fn the_bus_clock_comes_from_leaf_16h() {
    for (leaf_16, bus_mhz) in
        [([2100, 2500, 100, 0], Some(100)), ([2100, 2500, 1, 0], Some(1)), ([2100, 0, 0, 0], None)]
    {
        let leaves = [(0, 0, [0x16, 0, 0, 0]), (7, 0, [0, 1 << 25, 0, 0]), (0x16, 0, leaf_16)];
        assert_eq!(PtCapabilities::read(reader(&leaves)).unwrap().bus_mhz, bus_mhz);
    }
}

#[test]
fn leaf_14h_1_gives_the_triggers_where_there_are_some() {
    let none = Triggers { registers: 0, attribution: false, pause: false, breakpoints: false };
    // (EBX of sub-leaf 0; EAX and ECX of sub-leaf 1; the triggers)
    let table = [
        (1 << 9, 0, 0, Some(none)),
        (1 << 9, 0x700, 0, Some(Triggers { registers: 7, ..none })),
        (1 << 9, 0x200, 1, Some(Triggers { registers: 2, attribution: true, ..none })),
        (1 << 9, 0, 2, Some(Triggers { pause: true, ..none })),
        (1 << 9, 0xffff_f8ff, 0xffff_7ffc, Some(none)),
        (1 << 9, 0, 1 << 15, Some(Triggers { breakpoints: true, ..none })),
        (!(1 << 9), 0x700, 3, None),
    ];
    for (ebx, eax, ecx, triggers) in table {
        let mut leaves = machine();
        leaves.push((0x14, 0, [1, ebx, 7, 0]));
        leaves.push((0x14, 1, [eax, 0, ecx, 0]));
        assert_eq!(PtCapabilities::read(reader(&leaves)).unwrap().triggers, triggers, "{eax:#x} {ecx:#x}");
    }
}
