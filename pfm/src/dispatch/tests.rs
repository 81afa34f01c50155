use super::*;
use crate::levels::Levels;
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

fn cpu(name: &str) -> &'static Cpu {
    Cpu::by_name(name).expect("a processor")
}

fn selected(cpu: &'static Cpu, events: &[&str]) -> Vec<Selection> {
    events.iter().map(|event| cpu.select(event).expect(event)).collect()
}

/// Returns the control registers as text, or the name of the error.
fn pmcs(cpu: &'static Cpu, request: &Request<'_>) -> Result<String, &'static str> {
    let dispatch = cpu.dispatch(request).map_err(DispatchError::name)?;
    assert_eq!(dispatch.pmcs().len(), dispatch.pmds().len());
    Ok(dispatch.pmcs().iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
}

#[test]
fn events_get_the_counters_that_are_available_in_their_order() {
    let events = ["CPU_CLK_UNHALTED", "RETIRED_UOPS", "INTERRUPTS_TAKEN"];
    for (name, unavailable, count, expected) in [
        ("k8_revd", 0, 1, Ok("pmc0@0xc0010000=0x530076")),
        ("k8_revd", 0b1001, 2, Ok("pmc1@0xc0010001=0x530076 pmc2@0xc0010002=0x5300c1")),
        ("k8_revd", 0b0101, 2, Ok("pmc1@0xc0010001=0x530076 pmc3@0xc0010003=0x5300c1")),
        // Bits above the counters have no effect.
        ("k8_revd", 0xff0, 1, Ok("pmc0@0xc0010000=0x530076")),
        ("k8_revd", 0b1101, 2, Err("NOASSIGN")),
        ("k8_revd", 0b1111, 1, Err("NOASSIGN")),
        (
            "fam15h",
            0b0111,
            3,
            Ok("pmc3@0xc0010206=0x530076 pmc4@0xc0010208=0x5300c1 pmc5@0xc001020a=0x5300cf"),
        ),
        ("fam15h", 0b1111, 3, Err("NOASSIGN")),
    ] {
        let cpu = cpu(name);
        let events = selected(cpu, &events[..count]);
        let request = Request { events: &events, unavailable, ..Request::default() };
        assert_eq!(pmcs(cpu, &request), expected.map(String::from), "{name} {unavailable:#b}");
    }
}

#[test]
fn the_op_unit_counts_ops_since_revision_c_of_family_10h() {
    for (name, ops) in [
        ("k7", false),
        ("k8_revc", false),
        ("k8_revg", false),
        ("fam10h_revb", false),
        ("fam10h_revc", true),
        ("fam10h_reve", true),
        ("fam12h", true),
        ("fam1ah_zen5", true),
    ] {
        assert_eq!(cpu(name).counts_ops(), ops, "{name}");
    }
}

#[test]
fn a_processor_finds_its_own_events_by_name() {
    let name_of = |name, event| cpu(name).event(event).map(crate::Event::name);
    assert_eq!(name_of("k8_revg", "probe"), Some("PROBE"));
    assert_eq!(name_of("k8_revg", "PROB"), None);
    assert_eq!(
        (name_of("k8_revb", "SIZED_BLOCKS"), name_of("k8_revg", "SIZED_BLOCKS").is_some()),
        (None, true)
    );
}

#[test]
fn counters_are_read_by_msr_and_by_rdpmc() {
    for (name, expected) in [("k7", "pmd1@0xc0010005/rdpmc1"), ("fam15h", "pmd1@0xc0010203/rdpmc1")] {
        let events = selected(cpu(name), &["CPU_CLK_UNHALTED", "RETIRED_UOPS"]);
        let request = Request { events: &events, ..Request::default() };
        let dispatch = cpu(name).dispatch(&request).expect("a dispatch");
        assert_eq!(dispatch.pmds()[1].to_string(), expected);
    }
}

#[test]
fn levels_are_the_events_or_the_requests() {
    let cpu = cpu("k8_revb");
    let both = Levels::KERNEL | Levels::USER;
    let none = Levels::empty();
    for (own, default, expected) in [
        (none, both, Ok("pmc0@0xc0010000=0x530076")),
        (none, Levels::USER, Ok("pmc0@0xc0010000=0x510076")),
        (Levels::KERNEL, Levels::USER, Ok("pmc0@0xc0010000=0x520076")),
        (none, Levels::HOST, Ok("pmc0@0xc0010000=0x500076")),
        (both, none, Err("INVAL")),
        (both, Levels::LEVEL1 | both, Err("INVAL")),
        (Levels::LEVEL2, both, Err("INVAL")),
    ] {
        let events = [cpu.select("CPU_CLK_UNHALTED").expect("an event").with_levels(own)];
        let request = Request { events: &events, levels: default, ..Request::default() };
        assert_eq!(pmcs(cpu, &request), expected.map(String::from), "{own:?} {default:?}");
    }
}

