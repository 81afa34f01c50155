use super::*;
use crate::amd::fake::{self, Cpu, Machine};
use crate::intel::lbr::{Branch, Classes};
use crate::lifecycle::{Absent, InUse, Missing, NotBacked, NotCurrent, NotStarted, StartError};
use crate::loss::Gap;
use crate::msr::amd::DbgExtnCfg;

const DEBUGCTL: u32 = 0x1d9;
const SELECT: u32 = 0xc000_010e;
const CONFIG: u32 = 0xc000_010f;
const STATUS_CLR: u32 = 0xc000_0302;
const LBR_EN: u64 = 1 << 6;
const BRS_EN: u64 = 1 << 2 | 0b11 << 3;
const VALID: u64 = 1 << 63;
const SPECULATIVE: u64 = 1 << 62;

fn unit(machine: &Machine) -> BranchUnit<Machine> {
    let unit = BranchUnit::detect(machine.cpuid(), machine.clone()).unwrap();
    machine.writes();
    unit
}

fn start(machine: &Machine, config: BranchConfig) -> BranchRunning<Machine> {
    unit(machine).start(&config).map_err(|failed| failed.error()).unwrap()
}

/// Writes entry `n` as the processor does.
fn record(machine: &Machine, n: u32, from: u64, to: u64) {
    machine.set(0xc001_0300 + 2 * n, from);
    machine.set(0xc001_0301 + 2 * n, to);
}

fn last(running: &mut BranchRunning<Machine>) -> Vec<(u64, u64)> {
    let mut out = [Recorded::default(); 64];
    let branches = running.last(&mut out).unwrap();
    branches.iter().map(|recorded| (recorded.branch.from, recorded.branch.to)).collect()
}

#[test]
fn lbr_version_2_has_the_newest_first_and_skips_what_is_empty() {
    let machine = Machine::new(fake::ZEN_4);
    (0..16).for_each(|n| record(&machine, n, 7, VALID | 7));
    let mut running = start(&machine, BranchConfig::new());
    assert_eq!(last(&mut running), [], "what was there is somebody else's");
    assert!((0xc001_0300..0xc001_0320).all(|address| machine.get(address) == 0), "and nothing of it stays");
    record(&machine, 0, 0x40_1000, VALID | 0x40_2000);
    record(&machine, 2, 0x40_3000, VALID | 0x40_4000);
    record(&machine, 15, 1, VALID | 2);
    assert_eq!(last(&mut running), [(0x40_1000, 0x40_2000), (0x40_3000, 0x40_4000), (1, 2)]);
    // As much as there is room for.
    assert_eq!(running.last(&mut [Recorded::default(); 2]).unwrap().len(), 2);
    assert_eq!(running.last(&mut []).unwrap(), []);
    assert_eq!(machine.get(CONFIG), LBR_EN, "it goes on");
    running.forget().unwrap();
    assert_eq!((last(&mut running), machine.get(CONFIG)), (vec![], LBR_EN));
}

#[test]
fn flags_of_lbr_version_2_are_above_the_addresses() {
    let kernel = 0xffff_ffff_8123_4567;
    let ip = kernel & ((1 << 57) - 1);
    // (from, to, mispredicted, speculation)
    let table = [
        (ip, VALID | 0x40_1000, false, Some(Speculation::Retired)),
        (1 << 63 | ip, VALID | 0x40_1000, true, Some(Speculation::Retired)),
        (ip, VALID | SPECULATIVE | 0x40_1000, false, Some(Speculation::Speculated)),
        (ip, SPECULATIVE | 0x40_1000, false, Some(Speculation::WrongPath)),
        (ip, 0x40_1000, false, None),
        // Erratum 1452, with each speculation that it can have. The bits around it are part of an address's sign.
        (ip, VALID | SPECULATIVE | 1 << 61 | 0x40_1000, false, None),
        (ip, VALID | 1 << 61 | 0x40_1000, false, None),
        (ip, SPECULATIVE | 1 << 61 | 0x40_1000, false, None),
        (ip, VALID | 0b111 << 58 | 0x40_1000, false, Some(Speculation::Retired)),
    ];
    let recorder = Recorder::LbrV2 { depth: 16, freezes: true };
    for (from, to, mispredicted, speculation) in table {
        let branch =
            Branch { from: kernel, to: 0x40_1000, mispredicted: Some(mispredicted), ..Branch::default() };
        assert_eq!(
            Recorded::of(recorder, from, to),
            speculation.map(|speculation| Recorded { branch, speculation })
        );
    }
}

