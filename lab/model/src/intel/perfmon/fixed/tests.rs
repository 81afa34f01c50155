//! The fixed-function counters.

use crate::intel::IntelSettings;
use crate::intel::tests::machine::*;
use crate::{DeliveryKind, FlatMemory, Pmi};

const INSTRUCTIONS: u32 = 0x309;
const CORE_CLOCKS: u32 = 0x30a;
const REFERENCE_CLOCKS: u32 = 0x30b;
const CONTROL: u32 = 0x38d;
const STATUS: u32 = 0x38e;
const GLOBAL_CTRL: u32 = 0x38f;
const ALL_THREE: u64 = 7 << 32;
const HLT: &[u8] = &[0xf4];

/// Returns a machine whose core clock is half as fast again as its TSC.
fn machine(profile: &str) -> Machine {
    let settings = IntelSettings { pmi_skid: 0, core_ratio: Some(45), ..IntelSettings::default() };
    Machine::new(profile, settings)
}

/// Returns a Skylake, whose TSC counts 30 times the bus clock, with all three counters enabled.
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
        // A counter of time at one level must see which level each instruction has.
        assert_eq!(m.processor.needs_each_instruction(), control & 0b11 != 0, "{control:#x}");
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
fn slots_are_those_of_the_core_clocks() {
    for (profile, slots) in [("icelake", 5), ("sapphire-rapids", 6)] {
        let mut m = machine(profile);
        // The same by a general-purpose counter.
        m.write(0x186, 0x43_01a4);
        m.write(CONTROL, 0x3333);
        m.write(GLOBAL_CTRL, 0xf << 32 | 1);
        m.next(NOP);
        after(&mut m, 26, NOP);
        let core = m.read(CORE_CLOCKS);
        assert!(core > 0, "{profile}");
        assert_eq!((m.read(0x30c), m.read(0xc1)), (slots * core, slots * core), "{profile}");
    }
}

/// Checks that a counter of time steps nothing unless it is sampled, filtered by level, or near its overflow.
#[test]
fn a_counter_of_time_is_read_where_that_is_enough() {
    // Control, the counter's value, IA32_PEBS_ENABLE; `true` if each instruction must be seen.
    let far = (1 << 48) - (1 << 26);
    let rows = [
        (0xb0, 0, 0, false),
        (0xb0, far, 0, false),
        (0xb0, far + 1, 0, true),
        (0x90, 0, 0, true),
        (0xa0, 0, 0, true),
        (0xb0, 0, 1 << 33, true),
        (0xb3, 0, 0, true),
    ];
    for (control, value, pebs, stepped) in rows {
        let mut m = machine("icelake");
        m.write(CORE_CLOCKS, value);
        m.write(0x3f1, pebs);
        m.write(CONTROL, control);
        m.write(GLOBAL_CTRL, ALL_THREE);
        assert!(m.processor.counts_time(), "{control:#x}");
        assert_eq!(m.processor.needs_each_instruction(), stepped, "{control:#x} {value:#x} {pebs:#x}");
        assert_eq!(m.processor.is_on(), stepped, "{control:#x}");
    }
}

#[test]
fn time_that_passes_unseen_is_counted_and_its_overflow_interrupts() {
    let mut m = machine("icelake");
    m.processor.write_apic(0x340, 0x400);
    m.write(REFERENCE_CLOCKS, (1 << 48) - (1 << 27));
    m.write(CONTROL, 0xb00);
    m.write(GLOBAL_CTRL, ALL_THREE);
    let mut pass = |from: u64, to: u64| {
        m.processor.begin_time(from);
        m.processor.pass_time(to, &mut FlatMemory { base: 0, bytes: &mut [] });
        (m.processor.read_msr(REFERENCE_CLOCKS).unwrap(), m.processor.take_interrupt())
    };
    assert_eq!(pass(1000, 1000 + (1 << 26)), ((1 << 48) - (1 << 26), None));
    // Between the two the processor was halted.
    assert_eq!(pass(1 << 40, (1 << 40) + (1 << 26) + 5), (5, Some(Pmi::Nmi)));
    assert_eq!(m.processor.read_msr(STATUS), Ok(1 << 34));
    assert!(!m.processor.needs_each_instruction(), "it is far from its next overflow");
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
        ("icelake", CONTROL, 0xf_0000_bbbb, false),
        ("icelake", CONTROL, 0x1111_0000_bbbb, true),
        ("icelake", 0x30c, 0, true),
        ("icelake", 0x30d, 0, false),
        ("tremont", 0x30c, 0, false),
        ("sapphire-rapids", CONTROL, 0xbbbb, true),
        ("sapphire-rapids", CONTROL, 1 << 32, false),
    ];
    for (profile, number, value, legal) in rows {
        assert_eq!(
            machine(profile).try_write(number, value).is_ok(),
            legal,
            "{profile} {number:#x} {value:#x}"
        );
    }
}

/// Checks SDM vol. 3, Performance Monitoring, "Architectural Performance Monitoring Version 2" and "Version 3".
#[test]
fn each_bit_of_the_control_register_is_there_or_faults() {
    for (profile, legal) in [
        ("prescott", 0),
        ("core2", 0xbbb),
        ("nehalem", 0xfff),
        ("broadwell", 0xfff),
        ("skylake", 0xfff),
        // AnyThread is deprecated; adaptive records.
        ("icelake", 0x1111_0000_bbbb),
        ("tremont", 0x111_0000_0bbb),
        ("sapphire-rapids", 0xbbbb_u64),
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
