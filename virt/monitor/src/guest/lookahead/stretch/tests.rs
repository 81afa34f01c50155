extern crate std;

use std::vec::Vec;

use super::*;
use crate::guest::testing::Machine;

fn find(machine: &mut Machine, limit: usize) -> Option<Stretch> {
    let mut lookahead = Lookahead::new();
    let first = lookahead.next(&machine.cpu, &mut machine.ram).unwrap();
    lookahead.stretch(&machine.cpu, &mut machine.ram, &first, limit)
}

fn lengths(stretch: Option<Stretch>) -> Vec<u8> {
    stretch.map_or(Vec::new(), |stretch| stretch.instructions().iter().map(Instruction::len).collect())
}

/// A machine in 64-bit mode with `code` at RIP, the last two bytes a jump.
fn with(code: &[u8]) -> Machine {
    let mut machine = Machine::long();
    machine.put(machine.cpu.rip, code);
    machine.put(machine.cpu.rip + code.len() as u64, &[0xeb, 0xfe]);
    machine
}

#[test]
fn ends_before_whatever_does_not_just_fall_through() {
    // Two NOPs, then this: not part of the stretch.
    let ends: &[&[u8]] = &[
        &[0xeb, 0x00],
        &[0x74, 0x00],
        &[0xe8, 0, 0, 0, 0],
        &[0xc3],
        &[0xff, 0xe0],
        &[0xe2, 0x00],
        &[0x0f, 0x05],
        &[0xcc],
        &[0xcd, 0x30],
        &[0xf4],
        &[0x9c],
        &[0x9d],
        &[0xfa],
        &[0xfb],
        &[0x8e, 0xd0],
        &[0xf3, 0x90],
        &[0xf3, 0xa4],
        &[0xa4],
        &[0x0f, 0x22, 0xd8],
        &[0x0f, 0x23, 0xc0],
        &[0x0f, 0x30],
        &[0x0f, 0x01, 0x38],
        &[0x0f, 0x0b],
        &[0x06],
    ];
    for end in ends {
        let code = [&[0x90, 0x90][..], *end].concat();
        assert_eq!(lengths(find(&mut with(&code), 16)), [1, 1], "{end:x?}");
    }
    // And these are: loads, stores, arithmetic, PUSH, MOV DS, RDTSC.
    let on: &[&[u8]] = &[
        &[0x48, 0x8b, 0x03],
        &[0x48, 0x89, 0x03],
        &[0x48, 0x01, 0xd8],
        &[0x50],
        &[0x8e, 0xd8],
        &[0x0f, 0x31],
    ];
    for on in on {
        assert_eq!(
            lengths(find(&mut with(&[&[0x90][..], *on].concat()), 16)),
            [1, on.len() as u8],
            "{on:x?}"
        );
    }
}

#[test]
fn one_instruction_is_none_and_the_limit_is_one() {
    assert!(find(&mut with(&[0x90]), 16).is_none());
    for (limit, expected) in [(0, 0), (1, 0), (2, 2), (5, 5), (16, 16), (99, 16)] {
        assert_eq!(lengths(find(&mut with(&[0x90; 30]), limit)).len(), expected, "{limit}");
    }
}

#[test]
fn ends_within_the_page() {
    for (before_end, expected) in [(5, 4), (3, 2), (2, 0), (1, 0)] {
        let mut machine = Machine::long();
        machine.cpu.rip = (machine.cpu.rip | 0xfff) + 1 - before_end;
        let rip = machine.cpu.rip;
        machine.put(rip, &[0x90; 5][..before_end as usize]);
        assert_eq!(lengths(find(&mut machine, 16)).len(), expected, "{before_end}");
    }
}

#[test]
fn a_guest_that_would_notice_is_stepped() {
    type Change = fn(&mut Cpu);
    let rows: [(Change, bool); 7] = [
        (|_| {}, true),
        (|cpu| cpu.rflags |= rflags::IF, true),
        (|cpu| cpu.rflags |= rflags::TF, false),
        (|cpu| cpu.rflags |= rflags::RF, false),
        (|cpu| cpu.dr7 = 0x400 | 1, false),
        (|cpu| cpu.dr7 = 0x400 | 1 << 7, false),
        (|cpu| cpu.dr7 = 0x400 | dr7::GD, false),
    ];
    for (index, (change, found)) in rows.into_iter().enumerate() {
        let mut machine = with(&[0x90; 4]);
        change(&mut machine.cpu);
        assert_eq!(find(&mut machine, 16).is_some(), found, "row {index}");
    }
    let mut machine = Machine::compatibility();
    let rip = machine.cpu.rip;
    machine.put(rip, &[0x90; 4]);
    assert!(find(&mut machine, 16).is_none(), "compatibility mode");
}

#[test]
fn rip_tells_how_many_have_executed() {
    let mut machine = with(&[0x90, 0x48, 0x01, 0xd8, 0x50]);
    let rip = machine.cpu.rip;
    let stretch = find(&mut machine, 16).unwrap();
    let executed = [0, 1, 2, 4, 5, 6].map(|offset| stretch.executed(rip + offset));
    assert_eq!(executed, [Some(0), Some(1), None, Some(2), Some(3), None]);
    assert_eq!(stretch.end(), rip + 5);
}

#[test]
fn notices_code_that_changes_behind_the_first_instruction() {
    for (offset, unchanged) in [(0, true), (1, false), (3, false), (4, false), (5, true)] {
        let mut machine = with(&[0x90, 0x48, 0x01, 0xd8, 0x50]);
        let stretch = find(&mut machine, 16).unwrap();
        assert!(stretch.is_unchanged(&machine.ram));
        let address = machine.cpu.rip + offset;
        machine.put(address, &[0x55]);
        assert_eq!(stretch.is_unchanged(&machine.ram), unchanged, "{offset}");
    }
}
