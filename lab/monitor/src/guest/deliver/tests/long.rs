use super::*;
use crate::guest::testing::sel;
use crate::guest::{Gpr, Segment, Shadow, SoftwareKind};

const NON_CANONICAL: u64 = 0x8000_0000_0000;

fn gate(machine: &mut Machine, change: impl FnOnce(&mut Gate)) {
    let mut gate = Gate::interrupt(0x30);
    change(&mut gate);
    machine.set_gate(0x30, gate);
}

#[test]
fn long_mode_refuses_what_the_manual_refuses() {
    let found = Ok(DeliveryOutcome::Handler(INTERRUPT));
    let int = Ok(DeliveryOutcome::Handler(INT));
    let rows: &[Row<'_>] = &[
        ("plain", 0, |_| {}, INTERRUPT, found),
        ("plain from level 3", 3, |_| {}, INTERRUPT, found),
        ("the gate's last byte within the limit", 0, |m| m.cpu.idtr.limit = 0x30f, INTERRUPT, found),
        ("beyond the IDT", 0, |m| m.cpu.idtr.limit = 0x30e, INTERRUPT, gp(0x30 * 8 + 3)),
        ("beyond the IDT, software", 0, |m| m.cpu.idtr.limit = 0x30e, INT, gp(0x30 * 8 + 2)),
        ("trap gate", 0, |m| gate(m, |g| g.kind = 15), INTERRUPT, found),
        ("32-bit task gate", 0, |m| gate(m, |g| g.kind = 5), INTERRUPT, gp(0x30 * 8 + 3)),
        ("call gate", 0, |m| gate(m, |g| g.kind = 12), INTERRUPT, gp(0x30 * 8 + 3)),
        ("S set", 0, |m| gate(m, |g| g.kind = 0x1e), INTERRUPT, gp(0x30 * 8 + 3)),
        ("DPL 0 at level 0, software", 0, |_| {}, INT, int),
        ("DPL 0 at level 3, software", 3, |_| {}, INT, gp(0x30 * 8 + 2)),
        ("DPL 2 at level 3, software", 3, |m| gate(m, |g| g.dpl = 2), INT, gp(0x30 * 8 + 2)),
        ("DPL 3 at level 3, software", 3, |m| gate(m, |g| g.dpl = 3), INT, int),
        (
            "DPL 0 at level 3, INT1",
            3,
            |_| {},
            Event::Software { vector: 1, kind: SoftwareKind::Int1, length: 1 },
            Ok(DeliveryOutcome::Handler(Event::Software { vector: 1, kind: SoftwareKind::Int1, length: 1 })),
        ),
        (
            "absent",
            0,
            |m| gate(m, |g| g.present = false),
            INTERRUPT,
            handler(Exception::segment_not_present(0x30 * 8 + 3)),
        ),
        (
            "absent, software",
            0,
            |m| gate(m, |g| g.present = false),
            INT,
            handler(Exception::segment_not_present(0x30 * 8 + 2)),
        ),
        ("the DPL is looked at before P", 3, |m| gate(m, |g| g.present = false), INT, gp(0x30 * 8 + 2)),
        ("null CS", 0, |m| gate(m, |g| g.selector = 3), INTERRUPT, gp(1)),
        ("null CS, software", 0, |m| gate(m, |g| g.selector = 0), INT, gp(0)),
        (
            "null CS, and code where its descriptor would be",
            0,
            |m| {
                m.put_quads(at::GDT, &[0x00af_9b00_0000_ffff]);
                gate(m, |g| g.selector = 3);
            },
            INTERRUPT,
            gp(1),
        ),
        ("CS beyond the GDT", 0, |m| gate(m, |g| g.selector = sel::BEYOND), INTERRUPT, gp(0xa1)),
        (
            "CS half beyond the GDT",
            0,
            |m| {
                m.cpu.gdtr.limit = sel::FRESH64 + 6;
                gate(m, |g| g.selector = sel::FRESH64);
            },
            INTERRUPT,
            gp(0x91),
        ),
        ("CS in the LDT", 0, |m| gate(m, |g| g.selector = sel::LOCAL64), INTERRUPT, found),
        ("CS beyond the LDT", 0, |m| gate(m, |g| g.selector = 0xc), INTERRUPT, gp(0xd)),
        (
            "no LDT",
            0,
            |m| {
                m.cpu.ldtr.attributes = 0;
                gate(m, |g| g.selector = sel::LOCAL64);
            },
            INTERRUPT,
            gp(5),
        ),
        ("CS is data", 0, |m| gate(m, |g| g.selector = sel::DATA), INTERRUPT, gp(0x11)),
        ("CS is 32-bit code", 0, |m| gate(m, |g| g.selector = sel::CODE32), INTERRUPT, gp(0x41)),
        ("CS has L and D", 0, |m| gate(m, |g| g.selector = sel::LONG_AND_D), INTERRUPT, gp(0x59)),
        ("CS of an outer level", 0, |m| gate(m, |g| g.selector = sel::USER_CODE64), INTERRUPT, gp(0x29)),
        ("CS of the same outer level", 3, |m| gate(m, |g| g.selector = sel::USER_CODE64), INTERRUPT, found),
        (
            "CS absent",
            0,
            |m| gate(m, |g| g.selector = sel::ABSENT64),
            INTERRUPT,
            handler(Exception::segment_not_present(0x51)),
        ),
        ("conforming CS", 3, |m| gate(m, |g| g.selector = sel::CONFORMING64), INTERRUPT, found),
        // Delivered on IST 1: a broken RSP0 must not break the delivery of the fault itself.
        (
            "TSS too short for RSP0",
            3,
            |m| {
                m.set_gate(10, Gate { ist: 1, ..Gate::interrupt(10) });
                m.cpu.tr.limit = 43;
                gate(m, |g| g.ist = 2);
            },
            INTERRUPT,
            handler(Exception::invalid_tss(0x31)),
        ),
        (
            "RSP0 not canonical",
            3,
            |m| {
                m.set_gate(12, Gate { ist: 1, ..Gate::interrupt(12) });
                m.put_quads(at::TSS + 4, &[NON_CANONICAL + 0x1000]);
            },
            INTERRUPT,
            handler(Exception::stack_fault(1)),
        ),
        (
            "TSS too short for RSP0, software",
            3,
            |m| {
                m.set_gate(10, Gate { ist: 1, ..Gate::interrupt(10) });
                m.cpu.tr.limit = 43;
                gate(m, |g| (g.dpl, g.ist) = (3, 2));
            },
            INT,
            handler(Exception::invalid_tss(0x30)),
        ),
        (
            "RSP0 not canonical, software",
            3,
            |m| {
                m.set_gate(12, Gate { ist: 1, ..Gate::interrupt(12) });
                m.put_quads(at::TSS + 4, &[NON_CANONICAL + 0x1000]);
                gate(m, |g| g.dpl = 3);
            },
            INT,
            handler(Exception::stack_fault(0)),
        ),
        (
            "only the frame's end is not canonical",
            3,
            |m| {
                m.set_gate(12, Gate { ist: 1, ..Gate::interrupt(12) });
                m.put_quads(at::TSS + 4, &[NON_CANONICAL + 0x10]);
            },
            INTERRUPT,
            handler(Exception::stack_fault(1)),
        ),
        ("DPL 2 at level 3, software", 3, |m| gate(m, |g| g.dpl = 2), INT, gp(0x30 * 8 + 2)),
        ("DPL 1 at level 3, software", 3, |m| gate(m, |g| g.dpl = 1), INT, gp(0x30 * 8 + 2)),
        ("handler not canonical, software", 0, |m| gate(m, |g| g.offset = NON_CANONICAL), INT, gp(0)),
        ("CS is data, software", 0, |m| gate(m, |g| g.selector = sel::DATA), INT, gp(0x10)),
        (
            "CS absent, software",
            0,
            |m| gate(m, |g| g.selector = sel::ABSENT64),
            INT,
            handler(Exception::segment_not_present(0x50)),
        ),
        ("handler not canonical", 0, |m| gate(m, |g| g.offset = NON_CANONICAL), INTERRUPT, gp(1)),
        (
            "stack page absent",
            3,
            |m| {
                m.set_gate(14, Gate { ist: 1, ..Gate::interrupt(14) });
                m.set_page(at::RSP0 - 0x1000, 0);
            },
            INTERRUPT,
            handler(Exception::page_fault(2, at::RSP0 - 40)),
        ),
        (
            "IDT page absent",
            0,
            |m| {
                m.put(at::IDT + 0x6_0000 - at::IDT, &[0; 16]);
                m.cpu.idtr.base = at::IDT - 0x300;
                m.set_page(at::IDT, 0);
            },
            INTERRUPT,
            // The gate of #PF is on the page before, in the LDT's zeros: #GP, and therefore a double fault, whose gate
            // is no better.
            Ok(DeliveryOutcome::Shutdown),
        ),
    ];
    for (name, cpl, change, event, expected) in rows {
        let mut machine = if *cpl == 3 { Machine::long_user() } else { Machine::long() };
        change(&mut machine);
        let before = machine.cpu;
        let outcome = deliver(&mut machine.cpu, &mut machine.ram, *event);
        assert_eq!(outcome, *expected, "{name}");
        if outcome == Ok(DeliveryOutcome::Shutdown) {
            assert_eq!(machine.cpu, Cpu { cr2: machine.cpu.cr2, ..before }, "{name}");
        }
    }
}