#[test]
fn counters_count_edges_inverted_above_a_threshold_in_guest_or_host() {
    let with = |counter_mask, flags: u32| {
        let counter = CounterFeatures { counter_mask, flags: CounterFlags::from_bits_retain(flags) };
        Some(Features { counters: [counter; MAX_COUNTERS], ..Features::default() })
    };
    for (name, features, expected) in [
        ("k8_revg", with(3, 3), Ok("pmc0@0xc0010000=0x3d70076")),
        ("k8_revg", with(4, 0), Err("INVAL")),
        ("k8_revg", with(0, 0x10), Err("INVAL")),
        ("k8_revg", with(0, 4), Err("BADHOST")),
        ("k8_revg", with(0, 8), Err("BADHOST")),
        ("fam10h_revb", with(1, 0xc), Ok("pmc0@0xc0010000=0x30001530076")),
        ("fam15h", with(0, 4), Ok("pmc0@0xc0010200=0x10000530076")),
    ] {
        let events = selected(cpu(name), &["CPU_CLK_UNHALTED"]);
        let request = Request { events: &events, features, ..Request::default() };
        assert_eq!(pmcs(cpu(name), &request), expected.map(String::from), "{name} {features:?}");
    }
}

#[test]
fn unit_masks_are_names_codes_or_sums_of_codes() {
    for (name, event, expected) in [
        ("k8_revg", "PROBE:MISS:hit_clean", Ok("pmc0@0xc0010000=0x5303ec")),
        ("k8_revg", "PROBE:0x7f", Ok("pmc0@0xc0010000=0x537fec")),
        ("k8_revg", "PROBE:5", Ok("pmc0@0xc0010000=0x5305ec")),
        ("k8_revg", "PROBE:MISS:MISS:01", Ok("pmc0@0xc0010000=0x5301ec")),
        ("k8_revg", "RETIRED_UOPS", Ok("pmc0@0xc0010000=0x5300c1")),
        ("k8_revg", "RETIRED_UOPS:", Err("UMASK")),
        ("k8_revg", "RETIRED_UOPS:ALL", Err("UMASK")),
        ("k8_revg", "PROBE", Err("UMASK")),
        ("k8_revg", "PROBE:", Err("UMASK")),
        ("k8_revg", "PROBE:MISS:", Err("UMASK")),
        ("k8_revg", "PROBE:MISS:HIT_CLEAN:zzz", Err("UMASK")),
        ("k8_revg", "PROBE:0x80", Err("UMASK")),
        ("k8_revg", "PROBE:-1", Err("UMASK")),
        // No unit mask has the code 0, so none is chosen.
        ("k8_revg", "PROBE:0", Err("UMASK")),
        // This event has a unit mask with the code 0.
        ("fam10h_revb", "MAB_REQUESTS:0", Ok("pmc0@0xc0010000=0x530068")),
        ("fam10h_revb", "MAB_REQUESTS:0:0x1", Err("FEATCOMB")),
        // Names are looked up by revision, numbers are not.
        ("k8_revb", "PROBE:UPSTREAM_WRITES", Err("UMASK")),
        ("k8_revb", "PROBE:0x40", Err("BADHOST")),
        ("k8_revb", "SIZED_BLOCKS:ALL", Err("NOTFOUND")),
        ("k8_revb", "PROBE.MISS", Err("NOTFOUND")),
        // Only in libpfm3: a unit mask for the whole link, including both halves; an event of every revision, whose
        // unit masks exclude each other.
        ("fam10h_revb", "HYPERTRANSPORT_LINK3:ALL", Ok("pmc0@0xc0010000=0x10053bff9")),
        ("fam10h_revb", "NON_CANCELLED_L3_READ_REQUESTS:ANY_READ", Ok("pmc0@0xc0010000=0x4005307ed")),
        ("fam10h_revb", "NON_CANCELLED_L3_READ_REQUESTS:ANY_READ:ALL_CORES", Err("FEATCOMB")),
    ] {
        let result = match cpu(name).select(event) {
            Ok(selection) => pmcs(cpu(name), &Request { events: &[selection], ..Request::default() }),
            Err(error) => {
                assert_eq!(&event[error.offset..error.offset + error.text.len()], error.text);
                Err(error.kind.name())
            }
        };
        assert_eq!(result, expected.map(String::from), "{name} {event}");
    }
}

