use super::*;
use crate::guest::testing::sel;
use crate::guest::{Cpu, Gpr, Segment};

const IRETQ: &[u8] = &[0x48, 0xcf];
const IRETD: &[u8] = &[0xcf];
const IRETW: &[u8] = &[0x66, 0xcf];
const NON_CANONICAL: u64 = 0x8000_0000_0000;
const TARGET: u64 = 0x1_2340;
const RSP: u64 = 0x2_7ff8;

fn frame(cs: u16, flags: u64, ss: u16) -> [u64; 5] {
    [TARGET, u64::from(cs), flags, RSP, u64::from(ss)]
}

fn run_frame(machine: &mut Machine, bytes: &[u8], frame: &[u64]) -> Result<ExecutionOutcome, GuestError> {
    let top = machine.cpu.get(Gpr::Rsp);
    if bytes == IRETQ {
        machine.put_quads(top, frame);
    } else {
        machine.put_doubles(top, frame);
    }
    run_whole(machine, bytes)
}

#[test]
fn returns_from_64_bit_mode_to_every_mode_and_level() {
    // CS, SS, mode and privilege level after.
    let rows = [
        (sel::CODE64, sel::DATA, Mode::Bits64, 0),
        (sel::CODE64, 0, Mode::Bits64, 0),
        (sel::CONFORMING64, sel::DATA, Mode::Bits64, 0),
        (sel::LOCAL64, sel::DATA, Mode::Bits64, 0),
        (sel::USER_CODE64, sel::USER_DATA, Mode::Bits64, 3),
        (sel::CONFORMING64 | 3, sel::USER_DATA, Mode::Bits64, 3),
        (sel::USER_CODE32, sel::USER_DATA, Mode::Compatibility, 3),
        (sel::CODE32, sel::DATA, Mode::Compatibility, 0),
    ];
    for (cs, ss, mode, cpl) in rows {
        let mut machine = Machine::long();
        assert_eq!(run_frame(&mut machine, IRETQ, &frame(cs, 2, ss)), RETIRED, "{cs:#x} {ss:#x}");
        let cpu = &machine.cpu;
        assert_eq!((cpu.mode(), cpu.cpl), (mode, cpl), "{cs:#x} {ss:#x}");
        assert_eq!((cpu.rip, cpu.get(Gpr::Rsp)), (TARGET, RSP));
        assert_eq!((cpu.cs.selector, cpu.ss.selector), (cs, ss));
        assert_eq!(cpu.ss.attributes & Segment::P != 0, ss != 0);
    }
    // With a 32-bit operand size the frame still has five elements.
    let mut machine = Machine::long();
    assert_eq!(run_frame(&mut machine, IRETD, &frame(sel::USER_CODE64, 2, sel::USER_DATA)), RETIRED);
    assert_eq!((machine.cpu.rip, machine.cpu.get(Gpr::Rsp), machine.cpu.cpl), (TARGET, RSP, 3));
}