#[test]
fn long_mode_pushes_five_or_six_quadwords_on_an_aligned_stack() {
    let fault = Event::Exception(Exception::general_protection(0x18));
    let user_ss = u64::from(sel::USER_DATA);
    let user_cs = u64::from(sel::USER_CODE64);
    let (ss, cs) = (u64::from(sel::DATA), u64::from(sel::CODE64));
    let rf = rflags::RF;
    // CPL, IST of the gate, event, new RSP, error code pushed, SS and CS pushed, flags added, RIP added.
    let rows = [
        (0, 0, INTERRUPT, at::STACK - 0x28 - 0x10, None, ss, cs, 0, 0),
        (0, 1, INTERRUPT, at::IST1 - 0x28, None, ss, cs, 0, 0),
        (3, 0, INTERRUPT, at::RSP0 - 0x28, None, user_ss, user_cs, 0, 0),
        (3, 1, INTERRUPT, at::IST1 - 0x28, None, user_ss, user_cs, 0, 0),
        (0, 0, Event::Nmi, at::STACK - 0x28 - 0x10, None, ss, cs, 0, 0),
        (0, 0, fault, at::STACK - 0x30 - 0x10, Some(0x18), ss, cs, rf, 0),
        (3, 0, fault, at::RSP0 - 0x30, Some(0x18), user_ss, user_cs, rf, 0),
        (0, 0, Event::Exception(Exception::invalid_opcode()), at::STACK - 0x38, None, ss, cs, rf, 0),
        (0, 0, Event::Exception(Exception::double_fault()), at::STACK - 0x40, Some(0), ss, cs, 0, 0),
        (0, 0, Event::Exception(Exception::single_step()), at::STACK - 0x38, None, ss, cs, 0, 0),
        (0, 0, INT, at::STACK - 0x38, None, ss, cs, 0, 2),
    ];
    for (cpl, ist, event, rsp, code, ss, cs, flags, length) in rows {
        let mut machine = if cpl == 3 { Machine::long_user() } else { Machine::long() };
        let vector = event.vector();
        machine.set_gate(vector, Gate { ist, ..Gate::interrupt(vector) });
        machine.cpu.set(Gpr::Rsp, at::STACK - 3);
        machine.cpu.rflags |= rflags::CF | rflags::IF;
        let before = machine.cpu;
        assert_eq!(
            deliver(&mut machine.cpu, &mut machine.ram, event),
            Ok(DeliveryOutcome::Handler(event)),
            "{event:?}"
        );
        let cpu = &machine.cpu;
        let rsp = if cpl == 0 && ist == 0 { rsp_below(at::STACK - 3, code.is_some()) } else { rsp };
        assert_eq!(cpu.get(Gpr::Rsp), rsp, "{event:?}");
        let frame = if code.is_some() { rsp + 8 } else { rsp };
        if let Some(code) = code {
            assert_eq!(machine.quad(rsp), code);
        }
        let pushed = [0, 8, 16, 24, 32].map(|offset| machine.quad(frame + offset));
        assert_eq!(pushed, [before.rip + length, cs, before.rflags | flags, at::STACK - 3, ss], "{event:?}");
        assert_eq!((cpu.rip, cpu.cpl), (at::HANDLERS + 16 * u64::from(vector), 0));
        assert_eq!(cpu.cs, Segment { selector: sel::CODE64, attributes: 0xa9b, limit: u32::MAX, base: 0 });
        if cpl == 3 {
            assert_eq!((cpu.ss.selector, cpu.ss.attributes & Segment::P), (0, 0), "{event:?}");
        } else {
            assert_eq!(cpu.ss, before.ss);
        }
    }
}

