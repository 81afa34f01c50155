//! Delivery in protected, real-address and virtual-8086 mode.

use super::*;
use crate::guest::testing::sel;
use crate::guest::{Gpr, Segment};

fn gate32(machine: &mut Machine, change: impl FnOnce(&mut Gate)) {
    let mut gate = Gate { selector: sel::CODE32, ..Gate::interrupt(0x30) };
    change(&mut gate);
    machine.set_gate32(0x30, gate);
}

#[test]
fn protected_mode_refuses_what_the_manual_refuses() {
    let found = Ok(DeliveryOutcome::Handler(INTERRUPT));
    // Makes the handlers of faults conforming, so that they run on the current stack.
    fn conforming(machine: &mut Machine) {
        for vector in [10, 11, 12, 13, 14] {
            machine.set_gate32(vector, Gate { selector: sel::CONFORMING32, ..Gate::interrupt(vector) });
        }
    }
    // Makes the frame wrap around the end of the stack that RSP0 points to. The handler of #SS does not use that stack.
    fn no_room(machine: &mut Machine, dpl: u8) {
        conforming(machine);
        gate32(machine, |gate| gate.dpl = dpl);
        machine.put(at::TSS + 4, &[4, 0, 0, 0]);
    }
    fn no_room_at_hand(machine: &mut Machine, dpl: u8) {
        gate32(machine, |gate| (gate.dpl, gate.selector) = (dpl, sel::CONFORMING32));
        machine.cpu.set(Gpr::Rsp, 4);
    }
    let ts = |code| handler(Exception::invalid_tss(code));
    let ss = |code| handler(Exception::stack_fault(code));
    let rows: &[Row<'_>] = &[
        ("plain", 0, |_| {}, INTERRUPT, found),
        ("plain from level 3", 3, |_| {}, INTERRUPT, found),
        ("beyond the IDT", 0, |m| m.cpu.idtr.limit = 0x186, INTERRUPT, gp(0x183)),
        ("the gate's last byte within the limit", 0, |m| m.cpu.idtr.limit = 0x187, INTERRUPT, found),
        ("16-bit gate", 0, |m| gate32(m, |g| g.kind = 6), INTERRUPT, found),
        ("call gate", 0, |m| gate32(m, |g| g.kind = 12), INTERRUPT, gp(0x183)),
        (
            "task gate",
            0,
            |m| gate32(m, |g| g.kind = 5),
            INTERRUPT,
            Err(Unsupported::TaskGate { vector: 0x30 }),
        ),
        ("DPL 0 at level 3, software", 3, |_| {}, INT, gp(0x182)),
        ("DPL 2 at level 3, software", 3, |m| gate32(m, |g| g.dpl = 2), INT, gp(0x182)),
        (
            "DPL 3 at level 3, software",
            3,
            |m| gate32(m, |g| g.dpl = 3),
            INT,
            Ok(DeliveryOutcome::Handler(INT)),
        ),
        (
            "absent",
            0,
            |m| gate32(m, |g| g.present = false),
            INTERRUPT,
            handler(Exception::segment_not_present(0x183)),
        ),
        ("null CS", 0, |m| gate32(m, |g| g.selector = 0), INTERRUPT, gp(1)),
        (
            "null CS, and code where its descriptor would be",
            0,
            |m| {
                m.put_quads(at::GDT, &[0x00cf_9b00_0000_ffff]);
                gate32(m, |g| g.selector = 3);
            },
            INTERRUPT,
            gp(1),
        ),
        ("CS is data", 0, |m| gate32(m, |g| g.selector = sel::DATA), INTERRUPT, gp(0x11)),
        ("CS beyond the GDT", 0, |m| gate32(m, |g| g.selector = sel::BEYOND), INTERRUPT, gp(0xa1)),
        (
            "CS absent",
            0,
            |m| gate32(m, |g| g.selector = sel::ABSENT64),
            INTERRUPT,
            handler(Exception::segment_not_present(0x51)),
        ),
        ("DPL 2 at level 3, software", 3, |m| gate32(m, |g| g.dpl = 2), INT, gp(0x182)),
        ("DPL 1 at level 3, software", 3, |m| gate32(m, |g| g.dpl = 1), INT, gp(0x182)),
        ("CS of an outer level", 0, |m| gate32(m, |g| g.selector = sel::USER_CODE32), INTERRUPT, gp(0x19)),
        (
            "handler beyond CS",
            0,
            |m| gate32(m, |g| (g.selector, g.offset) = (sel::SMALL32, 0x1000)),
            INTERRUPT,
            gp(1),
        ),
        (
            "handler at the limit of CS",
            0,
            |m| gate32(m, |g| (g.selector, g.offset) = (sel::SMALL32, 0xfff)),
            INTERRUPT,
            found,
        ),
        (
            "TSS too short",
            3,
            |m| {
                conforming(m);
                m.cpu.tr.limit = 8;
            },
            INTERRUPT,
            ts(0x31),
        ),
        (
            "null SS0",
            3,
            |m| {
                conforming(m);
                m.put(at::TSS + 8, &[0, 0]);
            },
            INTERRUPT,
            ts(1),
        ),
        (
            "null SS0, and data where its descriptor would be",
            3,
            |m| {
                conforming(m);
                m.put_quads(at::GDT, &[0x00cf_9300_0000_ffff]);
                m.put(at::TSS + 8, &[0, 0]);
            },
            INTERRUPT,
            ts(1),
        ),
        (
            "SS0 with another RPL",
            3,
            |m| {
                conforming(m);
                m.put(at::TSS + 8, &(sel::DATA | 3).to_le_bytes());
            },
            INTERRUPT,
            ts(0x11),
        ),
        (
            "SS0 is code",
            3,
            |m| {
                conforming(m);
                m.put(at::TSS + 8, &sel::CODE32.to_le_bytes());
            },
            INTERRUPT,
            ts(0x41),
        ),
        (
            "SS0 beyond the GDT",
            3,
            |m| {
                conforming(m);
                m.put(at::TSS + 8, &sel::BEYOND.to_le_bytes());
            },
            INTERRUPT,
            ts(0xa1),
        ),
        (
            "SS0 absent",
            3,
            |m| {
                conforming(m);
                m.put(at::TSS + 8, &sel::ABSENT_DATA.to_le_bytes());
            },
            INTERRUPT,
            handler(Exception::stack_fault(0x81)),
        ),
        ("no room", 0, |m| m.cpu.ss.limit = 0x100, INTERRUPT, Ok(DeliveryOutcome::Shutdown)),
        ("no room on the inner stack", 3, |m| no_room(m, 3), INTERRUPT, ss(0x11)),
        ("no room on the inner stack, software", 3, |m| no_room(m, 3), INT, ss(0x10)),
        ("no room on the stack at hand", 3, |m| no_room_at_hand(m, 3), INTERRUPT, ss(1)),
        ("no room on the stack at hand, software", 3, |m| no_room_at_hand(m, 3), INT, ss(0)),
        // Events that the program requests itself have EXT clear in all of these.
        ("beyond the IDT, software", 0, |m| m.cpu.idtr.limit = 0x186, INT, gp(0x182)),
        ("call gate, software", 0, |m| gate32(m, |g| g.kind = 12), INT, gp(0x182)),
        (
            "absent, software",
            0,
            |m| gate32(m, |g| g.present = false),
            INT,
            handler(Exception::segment_not_present(0x182)),
        ),
        ("null CS, software", 0, |m| gate32(m, |g| g.selector = 0), INT, gp(0)),
        ("CS is data, software", 0, |m| gate32(m, |g| g.selector = sel::DATA), INT, gp(0x10)),
        (
            "handler beyond CS, software",
            0,
            |m| gate32(m, |g| (g.selector, g.offset) = (sel::SMALL32, 0x1000)),
            INT,
            gp(0),
        ),
        (
            "TSS too short, software",
            3,
            |m| {
                conforming(m);
                gate32(m, |g| g.dpl = 3);
                m.cpu.tr.limit = 8;
            },
            INT,
            ts(0x30),
        ),
        (
            "null SS0, software",
            3,
            |m| {
                conforming(m);
                gate32(m, |g| g.dpl = 3);
                m.put(at::TSS + 8, &[0, 0]);
            },
            INT,
            ts(0),
        ),
        (
            "SS0 absent, software",
            3,
            |m| {
                conforming(m);
                gate32(m, |g| g.dpl = 3);
                m.put(at::TSS + 8, &sel::ABSENT_DATA.to_le_bytes());
            },
            INT,
            ss(0x80),
        ),
    ];
    for (name, cpl, change, event, expected) in rows {
        let mut machine = if *cpl == 3 { Machine::protected_user() } else { Machine::protected() };
        change(&mut machine);
        assert_eq!(deliver(&mut machine.cpu, &mut machine.ram, *event), *expected, "{name}");
    }
}

