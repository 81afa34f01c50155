//! On any failure, memory is neither leaked nor written after it was freed.

mod common;

use common::{Collector, Machine, user_code};
use pugmark_kernel::intel::pt::{Buffer, BufferError, Layout, Mode};
use pugmark_kernel::intel::pt::{PtState, PtUnit};
use pugmark_kernel::intel::pt::{RegionSize, TopaError};
use pugmark_kernel::lapic::Delivery;
use pugmark_kernel::lifecycle::{NotStarted, StopFailed};
use pugmark_kernel::loss::Loss;
use pugmark_kernel::pmi::{Abandoned, Handler, PmiSource};
use pugmark_model::intel::IntelSettings;

/// The progress of a lifetime with a fault.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Came {
    Nowhere,
    ToTheStart,
    ToTheStop,
    ThroughIt,
}

#[test]
fn each_access_that_faults_in_turn_leaves_memory_with_its_owner() {
    for (profile, mode) in [
        ("skylake", Mode::StopWhenFull { spare: 1 }),
        ("skylake", Mode::Circular { interrupt_every: 1 }),
        ("skylake", Mode::Overwrite),
        ("broadwell", Mode::StopWhenFull { spare: 1 }),
    ] {
        let machine = Machine::new(profile, IntelSettings::default());
        assert_eq!(live(&machine, mode), Came::ThroughIt);
        let accesses = machine.accesses();
        let mut came = Vec::new();
        for access in 0..accesses {
            let machine = Machine::new(profile, IntelSettings::default());
            machine.fault_in(access);
            came.push(live(&machine, mode));
            let what = format!("{profile} {mode:?} access {access} of {accesses}");
            assert!(machine.accesses() > access, "{what}: the fault was met");
            match machine.is_tracing() {
                true => assert_eq!(machine.ram.live(), LIVE, "{what}: memory was freed under a running unit"),
                false => assert_eq!(machine.ram.live(), 0, "{what}: memory was not given back"),
            }
            assert_eq!(*machine.ram.strays.borrow(), [], "{what}");
            assert_eq!(machine.violations().live_table_edits, 0, "{what}");
        }
        for end in [Came::Nowhere, Came::ToTheStart, Came::ToTheStop] {
            assert!(came.contains(&end), "{profile} {mode:?}: {end:?}");
        }
    }
}

#[test]
fn a_fault_in_the_handler_is_reported_and_the_trace_can_be_drained_and_go_on() {
    let quiet = Machine::new("skylake", IntelSettings::default());
    let accesses = handle_one(&quiet, None).1;
    let mut unreported = 0;
    for access in 0..accesses {
        let machine = Machine::new("skylake", IntelSettings::default());
        let (fault, _) = handle_one(&machine, Some(access));
        unreported += u32::from(!fault);
        assert_eq!(*machine.ram.strays.borrow(), []);
    }
    // The check for other recorders: a processor without IA32_DEBUGCTL has none.
    assert_eq!(unreported, 1);
}

#[test]
fn a_stop_that_faults_gives_the_running_trace_back() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let tracing = machine.start(LAYOUT, Mode::StopWhenFull { spare: 1 });
    machine.run(10);
    // After the two reads that show the owner of the trace.
    machine.fault_in(2);
    let Err(StopFailed { running, fault }) = tracing.stop() else { panic!("the stop fails") };
    assert_eq!((fault.address, fault.written.map(|ctl| ctl & 1)), (0x570, Some(0)));
    assert!(machine.is_tracing());
    machine.run(10);
    let stopped = running.stop().map_err(|_| "stop").unwrap();
    let mut collector = Collector::new();
    collector.finish(&stopped.trace);
    assert_eq!(common::tips(collector.whole()), machine.jumps());
}

#[test]
fn a_stop_that_cannot_read_the_end_gives_unit_and_buffer_back() {
    for read in 3..=5 {
        let machine = Machine::new("skylake", IntelSettings::default());
        let tracing = machine.start(LAYOUT, Mode::StopWhenFull { spare: 1 });
        machine.fault_in(read);
        let Err(failed) = tracing.stop() else { panic!("the read fails") };
        assert!(!machine.is_tracing());
        assert_eq!(failed.running.state(), PtState::Abandoned(Abandoned::Fault(failed.fault)));
        let (unit, buffer) = failed.give_up().unwrap();
        let again = unit.start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
        drop(again);
        assert_eq!(machine.ram.live(), 0);
    }
}

#[test]
fn a_start_that_can_neither_go_on_nor_back_keeps_the_memory_with_the_unit() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let unit = machine.unit();
    let buffer = machine.buffer(LAYOUT, Mode::StopWhenFull { spare: 1 });
    // The accesses up to the one that sets TraceEn; then the check of STATUS faults, and so does the way back.
    let before = machine.accesses();
    drop(
        machine.unit().start(&user_code(), machine.buffer(LAYOUT, Mode::StopWhenFull { spare: 1 })).unwrap(),
    );
    let whole = machine.accesses() - before - DETECTION;
    let blocks = machine.ram.live();
    machine.faults_in(whole - 1 - STOP, 2);
    let failed = unit.start(&user_code(), buffer).unwrap_err();
    let NotStarted::Stuck { running, fault, .. } = failed else { panic!("it is stuck: {}", failed.error()) };
    assert_eq!(fault.address, 0x570);
    assert!(machine.is_tracing());
    assert_eq!(machine.ram.live(), blocks);
    // Later the trace can be stopped.
    machine.run(10);
    drop(running);
    assert!(!machine.is_tracing());
    assert_eq!(machine.ram.live(), 0);
}

