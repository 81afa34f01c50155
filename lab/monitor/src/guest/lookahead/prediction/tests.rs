extern crate std;

use std::vec::Vec;

use crate::guest::cpu::Gpr;
use crate::guest::lookahead::{Lookahead, Stretch, StretchLimits};
use crate::guest::testing::Machine;

const RET: &[u8] = &[0xc3];
const JMP_RBX: &[u8] = &[0xff, 0xe3];
const CALL_R11: &[u8] = &[0x41, 0xff, 0xd3];
/// JMP [RIP + 20H]
const JMP_TABLE: &[u8] = &[0xff, 0x25, 0x20, 0, 0, 0];
/// CALL [RCX + RDX * 8 + 10H]
const CALL_TABLE: &[u8] = &[0xff, 0x54, 0xd1, 0x10];

/// Returns a machine with `code`, then `branch`, then a HLT; and the address of two NOPs and a HLT, stored in every
/// possible source of `branch`'s target.
fn machine(code: &[u8], branch: &[u8]) -> (Machine, u64) {
    let mut machine = Machine::long();
    let rip = machine.cpu.rip;
    let at = rip + code.len() as u64;
    let target = (rip & !0xfff) + 0xe00;
    machine.put(rip, &[code, branch, &[0xf4]].concat());
    machine.put(target, &[0x90, 0x90, 0xf4]);
    let stack = machine.cpu.get(Gpr::Rsp) & !0xfff | 0x800;
    machine.put(stack, &target.to_le_bytes());
    // These point neither to the stack nor to the table.
    let elsewhere = stack + 0x100;
    machine.put(elsewhere, &(elsewhere + 0x40).to_le_bytes());
    for (register, value) in [
        (Gpr::Rsp, stack),
        (Gpr::Rbp, stack),
        (Gpr::Rbx, target),
        (Gpr::R11, target),
        (Gpr::Rdi, elsewhere),
        (Gpr::Rsi, elsewhere),
        (Gpr::Rcx, stack + 0x200),
        (Gpr::Rdx, 3),
    ] {
        machine.cpu.gpr[register as usize] = value;
    }
    machine.put(stack + 0x200 + 3 * 8 + 0x10, &target.to_le_bytes());
    machine.put(at + JMP_TABLE.len() as u64 + 0x20, &target.to_le_bytes());
    (machine, target)
}

/// Returns the number of instructions that are known to execute in sequence.
fn known(machine: &mut Machine, alone: bool) -> usize {
    let mut lookahead = Lookahead::new();
    let first = lookahead.next(&machine.cpu, &mut machine.ram).unwrap();
    let mut stretch = Stretch::new();
    let limits = StretchLimits { instructions: Stretch::MAX, through_branches: true, alone };
    let found = lookahead.stretch(&machine.cpu, &mut machine.ram, &first, limits, &mut stretch);
    if found { stretch.instructions().len() } else { 0 }
}

/// Asserts that the target of `branch` after the `count` instructions of `code` is known, or is not.
fn check(code: &[u8], count: usize, branch: &[u8], is_known: bool) {
    let (mut machine, _) = machine(code, branch);
    let expected = if is_known { count + 3 } else { count };
    assert_eq!(known(&mut machine, true), expected, "{code:02x?} {branch:02x?}");
}