#[test]
fn refuses_what_the_manual_refuses() {
    let gp = |selector: u16| Exception::general_protection(u32::from(selector & !3));
    let np = |selector: u16| Exception::segment_not_present(u32::from(selector & !3));
    let good = frame(sel::CODE64, 2, sel::DATA);
    let with = |index: usize, value: u64| {
        let mut frame = good;
        frame[index] = value;
        frame
    };
    let user_ss = |ss| frame(sel::USER_CODE64, 2, ss);
    // Privilege level before, frame, fault.
    let rows = [
        (0, with(0, NON_CANONICAL), GP),
        (0, with(1, 0), GP),
        (0, with(1, u64::from(sel::BEYOND)), gp(sel::BEYOND)),
        (0, with(1, u64::from(sel::DATA)), gp(sel::DATA)),
        (0, with(1, u64::from(sel::LONG_AND_D)), gp(sel::LONG_AND_D)),
        (0, with(1, u64::from(sel::ABSENT64)), np(sel::ABSENT64)),
        // RPL above the DPL of non-conforming code, below the DPL of conforming code, below the CPL.
        (0, with(1, u64::from(sel::CODE64 | 1)), gp(sel::CODE64)),
        (0, with(1, u64::from(sel::USER_CODE64 & !3)), gp(sel::USER_CODE64)),
        (3, frame(sel::CODE64, 2, sel::DATA), gp(sel::CODE64)),
        (3, frame(sel::CONFORMING64, 2, sel::DATA), gp(sel::CONFORMING64)),
        // SS.
        (0, with(4, u64::from(sel::BEYOND)), gp(sel::BEYOND)),
        (0, with(4, u64::from(sel::USER_DATA)), gp(sel::USER_DATA)),
        (0, with(4, u64::from(sel::CODE64)), gp(sel::CODE64)),
        (0, with(4, u64::from(sel::DATA | 1)), gp(sel::DATA)),
        (0, with(4, 1), GP),
        (0, with(4, u64::from(sel::ABSENT_DATA)), Exception::stack_fault(u32::from(sel::ABSENT_DATA))),
        (0, user_ss(3), GP),
        (0, user_ss(0), GP),
        (0, user_ss(sel::DATA), gp(sel::DATA)),
        (0, user_ss(sel::READ_ONLY_USER_DATA), gp(sel::READ_ONLY_USER_DATA)),
        (0, user_ss(sel::ABSENT_USER_DATA), Exception::stack_fault(u32::from(sel::ABSENT_USER_DATA & !3))),
        (0, frame(sel::CODE32, 2, 0), GP),
        (0, frame(sel::ABSENT_USER64, 2, sel::USER_DATA), np(sel::ABSENT_USER64)),
    ];
    for (cpl, frame, exception) in rows {
        let mut machine = if cpl == 3 { Machine::long_user() } else { Machine::long() };
        assert_eq!(run_frame(&mut machine, IRETQ, &frame), fault(exception), "{cpl} {frame:x?}");
    }
    // EIP beyond the new segment.
    let mut machine = Machine::long();
    assert_eq!(run_frame(&mut machine, IRETQ, &frame(sel::SMALL32, 2, sel::DATA)), fault(GP));
    // NT: no return to another task in long mode.
    let mut machine = Machine::long();
    machine.cpu.rflags |= rflags::NT;
    assert_eq!(run_frame(&mut machine, IRETQ, &good), fault(GP));
    // A fault of reading the frame itself.
    let mut machine = Machine::long();
    machine.set_page(at::STACK, 0);
    assert_eq!(run_whole(&mut machine, IRETQ), fault(Exception::page_fault(0, at::STACK)));
    // All five elements are popped before any of them is checked.
    let mut machine = Machine::long();
    machine.cpu.set(Gpr::Rsp, at::STACK + 0x1000 - 32);
    machine.set_page(at::STACK + 0x1000, 0);
    assert_eq!(run_whole(&mut machine, IRETQ), fault(Exception::page_fault(0, at::STACK + 0x1000)));
    let mut machine = Machine::long();
    machine.cpu.set(Gpr::Rsp, NON_CANONICAL);
    assert_eq!(run_whole(&mut machine, IRETQ), fault(Exception::stack_fault(0)));
}

#[test]
fn flags_obey_the_level_that_is_left() {
    use rflags::{AC, FIXED, ID, IF, IOPL, NT, RF, STATUS_AND_DF, TF, VIF, VIP};
    let any = STATUS_AND_DF | TF | NT | FIXED;
    let wide = any | AC | ID | RF;
    // Privilege level before and after, IOPL before, operand size, flags after.
    let rows = [
        (0, 0, 0, IRETQ, wide | IF | IOPL | VIF | VIP),
        (0, 3, 0, IRETQ, wide | IF | IOPL | VIF | VIP),
        (3, 3, 0, IRETQ, wide),
        (3, 3, IOPL, IRETQ, wide | IF | IOPL),
        (3, 3, 2 << 12, IRETQ, wide | 2 << 12),
        (0, 3, 0, IRETD, wide | IF | IOPL | VIF | VIP),
    ];
    for (from, to, iopl, bytes, after) in rows {
        let mut machine = if from == 3 { Machine::long_user() } else { Machine::long() };
        machine.cpu.rflags |= iopl;
        let (cs, ss) = if to == 3 { (sel::USER_CODE64, sel::USER_DATA) } else { (sel::CODE64, sel::DATA) };
        // In 64-bit mode VM means nothing.
        assert_eq!(run_frame(&mut machine, bytes, &frame(cs, u64::MAX, ss)), RETIRED);
        assert_eq!(machine.cpu.rflags, after, "{from} {to} {iopl:#x}");
    }
    let mut machine = Machine::long();
    let words = [0x1234_u16, sel::CODE64, 0xffff, 0x4000, sel::DATA];
    for (index, word) in words.iter().enumerate() {
        machine.put(at::STACK + 2 * index as u64, &word.to_le_bytes());
    }
    assert_eq!(run(&mut machine, IRETW), RETIRED);
    assert_eq!(machine.cpu.rflags, any | IF | IOPL);
    assert_eq!((machine.cpu.rip, machine.cpu.get(Gpr::Rsp)), (0x1234, 0x4000));
}

