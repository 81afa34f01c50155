use super::*;
use crate::{cpu::Cpu, pmu::Pmu};
use alloc::{string::String, vec::Vec};

const TABLES: [(&str, &Table); 10] = [
    ("K7", &K7),
    ("K8", &K8),
    ("FAM10H", &FAM10H),
    ("FAM15H", &FAM15H),
    ("FAM16H", &FAM16H),
    ("ZEN1", &ZEN1),
    ("ZEN2", &ZEN2),
    ("ZEN3", &ZEN3),
    ("ZEN4", &ZEN4),
    ("ZEN5", &ZEN5),
];

#[test]
fn every_event_and_unit_mask_has_a_name_and_words() {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_'))
    };
    for (table, events) in TABLES.map(|(name, table)| (name, table.events)) {
        assert!(!events.is_empty());
        for event in events {
            assert!(is_name(event.name()), "{table} {event:?}");
            assert!(!event.description().is_empty(), "{table} {event:?}");
            assert!(event.code() < 1 << 12, "{table} {event:?}");
            for mask in event.all_masks() {
                assert!(is_name(mask.name()), "{table} {event:?} {mask:?}");
                assert!(!mask.description().is_empty(), "{table} {event:?} {mask:?}");
                assert!(mask.group() < event.groups(), "{table} {event:?} {mask:?}");
            }
            // The limits of a selection and a choice.
            assert!(event.all_masks().len() <= 64 && event.groups() <= 4, "{table} {event:?}");
        }
    }
}

#[test]
fn names_are_found_in_whatever_case_and_are_whole() {
    for pmu in Pmu::all() {
        for event in pmu.events() {
            let name = event.name();
            assert_eq!(pmu.event(name), Some(event), "{pmu:?}");
            assert_eq!(pmu.event(&name.to_ascii_lowercase()), Some(event), "{pmu:?}");
            assert_eq!(pmu.event(&name[1..]), None, "{pmu:?}");
            let longer = String::from(name) + "S";
            assert_eq!(pmu.event(&longer), None, "{pmu:?}");
        }
    }
}

#[test]
fn no_revision_has_two_events_or_unit_masks_of_a_name() {
    fn is_twice<T: PartialEq>(names: &[T]) -> bool {
        names.iter().enumerate().any(|(at, name)| names[..at].contains(name))
    }
    for pmu in Pmu::all() {
        assert!(!is_twice(&pmu.events().map(Event::name).collect::<Vec<_>>()), "{pmu:?}");
        for event in pmu.events() {
            let names = pmu.unit_masks(event).map(UnitMask::name).collect::<Vec<_>>();
            assert!(!is_twice(&names), "{pmu:?} {event:?}");
        }
    }
    for cpu in Cpu::all() {
        assert!(!is_twice(&cpu.events().map(Event::name).collect::<Vec<_>>()), "{cpu:?}");
    }
}

#[test]
fn revisions_bound_events_and_unit_masks() {
    for (event, mask, pmus) in [
        ("SIZED_BLOCKS", "ALL", "defg"),
        ("PROBE", "UPSTREAM_WRITES", "defg"),
        ("PROBE", "MISS", "bcdefg"),
        ("THERMAL_STATUS_AND_ECC_ERRORS", "DRAM_ECC_ERRORS", "efg"),
        ("THERMAL_STATUS_AND_ECC_ERRORS", "CLKS_CPU_ACTIVE", "fg"),
        ("L2_FILL_WRITEBACK", "L2_WRITEBACKS", "fg"),
    ] {
        for letter in ["b", "c", "d", "e", "f", "g"] {
            let pmu = Pmu::by_name(&(String::from("amd64_k8_rev") + letter)).expect("a PMU");
            let has = pmu.event(event).is_some_and(|it| pmu.unit_masks(it).any(|it| it.name() == mask));
            assert_eq!(has, pmus.contains(letter), "{pmu:?} {event}:{mask}");
        }
    }
}