#[test]
fn a_target_is_known_until_an_instruction_may_have_changed_it() {
    let known: &[(&[u8], usize, &[u8])] = &[
        // PUSH RAX, POP RCX
        (&[0x50, 0x59], 2, RET),
        // SUB RSP, 8; ADD RSP, 8, with 8 and 32 bits
        (&[0x48, 0x83, 0xec, 8, 0x48, 0x83, 0xc4, 8], 2, RET),
        (&[0x48, 0x81, 0xec, 8, 1, 0, 0, 0x48, 0x81, 0xc4, 8, 1, 0, 0], 2, RET),
        // LEA RSP, [RSP - 8]; LEA RSP, [RSP + 8]
        (&[0x48, 0x8d, 0x64, 0x24, 0xf8, 0x48, 0x8d, 0x64, 0x24, 8], 2, RET),
        // MOV [RSP + 8], RAX; MOV [RSP - 8], RAX: beside the return address
        (&[0x48, 0x89, 0x44, 0x24, 8, 0x48, 0x89, 0x44, 0x24, 0xf8], 2, RET),
        // MOV [RDI], RAX; NOP: elsewhere
        (&[0x48, 0x89, 7, 0x90], 2, RET),
        // MOV RAX, [RSP]; CMP [RSP], RAX: only read
        (&[0x48, 0x8b, 4, 0x24, 0x48, 0x39, 4, 0x24], 2, RET),
        // MOV RCX, RAX; MOV EAX, 1
        (&[0x48, 0x89, 0xc1, 0xb8, 1, 0, 0, 0], 2, JMP_RBX),
        (&[0x48, 0x89, 0xc1, 0xb8, 1, 0, 0, 0], 2, CALL_R11),
        (&[0x90, 0x90], 2, JMP_TABLE),
        (&[0x90, 0x90], 2, CALL_TABLE),
        // MOV [RSP], RAX changes neither the table nor a register.
        (&[0x48, 0x89, 4, 0x24, 0x90], 2, JMP_TABLE),
        (&[0x48, 0x89, 4, 0x24, 0x90], 2, CALL_TABLE),
        (&[0x48, 0x89, 4, 0x24, 0x90], 2, JMP_RBX),
        // MOV RDI, [RSI]; MOV [RDI], RAX may write any memory, but no register.
        (&[0x48, 0x8b, 0x3e, 0x48, 0x89, 7], 2, JMP_RBX),
    ];
    for &(code, count, branch) in known {
        check(code, count, branch, true);
    }
    let unknown: &[(&[u8], usize, &[u8])] = &[
        // PUSH RAX: the value of RAX is not tracked
        (&[0x90, 0x50], 2, RET),
        // MOV [RSP], RAX; MOV [RSP + 7], AL; MOV [RSP - 4], RAX; MOV [RBP], RAX
        (&[0x90, 0x48, 0x89, 4, 0x24], 2, RET),
        (&[0x90, 0x88, 0x44, 0x24, 7], 2, RET),
        (&[0x90, 0x48, 0x89, 0x44, 0x24, 0xfc], 2, RET),
        (&[0x90, 0x48, 0x89, 0x45, 0], 2, RET),
        // VMOVDQU [RSP - 18H], YMM0
        (&[0x90, 0xc5, 0xfe, 0x7f, 0x44, 0x24, 0xe8], 2, RET),
        // LOCK CMPXCHG [RSP], RCX, which may write
        (&[0x90, 0xf0, 0x48, 0x0f, 0xb1, 0x0c, 0x24], 2, RET),
        // FXSAVE [RDI]: longer than tracked writes
        (&[0x90, 0x0f, 0xae, 7], 2, RET),
        // MOV RDI, [RSI]; MOV [RDI], RAX
        (&[0x48, 0x8b, 0x3e, 0x48, 0x89, 7], 2, RET),
        // MOV FS:[0], RAX: FS has a base
        (&[0x90, 0x64, 0x48, 0x89, 4, 0x25, 0, 0, 0, 0], 2, RET),
        // MOV RSP, RBP; POP RSP; AND RSP, -16; LEA RSP, [RBP]
        (&[0x90, 0x48, 0x89, 0xec], 2, RET),
        (&[0x90, 0x5c], 2, RET),
        (&[0x90, 0x48, 0x83, 0xe4, 0xf0], 2, RET),
        (&[0x90, 0x48, 0x8d, 0x65, 0], 2, RET),
        // MOV RBX, RAX; MOV BL, 1; XCHG RBX, RAX; POP RBX
        (&[0x90, 0x48, 0x89, 0xc3], 2, JMP_RBX),
        (&[0x90, 0xb3, 1], 2, JMP_RBX),
        (&[0x90, 0x48, 0x93], 2, JMP_RBX),
        (&[0x90, 0x5b], 2, JMP_RBX),
        // MOV R11, RAX
        (&[0x90, 0x49, 0x89, 0xc3], 2, CALL_R11),
        // INC RDX; MOV RCX, [RSI]
        (&[0x90, 0x48, 0xff, 0xc2], 2, CALL_TABLE),
        (&[0x90, 0x48, 0x8b, 0x0e], 2, CALL_TABLE),
        // MOV [RCX + 28H], EAX
        (&[0x90, 0x89, 0x41, 0x28], 2, CALL_TABLE),
        // MOV [RIP + 26H], EAX: JMP is six bytes long
        (&[0x90, 0x89, 0x05, 0x26, 0, 0, 0], 2, JMP_TABLE),
        // JMP [RIP + 20H] with a segment override, with 32-bit addresses; both bases are excluded
        (&[0x90, 0x90], 2, &[0x65, 0xff, 0x25, 0x20, 0, 0, 0]),
        (&[0x90, 0x90], 2, &[0x67, 0xff, 0x25, 0x20, 0, 0, 0]),
    ];
    for &(code, count, branch) in unknown {
        check(code, count, branch, false);
    }
}

