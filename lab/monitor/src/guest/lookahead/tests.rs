extern crate std;

use super::*;
use crate::guest::testing::{Machine, at};
use crate::guest::{Exception, GuestError, Segment, Shadow, rflags};

fn next(machine: &mut Machine) -> Result<Instruction, GuestError> {
    Lookahead::new().next(&machine.cpu, &mut machine.ram)
}

#[test]
fn classifies_what_concerns_a_stepping_monitor() {
    use Emulation::*;
    use Size::*;
    // Code size, bytes, length, emulation.
    let rows: &[(u32, &[u8], u8, Option<Emulation>)] = &[
        (64, &[0x90], 1, None),
        (64, &[0x9c], 1, Some(Pushf(Qword))),
        (64, &[0x66, 0x9c], 2, Some(Pushf(Word))),
        (32, &[0x9c], 1, Some(Pushf(Dword))),
        (32, &[0x66, 0x9c], 2, Some(Pushf(Word))),
        (16, &[0x9c], 1, Some(Pushf(Word))),
        (16, &[0x66, 0x9c], 2, Some(Pushf(Dword))),
        (64, &[0x9d], 1, Some(Popf(Qword))),
        (64, &[0x66, 0x9d], 2, Some(Popf(Word))),
        (32, &[0x9d], 1, Some(Popf(Dword))),
        (64, &[0xcf], 1, Some(Iret(Dword))),
        (64, &[0x48, 0xcf], 2, Some(Iret(Qword))),
        (64, &[0x66, 0xcf], 2, Some(Iret(Word))),
        (32, &[0xcf], 1, Some(Iret(Dword))),
        (16, &[0xcf], 1, Some(Iret(Word))),
        (64, &[0xcd, 0x80], 2, Some(Int(0x80))),
        (64, &[0xcc], 1, Some(Int3)),
        (64, &[0xcd, 0x03], 2, Some(Int(3))),
        (64, &[0xf1], 1, Some(Int1)),
        (32, &[0xce], 1, Some(Into)),
        (64, &[0x0f, 0x05], 2, Some(Syscall)),
        (64, &[0x0f, 0x07], 2, Some(Sysret(Dword))),
        (64, &[0x48, 0x0f, 0x07], 3, Some(Sysret(Qword))),
        (64, &[0x0f, 0x34], 2, Some(Sysenter)),
        (64, &[0x0f, 0x35], 2, Some(Sysexit(Dword))),
        (64, &[0x48, 0x0f, 0x35], 3, Some(Sysexit(Qword))),
        (64, &[0xfb], 1, Some(Sti)),
        (64, &[0xfa], 1, Some(Cli)),
        (64, &[0xf4], 1, Some(Hlt)),
        (64, &[0x8e, 0xd0], 2, Some(MovSs)),
        (64, &[0x8e, 0x50, 0x08], 3, Some(MovSs)),
        (64, &[0xf3, 0x90], 2, Some(Pause)),
        (64, &[0x0f, 0xb2, 0x03], 3, Some(Lss)),
        (64, &[0x0f, 0x21, 0xf0], 3, Some(MovFromDr6)),
        (64, &[0x41, 0x0f, 0x23, 0xf1], 4, Some(MovToDr6)),
        (32, &[0x0f, 0x23, 0xf0], 3, Some(MovToDr6)),
        // MOV DR7, LFS.
        (64, &[0x0f, 0x23, 0xf8], 3, None),
        (64, &[0x0f, 0xb4, 0x03], 3, None),
        // MOV DS and MOV from SS.
        (64, &[0x8e, 0xd8], 2, None),
        (64, &[0x8c, 0xd0], 2, None),
        (32, &[0x17], 1, Some(PopSs(Dword))),
        (32, &[0x66, 0x17], 2, Some(PopSs(Word))),
        (16, &[0x17], 1, Some(PopSs(Word))),
        (32, &[0x1f], 1, None),
        // CALL, far RET, MOV CR3, RDMSR, UD2.
        (64, &[0xe8, 0, 0, 0, 0], 5, None),
        (64, &[0x48, 0xcb], 2, None),
        (64, &[0x0f, 0x22, 0xd8], 3, None),
        (64, &[0x0f, 0x32], 2, None),
        (64, &[0x0f, 0x0b], 2, None),
    ];
    for (bits, bytes, len, emulation) in rows {
        let mut machine = match bits {
            64 => Machine::long(),
            32 => Machine::protected(),
            _ => Machine::real(),
        };
        let code = machine.cpu.cs.base + machine.cpu.rip;
        machine.put(code, bytes);
        let found = next(&mut machine).unwrap();
        assert_eq!(
            (found.len(), found.bytes(), found.emulation(), found.is_valid(), found.rip()),
            (*len, *bytes, *emulation, true, machine.cpu.rip),
            "{bits} {bytes:x?}"
        );
    }
}