#[test]
fn protected_mode_pushes_doublewords_or_words() {
    let fault = Event::Exception(Exception::general_protection(0x18));
    let (cs, user_cs, user_ss) = (0x40, 0x1b, 0x23);
    let flags = rflags::FIXED | rflags::CF;
    // RF is above the bits that a 16-bit gate pushes.
    let rows: &[(u8, u8, Event, &[u64])] = &[
        (0, 14, INTERRUPT, &[at::CODE, cs, flags]),
        (0, 14, fault, &[0x18, at::CODE, cs, flags | rflags::RF]),
        (3, 14, INTERRUPT, &[at::CODE, user_cs, flags, at::STACK, user_ss]),
        (3, 14, fault, &[0x18, at::CODE, user_cs, flags | rflags::RF, at::STACK, user_ss]),
        (0, 6, INTERRUPT, &[at::CODE & 0xffff, cs, flags]),
        (0, 6, fault, &[0x18, at::CODE & 0xffff, cs, flags]),
    ];
    for (cpl, kind, event, expected) in rows {
        let mut machine = if *cpl == 3 { Machine::protected_user() } else { Machine::protected() };
        let vector = event.vector();
        machine.set_gate32(vector, Gate { kind: *kind, selector: sel::CODE32, ..Gate::interrupt(vector) });
        machine.cpu.rflags |= rflags::CF;
        assert_eq!(deliver(&mut machine.cpu, &mut machine.ram, *event), Ok(DeliveryOutcome::Handler(*event)));
        let size = if *kind == 6 { 2 } else { 4 };
        let rsp = machine.cpu.get(Gpr::Rsp);
        let top = if *cpl == 3 { at::RSP0 } else { at::STACK };
        assert_eq!(rsp, top - size * expected.len() as u64);
        for (index, value) in expected.iter().enumerate() {
            let mask = if size == 2 { 0xffff } else { 0xffff_ffff };
            assert_eq!(machine.quad(rsp + size * index as u64) & mask, *value, "{event:?} {index}");
        }
        let offset = (at::HANDLERS + 16 * u64::from(vector)) & if *kind == 6 { 0xffff } else { u64::MAX };
        assert_eq!((machine.cpu.rip, machine.cpu.cpl, machine.cpu.cs.selector), (offset, 0, sel::CODE32));
        assert_eq!(machine.cpu.ss.selector, sel::DATA);
    }
}

