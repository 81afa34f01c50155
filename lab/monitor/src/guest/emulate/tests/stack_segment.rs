use super::*;
use crate::guest::testing::sel;
use crate::guest::{Gpr, Segment};

/// MOV SS, AX.
const FROM_AX: &[u8] = &[0x8e, 0xd0];

#[test]
fn loads_ss_with_the_checks_of_the_mode() {
    let gp = |selector: u16| Some(Exception::general_protection(u32::from(selector & !3)));
    let (long, user) = (Machine::long as fn() -> Machine, Machine::long_user as fn() -> Machine);
    let protected = Machine::protected as fn() -> Machine;
    // Machine, selector, fault.
    let rows = [
        (long, sel::DATA, None),
        (long, 0, None),
        (long, 1, Some(GP)),
        (user, 3, Some(GP)),
        (user, sel::USER_DATA, None),
        (user, sel::DATA, gp(sel::DATA)),
        (user, sel::DATA | 3, gp(sel::DATA)),
        (user, sel::USER_DATA & !3, gp(sel::USER_DATA)),
        (user, sel::READ_ONLY_USER_DATA, gp(sel::READ_ONLY_USER_DATA)),
        (user, sel::ABSENT_USER_DATA, Some(Exception::stack_fault(0x60))),
        (protected, sel::DATA, None),
        (protected, 0, Some(GP)),
        (protected, sel::CODE32, gp(sel::CODE32)),
        (protected, sel::BEYOND, gp(sel::BEYOND)),
        (protected, sel::USER_DATA, gp(sel::USER_DATA)),
    ];
    for (start, selector, exception) in rows {
        let mut machine = start();
        machine.cpu.set(Gpr::Rax, 0xffff_0000 | u64::from(selector));
        let result = run_whole(&mut machine, FROM_AX);
        match exception {
            Some(exception) => assert_eq!(result, fault(exception), "{selector:#x}"),
            None => {
                assert_eq!(result, RETIRED, "{selector:#x}");
                assert_eq!(machine.cpu.ss.selector, selector);
                assert_eq!(machine.cpu.shadow, Some(Shadow::MovSs));
                assert_eq!(machine.cpu.rip, at::CODE + 2);
            }
        }
    }
}

#[test]
fn real_mode_takes_any_selector() {
    let mut machine = Machine::real();
    machine.cpu.set(Gpr::Rax, 0x1234);
    assert_eq!(run(&mut machine, FROM_AX), RETIRED);
    let ss = Segment { selector: 0x1234, attributes: 0x93, limit: 0xffff, base: 0x1_2340 };
    assert_eq!(machine.cpu.ss, ss);
}

#[test]
fn reads_the_selector_from_memory() {
    let data = 0x3_0000;
    // MOV SS, [RBX+RCX*4+8]; with FS; with a 32-bit address.
    let rows: &[(&[u8], u64, u64)] = &[
        (&[0x8e, 0x54, 0x8b, 0x08], data - 0x18, 0),
        (&[0x64, 0x8e, 0x54, 0x8b, 0x08], data - 0x18 - 0x1000, 0x1000),
        (&[0x67, 0x8e, 0x54, 0x8b, 0x08], (data - 0x18) | 0x7777_0000_0000, 0),
    ];
    for (bytes, rbx, base) in rows {
        let mut machine = Machine::long();
        machine.put(data, &0_u16.to_le_bytes());
        machine.put(data + 2, &[0xff; 6]);
        machine.cpu.set(Gpr::Rbx, *rbx);
        machine.cpu.set(Gpr::Rcx, 4);
        machine.cpu.fs.base = *base;
        assert_eq!(run(&mut machine, bytes), RETIRED, "{bytes:x?}");
        assert_eq!(machine.cpu.ss.selector, 0);
    }
    // RIP-relative, to a page that is not mapped.
    let mut machine = Machine::long();
    machine.set_page(data, 0);
    let displacement = (data - at::CODE - 6) as u32;
    let mut bytes = [0x8e, 0x15, 0, 0, 0, 0];
    bytes[2..].copy_from_slice(&displacement.to_le_bytes());
    assert_eq!(run_whole(&mut machine, &bytes), fault(Exception::page_fault(0, data)));
}