fn rsp_below(top: u64, error_code: bool) -> u64 {
    (top & !0xf) - if error_code { 48 } else { 40 }
}

#[test]
fn the_handler_starts_with_tf_nt_rf_clear_and_if_as_the_gate_says() {
    use rflags::{AC, CF, FIXED, IF, NT, RF, TF};
    let all = CF | FIXED | TF | IF | NT | RF | AC;
    let pushed_by_int = all & !RF;
    // Gate, event, pushed RFLAGS, RFLAGS in the handler. The pushed TF is the guest's own: it is in `Cpu::rflags`.
    let rows = [
        (14, INTERRUPT, all, CF | FIXED | AC),
        (15, INTERRUPT, all, CF | FIXED | AC | IF),
        (14, INT, pushed_by_int, CF | FIXED | AC),
        (15, INT, pushed_by_int, CF | FIXED | AC | IF),
    ];
    for (kind, event, pushed, after) in rows {
        let mut machine = Machine::long();
        machine.set_gate(0x30, Gate { kind, ..Gate::interrupt(0x30) });
        machine.cpu.rflags = all;
        deliver(&mut machine.cpu, &mut machine.ram, event).unwrap();
        assert_eq!((machine.quad(at::STACK - 24), machine.cpu.rflags), (pushed, after), "{kind} {event:?}");
    }
    let mut machine = Machine::long();
    deliver(&mut machine.cpu, &mut machine.ram, INTERRUPT).unwrap();
    assert_eq!(machine.quad(at::STACK - 24) & TF, 0);
}