#[test]
fn each_allocation_that_fails_in_turn_gives_back_the_others() {
    let layouts = [
        (Layout::SingleRange { bytes: 0x4000 }, Mode::Overwrite, 1),
        (LAYOUT, Mode::StopWhenFull { spare: 1 }, 2 + 4),
        (Layout::contiguous_topa(RegionSize::K4, 4), Mode::Overwrite, 1 + 3),
    ];
    for (layout, mode, allocations) in layouts {
        for fail_at in 0..=allocations {
            let machine = Machine::new("skylake", IntelSettings::default());
            machine.ram.fail_at.set(Some(fail_at));
            let made = Buffer::allocate(&*machine.ram, &machine.capabilities(), layout, mode);
            match fail_at == allocations {
                true => assert!(made.is_ok()),
                false => {
                    assert!(matches!(made, Err(BufferError::Topa(TopaError::NoMemory(_)))), "{layout:?}")
                }
            }
            drop(made);
            assert_eq!(machine.ram.live(), 0, "{layout:?} {fail_at}");
        }
    }
}

const LAYOUT: Layout =
    Layout::Topa { size: RegionSize::K4, regions: 4, regions_per_table: 3, contiguous: false };
/// The number of accesses of a detection.
const DETECTION: u32 = 5;
/// The accesses that a stop by a drop takes: two reads and the write that halts; three reads and four writes restore
/// the registers found at the start.
const STOP: u32 = 3 + 7;
/// The number of blocks of a buffer that is kept: its regions' block and a table.
const LIVE: usize = 2;

/// Detects, starts, serves PMIs, drains and stops; drops everything at the first fault.
fn live(machine: &Machine, mode: Mode) -> Came {
    let (regions, layout) = match mode {
        Mode::StopWhenFull { .. } if machine.capabilities().ecx & 2 == 0 => {
            (1, Layout::topa(RegionSize::K4, 1))
        }
        _ => (2, Layout::contiguous_topa(RegionSize::K4, 2)),
    };
    let Ok(unit) = PtUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers()) else {
        return Came::Nowhere;
    };
    let buffer = machine.buffer(layout, mode);
    let mut running = match unit.start(&user_code(), buffer) {
        Ok(running) => running,
        Err(failed) => {
            if let NotStarted::Off { unit, memory: buffer, .. } = failed {
                // The returned values can be used for another start.
                let again = unit.start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
                machine.run(10);
                drop(again);
            }
            return Came::ToTheStart;
        }
    };
    let mut handler = Handler::new(Delivery::Nmi);
    if machine.arm(Delivery::Nmi).is_err() {
        return Came::ToTheStop;
    }
    let mut collector = Collector::new();
    for _ in 0..4000 {
        if machine.jump().is_some() {
            let (mut msr, mut apic) = (machine.registers(), machine.registers());
            let source = &mut running.source(&mut collector);
            if handler.handle(&mut msr, &mut apic, &mut [source]).is_err() {
                return Came::ToTheStop;
            }
        }
    }
    if running.drain(&mut collector).is_err() {
        return Came::ToTheStop;
    }
    machine.run(regions * 100);
    match running.stop() {
        Ok(_) => Came::ThroughIt,
        Err(_) => Came::ToTheStop,
    }
}

#[test]
fn a_trace_that_its_handler_gives_up_says_so_and_goes_on_at_the_next_drain() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut tracing = machine.start(LAYOUT, Mode::StopWhenFull { spare: 1 });
    let mut collector = Collector::new();
    machine.run(100);
    tracing.source(&mut collector).abandon(Abandoned::Stuck);
    assert!(!machine.is_tracing());
    assert_eq!(tracing.state(), PtState::Abandoned(Abandoned::Stuck));
    assert_eq!(tracing.loss(), &Loss { abandoned: 1, ..Loss::NONE });
    assert!(!tracing.loss().is_none());
    // Giving up a second time counts nothing.
    tracing.source(&mut collector).abandon(Abandoned::Stuck);
    assert_eq!(tracing.drain(&mut collector), Ok(PtState::Tracing));
    assert_eq!(tracing.loss().abandoned, 1);
    assert!(machine.is_tracing());
}

#[test]
fn a_trace_that_does_not_let_itself_be_stopped_is_not_given_up() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut tracing = machine.start(LAYOUT, Mode::StopWhenFull { spare: 1 });
    machine.fault_in(0);
    tracing.source(&mut Collector::new()).abandon(Abandoned::Stuck);
    assert!(machine.is_tracing());
    assert_eq!((tracing.state(), tracing.loss()), (PtState::Tracing, &Loss::NONE));
}

/// Serves one PMI with a fault at an access, then drains and continues the trace. Returns whether the fault was
/// reported, and the handler's number of accesses.
fn handle_one(machine: &Machine, fault_in: Option<u32>) -> (bool, u32) {
    let mut handler = machine.handler();
    let mut tracing = machine.start(LAYOUT, Mode::StopWhenFull { spare: 1 });
    let mut collector = Collector::new();
    machine.jump_until_pmi();
    let before = machine.accesses();
    if let Some(accesses) = fault_in {
        machine.fault_in(accesses);
    }
    let (mut msr, mut apic) = (machine.registers(), machine.registers());
    let served = handler.handle(&mut msr, &mut apic, &mut [&mut tracing.source(&mut collector)]);
    let accesses = machine.accesses() - before;
    tracing.drain(&mut collector).unwrap();
    machine.arm(Delivery::Nmi).unwrap();
    machine.run_with(3000, &mut handler, &mut tracing.source(&mut collector));
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    collector.finish(&stopped.trace);
    let mut got = Vec::new();
    for stretch in &collector.stretches {
        got.extend(common::tips(stretch));
    }
    assert!(got.len() > 3000 && machine.jumps().ends_with(&got[got.len() - 3000..]), "{fault_in:?}");
    (served.is_err(), accesses)
}