#[test]
fn tells_repeated_string_instructions_from_other_uses_of_the_prefix() {
    let rows: &[(&[u8], bool)] = &[
        (&[0xf3, 0xa4], true),
        (&[0xf3, 0x48, 0xab], true),
        (&[0xf2, 0xae], true),
        (&[0xf3, 0xa6], true),
        (&[0xf3, 0x6c], true),
        (&[0xa4], false),
        // PAUSE, REP RET, POPCNT, scalar SSE.
        (&[0xf3, 0x90], false),
        (&[0xf3, 0xc3], false),
        (&[0xf3, 0x0f, 0xb8, 0xc0], false),
        (&[0xf2, 0x0f, 0x10, 0xc0], false),
        // MOVSD of SSE has the same mnemonic as the string instruction.
        (&[0xf2, 0x0f, 0x11, 0x00], false),
    ];
    for (bytes, repeats) in rows {
        let mut machine = Machine::long();
        machine.put(at::CODE, bytes);
        assert_eq!(next(&mut machine).unwrap().repeats(), *repeats, "{bytes:x?}");
    }
}

#[test]
fn sti_makes_a_shadow_only_where_interrupts_were_off() {
    let rows: &[(&[u8], u64, Option<Shadow>)] = &[
        (&[0xfb], 0, Some(Shadow::Sti)),
        (&[0xfb], rflags::IF, None),
        (&[0x8e, 0xd0], 0, Some(Shadow::MovSs)),
        (&[0x8e, 0xd0], rflags::IF, Some(Shadow::MovSs)),
        (&[0x90], 0, None),
    ];
    for (bytes, flags, shadow) in rows {
        let mut machine = Machine::long();
        machine.cpu.rflags |= flags;
        machine.put(at::CODE, bytes);
        assert_eq!(next(&mut machine).unwrap().shadow(), *shadow, "{bytes:x?} {flags:#x}");
    }
}

#[test]
fn tf_is_in_danger_from_all_but_cli_and_hlt() {
    use Emulation::*;
    for emulation in [
        Pushf(Size::Qword),
        Popf(Size::Qword),
        Iret(Size::Qword),
        Int(3),
        Int3,
        Int1,
        Into,
        Syscall,
        Sysret(Size::Qword),
        Sysenter,
        Sysexit(Size::Qword),
        Sti,
        MovSs,
        PopSs(Size::Dword),
        Lss,
        MovFromDr6,
        MovToDr6,
        Pause,
    ] {
        assert!(emulation.when_stepping(), "{emulation:?}");
    }
    assert!(!Cli.when_stepping() && !Hlt.when_stepping());
}

#[test]
fn an_instruction_over_two_pages_is_read_from_both_frames() {
    // MOV RAX, imm64 in the last 1 to 9 bytes of a page; the next page is at another physical address.
    let code = [0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8];
    for first in 1..10 {
        let mut machine = Machine::long();
        machine.set_page(at::CODE + 0x1000, 0x4_0007);
        machine.cpu.rip = at::CODE + 0x1000 - first as u64;
        let rip = machine.cpu.rip;
        machine.put(rip, &code[..first]);
        machine.put(0x4_0000, &code[first..]);
        let mut lookahead = Lookahead::new();
        // The second time, the class comes from the cache.
        for _ in 0..2 {
            let found = lookahead.next(&machine.cpu, &mut machine.ram).unwrap();
            assert_eq!(found.bytes(), code, "{first}");
        }
        // Changes a part of the instruction after the page boundary.
        machine.put(0x4_0000 + 9 - first as u64, &[0xff]);
        let found = lookahead.next(&machine.cpu, &mut machine.ram).unwrap();
        assert_eq!(found.bytes()[9], 0xff, "{first}");
    }
}

#[test]
fn the_next_page_is_touched_only_if_the_instruction_reaches_it() {
    let gone = at::CODE + 0x1000;
    let fault = GuestError::Exception(Exception::page_fault(0x10, gone));
    // Bytes at the end of the page.
    let rows: &[(&[u8], Result<u8, GuestError>)] = &[
        (&[0x90], Ok(1)),
        (&[0xeb, 0xfe], Ok(2)),
        (&[0x0f, 0x0b], Ok(2)),
        (&[0x0f], Err(fault)),
        (&[0xe8, 0, 0, 0], Err(fault)),
        (&[0x66], Err(fault)),
    ];
    for (bytes, expected) in rows {
        let mut machine = Machine::long();
        machine.set_page(gone, 0);
        machine.cpu.rip = gone - bytes.len() as u64;
        let rip = machine.cpu.rip;
        machine.put(rip, bytes);
        assert_eq!(next(&mut machine).map(|found| found.len()), *expected, "{bytes:x?}");
        assert_eq!(machine.quad(at::LAST_TABLE + (gone >> 12) * 8), 0);
    }
}