#[test]
fn a_fault_sets_rf_in_the_frame_and_a_trap_does_not() {
    let general_detect = Exception::debug(dr6::BD);
    let rows = [
        (Exception::page_fault(0, 0), true),
        (Exception::invalid_opcode(), true),
        (Exception::from_intercept(vector::DIVIDE_ERROR, 0, 0), true),
        (general_detect, true),
        (Exception::single_step(), false),
        (Exception::debug(1), false),
        (Exception::from_intercept(vector::BREAKPOINT, 0, 0), false),
    ];
    for (exception, resumes) in rows {
        let mut machine = Machine::long();
        deliver(&mut machine.cpu, &mut machine.ram, Event::Exception(exception)).unwrap();
        assert_eq!(machine.quad(at::STACK - 24) & rflags::RF != 0, resumes, "{exception:?}");
    }
}

#[test]
fn events_leave_their_registers() {
    let mut machine = Machine::long();
    machine.cpu.shadow = Some(Shadow::Sti);
    machine.cpu.dr6 = 0xffff_0ff0 | 3;
    machine.cpu.dr7 = 0x2400;
    deliver(&mut machine.cpu, &mut machine.ram, Event::Exception(Exception::single_step())).unwrap();
    assert_eq!((machine.cpu.dr6, machine.cpu.dr7), (0xffff_4ff0, 0x400));
    assert_eq!(machine.cpu.shadow, None);
    assert!(!machine.cpu.nmi_blocked);

    deliver(&mut machine.cpu, &mut machine.ram, Event::Exception(Exception::page_fault(2, 0x1234))).unwrap();
    assert_eq!(machine.cpu.cr2, 0x1234);

    deliver(&mut machine.cpu, &mut machine.ram, Event::Nmi).unwrap();
    assert!(machine.cpu.nmi_blocked && !machine.cpu.takes_nmi());
}

