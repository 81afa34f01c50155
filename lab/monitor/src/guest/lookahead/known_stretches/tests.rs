extern crate std;

use std::vec::Vec;

use super::*;
use crate::guest::cpu::{Gpr, dr7};
use crate::guest::lookahead::Instruction;
use crate::guest::testing::Machine;

const LIMITS: StretchLimits = StretchLimits { instructions: 16, through_branches: true, alone: true };

/// The called function: two NOPs and RET.
const CALLED: [u8; 3] = [0x90, 0x90, 0xc3];
/// The code after the call: CALL [RBX], and HLT.
const AFTER: [u8; 3] = [0xff, 0x13, 0xf4];

/// A change by the guest between two executions of a stretch.
type Change = fn(&mut Machine, &mut StretchLimits);

/// Returns a machine at code of two pages that calls, returns, and calls through a table.
fn machine() -> Machine {
    let mut machine = Machine::long();
    let page = (machine.cpu.rip & !0xfff) + 0x1000;
    // Two NOPs and a CALL, which is the last instruction of its page.
    machine.cpu.rip = page - 7;
    machine.put(page - 7, &[0x90, 0x90, 0xe8, 0x40, 0, 0, 0]);
    machine.put(page, &AFTER);
    machine.put(page + 0x40, &CALLED);
    let table = page + 0x800;
    machine.put(table, &(page + 0x400).to_le_bytes());
    machine.put(page + 0x400, &[0xc3]);
    machine.put(page + 0x500, &[0xc3]);
    machine.cpu.gpr[Gpr::Rbx as usize] = table;
    machine
}

fn found(lookahead: &mut Lookahead, machine: &mut Machine, limits: StretchLimits) -> Option<Facts> {
    let rip = machine.cpu.rip;
    let Ok(first) = lookahead.next(&machine.cpu, &mut machine.ram) else { return None };
    let mut stretch = lookahead.take_stretch(rip);
    let found = lookahead.stretch(&machine.cpu, &mut machine.ram, &first, limits, &mut stretch);
    let facts = (stretch.instructions().to_vec(), stretch.exits().collect());
    lookahead.keep_stretch(rip, stretch);
    found.then_some(facts)
}

type Facts = (Vec<Instruction>, Vec<u64>);

#[test]
fn the_same_stretch_is_found_again() {
    let mut machine = machine();
    let mut lookahead = Lookahead::new();
    let first = found(&mut lookahead, &mut machine, LIMITS).unwrap();
    assert_eq!(first.0.len(), 8, "{first:x?}");
    for limits in
        [LIMITS, StretchLimits { instructions: 8, ..LIMITS }, StretchLimits { instructions: 64, ..LIMITS }]
    {
        let rip = machine.cpu.rip;
        let kept = lookahead.take_stretch(rip);
        let is_still = kept.is_still(rip, &machine.cpu, &mut machine.ram, &mut lookahead.tlb, limits);
        lookahead.keep_stretch(rip, kept);
        assert!(is_still, "{limits:?}");
        assert_eq!(found(&mut lookahead, &mut machine, limits), Some(first.clone()));
    }
}

