//! Counting.

use super::machine::*;
use crate::{DeliveryKind, Pmi};

const SELECT: u32 = 0xc001_0000;
const VALUE: u32 = 0xc001_0004;

/// Returns the value of counter 0, which counts `event`, after `run`.
fn count(name: &str, select: u64, run: impl FnOnce(&mut AmdMachine)) -> u64 {
    let mut machine = AmdMachine::new(name);
    machine.write(SELECT, select);
    run(&mut machine);
    machine.read(VALUE)
}

/// Executes two instructions without a branch, conditional branches taken and not, a call, a return, a jump, IRET.
fn mixture(machine: &mut AmdMachine) {
    machine.next(NOP);
    machine.next(NOP);
    let to = machine.at.ip + 0x42;
    machine.go(JZ, to);
    machine.next(JZ);
    let (call, to) = (machine.at.ip, machine.at.ip + 0x105);
    machine.go(CALL, to);
    machine.go(RET, call + 5);
    let to = machine.at.ip + 0x42;
    machine.go(JMP, to);
    machine.go(IRETQ, 0x50_0000);
}

#[test]
fn counts_instructions_and_branches_by_kind() {
    for name in ["k8", "barcelona", "trinity", "zen2", "zen3", "zen4", "zen5"] {
        let rows = [
            (0xc0, 8),
            // Six of them have two ops or are microcoded.
            (0xc1, 3 + 1 + 1 + 2 + 2 + 8),
            (0xc2, 6),
            // The taken conditional branch, the return and IRET, each seen for the first time.
            (0xc3, 3),
            (0xc4, 5),
            (0xc5, 3),
            (0xc6, 1),
            (0xc8, 1),
            (0xc9, 1),
        ];
        for (event, expected) in rows {
            assert_eq!(count(name, ALL | event, mixture), expected, "{name} {event:#x}");
        }
    }
    for (name, expected) in [("k8", 0), ("zen2", 2), ("zen4", 2)] {
        assert_eq!(count(name, ALL | 0xd1, mixture), expected, "{name}");
    }
}

#[test]
fn an_event_has_twelve_bits_from_family_10h_on() {
    for (name, expected) in [("k8", 2), ("barcelona", 0), ("zen4", 0)] {
        let counted = count(name, ALL | 0xc0 | 1 << 32, |machine| machine.loop_nops(2));
        assert_eq!(counted, expected, "{name}");
    }
    assert!(count("zen4", ALL | 0x20 | 1 << 32, |machine| machine.loop_nops(2)) >= 2);
}

#[test]
fn counts_at_the_privilege_levels_asked_for() {
    for (bits, kernel, user) in [(0b00, 0, 0), (0b01, 0, 1), (0b10, 1, 0), (0b11, 1, 1)] {
        for (cpl, expected) in [(0, kernel), (1, user), (3, user)] {
            let counted = count("zen2", 1 << 22 | bits << 16 | 0xc0, |machine| {
                machine.at.cpl = cpl;
                machine.next(NOP);
            });
            assert_eq!(counted, expected, "{bits:#b} at {cpl}");
        }
    }
}

#[test]
fn counts_only_when_enabled_by_both_registers() {
    assert_eq!(count("zen4", 0b11 << 16 | 0xc0, |machine| machine.next(NOP)), 0);
    let mut machine = AmdMachine::new("zen4");
    machine.write(SELECT, ALL | 0xc0);
    machine.write(0xc000_0301, 0b10);
    assert!(!machine.processor.needs_each_instruction());
    machine.next(NOP);
    assert_eq!(machine.read(VALUE), 0);
    machine.write(0xc000_0301, 0b01);
    machine.next(NOP);
    assert_eq!(machine.read(VALUE), 1);
}

#[test]
fn host_only_and_guest_only_count_nothing_while_svm_is_off() {
    // HostOnly and GuestOnly, `true` if it counts with SVM off, and with SVM on, where the host is what runs.
    for (bits, off, on) in [(0b00, 1, 1), (0b01, 0, 0), (0b10, 0, 1), (0b11, 0, 1)] {
        for (svme, expected) in [(false, off), (true, on)] {
            let counted = count("barcelona", ALL | bits << 40 | 0xc0, |machine| {
                machine.processor.set_svme(svme);
                machine.next(NOP);
            });
            assert_eq!(counted, expected, "{bits:#b} {svme}");
        }
    }
}