#[test]
fn there_are_no_more_events_than_counters() {
    for (name, counters) in [("k8_revc", 4), ("fam15h", 6)] {
        let cpu = cpu(name);
        let clock = cpu.select("CPU_CLK_UNHALTED").expect("an event");
        let events = alloc::vec![clock; 7];
        for count in 0..=7 {
            let request = Request { events: &events[..count], ..Request::default() };
            let expected = match count {
                0 => Err(DispatchError::NoEvents),
                _ if count <= counters => Ok(count),
                _ => Err(DispatchError::TooManyEvents { events: count, counters: counters as u8 }),
            };
            assert_eq!(cpu.dispatch(&request).map(|dispatch| dispatch.pmcs().len()), expected);
        }
    }
}

#[test]
fn an_event_of_another_processor_is_refused() {
    let events = selected(cpu("k8_revc"), &["CPU_CLK_UNHALTED"]);
    let request = Request { events: &events, ..Request::default() };
    let error = DispatchError::OtherCpu { event: 0, cpu: "k8_revc" };
    assert_eq!(cpu("k8_revd").dispatch(&request), Err(error));
}

/// Checks the example of libpfm3's manual page `libpfm_amd64`.
#[test]
fn the_manual_pages_example_samples_ops() {
    let op = IbsOp { max_count: 0xf_fff0, ops: false };
    let features = Features { ibs_op: Some(op), ..Features::default() };
    let request = Request { features: Some(features), ..Request::default() };
    let dispatch = cpu("fam10h_revb").dispatch(&request).expect("a dispatch");

    let [pmc] = dispatch.pmcs() else { panic!("{dispatch:?}") };
    assert_eq!((pmc.number, pmc.value, pmc.msr()), (7, 0x2_ffff, 0xc001_1033));
    let unit = dispatch.ibs_op().expect("the op unit");
    // Without other registers it is the first.
    assert_eq!((unit.base, dispatch.pmds()[unit.base].number), (0, 9));
    // Seven registers from PMD 9 on, which hold a sample.
    assert_eq!(unit.mask(), 0b111_1111 << 9);
    assert_eq!(dispatch.ibs_fetch(), None);
}

#[test]
fn ibs_units_come_after_the_counters() {
    let cpu = cpu("fam10h_revc");
    let events = selected(cpu, &["CPU_CLK_UNHALTED", "RETIRED_UOPS"]);
    let features = Features {
        ibs_fetch: Some(IbsFetch { max_count: 0x1_2345, random: true }),
        ibs_op: Some(IbsOp { max_count: 0xf_ffff, ops: true }),
        ..Features::default()
    };
    let request = Request { events: &events, features: Some(features), ..Request::default() };
    let dispatch = cpu.dispatch(&request).expect("a dispatch");
    let registers = dispatch.pmcs().iter().map(|pmc| (pmc.register(), pmc.value)).collect::<Vec<_>>();
    assert_eq!(
        registers,
        [
            // EN, INT, OS and USR, and the event.
            (ControlRegister::Counter(0), 0x53_0076),
            (ControlRegister::Counter(1), 0x53_00c1),
            // The low four bits of a period are dropped. IbsRandEn and IbsFetchEn; IbsOpCntCtl and IbsOpEn.
            (ControlRegister::IbsFetch, 0x0201_0000_0000_1234),
            (ControlRegister::IbsOp, 0xa_ffff),
        ]
    );
    let units = [dispatch.ibs_fetch(), dispatch.ibs_op()];
    assert_eq!(
        units,
        [Some(IbsPmds { base: 2, number: 6, count: 3 }), Some(IbsPmds { base: 3, number: 9, count: 7 })]
    );
    assert_eq!(units.map(|unit| dispatch.pmds()[unit.expect("a unit").base].number), [6, 9]);
}

#[test]
fn ibs_is_there_since_family_10h_and_counts_ops_since_its_revision_c() {
    for (name, ops, expected) in [
        ("k7", false, Err(DispatchError::NoIbs)),
        ("k8_revg", true, Err(DispatchError::NoIbs)),
        ("fam10h_revb", false, Ok(())),
        ("fam10h_revb", true, Err(DispatchError::NoOpCount { event: None })),
        ("fam10h_revc", true, Ok(())),
        ("fam15h", true, Ok(())),
    ] {
        let features = Features { ibs_op: Some(IbsOp { max_count: 0x100, ops }), ..Features::default() };
        let request = Request { features: Some(features), ..Request::default() };
        assert_eq!(cpu(name).dispatch(&request).map(|_| ()), expected, "{name}");
    }
}