#[test]
fn data_segments_of_an_inner_level_do_not_leave_it() {
    let mut machine = Machine::long();
    let cpu = &mut machine.cpu;
    cpu.es = Segment { selector: sel::USER_DATA, attributes: 0xcf3, limit: u32::MAX, base: 0 };
    cpu.fs = Segment { selector: sel::CONFORMING64, attributes: 0xa9f, limit: u32::MAX, base: 0 };
    cpu.gs = Segment { selector: sel::CODE64, attributes: 0xa9b, limit: u32::MAX, base: 0x1234 };
    let before = machine.cpu;
    run_frame(&mut machine, IRETQ, &frame(sel::USER_CODE64, 2, sel::USER_DATA)).unwrap();
    let cpu = &machine.cpu;
    assert_eq!((cpu.es, cpu.fs), (before.es, before.fs));
    for segment in [cpu.ds, cpu.gs] {
        assert_eq!((segment.selector, segment.attributes & Segment::P), (0, 0));
    }
    // Return to the same privilege level: the segments are not cleared.
    let mut machine = Machine::long();
    let before = machine.cpu;
    run_frame(&mut machine, IRETQ, &frame(sel::CODE64, 2, sel::DATA)).unwrap();
    assert_eq!(machine.cpu.ds, before.ds);
    let mut machine = Machine::long_user();
    machine.cpu.ds = before.ds;
    run_frame(&mut machine, IRETQ, &frame(sel::USER_CODE64, 2, sel::USER_DATA)).unwrap();
    assert_eq!(machine.cpu.ds, before.ds);
}

#[test]
fn compatibility_mode_pops_the_stack_only_on_a_change_of_level() {
    let mut machine = Machine::compatibility();
    assert_eq!(run_frame(&mut machine, IRETD, &[TARGET, u64::from(sel::USER_CODE32), 2]), RETIRED);
    assert_eq!((machine.cpu.rip, machine.cpu.get(Gpr::Rsp)), (TARGET, at::STACK + 12));
    let mut machine = Machine::compatibility();
    assert_eq!(run_frame(&mut machine, IRETD, &[TARGET, u64::from(sel::USER_CODE64), 2]), RETIRED);
    assert_eq!((machine.cpu.mode(), machine.cpu.get(Gpr::Rsp)), (Mode::Bits64, at::STACK + 12));
}