#[test]
fn unknown_events_count_nothing_and_need_no_steps() {
    let mut machine = AmdMachine::new("zen4");
    machine.write(SELECT, ALL | 0xff);
    assert!(!machine.processor.needs_each_instruction());
    machine.write(SELECT, ALL | 0xc0);
    assert!(machine.processor.needs_each_instruction() && machine.processor.is_on());
}

/// Executes an instruction that misses the level-1 translation buffer and all caches, then three that hit.
fn cold_start(machine: &mut AmdMachine) {
    machine.loop_nops(4);
}

#[test]
fn cycles_are_one_for_an_instruction_and_more_where_it_misses() {
    // 4 instructions; a walk of the page tables, and memory with the row of line 400000h.
    assert_eq!(count("zen2", ALL | 0x76, cold_start), 4 + 35 + 180);
    assert_eq!(count("zen4", ALL | 0x20 | 1 << 32, cold_start), 4 + 35 + 180);
}

#[test]
fn cnt_mask_counts_cycles_with_that_many_events_and_inv_those_with_fewer() {
    const INV: u64 = 1 << 23;
    const STALLS: u64 = 35 + 180;
    let mask = |n: u64| n << 24;
    let rows = [
        (0xc0, 4),
        (0xc0 | INV, 4),
        (0xc0 | mask(1), 4),
        (0xc0 | mask(2), 0),
        (0xc0 | mask(1) | INV, STALLS),
        (0xc0 | mask(2) | INV, STALLS + 4),
        (0x76 | mask(1), STALLS + 4),
        (0x76 | mask(1) | INV, 0),
    ];
    for (select, expected) in rows {
        assert_eq!(count("zen2", ALL | select, cold_start), expected, "{select:#x}");
    }
    // IRET has eight ops in one cycle; without a mask INV has no effect.
    assert_eq!(count("zen2", ALL | 0xc1 | INV, |machine| machine.go(IRETQ, 0x40_0000)), 8);
    for (n, expected) in [(0, 8), (1, 1), (8, 1), (9, 0)] {
        let counted = count("zen2", ALL | 0xc1 | mask(n), |machine| machine.go(IRETQ, 0x40_0000));
        assert_eq!(counted, expected, "{n}");
    }
}

#[test]
fn edge_counts_when_a_condition_becomes_true() {
    const EDGE: u64 = 1 << 18;
    const INV: u64 = 1 << 23;
    // The cycles of an instruction, of its stalls, and of three consecutive instructions.
    let rows =
        [(0xc0, 2), (0xc0 | 1 << 24, 2), (0xc0 | 1 << 24 | INV, 1), (0x76, 1), (0xc0 | 2 << 24 | INV, 1)];
    for (select, expected) in rows {
        assert_eq!(count("zen2", ALL | EDGE | select, cold_start), expected, "{select:#x}");
    }
}

#[test]
fn a_wrap_sets_the_status_and_interrupts_where_it_is_asked_for() {
    for (int, expected) in [(0, None), (1 << 20, Some(Pmi::Nmi))] {
        let mut machine = AmdMachine::new("zen4");
        machine.processor.write_apic(0x340, 0x400);
        machine.write(VALUE + 1, 2_u64.wrapping_neg());
        machine.write(SELECT + 1, ALL | int | 0xc0);
        machine.next(NOP);
        assert_eq!((machine.read(0xc000_0300), machine.read(VALUE + 1)), (0, (1 << 48) - 1));
        assert_eq!(machine.interrupts(), []);
        machine.next(NOP);
        assert_eq!((machine.read(0xc000_0300), machine.read(VALUE + 1)), (0b10, 0));
        assert_eq!(machine.interrupts(), std::vec::Vec::from_iter(expected));
        // The counter continues.
        machine.next(NOP);
        assert_eq!(machine.read(VALUE + 1), 1);
    }
}