#[test]
fn a_function_returns_after_its_call_unless_it_may_have_changed_the_address() {
    // CALL over two bytes (a JMP over the function), then the function, then two NOPs at the JMP's target.
    let with = |function: &[u8]| -> Vec<u8> {
        let len = function.len() as u8;
        [&[0xe8, 2, 0, 0, 0, 0xeb, len][..], function].concat()
    };
    let rows: &[(&[u8], usize)] = &[
        // CALL, RET, JMP, NOP, NOP
        (RET, 5),
        // PUSH RBX; POP RBX; RET
        (&[0x53, 0x5b, 0xc3], 7),
        // MOV RDI, [RSI]; MOV [RDI], RAX; RET: it may have written the return address
        (&[0x48, 0x8b, 0x3e, 0x48, 0x89, 7, 0xc3], 3),
        // MOV [RSP], RAX; RET
        (&[0x48, 0x89, 4, 0x24, 0xc3], 2),
        // MOV [RSP + 1], AL; RET
        (&[0x88, 0x44, 0x24, 1, 0xc3], 2),
        // ADD RSP, 4; RET: pops half of the return address
        (&[0x48, 0x83, 0xc4, 4, 0xc3], 2),
        // POP RAX; PUSH RAX; RET
        (&[0x58, 0x50, 0xc3], 3),
    ];
    for &(function, count) in rows {
        let code = [&with(function)[..], &[0x90, 0x90, 0xf4]].concat();
        let (mut machine, _) = machine(&code, &[]);
        assert_eq!(known(&mut machine, true), count, "{function:02x?}");
    }
    // MOV [RDI], RAX with an unknown RDI; then a call: writes before the call do not matter.
    let code = [&[0x48, 0x8b, 0x3e, 0x48, 0x89, 7][..], &with(RET), &[0x90, 0x90, 0xf4]].concat();
    let (mut machine, _) = machine(&code, &[]);
    assert_eq!(known(&mut machine, true), 7);
}

#[test]
fn nothing_but_the_stack_is_read_ahead_where_others_write_memory() {
    for (branch, expected) in [(RET, 5), (JMP_RBX, 5), (JMP_TABLE, 2), (CALL_TABLE, 2)] {
        let (mut machine, _) = machine(&[0x90, 0x90], branch);
        assert_eq!(known(&mut machine, false), expected, "{branch:02x?}");
    }
}

#[test]
fn after_more_writes_than_are_remembered_memory_is_unknown() {
    // PUSH RAX this many times, then ADD RSP.
    for (pushes, is_known) in [(31_u8, true), (32, true), (33, false)] {
        let mut code = std::vec![0x50; usize::from(pushes)];
        let bytes = u32::from(pushes) * 8;
        code.extend([0x48, 0x81, 0xc4]);
        code.extend(bytes.to_le_bytes());
        check(&code, usize::from(pushes) + 1, RET, is_known);
    }
}

#[test]
fn a_string_instruction_that_repeats_may_have_written_anywhere() {
    // REP STOSB, CLD
    for (branch, is_known) in [(RET, false), (JMP_RBX, true)] {
        check(&[0xf3, 0xaa, 0xfc], 2, branch, is_known);
    }
}

#[test]
fn the_same_bytes_elsewhere_have_another_target() {
    let (mut machine, target) = machine(&[0x90, 0x90], JMP_TABLE);
    let mut lookahead = Lookahead::new();
    let mut stretch = Stretch::new();
    let limits = StretchLimits { instructions: 4, through_branches: true, alone: true };
    // The cache of classes chooses a slot by RIP: the two jumps share one.
    for (begin, target) in [(0x1_0000, target), (0x1_1004, target + 1)] {
        machine.put(begin, &[&[0x90, 0x90][..], JMP_TABLE].concat());
        machine.put(begin + 0x28, &target.to_le_bytes());
        machine.cpu.rip = begin;
        let first = lookahead.next(&machine.cpu, &mut machine.ram).unwrap();
        assert!(lookahead.stretch(&machine.cpu, &mut machine.ram, &first, limits, &mut stretch));
        assert_eq!(stretch.instructions()[3].rip(), target);
    }
}
