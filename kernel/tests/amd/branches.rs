//! Tests of the last branches: the stack of LBR version 2, and branch sampling.

use super::machine::{CODE, Kernel, Machine, PERIOD};
use pugmark_kernel::amd::branches::{BranchConfig, BranchRunning, BranchUnit, Recorded};
use pugmark_kernel::amd::counters::CountedEvent;
use pugmark_kernel::lifecycle::{NotCurrent, NotStarted};
use pugmark_kernel::loss::Gap;
use pugmark_kernel::msr::GeneralProtection;

const WITH_STACK: [&str; 2] = ["zen4", "zen5"];
const SELECT: u32 = 0xc000_010e;
const CONFIG: u32 = 0xc000_010f;
const DEPTH: usize = 16;
/// The distance from a branch of the program to the next one, in bytes and in instructions.
const BLOCK: u64 = 0x20;
const INSTRUCTIONS: u32 = 15;

fn start(machine: &Machine, config: BranchConfig) -> BranchRunning<Machine> {
    let unit = BranchUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.clone()).unwrap();
    unit.start(&config).map_err(|failed| failed.error()).unwrap()
}

/// Returns the program's branches up to the one to `to`, the newest first.
fn up_to(to: u64, count: usize) -> Vec<(u64, u64)> {
    (0..count as u64).map(|n| to - BLOCK * n).map(|to| (to - 0x12, to)).collect()
}

fn last(running: &mut BranchRunning<Machine>) -> Vec<(u64, u64)> {
    let (last, missing) = try_last(running).unwrap();
    assert_eq!(missing, None);
    last
}

/// The recorded branches, and the reason why others are missing after them.
type Read = (Vec<(u64, u64)>, Option<Gap>);

fn try_last(running: &mut BranchRunning<Machine>) -> Result<Read, GeneralProtection> {
    let mut out = [Recorded::default(); DEPTH];
    let (read, missing) = match running.last(&mut out) {
        Ok(last) => (last, None),
        Err(NotCurrent::Outdated { why, before }) => (before, Some(why)),
        Err(NotCurrent::Fault(fault)) => return Err(fault),
    };
    Ok((read.iter().map(|recorded| (recorded.branch.from, recorded.branch.to)).collect(), missing))
}

#[test]
fn a_stack_that_something_else_turned_off_says_so_and_goes_on_empty() {
    for (register, value) in [(CONFIG, 0), (SELECT, 1)] {
        let machine = Machine::new("zen4", 0);
        let mut running = start(&machine, BranchConfig::new());
        machine.run(20 * INSTRUCTIONS);
        let until = machine.ip();
        machine.write(register, value);
        machine.run(50 * INSTRUCTIONS);
        let (found, missing) = try_last(&mut running).unwrap();
        assert_eq!(missing, Some(Gap::TurnedOff));
        assert!(register == SELECT || found == up_to(until, DEPTH), "what there was before");
        machine.run(5 * INSTRUCTIONS);
        assert_eq!(last(&mut running), up_to(machine.ip(), 5), "nothing from before");
    }
}

#[test]
fn the_stack_has_the_newest_branches_first() {
    for profile in WITH_STACK {
        let machine = Machine::new(profile, 0);
        let mut running = start(&machine, BranchConfig::new());
        for (branches, kept) in [(0, 0), (1, 1), (4, 5), (10, 15), (1, 16), (40, 16)] {
            machine.run(branches * INSTRUCTIONS);
            assert_eq!(last(&mut running), up_to(machine.ip(), kept), "{profile}");
        }
        running.forget().unwrap();
        assert_eq!(last(&mut running), []);
        assert_eq!(machine.violations(), Default::default());
    }
}

#[test]
fn entries_that_are_no_branches_are_left_out() {
    let errata = Some(pugmark_model::amd::Errata::LBR_ENTRIES_WITHOUT_BRANCH);
    let machine = Machine::with_errata("zen4", 0, errata);
    let mut running = start(&machine, BranchConfig::new());
    machine.run(40 * INSTRUCTIONS);
    // Two of sixteen entries.
    assert_eq!(last(&mut running), up_to(machine.ip(), DEPTH - 2));
}