#[test]
fn all_of_an_event_is_what_the_revision_has_of_it() {
    for (pmu, event, code) in [
        ("amd64_k8_revc", "PROBE", 0x3f),
        ("amd64_k8_revd", "PROBE", 0x7f),
        ("amd64_k8_reve", "L2_FILL_WRITEBACK", 1),
        ("amd64_k8_revf", "L2_FILL_WRITEBACK", 3),
        ("amd64_k8_reve", "THERMAL_STATUS_AND_ECC_ERRORS", 0x80),
        ("amd64_k8_revf", "THERMAL_STATUS_AND_ECC_ERRORS", 0x8f),
        ("amd64_fam10h_barcelona", "L1_DTLB_MISS_AND_L2_DTLB_HIT", 3),
        ("amd64_fam10h_shanghai", "L1_DTLB_MISS_AND_L2_DTLB_HIT", 7),
    ] {
        let pmu = Pmu::by_name(pmu).expect(pmu);
        let codes = pmu.unit_masks(pmu.event(event).expect(event)).filter(|mask| mask.name() == "ALL");
        assert_eq!(codes.map(UnitMask::code).collect::<Vec<_>>(), [code], "{pmu:?} {event}");
    }
}

#[test]
fn processors_are_known_by_family_model_and_stepping() {
    for (family, model, stepping, pmu, cpu) in [
        (6, 8, 0, "amd64_k7", "k7"),
        (0xf, 0x05, 1, "amd64_k8_revb", "k8_revb"),
        (0xf, 0x05, 2, "amd64_k8_revc", "k8_revc"),
        (0xf, 0x04, 0, "amd64_k8_revb", "k8_revb"),
        (0xf, 0x04, 8, "amd64_k8_revc", "k8_revc"),
        (0xf, 0x0c, 0, "amd64_k8_revc", "k8_revc"),
        (0xf, 0x1f, 0, "amd64_k8_revd", "k8_revd"),
        (0xf, 0x27, 1, "amd64_k8_reve", "k8_reve"),
        (0xf, 0x37, 1, "amd64_k8_reve", "k8_reve"),
        (0xf, 0x41, 3, "amd64_k8_revf", "k8_revf"),
        (0xf, 0xc1, 3, "amd64_k8_revf", "k8_revf"),
        (0xf, 0x6b, 2, "amd64_k8_revg", "k8_revg"),
        (0xf, 0x90, 0, "amd64_k8_revb", "k8_revb"),
        (0x10, 2, 3, "amd64_fam10h_barcelona", "fam10h_revb"),
        (0x10, 4, 2, "amd64_fam10h_shanghai", "fam10h_revc"),
        (0x10, 6, 2, "amd64_fam10h_shanghai", "fam10h_revc"),
        (0x10, 8, 0, "amd64_fam10h_istanbul", "fam10h_revd"),
        (0x10, 9, 1, "amd64_fam10h_istanbul", "fam10h_revd"),
        // Only libpfm3 has a name for revision E.
        (0x10, 10, 0, "amd64_fam10h_barcelona", "fam10h_reve"),
        (0x15, 1, 2, "amd64_fam15h_interlagos", "fam15h"),
        (0x16, 0x30, 1, "amd64_fam16h", "fam16h"),
        (0x17, 0x01, 2, "amd64_fam17h_zen1", "fam17h_zen1"),
        (0x17, 0x31, 0, "amd64_fam17h_zen2", "fam17h_zen2"),
        (0x19, 0x01, 1, "amd64_fam19h_zen3", "fam19h_zen3"),
        (0x19, 0x50, 0, "amd64_fam19h_zen3", "fam19h_zen3"),
        (0x19, 0x11, 1, "amd64_fam19h_zen4", "fam19h_zen4"),
        (0x19, 0x61, 2, "amd64_fam19h_zen4", "fam19h_zen4"),
        (0x1a, 0x44, 0, "amd64_fam1ah_zen5", "fam1ah_zen5"),
        // Neither library assigns the events of these families to counters.
        (0x11, 3, 1, "amd64_fam11h_turion", ""),
        (0x12, 1, 0, "amd64_fam12h_llano", "fam12h"),
        (0x14, 2, 0, "amd64_fam14h_bobcat", "fam14h"),
        (0x18, 0, 0, "", ""),
    ] {
        let found = Pmu::detect(family, model, stepping).map_or("", Pmu::name);
        assert_eq!(found, pmu, "{family:#x} {model:#x} {stepping}");
        let found = Cpu::detect(family, model, stepping).map_or("", Cpu::name);
        assert_eq!(found, cpu, "{family:#x} {model:#x} {stepping}");
    }
}
