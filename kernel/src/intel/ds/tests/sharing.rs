//! Other users at the time when the branch trace store starts and resumes: other recorders, other areas, other tasks.

use super::branches::{EIGHT_SPARE, Numbers, branches, config, drain};
use super::*;
use crate::lifecycle::{InUse, NotBacked, NotStarted, StartError, StopFailed};
use crate::msr::{ApicBase, RtitCtl};

#[test]
fn start_refuses_what_somebody_else_uses() {
    // (register, value, error)
    let table = [
        (DEBUGCTL, 0x1, InUse::BranchRecorder { address: DEBUGCTL, control: 1 }.into()),
        (DEBUGCTL, 0x40, InUse::BranchRecorder { address: DEBUGCTL, control: 0x40 }.into()),
        (RTIT_CTL, 0x2005, InUse::ProcessorTrace { ctl: RtitCtl::from_bits_retain(0x2005) }.into()),
        (DS_AREA, 0x5000, InUse::DebugStore { area: 0x5000 }.into()),
        (0x1b, 0xfee0_0100, StartError::Refused(DsRefusal::ApicOff(ApicBase::from_bits_retain(0xfee0_0100)))),
    ];
    for (register, value, error) in table {
        let machine = DsMachine::of(WITH_PT, 3);
        let unit = machine.unit();
        let area = machine.area(&unit, 100, EIGHT_SPARE);
        machine.set(register, value);
        machine.msr.borrow_mut().writes.clear();
        let failed = unit.start(&config(), area).err().unwrap();
        assert_eq!(failed.error(), error);
        assert_eq!(machine.msr.borrow().writes, []);
        assert_eq!(machine.memory.live(), 2);
        drop(failed);
        assert_eq!(machine.memory.live(), 0);
    }
}

#[test]
fn processor_trace_excludes_branches_only_while_it_traces() {
    let machine = DsMachine::of(WITH_PT, 3);
    machine.set(RTIT_CTL, 0x2004);
    drop(machine.start(100, EIGHT_SPARE));
    machine.set(RTIT_CTL, 0x2005);
    let failed = machine.unit().send_messages().err().unwrap();
    let NotStarted::Off { unit, error, .. } = failed else { panic!("{failed}") };
    assert_eq!(error, InUse::ProcessorTrace { ctl: RtitCtl::from_bits_retain(0x2005) }.into());
    assert_eq!(machine.get(DEBUGCTL), 0);
    drop(unit);
    // Ice Lake: both can record together.
    let machine = DsMachine::of(0x706e5, 3);
    machine.set(RTIT_CTL, 0x2005);
    drop(machine.start(100, EIGHT_SPARE));
}

#[test]
fn a_recording_does_not_go_on_beside_one_that_came_meanwhile() {
    // (register, value)
    for (register, value) in [(RTIT_CTL, 0x2005), (DEBUGCTL, 0x1), (DEBUGCTL, 0xc0)] {
        let machine = DsMachine::of(WITH_PT, 3);
        let mut running = machine.start(100, EIGHT_SPARE);
        let mut sink = Numbers::default();
        machine.branches(0, 10);
        running.suspend().unwrap();
        machine.set(register, value);
        running.resume().unwrap();
        assert_eq!((machine.get(register), running.state(Half::Bts)), (value, Some(DsState::Excluded)));
        // Reported once, however often it is checked.
        assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Excluded));
        assert_eq!(running.loss(Half::Bts), &Loss { excluded: 1, ..Loss::NONE });
        assert_eq!(machine.get(register), value);
        machine.set(register, 0);
        assert_eq!(drain(&mut running, &mut sink), Ok(DsState::Recording));
        machine.branches(10, 10);
        drain(&mut running, &mut sink).unwrap();
        assert_eq!(sink.seen, [branches(0..10), vec![Err(Gap::Excluded)], branches(10..20)].concat());
        assert_eq!(running.loss(Half::Bts).excluded, 1);
    }
}

#[test]
fn a_control_register_that_does_not_hold_its_bits_is_told() {
    for held in [0, 0x40, 0x80, 0xc0] {
        let machine = DsMachine { held, ..DsMachine::new() };
        let unit = machine.unit();
        let area = machine.area(&unit, 100, EIGHT_SPARE);
        let failed = unit.start(&config(), area).err().unwrap();
        assert_eq!(
            failed.error(),
            StartError::NotBacked(NotBacked { address: DEBUGCTL, written: 0x1c0, read: held })
        );
        assert!(matches!(failed, NotStarted::Off { .. }));
        assert_eq!((machine.get(DEBUGCTL), machine.get(DS_AREA)), (0, 0));
    }
}

