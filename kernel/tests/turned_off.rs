//! A unit that the processor or another owner turns off unseen is noticed, reported, and turned on again.

mod common;

use common::store::{CIRCULAR, INTERRUPT, PERIOD, Recording, What, sampled, targets};
use common::{Collector, Machine, Registers, assert_same, tips};
use pugmark_kernel::intel::ds::{DsState, DsUnit, Half};
use pugmark_kernel::intel::lbr::{Branch, LbrConfig, LbrRunning, LbrUnit};
use pugmark_kernel::intel::pt::{Layout, Mode, PtState, RegionSize};
use pugmark_kernel::lifecycle::{InUse, NotCurrent};
use pugmark_kernel::loss::{Gap, Loss};
use pugmark_kernel::msr::Msr;
use pugmark_model::intel::IntelSettings;

const DEBUGCTL: u32 = 0x1d9;
const GLOBAL_CTRL: u32 = 0x38f;
const PEBS_ENABLE: u32 = 0x3f1;
const DS_AREA: u32 = 0x600;

fn machine(profile: &str) -> Machine {
    Machine::new(profile, IntelSettings::default())
}

fn with_vmx() -> Machine {
    Machine::with_vmx("skylake", IntelSettings::default(), false)
}

fn store(machine: &Machine) -> DsUnit<Registers> {
    DsUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers()).unwrap()
}

fn record(machine: &Machine, what: What) -> Recording<'_> {
    let unit = store(machine);
    let area = machine.area(&unit, what);
    unit.start(&what.config("skylake"), area).map_err(|failed| failed.error()).unwrap()
}

fn lbr(machine: &Machine) -> LbrRunning<Registers> {
    let unit = LbrUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers()).unwrap();
    unit.start(&LbrConfig::new().os(false)).map_err(|failed| failed.error()).unwrap()
}

fn write(machine: &Machine, register: u32, value: u64) {
    // SAFETY: the registers stand for no hardware.
    unsafe { machine.registers().wrmsr(register, value) }.unwrap();
}

#[test]
fn a_trace_that_vmxon_turned_off_between_two_drains_has_a_gap_there() {
    let machine = machine("broadwell");
    let mut trace = machine.start(Layout::topa(RegionSize::K64, 1), Mode::StopWhenFull { spare: 0 });
    machine.run(10);
    machine.vmxon();
    machine.run(50);
    machine.vmxoff();
    machine.run(50);
    let mut collector = Collector::new();
    assert_eq!(trace.drain(&mut collector), Ok(PtState::Tracing));
    assert_eq!(*trace.loss(), Loss { turned_off: 1, ..Loss::NONE });
    machine.run(10);
    let stopped = trace.stop().map_err(|_| "stop").unwrap();
    collector.finish(&stopped.trace);
    assert_eq!(collector.gaps, [Gap::TurnedOff]);
    assert_same(&tips(&collector.stretches[0]), &machine.executed()[..10], "before VMXON");
    assert_same(&tips(&collector.stretches[1]), &machine.executed()[110..], "after the drain");
}

#[test]
fn branch_records_that_a_vm_exit_ended_have_a_gap_and_go_on() {
    for what in [INTERRUPT, CIRCULAR] {
        let machine = with_vmx();
        let mut running = record(&machine, what);
        machine.run(10);
        machine.vm_exit();
        machine.run(50);
        let (mut branches, mut samples) = (Collector::new(), Collector::new());
        running.drain(&mut branches, &mut samples).unwrap();
        assert_eq!(branches.gaps, [Gap::TurnedOff], "{what:?}");
        assert_eq!(*running.loss(Half::Bts), Loss { turned_off: 1, ..Loss::NONE }, "{what:?}");
        assert_same(&targets(&branches), &machine.executed()[..10], "before the VM exit");
        machine.run(20);
        let mut branches = Collector::new();
        running.drain(&mut branches, &mut samples).unwrap();
        let found = targets(&branches);
        let expected = machine.executed();
        assert_same(&found[found.len() - 20..], &expected[60..], "after the drain");
    }
}

#[test]
fn samples_that_stopped_with_the_global_control_have_a_gap_and_go_on() {
    for (register, value) in [(GLOBAL_CTRL, 0), (PEBS_ENABLE, 0)] {
        let machine = machine("skylake");
        let format = store(&machine).capabilities().pebs.unwrap().format;
        let mut running = record(&machine, What::Samples);
        machine.run(1000);
        write(&machine, register, value);
        machine.run(3000);
        let (mut branches, mut samples) = (Collector::new(), Collector::new());
        running.drain(&mut branches, &mut samples).unwrap();
        assert_eq!(samples.gaps, [Gap::TurnedOff], "{register:#x}");
        assert_eq!(running.loss(Half::Pebs).turned_off, 1);
        machine.run(1000);
        let mut samples = Collector::new();
        running.drain(&mut branches, &mut samples).unwrap();
        assert!(sampled(&samples, format).len() as u64 >= 1000 / PERIOD - 1);
        assert_eq!(samples.gaps, []);
    }
}