#[test]
fn supervisor_pushes_obey_smap_and_the_rights_of_the_new_level() {
    use crate::guest::cr4::SMAP;
    // CPL, AC, the page of the stack; `true` if the event is delivered.
    let rows = [
        (0, false, 3, true),
        (0, false, 7, false),
        (0, true, 7, true),
        (3, true, 7, false),
        (3, false, 3, true),
        (3, false, 1, false),
    ];
    for (cpl, ac, rights, delivered) in rows {
        let mut machine = if cpl == 3 { Machine::long_user() } else { Machine::long() };
        for page in (0..0x8_0000).step_by(0x1000) {
            machine.set_page(page, page | 3);
        }
        let stack = if cpl == 3 { at::RSP0 } else { at::STACK } - 0x1000;
        machine.set_page(stack, stack | rights);
        machine.set_gate(14, Gate { ist: 1, ..Gate::interrupt(14) });
        machine.cpu.cr4 |= SMAP;
        machine.cpu.rflags |= if ac { rflags::AC } else { 0 };
        let outcome = deliver(&mut machine.cpu, &mut machine.ram, INTERRUPT).unwrap();
        assert_eq!(outcome == DeliveryOutcome::Handler(INTERRUPT), delivered, "{cpl} {ac} {rights}");
    }
}

#[test]
fn loading_cs_sets_the_accessed_flag() {
    let mut machine = Machine::long();
    gate(&mut machine, |gate| gate.selector = sel::FRESH64);
    let descriptor = at::GDT + u64::from(sel::FRESH64);
    assert_eq!(machine.quad(descriptor) >> 40 & 0xff, 0x9a);
    deliver(&mut machine.cpu, &mut machine.ram, INTERRUPT).unwrap();
    assert_eq!(machine.quad(descriptor) >> 40 & 0xff, 0x9b);
    assert_eq!(machine.cpu.cs.attributes, 0xa9b);
}

#[test]
fn a_conforming_handler_keeps_the_level() {
    let mut machine = Machine::long_user();
    gate(&mut machine, |gate| gate.selector = sel::CONFORMING64);
    let before = machine.cpu;
    deliver(&mut machine.cpu, &mut machine.ram, INTERRUPT).unwrap();
    assert_eq!((machine.cpu.cpl, machine.cpu.cs.selector), (3, sel::CONFORMING64 | 3));
    assert_eq!((machine.cpu.ss, machine.cpu.get(Gpr::Rsp)), (before.ss, at::STACK - 40));
}

#[test]
fn compatibility_mode_enters_64_bit_code() {
    let mut machine = Machine::compatibility();
    machine.cpu.rip = 0xffff_ffff;
    deliver(&mut machine.cpu, &mut machine.ram, Event::Exception(Exception::invalid_opcode())).unwrap();
    assert_eq!(machine.cpu.mode(), Mode::Bits64);
    assert_eq!(machine.quad(at::RSP0 - 40), 0xffff_ffff);
    assert_eq!(machine.quad(at::RSP0 - 32), u64::from(sel::USER_CODE32));
}