#[test]
fn several_events_of_one_cycle_can_wrap_a_counter() {
    let mut machine = AmdMachine::new("k8");
    machine.processor.write_apic(0x340, 0x400);
    machine.write(VALUE, 3_u64.wrapping_neg());
    machine.write(SELECT, ALL | 1 << 20 | 0xc1);
    machine.go(IRETQ, 0x40_0000);
    assert_eq!(machine.read(VALUE), 5);
    assert_eq!(machine.interrupts(), [Pmi::Nmi]);
}

#[test]
fn a_wrmsr_is_counted_by_what_was_on_before_and_is_not_what_it_writes() {
    let mut machine = AmdMachine::new("zen4");
    // The write that enables is not counted.
    machine.write(SELECT, ALL | 0xc0);
    assert_eq!(machine.read(VALUE), 0);
    // A write of another counter is counted.
    machine.write(SELECT + 1, ALL | 0xc0);
    assert_eq!((machine.read(VALUE), machine.read(VALUE + 1)), (1, 0));
    // A counter holds exactly the written value.
    machine.write(VALUE, 100);
    assert_eq!((machine.read(VALUE), machine.read(VALUE + 1)), (100, 1));
    // The write of an event is not counted by its counter, though it counts before and after.
    machine.write(SELECT, ALL | 0xc0);
    assert_eq!((machine.read(VALUE), machine.read(VALUE + 1)), (100, 2));
    // The write that disables is not counted by that counter.
    machine.write(SELECT, 0xc0);
    assert_eq!((machine.read(VALUE), machine.read(VALUE + 1)), (100, 3));
    // Both in one write.
    machine.write(0xc000_0301, 0);
    assert_eq!((machine.read(VALUE), machine.read(VALUE + 1)), (100, 3));
    machine.write(SELECT, ALL | 0xc0);
    machine.write(0xc000_0301, 0x3f);
    assert_eq!((machine.read(VALUE), machine.read(VALUE + 1)), (100, 3));
}

#[test]
fn a_write_that_enables_some_is_counted_by_the_others_alone() {
    let mut machine = AmdMachine::new("zen4");
    machine.write(0xc000_0301, 0b10);
    machine.write(SELECT, ALL | 0xc0);
    machine.write(SELECT + 1, ALL | 0xc0);
    machine.write(0xc000_0301, 0b11);
    assert_eq!((machine.read(VALUE), machine.read(VALUE + 1)), (0, 1));
}

#[test]
fn a_refused_write_counts_nothing() {
    let mut machine = AmdMachine::new("zen4");
    machine.write(SELECT, ALL | 0xc0);
    assert!(machine.try_write(0xc000_0300, 0).is_err());
    assert_eq!(machine.read(VALUE), 0);
}

#[test]
fn counts_interrupts_and_exceptions_by_what_they_are() {
    use DeliveryKind::{Fault, Interrupt, Nmi, SoftwareInterrupt, Trap};
    const KINDS: [DeliveryKind; 5] = [Interrupt, Nmi, Fault, Trap, SoftwareInterrupt];
    // Number of counted events for each of the five.
    let rows: [(&str, u64, [u64; 5]); 12] = [
        ("k8", 0xcf, [1, 1, 0, 0, 0]),
        ("barcelona", 0xcf, [1, 1, 0, 0, 0]),
        ("zen2", 0x2c, [1, 1, 0, 0, 0]),
        ("zen4", 0x2c, [1, 1, 0, 0, 0]),
        ("k8", 0xc0, [1, 1, 1, 1, 1]),
        ("trinity", 0xc0, [1, 1, 1, 1, 1]),
        ("zen2", 0xc0, [0, 0, 0, 0, 1]),
        ("zen4", 0xc0, [0, 0, 0, 0, 1]),
        ("zen4", 0xc2, [1, 1, 1, 1, 1]),
        ("zen4", 0xc4, [1, 1, 1, 1, 1]),
        ("zen4", 0xc6, [1, 1, 1, 1, 1]),
        ("zen4", 0xc3, [0, 0, 0, 0, 0]),
    ];
    for (name, event, expected) in rows {
        for (kind, expected) in KINDS.into_iter().zip(expected) {
            assert_eq!(
                count(name, ALL | event, |machine| machine.deliver(kind)),
                expected,
                "{name} {event:#x} {kind:?}"
            );
        }
    }
}

