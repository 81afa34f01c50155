//! Tests of counters that are stopped and resumed.

use super::samples::{Events, ICE_LAKE, NEHALEM, PMC, SKYLAKE, branches, machine};
use super::*;
use crate::intel::pebs::{Item, PebsConfig, PreciseEvent, Samples};
use pugmark_decoder_core::pebs::Format;

#[test]
fn counters_stand_still_while_records_are_taken() {
    let machine = machine(NEHALEM);
    let mut running = machine.sample(&branches(2000), &machine.plan(176));
    machine.events(0, 2001, 176);
    let mut looked = false;
    let mut sink = Samples::new(Format::Latency, |_: Item<'_>| {
        assert_eq!((machine.get(GLOBAL_CTRL), machine.get(PEBS_ENABLE)), (0xe, 0));
        looked = true;
        true
    });
    running.drain(&mut KeepAll, &mut sink).unwrap();
    assert!(looked);
}

#[test]
fn a_suspended_counter_goes_on_where_it_was() {
    let machine = machine(NEHALEM);
    let mut running = machine.sample(&branches(1000), &machine.plan(176));
    machine.events(0, 500, 176);
    running.suspend().unwrap();
    machine.events(500, 9000, 176);
    assert_eq!(running.state(Half::Pebs), Some(DsState::Suspended));
    // A resume that faults can be tried again.
    for nth in 0..4 {
        machine.msr.borrow_mut().fault_in(nth);
        running.resume().unwrap_err();
    }
    running.resume().unwrap();
    machine.events(9500, 501, 176);
    let mut seen = Events::default();
    running.drain(&mut KeepAll, &mut seen.sink(Format::Latency)).unwrap();
    // It was off for longer than it should have been.
    assert_eq!(seen.0, [Err(Gap::Abandoned), Ok(10_000)]);
}

#[test]
fn a_counter_that_overflowed_without_a_record_starts_again() {
    let processors = [(NEHALEM, Format::Latency), (SKYLAKE, Format::Time), (ICE_LAKE, Format::Adaptive)];
    for (processor, format) in processors {
        let (machine, bytes) = (machine(processor), processor.2);
        let mut running = machine.sample(&branches(1000), &machine.plan(bytes));
        let mut seen = Events::default();
        // The overflow comes with the last of these events; its record would come with the next one.
        machine.events(0, 1000, bytes);
        running.drain(&mut KeepAll, &mut seen.sink(format)).unwrap();
        assert_eq!(running.loss(Half::Pebs), &Loss { samples: 1, ..Loss::NONE });
        machine.events(1000, 1999, bytes);
        running.drain(&mut KeepAll, &mut seen.sink(format)).unwrap();
        assert_eq!(seen.0, [Ok(2000)]);
        machine.events(2999, 3, bytes);
        running.drain(&mut KeepAll, &mut seen.sink(format)).unwrap();
        assert_eq!(seen.0, [Ok(2000), Ok(3001)]);
        assert_eq!(running.loss(Half::Pebs).samples, 1);
    }
}

#[test]
fn only_counters_that_went_past_their_end_start_again() {
    let machine = machine(ICE_LAKE);
    let config = PebsConfig::new().fixed(0, 5000).general(1, PreciseEvent::INST_RETIRED, 7000);
    let mut running = machine.sample(&DsConfig::new().pebs(config).gate(INTERRUPT_GATE), &machine.plan(32));
    let (fixed, general) = (WIDTH - 4999, WIDTH - 6999);
    // (the counters' values before the resume, and the values that they resume from)
    let table = [
        ([WIDTH, general], [WIDTH, general], 0),
        ([0, WIDTH], [fixed, WIDTH], 1),
        ([fixed, 3], [fixed, general], 2),
        ([fixed - 1, general - 1], [fixed, general], 4),
    ];
    for (stood, goes_on, samples) in table {
        running.suspend().unwrap();
        machine.set(0x309, stood[0]);
        machine.set(PMC + 1, stood[1]);
        running.resume().unwrap();
        assert_eq!([0x309, PMC + 1].map(|at| machine.get(at)), goes_on, "{stood:x?}");
        assert_eq!(running.loss(Half::Pebs), &Loss { samples, ..Loss::NONE });
    }
}
