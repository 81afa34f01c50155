//! Intel's counters on the model: counts, other owners, and faults at each access.

mod common;

use common::{Collector, Machine, Registers};
use pugmark_kernel::intel::counters::{IntelCounterRunning, IntelCounterUnit, IntelEvent};
use pugmark_kernel::intel::pt::{Layout, Mode, RegionSize};
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::msr::Msr;
use pugmark_kernel::pmi::Pmi;
use pugmark_model::intel::IntelSettings;

/// Profiles from version 2 of architectural performance monitoring on.
const PROFILES: [&str; 5] = ["core2", "nehalem", "broadwell", "skylake", "icelake"];
const GLOBAL_CTRL: u32 = 0x38f;
/// Of user code: the driver's own accesses interrupt it.
const EVENTS: [IntelEvent; 2] = [IntelEvent::INSTRUCTIONS.os(false), IntelEvent::BRANCHES.os(false)];

fn machine(profile: &str) -> Machine {
    Machine::new(profile, IntelSettings::default())
}

fn unit(machine: &Machine) -> IntelCounterUnit<Registers> {
    IntelCounterUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers()).unwrap()
}

fn start(machine: &Machine, events: &[IntelEvent]) -> IntelCounterRunning<Registers> {
    unit(machine).start(events).map_err(|failed| failed.error()).unwrap()
}

fn write(machine: &Machine, register: u32, value: u64) {
    // SAFETY: the registers stand for no hardware.
    unsafe { machine.registers().wrmsr(register, value) }.unwrap();
}

#[test]
fn counts_are_those_of_the_program() {
    for profile in PROFILES {
        let machine = machine(profile);
        machine.run(77);
        let [instructions, branches] = EVENTS;
        let events = [instructions, branches, IntelEvent::BRANCHES, IntelEvent::BRANCHES.user(false)];
        // The oldest one has two counters of general purpose.
        let events = if profile == "core2" { &events[..2] } else { &events };
        let mut running = start(&machine, events);
        machine.run(10_000);
        assert_eq!(running.count(0), Ok(Some(10_000)), "{profile}");
        machine.run(5);
        let stopped = running.stop().unwrap();
        machine.run(1000);
        // The IRET after the start is a branch of the kernel's.
        assert_eq!(stopped.totals(), &[10_005, 10_005, 10_006, 1][..events.len()], "{profile}");
        assert!(!stopped.turned_off, "{profile}");
        assert_eq!(machine.violations(), Default::default(), "{profile}");
        // The unit can be used again, and begins at 0.
        let running = stopped.unit.start(&EVENTS).map_err(|failed| failed.error()).unwrap();
        machine.run(3);
        assert_eq!(running.stop().unwrap().totals(), [3, 3], "{profile}");
    }
}

#[test]
fn counters_wrap_and_are_continued() {
    let machine = machine("skylake");
    let mut running = start(&machine, &EVENTS);
    machine.run(40);
    assert_eq!(running.count(0), Ok(Some(40)));
    for wraps in 1..4_u64 {
        // IA32_FIXED_CTR0, and IA32_A_PMC0.
        [0x309, 0x4c1].into_iter().for_each(|register| write(&machine, register, (1 << 48) - 10));
        machine.run(25);
        assert_eq!(running.count(0), Ok(Some((wraps << 48) + 15)));
        assert_eq!(running.count(1), Ok(Some((wraps << 48) + 15)));
    }
    [0x309, 0x4c1].into_iter().for_each(|register| write(&machine, register, (1 << 48) - 1));
    machine.run(1);
    assert_eq!(running.stop().unwrap().totals(), [4 << 48; 2], "also where only the stop sees it");
}

#[test]
fn registers_are_as_before_and_others_count_on() {
    let machine = machine("skylake");
    // Another owner counts branches with counter 0.
    write(&machine, 0x186, 0x41_00c4);
    let before = machine.msr(GLOBAL_CTRL);
    let running = start(&machine, &EVENTS);
    machine.run(100);
    assert_eq!(running.stop().unwrap().totals(), [100, 100]);
    assert_eq!(machine.msr(0xc1), 100);
    assert_eq!(machine.msr(GLOBAL_CTRL), before);
    assert_eq!([0x187, 0x188, 0x189, 0x38d].map(|register| machine.msr(register)), [0; 4]);
    // Dropped instead of stopped: the same.
    drop(start(&machine, &EVENTS));
    machine.run(100);
    assert_eq!(machine.msr(0xc1), 200);
    assert_eq!(machine.msr(GLOBAL_CTRL), before);
    assert_eq!([0x187, 0x38d].map(|register| machine.msr(register)), [0; 2]);
}

