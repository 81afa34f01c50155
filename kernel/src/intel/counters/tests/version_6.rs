//! Counters of version 6, as CPUID leaf 23H has them. Addresses and bits are copied from Linux's headers a second time.

use super::*;
use crate::intel::counters::IntelCounterFeature;

/// IA32_PMC_GP0_CTR and CFG_A, B, C follow each other; so do those of the next counter.
const GENERAL: u32 = 0x1900;
const FIXED: u32 = 0x1980;
const STATUS_RESET: u32 = 0x390;

/// A processor of version 6 with ten counters of general purpose, and fixed ones 0 to 2 and 4. Counters 2 to 5 and the
/// first fixed one can be reloaded, by 2, 3 and the first two fixed ones.
const PANTHER_COVE: Leaves = Leaves {
    highest: 0x23,
    signature: 0x10_06f0,
    features: [1, 0, 0, 1 << 19],
    // Leaf 0AH has less: eight counters, and three with a fixed function.
    counters: [0x0830_0806, 0, 0, 0x603],
    extended: Some([[0b111, 0b111, 0, 0], [0x3ff, 0b1_0111, 0, 0], [0b11_1100, 0b1, 0b1100, 0b11]]),
    branch_records: 0b1010,
};

fn with(change: impl FnOnce(&mut [[u32; 4]; 3])) -> Leaves {
    let mut leaves = PANTHER_COVE;
    if let Some(extended) = &mut leaves.extended {
        change(extended);
    }
    leaves
}

#[test]
fn counters_beyond_the_eighth_are_those_of_leaf_23h() {
    let counters = |leaves: Leaves| leaves.capabilities().map(|it| (it.general, it.fixed)).unwrap();
    assert_eq!(counters(PANTHER_COVE), (0x3ff, 0b1_0111));
    // A gap, and all that the leaf can have; IA32_FIXED_CTR_CTRL has all fields of eight.
    assert_eq!(counters(with(|leaf| leaf[1] = [0x3fd, 0, 0, 0])), (0x3fd, 0));
    assert_eq!(counters(with(|leaf| leaf[1] = [u32::MAX, u32::MAX, 0, 0])), (u32::MAX, 0xff));
    // Before version 6 the ninth has no address.
    assert_eq!(counters(Leaves { counters: [0x0830_0805, 0, 0, 0x603], ..PANTHER_COVE }), (0xff, 0b1_0111));
    // Without the sub-leaf, the leaf, or leaf 7.1: leaf 0AH.
    for leaves in [
        with(|leaf| leaf[0][0] = 0b101),
        Leaves { highest: 0x22, ..PANTHER_COVE },
        Leaves { extended: None, ..PANTHER_COVE },
        Leaves { features: [0, 0, 0, 1 << 19], ..PANTHER_COVE },
    ] {
        assert_eq!(counters(leaves), (0xff, 0b111));
    }
}

#[test]
fn each_bit_of_leaf_23h_gives_its_feature_and_no_other() {
    let features =
        [IntelCounterFeature::UnitMask2, IntelCounterFeature::Equal, IntelCounterFeature::RdpmcUserDisable];
    for (bit, feature) in features.into_iter().enumerate() {
        let found = with(|leaf| leaf[0][1] = 1 << bit).capabilities().unwrap();
        for other in features {
            assert_eq!(found.has_feature(other), other == feature, "EBX[{bit}], {other}");
        }
        assert!(found.has_feature(IntelCounterFeature::AutoReload));
    }
    let found = PANTHER_COVE.capabilities().unwrap();
    assert_eq!((found.reloadable, found.reload_causes), (1 << 32 | 0b11_1100, 0b11 << 32 | 0b1100));
    let without = [
        with(|leaf| leaf[0][0] = 0b011),
        // The registers are at addresses of version 6.
        Leaves { counters: [0x0830_0805, 0, 0, 0x603], ..PANTHER_COVE },
        NEHALEM,
    ];
    for leaves in without {
        let found = leaves.capabilities().unwrap();
        assert_eq!((found.reloadable, found.reload_causes), (0, 0));
        assert!(!found.has_feature(IntelCounterFeature::AutoReload));
    }
    assert!(!NEHALEM.capabilities().unwrap().has_feature(IntelCounterFeature::RdpmcUserDisable));
}