#[test]
fn protected_mode_returns_to_the_same_and_to_an_outer_level() {
    let mut machine = Machine::protected();
    assert_eq!(run_frame(&mut machine, IRETD, &[TARGET, u64::from(sel::CODE32), 2]), RETIRED);
    assert_eq!((machine.cpu.rip, machine.cpu.get(Gpr::Rsp)), (TARGET, at::STACK + 12));
    assert_eq!(machine.cpu.ss.selector, sel::DATA);

    let mut machine = Machine::protected();
    assert_eq!(run_frame(&mut machine, IRETD, &frame(sel::USER_CODE32, 2, sel::USER_DATA)), RETIRED);
    let cpu = &machine.cpu;
    assert_eq!((cpu.rip, cpu.get(Gpr::Rsp), cpu.cpl), (TARGET, RSP, 3));
    assert_eq!((cpu.ss.selector, cpu.ds.selector), (sel::USER_DATA, 0));

    let gp = |code: u16| Exception::general_protection(u32::from(code & !3));
    let rows: &[(&[u64], Exception)] = &[
        (&[TARGET, 0, 2], GP),
        (&[0x1000, 0x78, 2], GP),
        (&[TARGET, u64::from(sel::USER_CODE32), 2, RSP, 0], GP),
        (&[TARGET, u64::from(sel::USER_CODE32), 2, RSP, 0x10], gp(sel::DATA)),
    ];
    for (frame, exception) in rows {
        let mut machine = Machine::protected();
        assert_eq!(run_frame(&mut machine, IRETD, frame), fault(*exception), "{frame:x?}");
    }
    // The outer stack pointer is beyond the stack's limit.
    let mut machine = Machine::protected();
    machine.cpu.ss.limit = at::STACK as u32 + 13;
    let frame = frame(sel::USER_CODE32, 2, sel::USER_DATA);
    assert_eq!(run_frame(&mut machine, IRETD, &frame), fault(Exception::stack_fault(0)));
}

#[test]
fn tasks_and_virtual_8086_mode_are_refused() {
    let next = at::CODE + 1;
    let mut machine = Machine::protected();
    machine.cpu.rflags |= rflags::NT;
    let refused = Err(Unsupported::TaskReturn { rip: next }.into());
    assert_eq!(run_frame(&mut machine, IRETD, &[TARGET, 0x40, 2]), refused);
    let mut machine = Machine::protected();
    let refused = Err(Unsupported::Virtual8086 { rip: next }.into());
    assert_eq!(run_frame(&mut machine, IRETD, &[TARGET, 0x40, rflags::VM]), refused);
    // At privilege level 3 the guest cannot set the flag.
    let mut machine = Machine::protected_user();
    let frame = [TARGET, u64::from(sel::USER_CODE32), rflags::VM | 2];
    assert_eq!(run_frame(&mut machine, IRETD, &frame), RETIRED);
    assert_eq!(machine.cpu.rflags, rflags::FIXED);
}

#[test]
fn real_mode_pops_three_words() {
    let mut machine = Machine::real();
    machine.put(0x8000, &[0x34, 0x12, 0x00, 0x20, 0xff, 0xff]);
    assert_eq!(run(&mut machine, IRETD), RETIRED);
    let cpu = &machine.cpu;
    assert_eq!(
        (cpu.rip, cpu.cs.selector, cpu.cs.base, cpu.get(Gpr::Rsp)),
        (0x1234, 0x2000, 0x2_0000, 0x8006)
    );
    assert_eq!(cpu.rflags, 0x7fd7);
}

#[test]
fn unblocks_nmis_even_if_it_faults() {
    let mut machine = Machine::long();
    machine.cpu.nmi_blocked = true;
    run_frame(&mut machine, IRETQ, &frame(sel::CODE64, 2, sel::DATA)).unwrap();
    assert!(!machine.cpu.nmi_blocked);
    let mut machine = Machine::long();
    machine.cpu.nmi_blocked = true;
    let before = machine.cpu;
    machine.put_quads(at::STACK, &frame(0, 2, sel::DATA));
    assert_eq!(run(&mut machine, IRETQ), fault(GP));
    assert_eq!(machine.cpu, Cpu { nmi_blocked: false, ..before });
}

#[test]
fn undoes_a_delivery() {
    for start in [Machine::long, Machine::long_user, Machine::compatibility] {
        for event in [Event::Interrupt { vector: 0x30 }, Event::Nmi] {
            let mut machine = start();
            machine.cpu.rflags |= rflags::IF | rflags::TF | rflags::CF;
            let before = machine.cpu;
            deliver(&mut machine.cpu, &mut machine.ram, event).unwrap();
            assert_ne!(machine.cpu.rip, before.rip);
            run(&mut machine, IRETQ).unwrap();
            assert_eq!(machine.cpu, before);
        }
    }
}
