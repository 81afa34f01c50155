//! The last branches.

use std::vec::Vec;

use super::machine::*;
use crate::{DeliveryKind, GeneralProtection, Pmi};

const DEBUG_CTL: u32 = 0x1d9;
const SELECT: u32 = 0xc000_010e;
const CONTROL: u32 = 0xc000_010f;
const FROM: u32 = 0xc001_0300;
const TO: u32 = 0xc001_0301;
const STATUS: u32 = 0xc000_0300;
const STATUS_CLEAR: u32 = 0xc000_0302;
const EVENT: u32 = 0xc001_0200;
const COUNTER: u32 = 0xc001_0201;

const STACK_ON: u64 = 1 << 6;
const SAMPLING_ON: u64 = 0b111 << 2;
const INT: u64 = 1 << 20;
const VALID: u64 = 1 << 63;
const MISPREDICTED: u64 = 1 << 63;

const JMP_RAX: &[u8] = &[0xff, 0xe0];
const CALL_RAX: &[u8] = &[0xff, 0xd0];
const SYSCALL: &[u8] = &[0x0f, 0x05];

/// Returns sources and targets of the first entries, as the registers show them.
fn entries(machine: &AmdMachine, count: u32) -> Vec<(u64, u64)> {
    (0..count).map(|index| (machine.read(FROM + 2 * index), machine.read(TO + 2 * index))).collect()
}

fn stack() -> AmdMachine {
    let mut machine = AmdMachine::new("zen4");
    machine.write(CONTROL, STACK_ON);
    machine
}

/// Returns a machine with branch sampling, and a counter that overflows at the next instruction and interrupts by NMI.
fn sampling() -> AmdMachine {
    let mut machine = AmdMachine::new("zen3");
    machine.processor.write_apic(0x340, 0x400);
    machine.write(CONTROL, SAMPLING_ON);
    overflow_next(&mut machine);
    machine
}

fn overflow_next(machine: &mut AmdMachine) {
    machine.write(COUNTER, !0);
    machine.write(EVENT, ALL | INT | 0xc0);
}

#[test]
fn each_processor_has_the_registers_that_it_announces() {
    for (name, there) in [
        ("k8", &[][..]),
        ("zen2", &[]),
        ("zen3", &[CONTROL, FROM, FROM + 31]),
        ("zen4", &[CONTROL, SELECT, DEBUG_CTL, FROM, FROM + 31]),
        ("zen5", &[CONTROL, SELECT, DEBUG_CTL, FROM, FROM + 31]),
    ] {
        let machine = AmdMachine::new(name);
        for register in [CONTROL, SELECT, DEBUG_CTL, FROM, FROM + 31, FROM + 32] {
            let found = machine.processor.owns_msr(register);
            assert_eq!(found, there.contains(&register), "{name} {register:#x}");
            assert_eq!(machine.processor.read_msr(register).is_ok(), found, "{name} {register:#x}");
        }
    }
}

#[test]
fn bits_that_must_be_zero_fault_and_others_are_as_the_manual_has_them() {
    let fault = Err(GeneralProtection);
    for (register, value, expected) in [
        (CONTROL, STACK_ON, Ok(STACK_ON)),
        (CONTROL, STACK_ON | 1 << 7, fault),
        (CONTROL, 1 << 2, fault),
        (SELECT, !0, Ok(0x1ff)),
        (DEBUG_CTL, 0b11 << 11, Ok(0b11 << 11)),
        (DEBUG_CTL, 1, fault),
        (FROM, 5, Ok(5)),
        (TO + 30, !0, Ok(!0)),
    ] {
        let mut machine = AmdMachine::new("zen4");
        let read = machine.try_write(register, value).map(|()| machine.read(register));
        assert_eq!(read, expected, "{register:#x} {value:#x}");
    }
}

#[test]
fn the_newest_branch_is_the_first_and_the_oldest_goes() {
    let mut machine = stack();
    machine.at.ip = 0x1000;
    machine.next(NOP);
    // Not taken.
    machine.next(JZ);
    for index in 1..=17 {
        machine.go(JMP, 0x1000 + 0x100 * index);
    }
    let expected: Vec<_> =
        (1..=16).rev().map(|index| (0x1000 + 0x100 * index, VALID | (0x1100 + 0x100 * index))).collect();
    assert_eq!(entries(&machine, 16), expected);
    machine.write(CONTROL, 0);
    machine.go(JMP, 0x9000);
    assert_eq!(entries(&machine, 16), expected, "off");
}