#[test]
fn an_entry_without_a_branch_takes_no_place_from_those_with_one() {
    // Erratum 1452.
    let machine = Machine::new(fake::ZEN_4);
    let mut running = start(&machine, BranchConfig::new());
    record(&machine, 0, 0x77_7777, VALID | SPECULATIVE | 1 << 61 | 0x12_3456);
    record(&machine, 1, 0x40_1000, VALID | 0x40_2000);
    record(&machine, 3, 0x40_3000, VALID | 0x40_4000);
    let mut out = [Recorded::default(); 2];
    let found: Vec<_> = running.last(&mut out).unwrap().iter().map(|found| found.branch.from).collect();
    assert_eq!(found, [0x40_1000, 0x40_3000]);
}

#[test]
fn branches_of_user_code_alone_have_no_address_of_the_kernel() {
    let kernel = 0xffff_ffff_8123_4567 & ((1 << 57) - 1);
    let branches = [(0x40_1000, 0x40_2000), (kernel, 0x40_3000), (0x40_4000, kernel), (0x40_5000, 0x40_6000)];
    for (config, kept) in [
        (BranchConfig::new().os(false), &[0, 3][..]),
        (BranchConfig::new(), &[0, 1, 2, 3]),
        (BranchConfig::new().user(false), &[0, 1, 2, 3]),
    ] {
        let machine = Machine::new(fake::ZEN_4);
        let mut running = start(&machine, config);
        (0..).zip(branches).for_each(|(n, (from, to))| record(&machine, n, from, VALID | to));
        let extended = |address: u64| ((address << 7).cast_signed() >> 7).cast_unsigned();
        let expected: Vec<_> =
            kept.iter().map(|n| (extended(branches[*n].0), extended(branches[*n].1))).collect();
        assert_eq!(last(&mut running), expected, "{config:?}");
    }
}

#[test]
fn filters_of_lbr_version_2_say_what_is_not_recorded() {
    let all = BranchConfig::new();
    let table = [
        (all, 0),
        (all.os(false), 1 << 0),
        (all.user(false), 1 << 1),
        (all.classes(Classes::all() - Classes::JCC), 1 << 2),
        (all.classes(Classes::all() - Classes::NEAR_REL_CALL), 1 << 3),
        (all.classes(Classes::all() - Classes::NEAR_IND_CALL), 1 << 4),
        (all.classes(Classes::all() - Classes::NEAR_RET), 1 << 5),
        (all.classes(Classes::all() - Classes::NEAR_IND_JMP), 1 << 6),
        (all.classes(Classes::all() - Classes::NEAR_REL_JMP), 1 << 7),
        (all.classes(Classes::all() - Classes::OTHER), 1 << 8),
        (all.classes(Classes::NEAR_RET), 0x1fc & !(1 << 5)),
    ];
    for (config, select) in table {
        let machine = Machine::new(fake::ZEN_4);
        let _running = start(&machine, config);
        assert_eq!(machine.get(SELECT), select, "{config:?}");
    }
}

#[test]
fn a_pmi_freezes_lbr_version_2_where_asked_for_until_it_is_read() {
    let machine = Machine::new(fake::ZEN_4);
    machine.set(DEBUGCTL, 0x2);
    let mut running = start(&machine, BranchConfig::new().freeze_on_pmi(true));
    assert_eq!((machine.get(DEBUGCTL), machine.get(CONFIG)), (0x802, LBR_EN));
    machine.writes();
    last(&mut running);
    assert_eq!(machine.writes(), [(CONFIG, 0), (STATUS_CLR, 1 << 58), (CONFIG, LBR_EN)]);
    drop(running);
    assert_eq!((machine.get(DEBUGCTL), machine.get(CONFIG)), (0x2, 0));
    let mut running = start(&machine, BranchConfig::new());
    machine.writes();
    last(&mut running);
    assert_eq!(machine.writes(), [(CONFIG, 0), (CONFIG, LBR_EN)]);
}