#[test]
fn counters_of_version_6_have_their_registers_together() {
    let events = [IntelEvent::BRANCHES; 9];
    // The ninth counter is another owner's.
    let busy = GENERAL + 4 * 8 + 1;
    let (writes, counters) = start(PANTHER_COVE, &[(busy, 0x41_00c0)], &events).unwrap();
    assert_eq!(counters, [0, 1, 2, 3, 4, 5, 6, 7, 9]);
    for n in counters {
        let of = |register: u32| -> Vec<u64> {
            writes.iter().filter(|(address, _)| *address == register).map(|(_, value)| *value).collect()
        };
        assert_eq!(of(GENERAL + 4 * n), [0], "counter {n}");
        assert_eq!(of(GENERAL + 4 * n + 1), [0x43_00c4, 0], "counter {n}");
        // A reload that an earlier owner left is turned off, where there is one.
        let reload: &[u64] = if (2..6).contains(&n) { &[0] } else { &[] };
        assert_eq!((of(GENERAL + 4 * n + 2), of(GENERAL + 4 * n + 3)), (reload.to_vec(), reload.to_vec()));
    }
    assert!(writes.iter().all(|(register, _)| *register != busy && !(0xc1..0x200).contains(register)));
    let (writes, counters) = start(PANTHER_COVE, &[], &[IntelEvent::CYCLES]).unwrap();
    assert_eq!(counters, [1 << 30 | 1]);
    assert!(writes.contains(&(FIXED + 4, 0)), "{writes:x?}");
}

#[test]
fn fields_of_version_6_are_where_the_headers_have_them() {
    // (event, IA32_PMC_GP0_CFG_A)
    let plain = IntelEvent::new(0xd1, 0x02);
    let table = [
        (plain.unit_mask_2(0xa5), 0xa500_0043_02d1),
        (plain.exactly(3), 0x10_0343_02d1),
        (plain.exactly(3).at_least(2), 0x243_02d1),
        (plain.exactly(1).inverted(true), 0x10_01c3_02d1),
        (plain.rdpmc_user_disable(true), 0x20_0043_02d1),
        (plain.rdpmc_user_disable(true).rdpmc_user_disable(false), 0x43_02d1),
        // A second unit mask makes another event of it: this one is not the architectural one.
        (IntelEvent::BRANCHES.unit_mask_2(1), 0x100_0043_00c4),
    ];
    for (event, select) in table {
        let leaves = Leaves { counters: [0x0830_0806, 1 << 5, 0, 0x603], ..PANTHER_COVE };
        let (writes, _) = start(leaves, &[], &[event]).unwrap();
        assert!(writes.contains(&(GENERAL + 1, select)), "{event:?}: {writes:x?}");
    }
    // Fixed-function counters have the bit 33 + 4n in IA32_FIXED_CTR_CTRL, and the others' fields stay.
    let hidden =
        [IntelEvent::INSTRUCTIONS, IntelEvent::CYCLES.os(false)].map(|it| it.rdpmc_user_disable(true));
    let (writes, counters) = start(PANTHER_COVE, &[(FIXED_CTRL, 0xb00)], &hidden).unwrap();
    assert_eq!(counters, [1 << 30, 1 << 30 | 1]);
    let controls = writes.iter().filter(|(register, _)| *register == FIXED_CTRL).map(|(_, value)| *value);
    let [both, second] = [0x22_0000_0b23, 0x20_0000_0b20];
    assert_eq!(controls.collect::<Vec<_>>(), [0x2_0000_0b03, both, second, 0xb00]);
}

#[test]
fn what_leaf_23h_lacks_is_refused() {
    let plain = IntelEvent::BRANCHES;
    for (event, feature, text) in [
        (plain.unit_mask_2(1), IntelCounterFeature::UnitMask2, "EBX[0] (second unit mask)"),
        (plain.exactly(1), IntelCounterFeature::Equal, "EBX[1] (comparison for equality)"),
        (
            plain.rdpmc_user_disable(true),
            IntelCounterFeature::RdpmcUserDisable,
            "EBX[2] (RDPMC user disable)",
        ),
    ] {
        let refusal = IntelCountersRefusal::NoFeature { event: 1, feature };
        assert_eq!(start(NEHALEM, &[], &[plain, event]), Err(StartError::Refused(refusal)));
        assert_eq!(refusal.to_string(), format!("event 1 of the list: CPUID.23H.0:{text} is not there"));
    }
    let reloaded = plain.reloaded_by(1, 1);
    let refusal = IntelCountersRefusal::NoFeature { event: 0, feature: IntelCounterFeature::AutoReload };
    assert_eq!(start(NEHALEM, &[], &[reloaded]), Err(StartError::Refused(refusal)));
}