#[test]
fn libpfm3s_events_for_ibs_take_a_counter_and_have_no_period() {
    for (name, event, expected) in [
        ("fam10h_revc", "IBSOP_EVENT:CYCLES", Ok("pmc7@0xc0011033=0x20000")),
        ("fam10h_revc", "IBSOP_EVENT:UOPS", Ok("pmc7@0xc0011033=0xa0000")),
        ("fam10h_revb", "IBSOP_EVENT:CYCLES", Ok("pmc7@0xc0011033=0x20000")),
        ("fam10h_revb", "IBSOP_EVENT:UOPS", Err("BADHOST")),
        ("fam10h_revb", "IBSFETCH_EVENT:NO_RANDOM", Ok("pmc6@0xc0011031=0x1000000000000")),
        ("fam10h_revb", "IBSFETCH_EVENT:RANDOM", Ok("pmc6@0xc0011031=0x201000000000000")),
        ("fam10h_revb", "IBSFETCH_EVENT:RANDOM:NO_RANDOM", Err("FEATCOMB")),
    ] {
        let events = selected(cpu(name), &[event]);
        let request = Request { events: &events, ..Request::default() };
        assert_eq!(pmcs(cpu(name), &request), expected.map(String::from), "{name} {event}");
    }
    let cpu = cpu("fam10h_revb");
    let events = selected(cpu, &["IBSFETCH_EVENT:RANDOM", "RETIRED_UOPS"]);
    let request = Request { events: &events, ..Request::default() };
    let dispatch = cpu.dispatch(&request).expect("a dispatch");
    assert_eq!(dispatch.pmcs()[1].number, 1);
    // libpfm3 returns the address of the next register.
    assert_eq!((dispatch.pmcs()[0].address, dispatch.pmcs()[0].msr()), (0xc001_1031, 0xc001_1030));
    assert_eq!(dispatch.ibs_fetch(), None);
}

#[test]
fn what_is_wrong_is_said_with_its_numbers() {
    let levels = Levels::LEVEL1;
    let rows = [
        (DispatchError::NoEvents, "nothing is to be counted or sampled"),
        (DispatchError::NoLevels, "no privilege level to count at"),
        (DispatchError::Levels { event: None, levels }, "no counter has the privilege levels 0x2"),
        (
            DispatchError::Levels { event: Some(1), levels },
            "event 1: no counter has the privilege levels 0x2",
        ),
        (DispatchError::Flags { event: 1, flags: 32 }, "event 1: unknown flags 0x20"),
        (DispatchError::CounterMask { event: 1, mask: 4 }, "event 1: the counter mask 4 is above 3"),
        (DispatchError::TooManyEvents { events: 5, counters: 4 }, "5 events for 4 counters"),
        (DispatchError::NoCounter { event: 1 }, "event 1: no counter is left"),
        (DispatchError::MissingUnitMask { event: 1 }, "event 1: it needs a unit mask"),
        (DispatchError::Combination { event: 1 }, "event 1: its unit masks do not go together"),
        (DispatchError::OtherCpu { event: 1, cpu: "amd64_k7" }, "event 1: it was selected for amd64_k7"),
        (
            DispatchError::OtherRevision { event: 1, unit_mask: "ALL" },
            "event 1: only other revisions of the processor have the unit mask ALL",
        ),
        (DispatchError::SinceFam10h { event: 1 }, "event 1: guest and host are known since family 10h"),
        (DispatchError::NoIbs, "the processor has no IBS"),
        (
            DispatchError::NoOpCount { event: None },
            "IBS counts dispatched ops since revision C of family 10h",
        ),
        (
            DispatchError::NoOpCount { event: Some(1) },
            "event 1: IBS counts dispatched ops since revision C of family 10h",
        ),
    ];
    for (error, text) in rows {
        assert_eq!(error.to_string(), text);
    }
    let kinds = [
        (FindErrorKind::UnknownEvent, "the processor has no event of this name"),
        (FindErrorKind::OtherRevision, "only other revisions of the processor have this event"),
        (FindErrorKind::MissingUnitMask, "the event needs a unit mask"),
        (FindErrorKind::NoUnitMasks, "the event has no unit masks"),
        (FindErrorKind::UnknownUnitMask, "not a unit mask of the event"),
    ];
    for (kind, text) in kinds {
        let error = FindError { offset: 3, text: "X", kind };
        assert_eq!(error.to_string(), format!("\"X\" at 3: {text}"));
    }
}