#[test]
fn an_area_that_was_made_strictly_stays_so() {
    for (strictness, starts) in [(Strictness::Lenient, true), (Strictness::Strict, false)] {
        let machine = DsMachine::new();
        let unit = machine.unit();
        let mode = BufferMode::Interrupt { spare: 170 };
        let plan = AreaPlan::new().bts(BufferPlan { bytes: 24 * 400, page_offset: 0, mode });
        let area = DsArea::allocate(machine.memory.clone(), unit.capabilities(), &plan, strictness).unwrap();
        machine.memory.spoil(|_, _, page| page.as_mut().unwrap().memory_type = MemoryType::Uncacheable);
        let started = unit.start(&config(), area).map_err(|failed| failed.error());
        let warning =
            Warning::NotWriteBack { address: FakeLinear::BASE, memory_type: MemoryType::Uncacheable };
        match started {
            Ok(_) => assert!(starts),
            Err(error) => assert_eq!(
                (error, starts),
                (StartError::Refused(DsRefusal::Area(AreaError::Warning(warning))), false)
            ),
        }
    }
}

#[test]
fn an_address_space_that_is_made_later_is_checked_too() {
    let machine = DsMachine::new();
    let unit = machine.unit();
    let area = machine.area(&unit, 100, EIGHT_SPARE);
    machine.memory.set_spaces(3);
    machine.memory.spoil(|space, _, page| {
        if space == 2 {
            *page = None;
        }
    });
    let error = unit.start(&config(), area).err().unwrap().error();
    assert!(matches!(error, StartError::Refused(DsRefusal::Area(_))), "{error}");
}

#[test]
fn an_area_of_the_other_layout_is_refused() {
    let (narrow, machine) = (DsMachine::narrow(), DsMachine::new());
    let area = narrow.area(&narrow.unit(), 100, EIGHT_SPARE);
    let failed = machine.unit().start(&config(), area).err().unwrap();
    assert_eq!((failed.error(), machine.get(DEBUGCTL)), (StartError::Refused(DsRefusal::OtherLayout), 0));
}

#[test]
fn tasks_take_turns_and_move_each_with_its_own_area() {
    let first = DsMachine::new();
    let second = DsMachine { memory: first.memory.clone(), ..DsMachine::new() };
    let area = || Some(first.area(&first.unit(), 100, EIGHT_SPARE));
    let mut areas = [area(), area()];
    let mut seen = [vec![], vec![]];
    // (processor, task) of each turn.
    let turns = [(0, &first), (1, &first), (0, &second), (1, &first), (0, &first), (1, &second)];
    for (turn, (task, machine)) in (0..).zip(turns) {
        let area = areas[task].take().unwrap();
        let mut running = machine.unit().start(&config(), area).map_err(|failed| failed.error()).unwrap();
        machine.branches(10 * turn, 5);
        // Another task runs on the processor meanwhile, and is not recorded.
        running.suspend().unwrap();
        machine.branches(1000, 5);
        running.resume().unwrap();
        machine.branches(10 * turn + 5, 5);
        let mut sink = Numbers::default();
        drain(&mut running, &mut sink).unwrap();
        seen[task].extend(sink.seen);
        let stopped = running.stop().map_err(|failed| failed.fault).unwrap();
        assert!(stopped.records.loss(Half::Bts).is_none());
        areas[task] = Some(stopped.records.into_area());
        assert_eq!([&first, &second].map(|machine| machine.get(DS_AREA)), [0, 0]);
    }
    assert_eq!(seen[0], [branches(0..10), branches(20..30), branches(40..50)].concat());
    assert_eq!(seen[1], [branches(10..20), branches(30..40), branches(50..60)].concat());
}

#[test]
fn messages_alone_need_no_memory() {
    let machine = DsMachine::of(0xf41, 0);
    let messages = machine.unit().send_messages().map_err(|failed| failed.error()).unwrap();
    assert_eq!((machine.get(DEBUGCTL), machine.get(DS_AREA)), (0x4, 0));
    let unit = messages.stop().map_err(|failed| failed.fault).unwrap();
    assert_eq!(machine.get(DEBUGCTL), 0);
    machine.set(DEBUGCTL, 0x4);
    let error = unit.send_messages().err().unwrap().error();
    assert_eq!(error, InUse::BranchRecorder { address: DEBUGCTL, control: 4 }.into());
}

#[test]
fn messages_end_when_they_are_dropped_and_can_be_stopped_again() {
    let machine = DsMachine::new();
    machine.set(DEBUGCTL, 0x2);
    let mut messages = machine.unit().send_messages().map_err(|failed| failed.error()).unwrap();
    assert_eq!(machine.get(DEBUGCTL), 0x42);
    for nth in 0..2 {
        machine.msr.borrow_mut().fault_in(nth);
        let StopFailed { running: back, fault } = messages.stop().err().unwrap();
        assert_eq!((fault.address, machine.get(DEBUGCTL)), (DEBUGCTL, 0x42), "{nth}");
        messages = back;
    }
    drop(messages);
    assert_eq!((machine.get(DEBUGCTL), machine.get(DS_AREA)), (0x2, 0));
    for nth in 0..4 {
        let unit = machine.unit();
        machine.msr.borrow_mut().fault_in(nth);
        let error = unit.send_messages().err().unwrap().error();
        assert!(matches!(error, StartError::Fault(_)), "{nth}");
        assert_eq!(machine.get(DEBUGCTL), 0x2);
    }
}