/// Returns the targets of the last branches, the oldest first; or of those before the records were off.
fn last(running: &mut LbrRunning<Registers>) -> Result<Vec<u64>, Vec<u64>> {
    let targets = |branches: &[Branch]| branches.iter().rev().map(|branch| branch.to).collect();
    match running.last(&mut [Branch::default(); 32]) {
        Ok(branches) => Ok(targets(branches)),
        Err(NotCurrent::Outdated { why, before }) => {
            assert_eq!(why, Gap::TurnedOff);
            Err(targets(before))
        }
        Err(NotCurrent::Fault(fault)) => panic!("{fault}"),
    }
}

#[test]
fn last_branches_say_that_a_vm_exit_or_a_debug_exception_turned_them_off() {
    type Event = fn(&Machine);
    let another: Event = |machine| write(machine, 0x1c8, 0);
    for (event, goes_on) in
        [(Machine::vm_exit as Event, false), (Machine::debug_exception, false), (another, true)]
    {
        let machine = with_vmx();
        let mut running = lbr(&machine);
        machine.run(10);
        event(&machine);
        machine.run(50);
        let found = last(&mut running).unwrap_err();
        if !goes_on {
            // The first branch is the return to the program.
            assert_same(&found[found.len() - 10..], &machine.executed()[..10], "what led there");
        }
        machine.run(5);
        let found = last(&mut running).unwrap();
        assert_same(&found[found.len() - 5..], &machine.executed()[60..], "what came since");
        assert!(found.len() <= 6, "nothing from before: {found:x?}");
    }
}

#[test]
fn a_guest_runs_without_records_and_nothing_is_missing_around_it() {
    let machine = with_vmx();
    let mut running = record(&machine, INTERRUPT);
    machine.run(10);
    let area = machine.msr(DS_AREA);
    running
        .run_guest(|| {
            assert_eq!((machine.msr(DEBUGCTL), machine.msr(DS_AREA)), (0, area), "no record in the guest");
            machine.vm_exit();
        })
        .unwrap();
    machine.run(10);
    // One that is suspended stays so.
    running.suspend().unwrap();
    running.run_guest(|| machine.vm_exit()).unwrap();
    assert_eq!(running.state(Half::Bts), Some(DsState::Suspended));
    machine.run(10);
    running.resume().unwrap();
    machine.run(10);
    let (mut branches, mut samples) = (Collector::new(), Collector::new());
    running.drain(&mut branches, &mut samples).unwrap();
    let ran = machine.executed();
    assert_eq!((branches.gaps.len(), *running.loss(Half::Bts)), (0, Loss::NONE));
    assert_same(&targets(&branches), &[&ran[..20], &ran[30..]].concat(), "the host");
}

#[test]
fn a_guest_is_not_entered_while_the_store_cannot_be_stopped() {
    let machine = with_vmx();
    let mut running = record(&machine, INTERRUPT);
    machine.fault_in(0);
    running.run_guest(|| panic!("records would go to the guest's memory")).unwrap_err();
}

#[test]
fn last_branches_and_a_debug_store_that_firmware_left_on_are_taken_over() {
    let machine = machine("skylake");
    let cpuid = |leaf, subleaf| machine.cpuid(leaf, subleaf);
    write(&machine, DEBUGCTL, 1);
    let (unit, left_on) = LbrUnit::take_over(cpuid, machine.registers()).unwrap();
    assert_eq!(left_on, Some(InUse::BranchRecorder { address: DEBUGCTL, control: 1 }));
    assert_eq!(machine.msr(DEBUGCTL), 0);
    drop(unit.start(&LbrConfig::new()).map_err(|failed| failed.error()).unwrap());
    assert_eq!(LbrUnit::take_over(cpuid, machine.registers()).unwrap().1, None, "off already");

    write(&machine, DS_AREA, 0x5000);
    write(&machine, DEBUGCTL, 0x1);
    write(&machine, 0x186, 0x41_00c0);
    write(&machine, PEBS_ENABLE, 1);
    let (unit, left_on) = DsUnit::take_over(cpuid, machine.registers()).unwrap();
    let left_on = left_on.unwrap();
    assert_eq!((left_on.control, left_on.area, left_on.pebs_enable), (1, 0x5000, 1));
    let left = [DEBUGCTL, DS_AREA, PEBS_ENABLE, 0x186].map(|register| machine.msr(register));
    assert_eq!(left, [0; 4]);
    let area = machine.area(&unit, What::Both);
    drop(unit.start(&What::Both.config("skylake"), area).map_err(|failed| failed.error()).unwrap());
    assert_eq!(DsUnit::take_over(cpuid, machine.registers()).unwrap().1, None, "off already");
}