#[test]
fn a_16_bit_stack_keeps_the_upper_half_of_esp() {
    let mut machine = Machine::protected();
    machine.cpu.ss = Segment { selector: sel::DATA16, attributes: 0x93, limit: 0xffff, base: 0 };
    machine.cpu.set(Gpr::Rsp, 0x5_2000);
    deliver(&mut machine.cpu, &mut machine.ram, INTERRUPT).unwrap();
    assert_eq!(machine.cpu.get(Gpr::Rsp), 0x5_1ff4);
    assert_eq!(machine.double(0x1ff4), at::CODE);
}

#[test]
fn a_16_bit_tss_gives_words() {
    let mut machine = Machine::protected_user();
    machine.cpu.tr.attributes = 0x83;
    machine.cpu.tr.limit = 0x2b;
    machine.put(at::TSS + 2, &0x3000_u16.to_le_bytes());
    machine.put(at::TSS + 4, &sel::DATA.to_le_bytes());
    deliver(&mut machine.cpu, &mut machine.ram, INTERRUPT).unwrap();
    assert_eq!(machine.cpu.get(Gpr::Rsp), 0x3000 - 20);
}

#[test]
fn real_mode_goes_through_the_vector_table() {
    let mut machine = Machine::real();
    machine.put(0x30 * 4, &[0x34, 0x12, 0x00, 0x20]);
    machine.cpu.rflags |= rflags::IF | rflags::TF | rflags::AC;
    assert_eq!(deliver(&mut machine.cpu, &mut machine.ram, INT), Ok(DeliveryOutcome::Handler(INT)));
    assert_eq!((machine.cpu.rip, machine.cpu.cs.selector, machine.cpu.cs.base), (0x1234, 0x2000, 0x2_0000));
    assert_eq!(machine.cpu.get(Gpr::Rsp), 0x7ffa);
    let flags = rflags::FIXED | rflags::IF | rflags::TF;
    assert_eq!(machine.quad(0x7ffa) & 0xffff_ffff_ffff, 0x12 | 0x1000 << 16 | flags << 32);
    assert_eq!(machine.cpu.rflags, rflags::FIXED);

    // The frame may reach up to the end of the stack's segment.
    let mut machine = Machine::real();
    machine.cpu.set(Gpr::Rsp, 0);
    assert_eq!(deliver(&mut machine.cpu, &mut machine.ram, INT), Ok(DeliveryOutcome::Handler(INT)));
    assert_eq!(machine.cpu.get(Gpr::Rsp), 0xfffa);

    let mut machine = Machine::real();
    machine.cpu.idtr.limit = 0x30 * 4 + 3;
    assert_eq!(
        deliver(&mut machine.cpu, &mut machine.ram, INTERRUPT),
        Ok(DeliveryOutcome::Handler(INTERRUPT))
    );

    let mut machine = Machine::real();
    machine.cpu.idtr.limit = 0x30 * 4 + 2;
    machine.put(13 * 4, &[0, 0, 0, 0x30]);
    assert_eq!(deliver(&mut machine.cpu, &mut machine.ram, INTERRUPT), gp(0));
    assert_eq!((machine.cpu.rip, machine.cpu.get(Gpr::Rsp)), (0, 0x7ffa), "no error code is pushed");
}

#[test]
fn virtual_8086_mode_is_refused() {
    let mut machine = Machine::protected_user();
    machine.cpu.rflags |= rflags::VM;
    let before = machine.cpu;
    assert_eq!(
        deliver(&mut machine.cpu, &mut machine.ram, INTERRUPT),
        Err(Unsupported::Virtual8086 { rip: at::CODE })
    );
    assert_eq!(machine.cpu, before);
}
