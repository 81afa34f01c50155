extern crate std;

use std::vec::Vec;

use super::*;
use crate::guest::cpu::Gpr;
use crate::guest::testing::Machine;

fn find(machine: &mut Machine, limit: usize) -> Option<Stretch> {
    let mut lookahead = Lookahead::new();
    let first = lookahead.next(&machine.cpu, &mut machine.ram).unwrap();
    let mut stretch = Stretch::new();
    lookahead.stretch(&machine.cpu, &mut machine.ram, &first, limits(limit), &mut stretch).then_some(stretch)
}

fn limits(instructions: usize) -> StretchLimits {
    StretchLimits { instructions, through_branches: true, alone: true }
}

fn lengths(stretch: Option<Stretch>) -> Vec<u8> {
    stretch.map_or(Vec::new(), |stretch| stretch.instructions().iter().map(Instruction::len).collect())
}

/// Returns a machine in 64-bit mode with `code` at RIP, followed by a HLT.
fn with(code: &[u8]) -> Machine {
    let mut machine = Machine::long();
    machine.put(machine.cpu.rip, code);
    machine.put(machine.cpu.rip + code.len() as u64, &[0xf4]);
    machine
}

#[test]
fn ends_before_whatever_goes_elsewhere_or_decides_how_instructions_execute() {
    // Two NOPs, then one of these: it is not part of the stretch.
    let ends: &[&[u8]] = &[
        // Both successors are the same address.
        &[0x74, 0x00],
        // Processors differ in branches with an operand size of 16 bits.
        &[0x66, 0xe9, 0, 0, 0, 0],
        &[0x66, 0x74, 0x10],
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
        &[0xf3, 0x6e],
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
    // Instructions that do not end a stretch: loads, stores, arithmetic, PUSH, MOV DS, RDTSC.
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
fn begins_with_a_branch_whose_target_is_known() {
    // Puts targets into the possible sources: the stack, RBX and R11.
    let go = |machine: &mut Machine, stack: u64, rbx: u64, r11: u64| {
        let rsp = machine.cpu.get(Gpr::Rsp) & !0xfff | 0x800;
        machine.cpu.gpr[Gpr::Rsp as usize] = rsp;
        machine.put(rsp, &stack.to_le_bytes());
        machine.cpu.gpr[3] = rbx;
        machine.cpu.gpr[11] = r11;
    };
    for code in [&[0xc3][..], &[0xff, 0xd3], &[0xff, 0xe3], &[0x41, 0xff, 0xd3], &[0x41, 0xff, 0xe3]] {
        let mut machine = with(code);
        let there = machine.cpu.rip + 0x40;
        machine.put(there, &[0x90, 0x90, 0x90, 0x90, 0xf4]);
        let elsewhere = there + 2;
        let extended = code[0] == 0x41;
        let (rbx, r11) = if extended { (elsewhere, there) } else { (there, elsewhere) };
        go(&mut machine, there, rbx, r11);
        let stretch = find(&mut machine, 16).unwrap();
        assert_eq!(stretch.exits().collect::<Vec<_>>(), [there + 4], "{code:x?}");
        assert_eq!(lengths(Some(stretch)), [code.len() as u8, 1, 1, 1, 1], "{code:x?}");
        // A non-canonical address, and one without instructions.
        for target in [1 << 60, 0x7000_0000_0000] {
            go(&mut machine, target, target, target);
            assert!(find(&mut machine, 16).is_none(), "{code:x?} {target:x}");
        }
    }
    // A stack that is not mapped, and returns that pop more bytes or have a prefix.
    let mut machine = with(&[0xc3]);
    machine.cpu.gpr[Gpr::Rsp as usize] = 0x7000_0000_0000;
    assert!(find(&mut machine, 16).is_none());
    for code in [&[0xc2, 8, 0][..], &[0xf3, 0xc3]] {
        let mut machine = with(code);
        let there = machine.cpu.rip + 0x40;
        machine.put(there, &[0x90, 0x90]);
        go(&mut machine, there, there, there);
        assert!(find(&mut machine, 16).is_none(), "{code:x?}");
    }
}

#[test]
fn one_instruction_is_none_and_the_limit_is_one() {
    assert!(find(&mut with(&[0x90]), 16).is_none());
    for (limit, expected) in [(0, 0), (1, 0), (2, 2), (5, 5), (64, 64), (99, 64)] {
        assert_eq!(lengths(find(&mut with(&[0x90; 90]), limit)).len(), expected, "{limit}");
    }
}

#[test]
fn each_instruction_lies_in_one_page() {
    // The number of NOPs before the end of a page, then the number of the next instruction's three bytes in this page.
    for (nops, in_page, expected) in [(4, 3, 7), (4, 2, 4), (4, 1, 4), (4, 0, 8)] {
        let mut machine = Machine::long();
        let end = (machine.cpu.rip | 0xfff) + 1;
        machine.cpu.rip = end - nops - in_page;
        let rip = machine.cpu.rip;
        let code = [&[0x90; 4][..], &[0x48, 0x01, 0xd8], &[0x90; 3], &[0xf4]].concat();
        machine.put(rip, &code);
        let expected = if in_page == 0 || in_page == 3 { 8 } else { expected };
        assert_eq!(lengths(find(&mut machine, 16)).len(), expected, "{in_page}");
    }
}

#[test]
fn goes_through_direct_branches_and_leaves_at_exits() {
    // Code, offsets of the instructions, offsets of the exits.
    type Row = (&'static [u8], &'static [u64], &'static [u64]);
    let rows: [Row; 9] = [
        // A jump over two bytes; a call of the instruction after it.
        (&[0x90, 0xeb, 0x02, 0xcc, 0xcc, 0x90, 0xf4], &[0, 1, 5], &[6]),
        (&[0x90, 0xe8, 1, 0, 0, 0, 0xcc, 0x90, 0xf4], &[0, 1, 7], &[8]),
        // Forward branches are assumed not taken, backward branches taken.
        (&[0x90, 0x74, 0x04, 0x90, 0xf4], &[0, 1, 3], &[7, 4]),
        (&[0x90, 0x90, 0x75, 0xfc, 0xf4], &[0, 1, 2], &[4, 0]),
        (&[0x90, 0xe2, 0xfd, 0xf4], &[0, 1], &[3, 0]),
        // A loop that does not return to the first instruction: its end begins the next stretch.
        (&[0x90, 0x90, 0x75, 0xfd], &[0, 1], &[2]),
        (&[0x90, 0x90, 0xeb, 0xfd], &[0, 1], &[2]),
        // An address that two branches share does not tell which one was taken. Neither does an address that execution
        // reaches anyway.
        (&[0x90, 0x74, 0x04, 0x78, 0x02, 0x90, 0xf4], &[0, 1], &[7, 3]),
        (&[0x90, 0x74, 0x02, 0x90, 0x90, 0x90, 0xf4], &[0, 1, 3], &[5, 4]),
    ];
    for (code, offsets, exits) in rows {
        let mut machine = with(code);
        let rip = machine.cpu.rip;
        let stretch = find(&mut machine, 16).unwrap();
        let found: Vec<u64> = stretch.instructions().iter().map(|one| one.rip() - rip).collect();
        let left: Vec<u64> = stretch.exits().map(|exit| exit - rip).collect();
        assert_eq!((&found[..], &left[..]), (offsets, exits), "{code:02x?}");
        assert_eq!(stretch.is_loop(), exits.contains(&0));
    }
}

#[test]
fn what_repeats_is_the_first_or_not_there() {
    // REP MOVSB: alone, before other instructions, twice, in a loop. Then MOVSB, and REP OUTSB.
    let rows: [(&[u8], &[u8]); 6] = [
        (&[0xf3, 0xa4], &[2]),
        (&[0xf3, 0xa4, 0x90], &[2, 1]),
        (&[0xf3, 0xa4, 0xf3, 0xa4], &[2]),
        (&[0xf3, 0xa4, 0x90, 0x75, 0xfb], &[2, 1]),
        (&[0xa4, 0x90], &[]),
        (&[0xf3, 0x6e, 0x90], &[]),
    ];
    for (code, expected) in rows {
        assert_eq!(lengths(find(&mut with(code), 16)), expected, "{code:02x?}");
    }
}

#[test]
fn has_as_many_exits_as_there_are_breakpoints() {
    // Four conditional branches far ahead: three of them fit, and the end.
    let mut machine = with(&[0x74, 0x20, 0x74, 0x30, 0x74, 0x40, 0x90, 0x74, 0x50]);
    let rip = machine.cpu.rip;
    let exits: Vec<u64> = find(&mut machine, 16).unwrap().exits().map(|exit| exit - rip).collect();
    assert_eq!(exits, [0x22, 0x34, 0x46, 7]);
}

#[test]
fn where_branches_are_recorded_each_is_the_last() {
    for (code, expected) in
        [(&[0x90, 0xeb, 0x00, 0x90, 0x90][..], 2), (&[0x90, 0x74, 0x10, 0x90, 0x90], 2), (&[0x90; 5], 5)]
    {
        let mut machine = with(code);
        let mut lookahead = Lookahead::new();
        let first = lookahead.next(&machine.cpu, &mut machine.ram).unwrap();
        let mut stretch = Stretch::new();
        let found = lookahead.stretch(
            &machine.cpu,
            &mut machine.ram,
            &first,
            StretchLimits { through_branches: false, ..limits(16) },
            &mut stretch,
        );
        assert_eq!(lengths(found.then_some(stretch)).len(), expected, "{code:02x?}");
    }
}

#[test]
fn rip_tells_how_far_a_loop_came() {
    // 0: NOP; 1: JZ 9; 3: NOP; 4: JNZ 0.
    let mut machine = with(&[0x90, 0x74, 0x06, 0x90, 0x75, 0xfa]);
    let rip = machine.cpu.rip;
    let stretch = find(&mut machine, 16).unwrap();
    for (offset, begun, expected) in [
        (0, false, Some(0)),
        (0, true, Some(4)),
        (1, true, Some(1)),
        (3, true, Some(2)),
        (9, true, Some(2)),
        (4, true, Some(3)),
        (6, true, Some(4)),
        (7, true, None),
    ] {
        assert_eq!(stretch.executed(rip + offset, begun), expected, "{offset} {begun}");
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
    let executed = [0, 1, 2, 4, 5, 6].map(|offset| stretch.executed(rip + offset, true));
    assert_eq!(executed, [Some(0), Some(1), None, Some(2), Some(3), None]);
    assert!(stretch.exits().eq([rip + 5]));
}

#[test]
fn notices_code_that_has_changed_up_to_the_next_instruction() {
    const INT3: u8 = 0xcc;
    // Offset and value of the write, the number of executed instructions, and the first stale instruction.
    for (offset, byte, executed, changed) in [
        (0, 0x55, 0, Some(0)),
        (0, 0x55, 3, Some(0)),
        (1, 0x55, 0, None),
        (1, 0x55, 1, Some(1)),
        (3, 0x55, 2, Some(1)),
        (4, 0x55, 1, None),
        (4, 0x55, 2, Some(2)),
        (5, 0x55, 3, None),
        (1, INT3, 0, None),
        (1, INT3, 1, Some(1)),
        (1, INT3, 2, None),
        (3, INT3, 2, Some(1)),
    ] {
        let mut machine = with(&[0x90, 0x48, 0x01, 0xd8, 0x50]);
        let stretch = find(&mut machine, 16).unwrap();
        assert_eq!(stretch.first_changed(&machine.ram, executed), None);
        let address = machine.cpu.rip + offset;
        machine.put(address, &[byte]);
        assert_eq!(
            stretch.first_changed(&machine.ram, executed),
            changed,
            "{byte:#x} at {offset}, {executed}"
        );
    }
}
