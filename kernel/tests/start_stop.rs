//! A trace is started, stopped or dropped; it owns its memory while it runs.

mod common;

use common::{Collector, Machine, assert_same, tips, user_code};
use pugmark_kernel::drain::Chunk;
use pugmark_kernel::intel::pt::PtConfig;
use pugmark_kernel::intel::pt::RegionSize;
use pugmark_kernel::intel::pt::VmxTracing;
use pugmark_kernel::intel::pt::{Layout, Mode};
use pugmark_kernel::intel::pt::{PtRefusal, PtState, PtUnit, emergency_stop};
use pugmark_kernel::lifecycle::{Absent, InUse, NotStarted, StartError};
use pugmark_kernel::loss::{Gap, Loss};
use pugmark_kernel::msr::Msr;
use pugmark_model::intel::IntelSettings;

const FULL: Mode = Mode::StopWhenFull { spare: 1 };

#[test]
fn a_trace_has_each_jump_between_start_and_stop() {
    for profile in ["broadwell", "skylake", "icelake", "sapphire-rapids"] {
        let machine = Machine::new(profile, IntelSettings::default());
        let tracing = machine.start(Layout::topa(RegionSize::K64, 4), FULL);
        assert!(machine.is_tracing());
        machine.run(1000);
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        assert!(!machine.is_tracing());
        let mut collector = Collector::new();
        collector.finish(&stopped.trace);
        assert!(collector.whole().starts_with(&[0x02, 0x82]), "{profile}: a PSB comes first");
        assert_same(&tips(collector.whole()), &machine.jumps(), profile);
        assert_eq!(stopped.loss, Loss::NONE);
        drop(stopped);
        assert_eq!(machine.ram.live(), 0);
        assert_clean(&machine);
    }
}

#[test]
fn unit_and_buffer_trace_again_after_a_stop() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut unit = machine.unit();
    let mut buffer = machine.buffer(Layout::contiguous_topa(RegionSize::K4, 4), FULL);
    let mut before = 0;
    for _ in 0..3 {
        let tracing = unit.start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
        machine.run(50);
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        let mut collector = Collector::new();
        collector.finish(&stopped.trace);
        assert!(collector.whole().starts_with(&[0x02, 0x82]));
        assert_same(&tips(collector.whole()), &machine.jumps()[before..], "again");
        before = machine.jumps().len();
        unit = stopped.unit;
        buffer = stopped.trace.into_buffer();
    }
    drop(buffer);
    assert_eq!(machine.ram.live(), 0);
    assert_clean(&machine);
}

#[test]
fn dropping_a_running_trace_stops_it_and_gives_its_memory_back() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let tracing = machine.start(Layout::topa(RegionSize::K4, 4), FULL);
    machine.run(10);
    drop(tracing);
    assert!(!machine.is_tracing());
    assert_eq!(machine.ram.live(), 0);
    machine.run(10_000);
    assert_clean(&machine);
}

#[test]
fn a_running_trace_that_cannot_be_stopped_keeps_its_memory_for_ever() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let tracing = machine.start(Layout::topa(RegionSize::K4, 4), FULL);
    machine.fault_in(0);
    drop(tracing);
    assert!(machine.is_tracing());
    assert_eq!(machine.ram.live(), 1 + 4);
    machine.run(10_000);
    assert_clean(&machine);
}

#[test]
fn a_small_single_range_holds_what_was_traced_last() {
    let machine = Machine::new("skylake", IntelSettings::default());
    for (jumps, wrapped) in [(100, false), (20_000, true)] {
        let before = machine.jumps().len();
        let tracing = machine.start(Layout::SingleRange { bytes: 0x2000 }, Mode::Overwrite);
        machine.run(jumps);
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        assert_snapshot(&machine, &stopped.trace, wrapped, before);
        assert_eq!(stopped.loss.wrap, u64::from(wrapped));
    }
    assert_clean(&machine);
}

#[test]
fn a_ring_to_overwrite_holds_what_was_traced_last() {
    for (profile, layout) in [
        ("skylake", Layout::topa(RegionSize::K4, 3)),
        ("skylake", Layout::contiguous_topa(RegionSize::K4, 3)),
        ("broadwell", Layout::topa(RegionSize::from_bytes(0x2000).unwrap(), 1)),
    ] {
        let machine = Machine::new(profile, IntelSettings::default());
        for (jumps, wrapped) in [(100, false), (20_000, true)] {
            let before = machine.jumps().len();
            let tracing = machine.start(layout, Mode::Overwrite);
            machine.run(jumps);
            let stopped = tracing.stop().map_err(|_| "stop").unwrap();
            assert_snapshot(&machine, &stopped.trace, wrapped, before);
        }
        assert_clean(&machine);
    }
}

#[test]
fn a_snapshot_can_be_read_again_and_again_while_it_runs() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut tracing = machine.start(Layout::contiguous_topa(RegionSize::K4, 2), Mode::Overwrite);
    for _ in 0..6 {
        machine.run(800);
        let mut collector = Collector::new();
        tracing.drain(&mut collector).unwrap();
        let last = collector.stretches.last().unwrap();
        let got = tips(common::synced(last));
        assert!(got.len() > 200);
        assert!(machine.jumps().ends_with(&got));
    }
    assert_eq!(tracing.loss().wrap, 1);
    assert_clean(&machine);
}