#[test]
fn what_is_remembered_needs_all_its_bytes() {
    let mut machine = Machine::long();
    let mut lookahead = Lookahead::new();
    machine.cpu.rip = at::CODE + 0xfff;
    machine.put(at::CODE + 0xfff, &[0xe8, 0, 0, 0, 0]);
    assert_eq!(lookahead.next(&machine.cpu, &mut machine.ram).map(|found| found.len()), Ok(5));
    machine.set_page(at::CODE + 0x1000, 0);
    lookahead.flush();
    let fault = Exception::page_fault(0x10, at::CODE + 0x1000);
    assert_eq!(lookahead.next(&machine.cpu, &mut machine.ram), Err(fault.into()));
}

#[test]
fn a_fetch_faults_as_the_processor_would() {
    type Change = fn(&mut Machine);
    let gp = Exception::general_protection(0);
    let pf = |code| Exception::page_fault(code, at::CODE);
    let rows: &[(&str, bool, Change, Exception)] = &[
        ("absent", true, |m| m.set_page(at::CODE, 0), pf(0x10)),
        ("no execution", true, |m| m.set_page(at::CODE, at::CODE | 7 | 1 << 63), pf(0x11)),
        (
            "supervisor page at level 3",
            true,
            |m| {
                m.cpu.cpl = 3;
                m.set_page(at::CODE, at::CODE | 3);
            },
            pf(0x15),
        ),
        ("SMEP", true, |m| m.cpu.cr4 |= crate::guest::cr4::SMEP, pf(0x11)),
        ("not canonical", true, |m| m.cpu.rip = 0x8000_0000_0000, gp),
        ("beyond the limit", false, |m| m.cpu.cs.limit = at::CODE as u32 - 1, gp),
        (
            "its one byte beyond the limit",
            false,
            |m| {
                m.cpu.cs.limit = at::CODE as u32 - 1;
                m.put(at::CODE, &[0x90]);
            },
            gp,
        ),
        ("last byte beyond the limit", false, |m| m.cpu.cs.limit = at::CODE as u32 + 3, gp),
        ("fifteen bytes without an end", true, |m| m.put(at::CODE, &[0x66; 16]), gp),
    ];
    for (name, long, change, exception) in rows {
        let mut machine = if *long { Machine::long() } else { Machine::protected() };
        machine.put(at::CODE, &[0xe8, 0, 0, 0, 0]);
        change(&mut machine);
        let found = next(&mut machine);
        if *name == "fifteen bytes without an end" {
            // Left to the processor, which may refuse it with another exception.
            assert!(matches!(found, Ok(found) if !found.is_valid()) || found == Err((*exception).into()));
        } else {
            assert_eq!(found, Err((*exception).into()), "{name}");
        }
    }
    let mut machine = Machine::protected();
    machine.put(at::CODE, &[0xe8, 0, 0, 0, 0]);
    machine.cpu.cs.limit = at::CODE as u32 + 4;
    assert_eq!(next(&mut machine).unwrap().len(), 5);
}

#[test]
fn code_that_changes_itself_is_seen_anew() {
    let mut machine = Machine::long();
    let mut lookahead = Lookahead::new();
    machine.put(at::CODE, &[0x90, 0x90]);
    assert_eq!(lookahead.next(&machine.cpu, &mut machine.ram).unwrap().emulation(), None);
    machine.put(at::CODE, &[0x9c]);
    let found = lookahead.next(&machine.cpu, &mut machine.ram).unwrap();
    assert_eq!(found.emulation(), Some(Emulation::Pushf(Size::Qword)));
    // The same bytes in another mode.
    machine.cpu.cs = Segment { attributes: 0xc9b, ..machine.cpu.cs };
    let found = lookahead.next(&machine.cpu, &mut machine.ram).unwrap();
    assert_eq!(found.emulation(), Some(Emulation::Pushf(Size::Dword)));
    // Bytes after a known instruction do not matter; its own operand does.
    machine.put(at::CODE, &[0xcd, 0x80, 1]);
    machine.cpu.cs = Segment { attributes: 0xa9b, ..machine.cpu.cs };
    for vector in [0x80, 0x81] {
        machine.put(at::CODE + 1, &[vector, vector]);
        let found = lookahead.next(&machine.cpu, &mut machine.ram).unwrap();
        assert_eq!(found.emulation(), Some(Emulation::Int(vector)));
    }
}

#[test]
fn what_is_no_instruction_says_so() {
    // Opcodes that 64-bit mode lacks: SALC and the like, and PUSH ES.
    for bytes in [[0x06, 0x90], [0x0f, 0xff], [0xd6, 0x90]] {
        let mut machine = Machine::long();
        machine.put(at::CODE, &bytes);
        let found = next(&mut machine).unwrap();
        assert!(found.emulation().is_none());
        if bytes[0] != 0x0f {
            assert!(!found.is_valid(), "{bytes:x?}");
        }
    }
}