#[test]
fn a_record_has_57_bits_of_addresses_and_says_whether_the_branch_was_mispredicted() {
    let mut machine = stack();
    machine.at.ip = 0xffff_ffff_8100_0000;
    machine.go(JZ, 0xffff_ffff_8100_0042);
    let low = |address: u64| address & ((1 << 57) - 1);
    let (from, to) = (0xffff_ffff_8100_0000, 0xffff_ffff_8100_0042);
    // A branch that is seen for the first time is predicted not taken.
    assert_eq!(entries(&machine, 1), [(MISPREDICTED | low(from), VALID | low(to))]);
    machine.at.ip = from;
    machine.go(JZ, to);
    assert_eq!(entries(&machine, 1), [(low(from), VALID | low(to))]);
}

#[test]
fn each_bit_of_the_select_register_leaves_out_a_kind() {
    for (bit, bytes) in
        [(2, JZ), (3, CALL), (4, CALL_RAX), (5, RET), (6, JMP_RAX), (7, JMP), (8, SYSCALL), (8, IRETQ)]
    {
        for select in (0..9).map(|bit| 1 << bit).chain([0]) {
            let mut machine = stack();
            machine.write(SELECT, select);
            machine.go(bytes, 0x9000);
            // Bit 0 excludes branches that end at level 0, as these do.
            let recorded = select & (1 << bit | 1) == 0;
            assert_eq!(machine.read(TO) != 0, recorded, "{bytes:x?} {select:#x}");
        }
    }
}

#[test]
fn the_level_that_a_branch_leads_to_decides() {
    for (select, from, to, recorded) in [
        (0b01, 0, 0, false),
        (0b01, 3, 0, false),
        (0b01, 0, 3, true),
        (0b10, 0, 3, false),
        (0b10, 3, 3, false),
        (0b10, 3, 0, true),
        (0b11, 0, 0, false),
    ] {
        let mut machine = stack();
        machine.write(SELECT, select);
        machine.at.cpl = from;
        machine.go_to_level(IRETQ, 0x9000, to);
        assert_eq!(machine.read(TO) != 0, recorded, "{select:#b} {from} {to}");
    }
}

#[test]
fn interrupts_are_far_branches_and_a_debug_exception_ends_it() {
    for (select, recorded) in [(0, true), (1 << 8, false)] {
        let mut machine = stack();
        machine.write(SELECT, select);
        machine.deliver(DeliveryKind::Interrupt);
        assert_eq!(machine.read(TO) != 0, recorded);
        assert_eq!(machine.read(CONTROL), STACK_ON);
    }
    for (vector, kind, control) in [
        (1, DeliveryKind::Trap, 0),
        (1, DeliveryKind::Fault, 0),
        (1, DeliveryKind::SoftwareInterrupt, STACK_ON),
        (2, DeliveryKind::Nmi, STACK_ON),
        (14, DeliveryKind::Fault, STACK_ON),
    ] {
        let mut machine = stack();
        machine.deliver_vector(vector, kind);
        assert_eq!(machine.read(CONTROL), control, "{vector} {kind:?}");
        assert_eq!(machine.read(TO) != 0, control != 0, "the exception itself: {vector} {kind:?}");
    }
}

#[test]
fn an_overflow_freezes_what_it_is_to_freeze_until_software_clears_the_status() {
    for (debug_ctl, interrupts, status) in [
        (0, INT, 1),
        (1 << 11, INT, 1 | 1 << 58),
        (1 << 12, INT, 1 | 1 << 59),
        (0b11 << 11, INT, 1 | 0b11 << 58),
        (0b11 << 11, 0, 1),
    ] {
        let mut machine = stack();
        machine.write(DEBUG_CTL, debug_ctl);
        machine.write(COUNTER, !0);
        machine.write(EVENT, ALL | interrupts | 0xc0);
        machine.go(JMP, 0x1000);
        assert_eq!(machine.read(STATUS), status, "{debug_ctl:#x} {interrupts:#x}");
        let (newest, counted) = (machine.read(TO), machine.read(COUNTER));
        assert_eq!((newest, counted), (VALID | 0x1000, 0), "the one that overflowed is in it");
        machine.go(JMP, 0x2000);
        assert_eq!(machine.read(TO) == newest, status & 1 << 58 != 0, "{debug_ctl:#x} {interrupts:#x}");
        assert_eq!(machine.read(COUNTER) == 0, status & 1 << 59 != 0, "{debug_ctl:#x} {interrupts:#x}");
        machine.write(STATUS_CLEAR, 0b11 << 58);
        let counted = machine.read(COUNTER);
        machine.go(JMP, 0x3000);
        assert_eq!((machine.read(TO), machine.read(COUNTER)), (VALID | 0x3000, counted + 1));
    }
}

