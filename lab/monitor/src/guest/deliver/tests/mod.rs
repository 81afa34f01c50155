//! The rules of double faults. Each mode has a file of its own.

extern crate std;

use super::super::testing::{Gate, Machine, at};
use super::*;
use crate::guest::{SoftwareKind, rflags};

mod legacy;
mod long;

const INTERRUPT: Event = Event::Interrupt { vector: 0x30 };
const INT: Event = Event::Software { vector: 0x30, kind: SoftwareKind::Int, length: 2 };

fn handler(exception: Exception) -> Result<DeliveryOutcome, Unsupported> {
    Ok(DeliveryOutcome::Handler(Event::Exception(exception)))
}

fn gp(code: u32) -> Result<DeliveryOutcome, Unsupported> {
    handler(Exception::general_protection(code))
}

type Change = fn(&mut Machine);

/// Name, privilege level, change to the machine, event, expected outcome.
type Row<'a> = (&'a str, u8, Change, Event, Result<DeliveryOutcome, Unsupported>);

#[test]
fn faults_of_a_delivery_follow_the_double_fault_table() {
    let pf = Exception::page_fault(2, 0x5000);
    let gp = Exception::general_protection(0x10);
    let df = Exception::double_fault();
    let first = |vector| Event::Exception(Exception::from_intercept(vector, 0, 0));
    // Typed again from the manual: the rows are the first event, the columns the second.
    let rows = [
        (INTERRUPT, Some(gp), Some(pf)),
        (Event::Nmi, Some(gp), Some(pf)),
        (INT, Some(gp), Some(pf)),
        (first(1), Some(gp), Some(pf)),
        (first(6), Some(gp), Some(pf)),
        (first(7), Some(gp), Some(pf)),
        (first(16), Some(gp), Some(pf)),
        (first(17), Some(gp), Some(pf)),
        (first(18), Some(gp), Some(pf)),
        (first(0), Some(df), Some(pf)),
        (first(10), Some(df), Some(pf)),
        (first(11), Some(df), Some(pf)),
        (first(12), Some(df), Some(pf)),
        (first(13), Some(df), Some(pf)),
        (first(21), Some(df), Some(pf)),
        (first(14), Some(df), Some(df)),
        (first(20), Some(df), Some(df)),
        (first(8), None, None),
    ];
    for (first, with_gp, with_pf) in rows {
        assert_eq!(combine(&first, gp), with_gp, "{first:?}");
        assert_eq!(combine(&first, pf), with_pf, "{first:?}");
    }
}

#[test]
fn a_bad_gate_of_a_fault_ends_in_a_double_fault_and_two_in_a_shutdown() {
    let mut machine = Machine::long();
    machine.set_gate(13, Gate { present: false, ..Gate::interrupt(13) });
    let fault = Event::Exception(Exception::general_protection(0));
    let double = Exception::double_fault();
    assert_eq!(deliver(&mut machine.cpu, &mut machine.ram, fault), handler(double));
    assert_eq!(machine.quad(at::STACK - 48), 0, "its error code");

    machine.set_gate(8, Gate { present: false, ..Gate::interrupt(8) });
    let before = machine.cpu;
    assert_eq!(deliver(&mut machine.cpu, &mut machine.ram, fault), Ok(DeliveryOutcome::Shutdown));
    assert_eq!(machine.cpu, before);
}

#[test]
fn a_second_page_fault_replaces_cr2_before_the_double_fault() {
    let mut machine = Machine::long();
    machine.set_gate(8, Gate { ist: 1, ..Gate::interrupt(8) });
    machine.set_page(at::STACK - 0x1000, 0);
    let first = Event::Exception(Exception::page_fault(0, 0x1234));
    assert_eq!(deliver(&mut machine.cpu, &mut machine.ram, first), handler(Exception::double_fault()));
    assert_eq!(machine.cpu.cr2, at::STACK - 48);
}

#[test]
fn an_int_that_its_gate_refuses_does_not_end() {
    let rows = [(0, 0, INT, true), (3, 3, INT, true), (0, 3, INT, false), (0, 0, INTERRUPT, false)];
    for (dpl, level, event, ends) in rows {
        let mut machine = if level == 3 { Machine::long_user() } else { Machine::long() };
        machine.set_gate(0x30, Gate { dpl, ..Gate::interrupt(0x30) });
        let Ok(DeliveryOutcome::Handler(delivered)) = deliver(&mut machine.cpu, &mut machine.ram, event)
        else {
            panic!("no handler: {event:?} at level {level}");
        };
        assert_eq!(delivered.ends_instruction(), ends, "{event:?} at level {level}, DPL {dpl}");
    }
}

#[test]
fn the_next_instruction_is_within_32_bits_but_in_64_bit_mode() {
    let mut compatibility = Machine::long();
    compatibility.cpu.cs.attributes &= !super::super::cpu::Segment::L;
    for (mut machine, next) in
        [(Machine::long(), 1 << 32), (compatibility, 0), (Machine::protected(), 0), (Machine::real(), 0)]
    {
        machine.cpu.rip = 0xffff_fffe;
        assert_eq!(machine.cpu.rip_after(2), next, "{:?}", machine.cpu.mode());
    }
}

#[test]
fn a_debug_exception_puts_its_conditions_into_dr6_and_one_without_any_leaves_it() {
    for (conditions, expected) in [(dr6::BS, 0xffff_4ff0), (1, 0xffff_0ff1), (0, 0xffff_0ff2)] {
        let mut cpu = Machine::long().cpu;
        (cpu.dr6, cpu.dr7) = (0xffff_0ff2, dr7::GD | 0x400);
        begin(&mut cpu, &Event::Exception(Exception::debug(conditions)));
        assert_eq!((cpu.dr6, cpu.dr7), (expected, 0x400), "{conditions:#x}");
    }
}