#[test]
fn branch_sampling_has_the_newest_last_and_begins_anew() {
    let target = 0xffff_ffff_8100_0000;
    // (valid, next entry, entries)
    for (valid, next, entries) in [(false, 5, 0), (true, 1, 1), (true, 15, 15), (true, 0, 16)] {
        let machine = Machine::new(fake::ZEN_3);
        let mut running = start(&machine, BranchConfig::new());
        assert_eq!(machine.writes(), [(CONFIG, BRS_EN)]);
        // Targets are written with as many bits as an address has.
        for n in 0..16 {
            record(&machine, n, n.into(), (target + u64::from(n)) & ((1 << 48) - 1));
        }
        machine.set(CONFIG, BRS_EN | u64::from(valid) << 5 | next << 16);
        let expected: Vec<_> = (0..entries).rev().map(|n| (n, target + n)).collect();
        assert_eq!(last(&mut running), expected);
        assert_eq!(machine.get(CONFIG), BRS_EN);
        running.stop().map_err(|failed| failed.fault).unwrap();
        assert_eq!(machine.get(CONFIG), 0b11 << 3, "reserved bits stay set");
    }
}

#[test]
fn what_another_task_left_in_branch_sampling_is_not_read() {
    let machine = Machine::new(fake::ZEN_3);
    let mut running = start(&machine, BranchConfig::new());
    (0..3).for_each(|n| record(&machine, n, n.into(), 0x100));
    let config = BRS_EN | 1 << 5;
    machine.set(CONFIG, config | 3 << 16);
    running.forget().unwrap();
    assert_eq!(machine.get(CONFIG), config | 3 << 16, "it goes on after them");
    (3..5).for_each(|n| record(&machine, n, n.into(), 0x100));
    machine.set(CONFIG, config | 5 << 16);
    assert_eq!(last(&mut running), [(4, 0x100), (3, 0x100)]);
    // Nothing recorded, nothing to forget.
    machine.set(CONFIG, BRS_EN);
    machine.writes();
    running.forget().unwrap();
    assert!(machine.writes().iter().all(|(register, _)| *register == CONFIG));
}

#[test]
fn a_processor_that_sleeps_records_nothing_and_keeps_what_it_has() {
    for (cpu, on, state) in [(fake::ZEN_3, BRS_EN, 0b11 << 3 | 1 << 5 | 3 << 16), (fake::ZEN_4, LBR_EN, 0)] {
        let machine = Machine::new(cpu);
        let mut running = start(&machine, BranchConfig::new());
        machine.set(CONFIG, on | state);
        running.pause().unwrap();
        assert_eq!(machine.get(CONFIG), state);
        running.resume().unwrap();
        assert_eq!(machine.get(CONFIG), on | state);
    }
}

#[test]
fn what_a_recorder_cannot_do_is_refused() {
    let (lbr, unfrozen) =
        (Recorder::LbrV2 { depth: 16, freezes: true }, Recorder::LbrV2 { depth: 16, freezes: false });
    let sampling = Recorder::Sampling { linear_address_bits: 48 };
    let all = BranchConfig::new();
    let table = [
        (lbr, all.os(false).user(false), Err(BranchRefusal::NoLevel)),
        (lbr, all.os(false).classes(Classes::JCC).freeze_on_pmi(true), Ok(())),
        (unfrozen, all.freeze_on_pmi(true), Err(BranchRefusal::Freeze)),
        (sampling, all, Ok(())),
        (sampling, all.user(false), Err(BranchRefusal::Filter)),
        (sampling, all.os(false), Err(BranchRefusal::Filter)),
        (sampling, all.classes(Classes::JCC), Err(BranchRefusal::Filter)),
        (sampling, all.freeze_on_pmi(true), Err(BranchRefusal::Freeze)),
    ];
    for (recorder, config, verdict) in table {
        assert_eq!(config.check(recorder), verdict, "{recorder:?} {config:?}");
    }
}