#[test]
fn a_counter_is_reloaded_by_the_overflow_of_others() {
    let branches = IntelEvent::BRANCHES.reloaded_by(0b110, 1000);
    let mispredicted = IntelEvent::MISPREDICTED_BRANCHES.reloaded_by(0b010, 0);
    let events = [IntelEvent::CACHE_MISSES, branches, mispredicted];
    let (writes, counters) = start(PANTHER_COVE, &[(GENERAL + 4 * 3 + 2, 0x77)], &events).unwrap();
    // Both reload others and are reloaded: counters 2 and 3. The first takes any.
    assert_eq!(counters, [0, 2, 3]);
    let of = |register: u32| -> Vec<u64> {
        writes.iter().filter(|(address, _)| *address == register).map(|(_, value)| *value).collect()
    };
    // (counter, its first value, the counters that reload it, the value that is loaded)
    for (n, first, causes, value) in [(2, (1 << 48) - 1000, 0b1100, 0xffff_fc18), (3, 0, 0b100, 0)] {
        assert_eq!(of(GENERAL + 4 * n), [first], "counter {n}");
        assert_eq!((of(GENERAL + 4 * n + 2), of(GENERAL + 4 * n + 3)), (vec![causes, 0], vec![value]));
        // Its overflow is no later owner's.
        assert!(of(STATUS_RESET).contains(&(1 << n)));
    }
    // It begins after all of this, and the first counter has no reload.
    let on =
        writes.iter().position(|(register, value)| *register == GLOBAL_CTRL && *value == 0b1101).unwrap();
    let last = writes.iter().position(|write| *write == (GENERAL + 4 * 3 + 2, 0b100)).unwrap();
    assert!(last < on && of(GENERAL + 2).is_empty());
    // Instructions go to the fixed-function counter, which can be reloaded and reload.
    let own = IntelEvent::INSTRUCTIONS.reloaded_by(1, 1 << 31);
    let (writes, counters) = start(PANTHER_COVE, &[], &[own]).unwrap();
    assert_eq!(counters, [1 << 30]);
    assert!(writes.contains(&(FIXED + 2, 1 << 32)) && writes.contains(&(FIXED + 3, 1 << 31)));
}

#[test]
fn the_count_of_a_reloaded_counter_is_that_since_the_reload() {
    let mut msr = FakeMsr::new();
    msr.set(MISC_ENABLE, 1 << 7);
    let unit = IntelCounterUnit::detect(PANTHER_COVE.cpuid(), msr).unwrap();
    let event = IntelEvent::BRANCHES.reloaded_by(0b1, 1000);
    let mut running = unit.start(&[event]).map_err(|failed| failed.error()).unwrap();
    let counter = GENERAL + 4 * 2;
    let begin = (1 << 48) - 1000;
    for (value, count) in [(begin, 0), (begin + 999, 999), (begin + 7, 7), (5, 1005)] {
        running.session_mut().unit.msr.set(counter, value);
        // An overflow is no wrap.
        running.session_mut().unit.msr.set(0x38e, 1 << 2);
        assert_eq!(running.count(0), Ok(Some(count)), "{value:#x}");
    }
    assert_eq!(running.stop().unwrap().totals(), [1005]);
}

#[test]
fn reloads_that_no_counter_does_are_refused() {
    let refusal = |events: &[IntelEvent]| match start(PANTHER_COVE, &[], events) {
        Err(StartError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let branches = IntelEvent::BRANCHES;
    for places in [0, 0b10, 1 << 63 | 1] {
        let expected = IntelCountersRefusal::ReloadPlaces { event: 0, places };
        assert_eq!(refusal(&[branches.reloaded_by(places, 5)]), expected);
    }
    let expected = IntelCountersRefusal::ReloadPeriod { event: 0, period: (1 << 31) + 1 };
    assert_eq!(refusal(&[branches.reloaded_by(1, (1 << 31) + 1)]), expected);
    // Counters 2 and 3 alone reload and are reloaded; 4 and 5 are reloaded.
    let own: [IntelEvent; 3] = core::array::from_fn(|n| branches.reloaded_by(1 << n, 5));
    assert_eq!(refusal(&own), IntelCountersRefusal::NoCounter { event: 2 });
    let by_the_first = [0, 1, 2, 3].map(|_| branches.reloaded_by(1, 5));
    let (_, counters) = start(PANTHER_COVE, &[], &by_the_first).unwrap();
    assert_eq!(counters, [2, 3, 4, 5]);
}

#[test]
fn events_in_branch_records_go_to_the_counters_of_leaf_1ch() {
    let logged = IntelEvent::BRANCHES.in_branch_records(true);
    let events = [IntelEvent::CACHE_MISSES, logged, IntelEvent::INSTRUCTIONS.in_branch_records(true)];
    let (writes, counters) = start(PANTHER_COVE, &[], &events).unwrap();
    // No fixed-function counter counts for the records.
    assert_eq!(counters, [0, 1, 3]);
    for (n, select) in [(0, 0x43_412e), (1, 0x8_0043_00c4), (3, 0x8_0043_00c0)] {
        assert!(writes.contains(&(GENERAL + 4 * n + 1, select)), "{writes:x?}");
    }
    let third = IntelCountersRefusal::NoCounter { event: 2 };
    assert_eq!(start(PANTHER_COVE, &[], &[logged; 3]), Err(StartError::Refused(third)));
    let refusal = IntelCountersRefusal::NoFeature { event: 0, feature: IntelCounterFeature::BranchRecords };
    for leaves in [Leaves { branch_records: 0, ..PANTHER_COVE }, NEHALEM] {
        assert_eq!(start(leaves, &[], &[logged]), Err(StartError::Refused(refusal)));
    }
    // Before version 6 the address is another.
    let older = Leaves { counters: [0x0830_0805, 0, 0, 0x603], extended: None, ..PANTHER_COVE };
    assert!(start(older, &[], &[logged]).unwrap().0.contains(&(SELECT + 1, 0x8_0043_00c4)));
}