#[test]
fn pop_ss_moves_the_stack_pointer() {
    let mut machine = Machine::protected();
    machine.put_doubles(at::STACK, &[u64::from(sel::DATA)]);
    assert_eq!(run(&mut machine, &[0x17]), RETIRED);
    assert_eq!((machine.cpu.get(Gpr::Rsp), machine.cpu.shadow), (at::STACK + 4, Some(Shadow::MovSs)));
    let mut machine = Machine::protected();
    machine.put_doubles(at::STACK, &[u64::from(sel::DATA)]);
    assert_eq!(run(&mut machine, &[0x66, 0x17]), RETIRED);
    assert_eq!(machine.cpu.get(Gpr::Rsp), at::STACK + 2);
    let mut machine = Machine::protected();
    assert_eq!(run_whole(&mut machine, &[0x17]), fault(GP), "null");
}

#[test]
fn the_second_of_two_in_a_row_opens_no_shadow() {
    let mut machine = Machine::long();
    machine.cpu.set(Gpr::Rax, u64::from(sel::DATA));
    run(&mut machine, FROM_AX).unwrap();
    assert!(!machine.cpu.takes_nmi() && !machine.cpu.takes_interrupts());
    run(&mut machine, FROM_AX).unwrap();
    assert_eq!(machine.cpu.shadow, None);
    run(&mut machine, FROM_AX).unwrap();
    assert_eq!(machine.cpu.shadow, Some(Shadow::MovSs));
}

#[test]
fn loading_sets_the_accessed_flag() {
    let mut machine = Machine::long();
    let descriptor = at::GDT + u64::from(sel::DATA);
    let fresh = machine.quad(descriptor) & !(1 << 40);
    machine.put_quads(descriptor, &[fresh]);
    machine.cpu.set(Gpr::Rax, u64::from(sel::DATA));
    run(&mut machine, FROM_AX).unwrap();
    assert_eq!(machine.quad(descriptor), fresh | 1 << 40);
    assert_eq!(machine.cpu.ss.attributes, 0xc93);
}

#[test]
fn lss_loads_a_far_pointer_and_opens_no_shadow() {
    let data = 0x3_0000;
    // LSS EDX, [RBX] and LSS DX, [RBX].
    let rows: &[(&[u8], &[u8], u64)] = &[
        (&[0x0f, 0xb2, 0x13], &[0x44, 0x33, 0x22, 0x11], 0x1122_3344),
        (&[0x66, 0x0f, 0xb2, 0x13], &[0x44, 0x33], 0x7777_7777_7777_3344),
    ];
    for (bytes, offset, rdx) in rows {
        let mut machine = Machine::long();
        machine.put(data, offset);
        machine.put(data + offset.len() as u64, &sel::DATA.to_le_bytes());
        machine.cpu.ss = Segment::default();
        machine.cpu.set(Gpr::Rbx, data);
        machine.cpu.set(Gpr::Rdx, 0x7777_7777_7777_7777);
        assert_eq!(run(&mut machine, bytes), RETIRED);
        assert_eq!((machine.cpu.ss.selector, machine.cpu.get(Gpr::Rdx)), (sel::DATA, *rdx));
        assert_eq!(machine.cpu.shadow, None);
    }
    let mut machine = Machine::long();
    machine.put(data, &[0, 0, 0, 0]);
    machine.put(data + 4, &sel::CODE64.to_le_bytes());
    machine.cpu.set(Gpr::Rbx, data);
    let refused = Exception::general_protection(u32::from(sel::CODE64));
    assert_eq!(run_whole(&mut machine, &[0x0f, 0xb2, 0x13]), fault(refused));
}