#[test]
fn branch_sampling_begins_at_an_overflow_and_holds_its_interrupt_until_all_are_there() {
    let mut machine = sampling();
    machine.go(JMP, 0x1000);
    assert_eq!(machine.read(CONTROL), SAMPLING_ON, "the one that overflows is not in it");
    for index in 0..16 {
        assert_eq!(machine.interrupts(), [], "{index}");
        machine.next(NOP);
        machine.go(JMP, 0x1100 + 0x100 * index);
        let (on, next) = if index == 15 { (0b11 << 3, 0) } else { (SAMPLING_ON, index + 1) };
        assert_eq!(machine.read(CONTROL), on | 1 << 5 | next << 16);
    }
    assert_eq!(machine.interrupts(), [Pmi::Nmi]);
    let expected: Vec<_> = (0..16).map(|index| (0x1001 + 0x100 * index, 0x1100 + 0x100 * index)).collect();
    assert_eq!(entries(&machine, 16), expected);
    machine.go(JMP, 0x9000);
    assert_eq!(entries(&machine, 16), expected, "it is over");
}

#[test]
fn branch_sampling_that_is_turned_off_lets_the_interrupt_come() {
    let mut machine = sampling();
    machine.next(NOP);
    machine.go(JMP, 0x1000);
    assert_eq!(machine.interrupts(), []);
    machine.write(CONTROL, machine.read(CONTROL) & !(1 << 2));
    assert_eq!(machine.interrupts(), [Pmi::Nmi]);
    assert_eq!(machine.read(CONTROL), 0b11 << 3 | 1 << 5 | 1 << 16);
    machine.go(JMP, 0x2000);
    assert_eq!(machine.read(TO + 2), 0);
}

#[test]
fn branch_sampling_without_an_overflow_records_nothing_and_off_holds_nothing() {
    let mut machine = AmdMachine::new("zen3");
    machine.write(CONTROL, SAMPLING_ON);
    machine.go(JMP, 0x1000);
    assert_eq!((machine.read(CONTROL), entries(&machine, 1)), (SAMPLING_ON, std::vec![(0, 0)]));
    machine.write(CONTROL, 0b11 << 3);
    machine.processor.write_apic(0x340, 0x400);
    overflow_next(&mut machine);
    machine.next(NOP);
    assert_eq!(machine.interrupts(), [Pmi::Nmi]);
}

#[test]
fn branch_sampling_has_two_bits_that_must_be_set_and_names_the_counter() {
    let mut machine = AmdMachine::new("zen3");
    machine.write(CONTROL, 1 << 2);
    assert_eq!(machine.read(CONTROL), SAMPLING_ON);
    assert_eq!(machine.processor.violations().cleared_branch_bits, 1);
    machine.write(COUNTER + 6, !0);
    machine.write(EVENT + 6, ALL | INT | 0xc0);
    machine.next(NOP);
    assert_eq!(machine.read(CONTROL), SAMPLING_ON | 3 << 24);
}

#[test]
fn branch_sampling_names_the_counter_that_it_began_for_also_when_another_overflows() {
    let mut machine = AmdMachine::new("zen3");
    machine.write(CONTROL, SAMPLING_ON);
    for index in [3, 0] {
        machine.write(COUNTER + 2 * index, !0);
        machine.write(EVENT + 2 * index, ALL | INT | 0xc0);
        machine.next(NOP);
        assert_eq!(machine.read(CONTROL), SAMPLING_ON | 3 << 24, "{index}");
    }
    assert_eq!(machine.read(COUNTER), 0, "the second one has overflowed");
}

#[test]
fn each_instruction_must_be_seen_while_branches_are_recorded() {
    for (name, on) in [("zen3", SAMPLING_ON), ("zen4", STACK_ON)] {
        let mut machine = AmdMachine::new(name);
        assert!(!machine.processor.needs_each_instruction());
        machine.write(CONTROL, on);
        assert!(machine.processor.needs_each_instruction() && machine.processor.records_branches());
    }
}