#[test]
fn the_stack_leaves_out_levels_and_kinds() {
    use pugmark_kernel::intel::lbr::Classes;
    let all = BranchConfig::new();
    for (config, recorded) in [
        (all.os(false), true),
        (all.user(false), false),
        (all.classes(Classes::NEAR_REL_JMP), true),
        (all.classes(Classes::all() - Classes::NEAR_REL_JMP), false),
    ] {
        let machine = Machine::new("zen4", 0);
        let mut running = start(&machine, config);
        machine.run(2 * INSTRUCTIONS);
        assert_eq!(!last(&mut running).is_empty(), recorded, "{config:?}");
    }
}

#[test]
fn an_overflow_freezes_the_stack_until_it_is_read() {
    for (freezes, skid) in [(true, 3 * INSTRUCTIONS), (false, 3 * INSTRUCTIONS)] {
        let kernel = Kernel::new("zen4", skid);
        let machine = &kernel.machine;
        let mut branches = start(machine, BranchConfig::new().freeze_on_pmi(freezes));
        let event = CountedEvent::new(0xc0, 0).os(false).every(PERIOD.into());
        let _counters = kernel.counters_unit().start(&[event]).map_err(|failed| failed.error()).unwrap();
        assert!(machine.run(2 * PERIOD));
        let at_overflow = CODE + u64::from(PERIOD / INSTRUCTIONS) * BLOCK;
        let newest = if freezes { at_overflow } else { at_overflow + 3 * BLOCK };
        assert_eq!(last(&mut branches), up_to(newest, DEPTH), "freezes: {freezes}");
        machine.run(DEPTH as u32 * INSTRUCTIONS);
        assert_eq!(last(&mut branches), up_to(machine.ip() & !(BLOCK - 1), DEPTH), "it goes on");
    }
}

#[test]
fn branch_sampling_has_sixteen_branches_after_the_overflow() {
    const BRANCHES: u32 = 64;
    let kernel = Kernel::new("zen3", 0);
    let machine = &kernel.machine;
    let mut branches = start(machine, BranchConfig::new());
    let event = CountedEvent::new(0xc4, 0).os(false).every(BRANCHES.into()).on(0);
    let _counters = kernel.counters_unit().start(&[event]).map_err(|failed| failed.error()).unwrap();
    let after = CODE + u64::from(BRANCHES) * BLOCK;
    assert!(!machine.run((BRANCHES + 15) * INSTRUCTIONS), "the interrupt is held back");
    assert!(machine.run(INSTRUCTIONS));
    assert_eq!(last(&mut branches), up_to(after + DEPTH as u64 * BLOCK, DEPTH));
    assert_eq!(last(&mut branches), [], "it began anew");
    assert_eq!(machine.violations(), Default::default());
}

#[test]
fn a_fault_at_each_access_can_be_tried_again() {
    let all = BranchConfig::new();
    for (profile, config) in [("zen3", all), ("zen4", all), ("zen4", all.freeze_on_pmi(true))] {
        for fault in 0.. {
            let machine = Machine::new(profile, 0);
            let unit =
                BranchUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.clone()).unwrap();
            let first = machine.accesses();
            machine.fault_in(fault);
            let mut running = match unit.start(&config) {
                Ok(running) => running,
                Err(NotStarted::Off { unit, .. }) => {
                    unit.start(&config).map_err(|failed| failed.error()).unwrap()
                }
                Err(stuck) => panic!("{profile} access {fault}: {stuck}"),
            };
            machine.run(3 * INSTRUCTIONS);
            let (read, _) = try_last(&mut running).or_else(|_| try_last(&mut running)).unwrap();
            machine.run(INSTRUCTIONS);
            let (again, missing) = try_last(&mut running).or_else(|_| try_last(&mut running)).unwrap();
            if profile == "zen4" {
                assert_eq!(read[..3], up_to(machine.ip() - BLOCK, 3), "{profile} access {fault}");
                // A fault of the second resume: nothing ran since.
                assert!(matches!(missing, None | Some(Gap::Abandoned)), "{profile} access {fault}");
                assert_eq!(again[0], up_to(machine.ip(), 1)[0], "{profile} access {fault}");
            }
            if let Err(failed) = running.stop() {
                failed.running.stop().map_err(|failed| failed.fault).unwrap();
            }
            assert_eq!(machine.msr(0xc000_010f) & (1 << 6 | 1 << 2), 0, "{profile} access {fault}");
            assert!(profile == "zen3" || machine.msr(0x1d9) == 0, "{profile} access {fault}");
            assert_eq!(machine.violations(), Default::default(), "{profile} access {fault}");
            if machine.accesses() - first <= fault {
                break;
            }
        }
    }
}