#[test]
fn counts_that_are_too_low_are_told() {
    let machine = machine("skylake");
    let running = start(&machine, &EVENTS);
    machine.run(10);
    write(&machine, GLOBAL_CTRL, 0);
    machine.run(10);
    let stopped = running.stop().unwrap();
    assert!(stopped.turned_off);
    assert_eq!(stopped.totals(), [10, 10]);
    let running = stopped.unit.start(&EVENTS).map_err(|failed| failed.error()).unwrap();
    machine.run(10);
    // CTR_FRZ, by IA32_PERF_GLOBAL_STATUS_SET: a PMI has frozen the counters.
    write(&machine, 0x391, 1 << 59);
    let stopped = running.stop().unwrap();
    assert!(stopped.turned_off);
    write(&machine, 0x390, 1 << 59);
    let stopped = stopped.unit.start(&EVENTS).map_err(|failed| failed.error()).unwrap().stop().unwrap();
    assert!(!stopped.turned_off, "a new session knows nothing of it");
}

#[test]
fn a_fault_at_any_access_leaves_nothing_on() {
    let mut faults = 0;
    for access in 0.. {
        let machine = machine("icelake");
        let unit = unit(&machine);
        machine.fault_in(access);
        let running = match unit.start(&EVENTS) {
            Ok(running) => running,
            Err(failed) => {
                faults += 1;
                drop(failed);
                assert_eq!(
                    [0x186, 0x38d].map(|register| machine.msr(register)),
                    [0; 2],
                    "start, access {access}"
                );
                continue;
            }
        };
        machine.run(50);
        let stopped = match running.stop() {
            Ok(stopped) => stopped,
            Err(failed) => {
                faults += 1;
                failed.running.stop().unwrap()
            }
        };
        assert_eq!(stopped.totals(), [50, 50], "access {access}");
        assert!(!stopped.turned_off, "access {access}: a second stop finds what the first one left");
        assert_eq!([0x186, 0x38d].map(|register| machine.msr(register)), [0; 2], "stop, access {access}");
        if machine.cancel() {
            break;
        }
    }
    assert!(faults > 20, "{faults}");
}

#[test]
fn two_sessions_at_once_have_counters_of_their_own_and_stop_in_any_order() {
    for first_stops_first in [true, false] {
        let machine = machine("skylake");
        let before = machine.msr(GLOBAL_CTRL);
        let one = start(&machine, &EVENTS);
        machine.run(10);
        let two = start(&machine, &EVENTS);
        machine.run(100);
        let (one, two) = if first_stops_first {
            let one = one.stop().unwrap();
            machine.run(1000);
            (one, two.stop().unwrap())
        } else {
            let two = two.stop().unwrap();
            machine.run(1000);
            (one.stop().unwrap(), two)
        };
        let expected = if first_stops_first { (110, 1100) } else { (1110, 100) };
        assert_eq!((one.totals(), two.totals()), (&[expected.0; 2][..], &[expected.1; 2][..]));
        assert!(!one.turned_off && !two.turned_off, "each leaves the other's counters on");
        assert_eq!(machine.msr(GLOBAL_CTRL), before, "first stops first: {first_stops_first}");
    }
}

#[test]
fn a_counter_that_wraps_while_a_trace_is_served_loses_nothing_and_disturbs_no_pmi() {
    let machine = machine("skylake");
    let mut handler = machine.handler();
    machine.arm(Delivery::Nmi).unwrap();
    let mut counters = start(&machine, &EVENTS);
    let layout = Layout::topa(RegionSize::K4, 4);
    let mut trace = machine.start(layout, Mode::StopWhenFull { spare: 1 });
    let mut sink = Collector::new();
    // IA32_FIXED_CTR0 and IA32_A_PMC0 overflow after ten instructions, long before the first PMI.
    [0x309, 0x4c1].into_iter().for_each(|register| write(&machine, register, (1 << 48) - 10));
    let served = machine.run_with(30_000, &mut handler, &mut trace.source(&mut sink));
    assert!(!served.is_empty() && served.iter().all(|pmi| *pmi == Pmi::Served), "{served:?}");
    for event in 0..2 {
        assert_eq!(counters.count(event), Ok(Some((1 << 48) - 10 + 30_000)));
    }
    let stopped = counters.stop().unwrap();
    assert!(!stopped.turned_off);
    assert!(trace.stop().unwrap().loss.is_none());
}
