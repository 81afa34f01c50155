//! The fixed-function counters.

use crate::intel::IntelSettings;
use crate::intel::tests::machine::*;
use crate::{DeliveryKind, Pmi};

const INSTRUCTIONS: u32 = 0x309;
const CORE_CLOCKS: u32 = 0x30a;
const REFERENCE_CLOCKS: u32 = 0x30b;
const CONTROL: u32 = 0x38d;
const STATUS: u32 = 0x38e;
const GLOBAL_CTRL: u32 = 0x38f;
const ALL_THREE: u64 = 7 << 32;
const HLT: &[u8] = &[0xf4];

/// The core's clock is half as fast again as the TSC's.
fn machine(profile: &str) -> Machine {
    let settings = IntelSettings { pmi_skid: 0, core_ratio: Some(45), ..IntelSettings::default() };
    Machine::new(profile, settings)
}

/// Skylake, whose TSC counts 30 times the bus clock, with all three counters enabled.
fn counting() -> Machine {
    let mut m = machine("skylake");
    m.write(CONTROL, 0x333);
    m.write(GLOBAL_CTRL, ALL_THREE);
    m
}

fn values(m: &mut Machine) -> [u64; 3] {
    [INSTRUCTIONS, CORE_CLOCKS, REFERENCE_CLOCKS].map(|number| m.read(number))
}

/// Executes an instruction that retires after `clocks` clocks of the TSC.
fn after(m: &mut Machine, clocks: u64, instruction: &[u8]) {
    m.tsc += clocks;
    m.next(instruction);
}

#[test]
fn they_count_instructions_and_clocks() {
    let mut m = counting();
    after(&mut m, 1000, NOP);
    assert_eq!(values(&mut m), [1, 0, 0], "time begins with the first instruction");
    after(&mut m, 11, NOP);
    assert_eq!(values(&mut m), [2, 16, 11]);
    after(&mut m, 1, NOP);
    assert_eq!(values(&mut m), [3, 18, 12], "no half of a clock is lost");
}

#[test]
fn each_counts_at_the_levels_that_it_is_enabled_for() {
    let rows = [(0x1, 1), (0x2, 3), (0x3, 4), (0x0, 0), (0x4, 0), (0x30, 0)];
    for (control, count) in rows {
        let mut m = machine("skylake");
        m.write(CONTROL, control);
        m.write(GLOBAL_CTRL, ALL_THREE);
        assert_eq!(m.processor.needs_each_instruction(), control & 0x33 != 0, "{control:#x}");
        m.next(NOP);
        m.at.cpl = 3;
        (0..3).for_each(|_| m.next(NOP));
        assert_eq!(m.read(INSTRUCTIONS), count, "{control:#x}");
    }
    let mut m = machine("skylake");
    m.write(CONTROL, 0x333);
    assert!(!m.processor.needs_each_instruction(), "after reset they are not enabled globally");
}

#[test]
fn int_n_is_an_instruction_at_the_level_that_executes_it_and_other_events_are_none() {
    for (control, count) in [(0x1, 0), (0x2, 1)] {
        let mut m = machine("skylake");
        m.write(CONTROL, control);
        m.write(GLOBAL_CTRL, ALL_THREE);
        for kind in [DeliveryKind::Interrupt, DeliveryKind::Fault, DeliveryKind::SoftwareInterrupt] {
            m.at = m.user(0x3000);
            m.deliver(kind, 0x80, m.kernel(0x2000), None);
        }
        assert_eq!(m.read(INSTRUCTIONS), count, "{control:#x}");
    }
}

#[test]
fn no_clock_passes_while_the_counters_or_the_processor_stand_still() {
    let mut m = counting();
    after(&mut m, 10, NOP);
    m.write(GLOBAL_CTRL, 0);
    m.tsc += 500;
    m.write(GLOBAL_CTRL, ALL_THREE);
    after(&mut m, 500, NOP);
    after(&mut m, 10, HLT);
    after(&mut m, 500, NOP);
    after(&mut m, 10, NOP);
    assert_eq!(values(&mut m)[1..], [30, 20]);
    m.write(CONTROL, 0);
    m.tsc += 500;
    m.write(CONTROL, 0x333);
    after(&mut m, 500, NOP);
    assert_eq!(values(&mut m)[1..], [30, 20]);
}

#[test]
fn an_overflow_sets_its_status_bit_and_interrupts_if_it_is_told_to() {
    for (index, control, pmi) in [(0, 0x00b, true), (0, 0x003, false), (1, 0x0b0, true), (2, 0xb00, true)] {
        let mut m = machine("skylake");
        m.processor.write_apic(0x340, 0x400);
        m.write(INSTRUCTIONS + index, (1 << 48) - 2);
        m.write(CONTROL, control);
        m.write(GLOBAL_CTRL, ALL_THREE);
        m.next(NOP);
        assert_eq!(m.read(STATUS), 0);
        after(&mut m, 2, NOP);
        assert_eq!(m.read(STATUS), 1 << 32 << index, "{control:#x}");
        m.next(NOP);
        assert_eq!(m.processor.take_interrupt(), pmi.then_some(Pmi::Nmi), "{control:#x}");
        assert!(m.read(INSTRUCTIONS + index) < 4, "it goes on from 0");
    }
}

#[test]
fn writes_of_what_does_not_exist_fault() {
    let rows = [
        ("skylake", CONTROL, 0xfff, true),
        ("skylake", CONTROL, 0x1000, false),
        ("core2", CONTROL, 0xbbb, true),
        // AnyThread exists from version 3.
        ("core2", CONTROL, 0x4, false),
        ("skylake", INSTRUCTIONS, (1 << 48) - 1, true),
        ("skylake", INSTRUCTIONS, 1 << 48, false),
        ("core2", REFERENCE_CLOCKS, 1 << 40, false),
        ("skylake", 0x30c, 0, false),
        ("icelake", CONTROL, 0, false),
        ("sapphire-rapids", INSTRUCTIONS, 0, false),
    ];
    for (profile, number, value, legal) in rows {
        assert_eq!(
            machine(profile).try_write(number, value).is_ok(),
            legal,
            "{profile} {number:#x} {value:#x}"
        );
    }
}

/// SDM vol. 3, Performance Monitoring, "Architectural Performance Monitoring Version 2" and "Version 3".
#[test]
fn each_bit_of_the_control_register_is_there_or_faults() {
    for (profile, legal) in [
        ("prescott", 0),
        ("core2", 0xbbb),
        ("nehalem", 0xfff),
        ("broadwell", 0xfff),
        ("skylake", 0xfff),
        ("icelake", 0),
        ("tremont", 0xfff | 0x111 << 32),
        ("sapphire-rapids", 0_u64),
    ] {
        for bit in 0..64 {
            let mut m = machine(profile);
            let written = m.try_write(CONTROL, 1 << bit).is_ok();
            assert_eq!(written, legal >> bit & 1 != 0, "{profile} {bit}");
            let expected = if written { 1 << bit } else { 0 };
            assert_eq!(m.processor.read_msr(CONTROL).unwrap_or(0), expected, "{profile} {bit}");
        }
    }
}