#[test]
fn an_operational_error_at_the_enable_gives_everything_back() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 4), FULL);
    // The table is allocated first. Bit 1 of an entry is reserved.
    let table = machine.ram.block(0);
    corrupt(&machine, table, 1 << 1);
    let failed = machine.unit().start(&user_code(), buffer).unwrap_err();
    assert!(matches!(failed.error(), StartError::Refused(PtRefusal::Memory(_))), "{}", failed.error());
    let NotStarted::Off { unit, memory: buffer, .. } = failed else { panic!("the unit is off") };
    assert!(!machine.is_tracing());
    corrupt(&machine, table, 1 << 1);
    let tracing = unit.start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
    machine.run(10);
    assert_eq!(tracing.stop().map_err(|_| "stop").unwrap().loss, Loss::NONE);
    assert_clean(&machine);
}

#[test]
fn an_operational_error_on_the_way_is_counted_and_leaves_the_trace_off_until_told() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let buffer = machine.buffer(
        Layout::Topa { size: RegionSize::K4, regions: 4, regions_per_table: 1, contiguous: true },
        FULL,
    );
    // The regions are one block, allocated first, and each has its own table: this is the third.
    let table = machine.ram.block(3);
    corrupt(&machine, table, 1 << 1);
    let mut tracing = machine.unit().start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
    machine.run(10_000);
    let mut collector = Collector::new();
    let state = tracing.drain(&mut collector).unwrap();
    assert!(matches!(state, PtState::Failed(error) if error.base.0 == table), "{state:?}");
    assert!(!machine.is_tracing());
    assert!(collector.gaps.contains(&Gap::Error));
    // One error when the processor reached the entry, and one when it should resume there.
    assert_eq!(tracing.loss().error, 2);
    // Reported once, however often it is checked: the trace never ran there.
    assert_eq!(tracing.drain(&mut collector), Ok(state));
    let jumps = machine.jumps();
    assert!(jumps.starts_with(&tips(&collector.stretches[0])) && collector.stretches[0].len() <= 0x2000);
    // The cause is removed: the trace resumes with a PSB.
    corrupt(&machine, table, 1 << 1);
    assert_eq!(tracing.go_on(), Ok(PtState::Tracing));
    let before = machine.jumps().len();
    machine.run(100);
    let stopped = tracing.stop().map_err(|_| "stop").unwrap();
    assert_eq!(stopped.loss.error, 2);
    let mut collector = Collector::new();
    collector.finish(&stopped.trace);
    let bytes = collector.stretches.last().unwrap();
    assert!(bytes.starts_with(&[0x02, 0x82]));
    assert_same(&tips(bytes), &machine.jumps()[before..], "after the error");
}

#[test]
fn an_operational_error_where_a_trace_is_to_resume_is_the_last_error() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let buffer = machine.buffer(
        Layout::Topa { size: RegionSize::K4, regions: 4, regions_per_table: 1, contiguous: true },
        FULL,
    );
    let mut tracing = machine.unit().start(&user_code(), buffer).map_err(|failed| failed.error()).unwrap();
    machine.run(10);
    tracing.suspend().unwrap();
    assert_eq!((tracing.last_error(), tracing.loss().error), (None, 0));
    corrupt(&machine, machine.ram.block(1), 1 << 1);
    let state = tracing.wake().unwrap();
    let PtState::Failed(error) = state else { panic!("{state:?}") };
    assert_eq!((tracing.last_error(), tracing.loss().error), (Some(error), 1));
    assert!(!machine.is_tracing());
}

#[test]
fn a_trace_does_not_go_on_beside_a_recorder_that_came_meanwhile() {
    // LBR; TR and BTS.
    for debugctl in [0x1, 0xc0] {
        let machine = Machine::new("skylake", IntelSettings::default());
        let mut tracing = machine.start(Layout::topa(RegionSize::K64, 4), FULL);
        let mut collector = Collector::new();
        machine.run(100);
        let before = machine.jumps().len();
        // SAFETY: no memory is written: IA32_DS_AREA names none, and nothing branches until the trace is stopped.
        unsafe { machine.registers().wrmsr(0x1d9, debugctl) }.unwrap();
        // Reported once, however often it is checked.
        for _ in 0..2 {
            assert_eq!(tracing.drain(&mut collector), Ok(PtState::Excluded));
            assert_eq!((machine.msr(0x570) & 1, machine.msr(0x1d9)), (0, debugctl));
            assert_eq!(tracing.loss(), &Loss { excluded: 1, ..Loss::NONE });
        }
        assert_eq!(tracing.go_on(), Ok(PtState::Excluded));
        // SAFETY: as above.
        unsafe { machine.registers().wrmsr(0x1d9, 0) }.unwrap();
        assert_eq!(tracing.drain(&mut collector), Ok(PtState::Tracing));
        machine.run(100);
        let stopped = tracing.stop().map_err(|_| "stop").unwrap();
        assert_eq!(stopped.loss.excluded, 1);
        collector.finish(&stopped.trace);
        assert!(before > 0 && machine.jumps().len() > before);
        assert_eq!(collector.gaps, [Gap::Excluded]);
        let [one, other] = &collector.stretches[..] else { panic!("two stretches") };
        assert!(other.starts_with(&[0x02, 0x82]), "what follows a gap begins with a PSB");
        assert_same(&[tips(one), tips(other)].concat(), &machine.jumps(), "both stretches");
    }
}