/// Executes loads, stores and instructions that do both, on three lines.
fn data(machine: &mut AmdMachine) {
    machine.with_rbx(LOAD, 0x1000);
    machine.with_rbx(LOAD, 0x1008);
    machine.with_rbx(STORE, 0x1000);
    machine.with_rbx(STORE, 0x2040);
    machine.with_rbx(ADD, 0x3080);
    machine.with_rbx(NOP, 0x5000);
}

#[test]
fn counts_loads_and_stores_and_their_misses() {
    let rows = [
        ("k8", 0x40, 5),
        ("k8", 0x41, 3),
        ("barcelona", 0x41, 3),
        ("zen2", 0x40, 5),
        ("zen2", 0x0129, 2),
        ("zen2", 0x0229, 2),
        ("zen2", 0x0429, 1),
        ("zen2", 0x0729, 5),
        ("zen2", 0x0029, 0),
        ("zen2", 0x0141, 2),
        ("zen2", 0x0241, 1),
        ("zen4", 0x0341, 3),
    ];
    for (name, select, expected) in rows {
        assert_eq!(count(name, ALL | select, data), expected, "{name} {select:#x}");
    }
}

#[test]
fn a_prefetch_is_an_access_but_no_load_and_no_store() {
    let prefetch = |machine: &mut AmdMachine| machine.with_rbx(&[0x0f, 0x18, 0x0b], 0x1000);
    for (name, select, expected) in [
        ("k8", 0x40, 1),
        ("k8", 0x41, 1),
        ("zen2", 0x0129, 0),
        ("zen2", 0x0229, 0),
        ("zen2", 0x0429, 0),
        ("zen2", 0x0141, 0),
        ("zen2", 0x0241, 0),
    ] {
        assert_eq!(count(name, ALL | select, prefetch), expected, "{name} {select:#x}");
    }
}

#[test]
fn asks_for_registers_where_data_counts() {
    for (name, select, wanted) in
        [("k8", 0x40, true), ("k8", 0xc0, false), ("zen4", 0x0129, true), ("zen4", 0x0029, false)]
    {
        let mut machine = AmdMachine::new(name);
        machine.write(SELECT, ALL | select);
        assert_eq!(machine.processor.wants_registers(), wanted, "{name} {select:#x}");
        assert_eq!(machine.processor.max_unreported() == 1, wanted, "{name} {select:#x}");
        machine.write(SELECT, select);
        assert!(!machine.processor.wants_registers());
    }
}

#[test]
fn counts_fetches_of_blocks_and_their_misses() {
    let code = |machine: &mut AmdMachine| {
        // Instructions in several blocks of two lines, then the first one again.
        for ip in [0x40_0000, 0x40_0001, 0x40_0010, 0x40_0020, 0x40_0040] {
            machine.at.ip = ip;
            machine.next(NOP);
        }
        machine.at.ip = 0x40_005e;
        machine.go(CALL, 0x40_0000);
        machine.next(NOP);
    };
    for (name, event, expected) in [
        // Blocks 0, 10h, 20h, 40h, 50h, 60h (the CALL crosses into it), 0.
        ("k8", 0x80, 7),
        // Blocks 0, 20h, 40h, 60h (the CALL crosses into it), 0.
        ("zen2", 0x80, 5),
        ("k8", 0x81, 2),
        ("zen2", 0x81, 2),
        ("zen4", 0x188e | 1 << 32, 2),
        ("zen4", 0x078e | 1 << 32, 3),
        ("zen4", 0x1f8e | 1 << 32, 5),
    ] {
        assert_eq!(count(name, ALL | event, code), expected, "{name} {event:#x}");
    }
}

#[test]
fn nothing_is_on_after_reset() {
    for profile in crate::amd::AmdProfile::all() {
        let machine = AmdMachine::new(profile.name);
        let processor = &machine.processor;
        assert!(!processor.is_on() && !processor.needs_each_instruction(), "{}", profile.name);
        assert!(!processor.wants_registers() && !processor.records_branches(), "{}", profile.name);
        assert_eq!(processor.max_unreported(), u32::MAX, "{}", profile.name);
        // EFER.SVME is clear: a counter of the host's events does not count.
        for index in 0..4 {
            let mut machine = AmdMachine::new(profile.name);
            machine.write(SELECT + index, ALL | 1 << 41 | 0xc0);
            machine.next(NOP);
            let counted = profile.family() < 0x10;
            assert_eq!(machine.read(VALUE + index), u64::from(counted), "{} {index}", profile.name);
        }
    }
}