#[test]
fn detection_says_what_is_there() {
    let detect =
        |cpu| BranchUnit::detect(Machine::new(cpu).cpuid(), Machine::new(cpu)).map(|unit| unit.recorder());
    assert_eq!(detect(fake::ZEN_4).unwrap(), Recorder::LbrV2 { depth: 16, freezes: true });
    let unfrozen = Cpu { perfmon: (3, 0x206), ..fake::ZEN_4 };
    assert_eq!(detect(unfrozen).unwrap(), Recorder::LbrV2 { depth: 32, freezes: false });
    assert_eq!(detect(fake::ZEN_3).unwrap(), Recorder::Sampling { linear_address_bits: 48 });
    // No manual describes branch sampling there.
    let other = Cpu { family: 0x1b, ..fake::ZEN_3 };
    for cpu in [fake::ZEN_2, fake::K8, other] {
        assert_eq!(detect(cpu).unwrap_err(), Missing::BranchRecorder.into());
    }
    let machine = Machine::new(fake::ZEN_4);
    machine.kill();
    let error = BranchUnit::detect(machine.cpuid(), machine.clone()).unwrap_err();
    assert!(matches!(error, Absent::NotBacked(NotBacked { read: 0, .. })));
    for bit in [DbgExtnCfg::LBRV2EN, DbgExtnCfg::BRSMEN] {
        let machine = Machine::new(fake::ZEN_4);
        machine.set(CONFIG, bit.bits());
        let error = BranchUnit::detect(machine.cpuid(), machine.clone()).unwrap_err();
        assert_eq!(error, InUse::BranchRecorder { address: CONFIG, control: bit.bits() }.into());
        assert_eq!(machine.writes(), []);
    }
}

/// The number of processors and configurations with faults: one in Miri, which takes a thousand times as long.
const WITH_FAULTS: usize = if cfg!(miri) { 1 } else { 3 };

#[test]
fn a_fault_at_each_access_can_be_tried_again() {
    let config = BranchConfig::new();
    let rows = [(fake::ZEN_4, config.freeze_on_pmi(true)), (fake::ZEN_3, config), (fake::ZEN_4, config)];
    for (cpu, config) in rows.into_iter().take(WITH_FAULTS) {
        for access in 0.. {
            let machine = Machine::new(cpu);
            let unit = unit(&machine);
            machine.fault_in(access);
            let Err(failed) = unit.start(&config) else { break };
            let NotStarted::Off { unit, error, .. } = failed else { panic!("{failed}") };
            assert!(matches!(error, StartError::Fault(_)));
            assert_eq!(machine.get(CONFIG) & (LBR_EN | 1 << 2), 0, "{cpu:x?} access {access}");
            unit.start(&config).map_err(|failed| failed.error()).unwrap();
        }
        for access in 0.. {
            let machine = Machine::new(cpu);
            let mut running = start(&machine, config);
            record(&machine, 0, 1, VALID | 2);
            machine.set(CONFIG, machine.get(CONFIG) | 1 << 5 | 1 << 16);
            let on = machine.get(CONFIG) & (LBR_EN | 1 << 2);
            machine.fault_in(access);
            if running.last(&mut [Recorded::default(); 16]).is_ok() {
                assert!(access > 3, "{access} accesses");
                break;
            }
            match running.last(&mut [Recorded::default(); 16]) {
                Ok(_) | Err(NotCurrent::Outdated { why: Gap::Abandoned, .. }) => {}
                Err(error) => panic!("{error}"),
            }
            assert_eq!(machine.get(CONFIG) & (LBR_EN | 1 << 2), on, "{cpu:x?} access {access}: it goes on");
        }
        for access in 0.. {
            let machine = Machine::new(cpu);
            let running = start(&machine, config);
            machine.fault_in(access);
            let Err(failed) = running.stop() else { break };
            failed.running.stop().map_err(|failed| failed.fault).unwrap();
            assert_eq!(machine.get(CONFIG) & (LBR_EN | 1 << 2), 0);
            assert_eq!(machine.get(DEBUGCTL), 0);
        }
    }
}