#[test]
fn where_the_processor_allows_both_a_trace_runs_beside_last_branches() {
    for (profile, together) in [("broadwell", false), ("skylake", false), ("icelake", true)] {
        let machine = Machine::new(profile, IntelSettings::default());
        // SAFETY: no memory is written.
        unsafe { machine.registers().wrmsr(0x1d9, 1) }.unwrap();
        let buffer = machine.buffer(Layout::topa(RegionSize::K64, 2), FULL);
        let started = machine.unit().start(&user_code(), buffer);
        assert_eq!(started.is_ok(), together, "{profile}");
        if let Ok(mut tracing) = started {
            machine.run(100);
            assert_eq!(tracing.drain(&mut Collector::new()), Ok(PtState::Tracing), "{profile}");
            assert_eq!(tracing.loss(), &Loss::NONE, "{profile}");
        }
    }
}

#[test]
fn a_unit_that_runs_already_is_not_taken() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let tracing = machine.start(Layout::topa(RegionSize::K4, 4), FULL);
    let error =
        PtUnit::detect(|leaf, subleaf| machine.cpuid(leaf, subleaf), machine.registers()).unwrap_err();
    assert!(matches!(error, Absent::InUse(InUse::ProcessorTrace { .. })), "{error}");
    drop(tracing);
    let mut unit = machine.unit();
    assert_eq!(unit.vmx_tracing(), VmxTracing::NoVmx);
    // Another owner takes the unit between detection and start: its trace must continue.
    let tracing = machine.start(Layout::topa(RegionSize::K4, 4), FULL);
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 4), FULL);
    let failed = unit.start(&user_code(), buffer).unwrap_err();
    assert!(matches!(failed.error(), StartError::InUse(InUse::ProcessorTrace { .. })));
    assert!(machine.is_tracing());
    drop(failed);
    machine.run(100);
    drop(tracing);
    assert_clean(&machine);
}

#[test]
fn a_refused_configuration_touches_no_register() {
    let machine = Machine::new("broadwell", IntelSettings::default());
    let unit = machine.unit();
    let buffer = machine.buffer(Layout::topa(RegionSize::K4, 4), FULL);
    let before = machine.accesses();
    let failed = unit.start(&PtConfig::new().user(true).cycles(0), buffer).unwrap_err();
    assert_eq!(failed.error().to_string(), "CPUID.14H.0:EBX[1] (cycle-accurate mode) is not there");
    assert_eq!(machine.accesses(), before);
}

#[test]
fn an_emergency_stop_leaves_the_trace_to_be_read() {
    let machine = Machine::new("skylake", IntelSettings::default());
    let mut tracing = machine.start(Layout::topa(RegionSize::K4, 4), FULL);
    machine.run(100);
    emergency_stop(&mut machine.registers()).unwrap();
    assert!(!machine.is_tracing());
    emergency_stop(&mut machine.registers()).unwrap();
    let mut collector = Collector::new();
    tracing.drain(&mut collector).unwrap();
    assert_eq!(collector.gaps, [Gap::TurnedOff], "what runs until the drain is not traced");
    assert_same(&tips(&collector.stretches[0]), &machine.jumps(), "after the emergency");
}

/// Flips bits of an entry that the driver made.
fn corrupt(machine: &Machine, address: u64, bits: u64) {
    use pugmark_model::PhysMemory;
    let mut ram = &*machine.ram;
    let mut entry = [0; 8];
    assert!(ram.read(address, &mut entry));
    assert!(ram.write(address, &(u64::from_le_bytes(entry) ^ bits).to_le_bytes()));
}

fn assert_snapshot(
    machine: &Machine,
    trace: &pugmark_kernel::intel::pt::Trace<&common::Ram>,
    wrapped: bool,
    before: usize,
) {
    let mut collector = Collector::new();
    collector.finish(trace);
    assert_eq!(matches!(trace.chunks().next(), Some(Chunk::Gap(_))), wrapped);
    let bytes = collector.stretches.last().unwrap();
    let jumps = &machine.jumps()[before..];
    match wrapped {
        false => assert_same(&tips(bytes), jumps, "first lap"),
        true => {
            let got = tips(common::synced(bytes));
            assert!(got.len() > 1000 && jumps.ends_with(&got), "{} of {}", got.len(), jumps.len());
        }
    }
}

fn assert_clean(machine: &Machine) {
    assert_eq!(machine.violations().live_table_edits, 0);
    assert_eq!(machine.violations().writes_outside_memory, 0);
    assert_eq!(*machine.ram.strays.borrow(), []);
}