#[test]
fn each_counter_has_its_own_bit_in_the_global_register() {
    for index in 0..6 {
        for other in 0..6 {
            let mut machine = AmdMachine::new("zen4");
            machine.write(0xc001_0200 + 2 * index, ALL | 0xc0);
            machine.write(0xc000_0301, 1 << other);
            assert_eq!(machine.processor.is_on(), index == other, "{index} {other}");
            let before = machine.read(0xc001_0201 + 2 * index);
            machine.next(NOP);
            let counted = machine.read(0xc001_0201 + 2 * index) - before;
            assert_eq!(counted, u64::from(index == other), "{index} {other}");
        }
    }
}

#[test]
fn the_write_of_a_counter_or_of_its_event_is_counted_by_all_the_others() {
    for written in 0..6_u32 {
        for register in [0xc001_0200 + 2 * written, 0xc001_0201 + 2 * written] {
            let mut machine = AmdMachine::new("zen4");
            (0..6).for_each(|index| machine.write(0xc001_0200 + 2 * index, ALL | 0xc0));
            (0..6).for_each(|index| machine.write(0xc001_0201 + 2 * index, 1000));
            let before: [_; 6] = core::array::from_fn(|index| machine.read(0xc001_0201 + 2 * index as u32));
            let value = machine.read(register);
            machine.write(register, value);
            for (index, before) in before.into_iter().enumerate() {
                let counted = machine.read(0xc001_0201 + 2 * index as u32) - before;
                assert_eq!(counted, u64::from(index as u32 != written), "{register:#x} {index}");
            }
        }
    }
}

/// Checks that a counter of cycles steps nothing unless filtered by level, counting a condition, or near overflow.
#[test]
fn a_counter_of_cycles_is_read_where_that_is_enough() {
    const EN: u64 = 1 << 22;
    const BOTH: u64 = 0b11 << 16;
    let near = (1 << 48) - (1 << 20);
    let rows = [
        (0x76 | BOTH | EN, 0, true, false),
        (0x76 | BOTH | EN, near, true, true),
        (0x76 | 1 << 16 | EN, 0, true, true),
        (0x76 | 1 << 17 | EN, 0, true, true),
        (0x76 | BOTH | EN | 1 << 18, 0, true, true),
        (0x76 | BOTH | EN | 1 << 24, 0, true, true),
        (0xc0 | BOTH | EN, 0, true, true),
        (0x76 | BOTH, 0, false, false),
    ];
    for name in ["k8", "zen2", "zen4"] {
        for (select, value, counts, stepped) in rows {
            let mut machine = AmdMachine::new(name);
            machine.write(VALUE, value);
            machine.write(SELECT, select);
            assert_eq!(machine.processor.counts_time(), counts, "{name} {select:#x}");
            assert_eq!(machine.processor.needs_each_instruction(), stepped, "{name} {select:#x} {value:#x}");
        }
    }
}

#[test]
fn cycles_that_pass_unseen_are_counted_and_their_overflow_interrupts() {
    const SELECTED: u64 = 0x53_0076;
    let mut machine = AmdMachine::new("zen4");
    machine.processor.write_apic(0x340, 0x400);
    machine.write(VALUE, (1 << 48) - (1 << 27));
    machine.write(SELECT, SELECTED);
    let mut pass = |from: u64, to: u64| {
        machine.processor.begin_time(from);
        machine.processor.pass_time(to, &mut crate::FlatMemory { base: 0, bytes: &mut [] });
        (machine.processor.read_msr(VALUE).unwrap(), machine.processor.take_interrupt())
    };
    assert_eq!(pass(1000, 1000 + (1 << 26)), ((1 << 48) - (1 << 26), None));
    // Between the two the processor was halted.
    assert_eq!(pass(1 << 40, (1 << 40) + (1 << 26) + 5), (5, Some(Pmi::Nmi)));
    assert_eq!(machine.processor.read_msr(0xc000_0300), Ok(1));
    assert!(!machine.processor.needs_each_instruction(), "it is far from its next overflow");
}