#[test]
fn a_recorder_that_firmware_left_on_is_taken_over_and_one_that_runs_says_so() {
    for (part, on) in [(fake::ZEN_4, LBR_EN), (fake::ZEN_3, BRS_EN)] {
        let machine = Machine::new(part);
        machine.set(CONFIG, on);
        let in_use = InUse::BranchRecorder { address: CONFIG, control: on };
        let detected = BranchUnit::detect(machine.cpuid(), machine.clone());
        assert_eq!(detected.err(), Some(in_use.into()));
        let (unit, left_on) = BranchUnit::take_over(machine.cpuid(), machine.clone()).unwrap();
        assert_eq!((left_on, machine.get(CONFIG) & (LBR_EN | 1 << 2)), (Some(in_use), 0));
        drop(unit);
        assert_eq!(BranchUnit::take_over(machine.cpuid(), machine.clone()).unwrap().1, None, "off already");
    }
    let machine = Machine::new(fake::ZEN_4);
    let mut running = start(&machine, BranchConfig::new());
    record(&machine, 0, 0x40_1000, VALID | 0x40_2000);
    drop(BranchUnit::take_over(machine.cpuid(), machine.clone()).unwrap());
    record(&machine, 1, 0x40_3000, VALID | 0x40_4000);
    let mut out = [Recorded::default(); 16];
    match running.last(&mut out) {
        Err(NotCurrent::Outdated { why: Gap::TurnedOff, before }) => assert_eq!(before.len(), 2),
        other => panic!("{other:?}"),
    }
    assert_eq!(last(&mut running), [], "it goes on, empty");
}

#[test]
fn records_that_were_filtered_by_others_or_left_off_are_outdated_until_they_are_read() {
    type Meanwhile = fn(&Machine, &mut BranchRunning<Machine>);
    let table: [(Meanwhile, Option<Gap>); 7] = [
        (|_, _| (), None),
        (|machine, _| machine.set(SELECT, 1), Some(Gap::TurnedOff)),
        (|machine, _| machine.set(CONFIG, 0), Some(Gap::TurnedOff)),
        // A pause is the kernel's own; an earlier turn-off is not.
        (|_, running| running.pause().and_then(|()| running.resume()).unwrap(), None),
        (
            |machine, running| {
                machine.set(CONFIG, 0);
                running.pause().unwrap();
            },
            Some(Gap::TurnedOff),
        ),
        // These empty the records, so that nothing is missing after them.
        (
            |machine, running| {
                machine.set(CONFIG, 0);
                running.resume().unwrap();
                assert_eq!(last(running), []);
                record(machine, 0, 0x40_1000, VALID | 0x40_2000);
            },
            None,
        ),
        (
            |machine, running| {
                machine.set(CONFIG, 0);
                running.forget().unwrap();
                record(machine, 0, 0x40_1000, VALID | 0x40_2000);
            },
            None,
        ),
    ];
    for (n, (meanwhile, why)) in table.into_iter().enumerate() {
        let machine = Machine::new(fake::ZEN_4);
        let mut running = start(&machine, BranchConfig::new());
        record(&machine, 0, 0x40_1000, VALID | 0x40_2000);
        meanwhile(&machine, &mut running);
        let mut out = [Recorded::default(); 16];
        match (running.last(&mut out), why) {
            (Ok(last), None) => assert_eq!(last.len(), 1, "{n}"),
            (Err(NotCurrent::Outdated { why, before }), Some(expected)) => {
                assert_eq!((why, before.len()), (expected, 1), "{n}");
                assert_eq!((machine.get(CONFIG), machine.get(SELECT)), (LBR_EN, 0), "{n}: as started");
                assert_eq!(last(&mut running), [], "{n}: it goes on, empty");
            }
            (other, _) => panic!("{n}: {other:?}"),
        }
    }
}

#[test]
fn of_two_units_the_second_is_refused_and_leaves_the_first_on() {
    let machine = Machine::new(fake::ZEN_4);
    let (one, other) = (unit(&machine), unit(&machine));
    let _running = one.start(&BranchConfig::new()).map_err(|failed| failed.error()).unwrap();
    let failed = other.start(&BranchConfig::new()).err().unwrap();
    let in_use = InUse::BranchRecorder { address: CONFIG, control: LBR_EN };
    assert_eq!(failed.error(), StartError::InUse(in_use));
    drop(failed);
    assert_eq!(machine.get(CONFIG), LBR_EN);
}