#[test]
fn what_has_changed_is_found_as_if_nothing_were_known() {
    let changes: &[(&str, Change)] = &[
        ("a register that does not matter", |machine, _| machine.cpu.gpr[Gpr::Rax as usize] ^= 1),
        ("the table's register", |machine, _| machine.cpu.gpr[Gpr::Rbx as usize] += 8),
        ("the table", |machine, _| {
            let table = machine.cpu.gpr[Gpr::Rbx as usize];
            machine.put(table, &(table - 0x300).to_le_bytes());
        }),
        ("another stack", |machine, _| machine.cpu.gpr[Gpr::Rsp as usize] -= 0x100),
        ("the table in the place of the stack", |machine, _| {
            machine.cpu.gpr[Gpr::Rbx as usize] = machine.cpu.gpr[Gpr::Rsp as usize] - 8;
        }),
        ("not alone", |_, limits| limits.alone = false),
        ("no branches", |_, limits| limits.through_branches = false),
        ("fewer instructions", |_, limits| limits.instructions = 7),
        ("one instruction", |_, limits| limits.instructions = 1),
        ("few instructions", |_, limits| limits.instructions = 3),
        ("breakpoints", |machine, _| machine.cpu.dr7 |= dr7::ENABLED),
        ("elsewhere", |machine, _| machine.cpu.rip += 1),
        ("a page that is not mapped", |machine, _| {
            let page = (machine.cpu.rip & !0xfff) + 0x1000;
            machine.set_page(page, 0);
        }),
        ("another page", |machine, _| {
            let page = (machine.cpu.rip & !0xfff) + 0x1000;
            let other = page + 0x4000;
            let mut bytes = [0; 0x1000];
            assert!(machine.ram.read(page, &mut bytes));
            machine.put(other, &bytes);
            machine.set_page(page, other | 7);
        }),
    ];
    for (name, change) in changes {
        let (mut machine, mut limits) = (machine(), LIMITS);
        let mut lookahead = Lookahead::new();
        found(&mut lookahead, &mut machine, limits).unwrap();
        change(&mut machine, &mut limits);
        lookahead.flush();
        let expected = found(&mut Lookahead::new(), &mut machine, limits);
        assert_eq!(found(&mut lookahead, &mut machine, limits), expected, "{name}");
        // The second time, the new stretch is cached.
        assert_eq!(found(&mut lookahead, &mut machine, limits), expected, "{name}, once more");
    }
}

#[test]
fn what_its_limit_ended_goes_on_under_another() {
    let (mut machine, mut lookahead) = (machine(), Lookahead::new());
    for instructions in [3, 4, 64, 7, 2, 1, 16] {
        let limits = StretchLimits { instructions, ..LIMITS };
        let expected = found(&mut Lookahead::new(), &mut machine, limits);
        assert_eq!(found(&mut lookahead, &mut machine, limits), expected, "{instructions}");
    }
}

#[test]
fn each_page_of_the_code_has_its_own_translation() {
    let mut machine = Machine::long();
    let page = (machine.cpu.rip & !0xfff) + 0x1000;
    machine.cpu.rip = page - 2;
    machine.put(page - 2, &[0x90, 0x90, 0x90, 0x90, 0xf4]);
    let mut lookahead = Lookahead::new();
    assert_eq!(found(&mut lookahead, &mut machine, LIMITS).map(|(all, _)| all.len()), Some(4));
    // The new page has a HLT after the first NOP.
    let other = page + 0x4000;
    machine.put(other, &[0x90, 0xf4]);
    machine.set_page(page, other | 7);
    lookahead.flush();
    assert_eq!(found(&mut lookahead, &mut machine, LIMITS).map(|(all, _)| all.len()), Some(3));
}

#[test]
fn each_byte_of_the_code_counts() {
    let mut original = machine();
    let (instructions, _) = found(&mut Lookahead::new(), &mut original, LIMITS).unwrap();
    let places = instructions.iter().flat_map(|insn| (insn.rip()..).take(usize::from(insn.len())));
    let mut others = 0;
    for place in places {
        for flipped in [1, 0x80] {
            let mut machine = machine();
            let mut lookahead = Lookahead::new();
            let before = found(&mut lookahead, &mut machine, LIMITS);
            let mut byte = [0];
            assert!(machine.ram.read(place, &mut byte));
            machine.put(place, &[byte[0] ^ flipped]);
            let expected = found(&mut Lookahead::new(), &mut machine, LIMITS);
            others += u32::from(expected != before);
            assert_eq!(found(&mut lookahead, &mut machine, LIMITS), expected, "{place:x} {flipped:x}");
        }
    }
    assert!(others > 20, "{others}");
}
