use super::*;
use crate::guest::testing::sel;
use crate::guest::{Gpr, Segment, cr4};

/// All flags except VM.
const ALL: u64 = 0x3d_7fd7;

#[test]
fn pushf_stores_rflags_without_rf_and_vm() {
    let image = ALL & !rflags::RF;
    // Machine, bytes, size, image.
    type Row<'a> = (fn() -> Machine, &'a [u8], u64, u64);
    let rows: &[Row<'_>] = &[
        (Machine::long, &[0x9c], 8, image),
        (Machine::long, &[0x66, 0x9c], 2, image & 0xffff),
        (Machine::long_user, &[0x9c], 8, image),
        (Machine::compatibility, &[0x9c], 4, image),
        (Machine::protected, &[0x9c], 4, image),
        (Machine::protected, &[0x66, 0x9c], 2, image & 0xffff),
        (Machine::real, &[0x9c], 2, image & 0xffff),
    ];
    for (start, bytes, size, image) in rows {
        let mut machine = start();
        machine.cpu.rflags = ALL;
        let top = machine.cpu.get(Gpr::Rsp);
        machine.put(top - 8, &[0xee; 8]);
        assert_eq!(run(&mut machine, bytes), Ok(ExecutionOutcome::Retired { single_step: true }));
        assert_eq!(machine.cpu.get(Gpr::Rsp), top - size);
        let mut expected = [0xee; 8];
        let len = *size as usize;
        expected[8 - len..].copy_from_slice(&image.to_le_bytes()[..len]);
        assert_eq!(machine.quad(top - 8).to_le_bytes(), expected, "{bytes:x?} {size}");
    }
}

#[test]
fn the_monitors_own_tf_does_not_show() {
    let mut machine = Machine::long();
    let running = machine.cpu.rflags_for_stepping();
    assert_ne!(running & rflags::TF, 0);
    machine.cpu.set_rflags_from_hardware(running | rflags::CF);
    run(&mut machine, &[0x9c]).unwrap();
    assert_eq!(machine.quad(at::STACK - 8), rflags::FIXED | rflags::CF);

    // The guest's own TF survives a run on the processor.
    machine.cpu.rflags |= rflags::TF;
    machine.cpu.set_rflags_from_hardware(running);
    assert!(machine.cpu.owns_single_step());
}

#[test]
fn popf_changes_what_the_level_allows() {
    use rflags::{AC, FIXED, ID, IF, IOPL, NT, STATUS_AND_DF, TF, VIF, VIP};
    let any = STATUS_AND_DF | TF | NT | FIXED;
    let wide = any | AC | ID;
    let iopl3 = IOPL;
    let (long, user) = (Machine::long as fn() -> Machine, Machine::long_user as fn() -> Machine);
    // Machine, IOPL before, bytes, image, flags after (before, only IOPL and the fixed flag are set).
    type Row<'a> = (fn() -> Machine, u64, &'a [u8], u64, u64);
    let rows: &[Row<'_>] = &[
        (long, 0, &[0x9d], u64::MAX, wide | IF | IOPL),
        (long, 0, &[0x66, 0x9d], u64::MAX, any | IF | IOPL),
        (user, 0, &[0x9d], u64::MAX, wide),
        (user, iopl3, &[0x9d], u64::MAX, wide | IF | IOPL),
        (user, iopl3, &[0x9d], 0, FIXED | IOPL),
        (user, 2 << 12, &[0x9d], u64::MAX, wide | 2 << 12),
        (user, 0, &[0x66, 0x9d], u64::MAX, any),
        (level_1, IOPL, &[0x9d], 0, FIXED | IOPL),
        (level_1, 1 << 12, &[0x9d], u64::MAX, wide | IF | 1 << 12),
        (Machine::compatibility, 0, &[0x9d], u64::MAX, wide),
        (Machine::protected, 0, &[0x9d], u64::MAX, wide | IF | IOPL),
        (Machine::real, 0, &[0x9d], u64::MAX, any | IF | IOPL),
        (Machine::real, 0, &[0x66, 0x9d], u64::MAX, wide | IF | IOPL),
    ];
    for (start, iopl, bytes, image, after) in rows {
        let mut machine = start();
        machine.cpu.rflags |= iopl;
        let top = machine.cpu.get(Gpr::Rsp);
        machine.put_quads(top, &[*image]);
        assert_eq!(run(&mut machine, bytes), RETIRED);
        assert_eq!(machine.cpu.rflags, *after, "{bytes:x?} {iopl:#x}");
        let size = if machine.cpu.code_bits() == 64 { 8 } else { machine.cpu.code_bits() as u64 / 8 };
        let size = match (bytes.len(), size) {
            (1, size) => size,
            (_, 2) => 4,
            _ => 2,
        };
        assert_eq!(machine.cpu.get(Gpr::Rsp), top + size, "{bytes:x?}");
    }
    // VIF and VIP do not change.
    let mut machine = Machine::long();
    machine.cpu.rflags |= VIF | VIP;
    run(&mut machine, &[0x9d]).unwrap();
    assert_eq!(machine.cpu.rflags, FIXED | VIF | VIP);
}

fn level_1() -> Machine {
    let mut machine = Machine::long();
    machine.cpu.cpl = 1;
    machine
}

#[test]
fn a_16_bit_stack_keeps_the_upper_half_of_esp() {
    let mut machine = Machine::protected();
    machine.cpu.ss = Segment { selector: sel::DATA16, attributes: 0x93, limit: 0xffff, base: 0 };
    machine.cpu.set(Gpr::Rsp, 0x5_0000);
    run(&mut machine, &[0x9c]).unwrap();
    assert_eq!(machine.cpu.get(Gpr::Rsp), 0x5_fffc);
    assert_eq!(machine.double(0xfffc), rflags::FIXED);
    run(&mut machine, &[0x9d]).unwrap();
    assert_eq!(machine.cpu.get(Gpr::Rsp), 0x5_0000);
}

#[test]
fn the_stack_of_pushf_and_popf_faults() {
    let page = at::STACK - 0x1000;
    let mut machine = Machine::long_user();
    machine.set_page(page, page | 5);
    assert_eq!(run_whole(&mut machine, &[0x9c]), fault(Exception::page_fault(7, at::STACK - 8)));
    machine.set_page(at::STACK, 0);
    assert_eq!(run_whole(&mut machine, &[0x9d]), fault(Exception::page_fault(4, at::STACK)));
    // Half of the element is on a page that is not mapped.
    let mut machine = Machine::long();
    machine.cpu.set(Gpr::Rsp, at::STACK + 4);
    machine.set_page(at::STACK, 0);
    assert_eq!(run_whole(&mut machine, &[0x9c]), fault(Exception::page_fault(2, at::STACK)));
    assert_eq!(machine.quad(at::STACK - 8), 0);

    let mut machine = Machine::long();
    machine.cpu.set(Gpr::Rsp, 0xffff_8000_0000_0004);
    assert_eq!(run_whole(&mut machine, &[0x9c]), fault(Exception::stack_fault(0)));
    let mut machine = Machine::protected();
    machine.cpu.ss.limit = at::STACK as u32 + 2;
    assert_eq!(run_whole(&mut machine, &[0x9d]), fault(Exception::stack_fault(0)));
}

#[test]
fn sti_and_cli_obey_iopl_and_virtual_interrupts() {
    use rflags::{IF, IOPL, VIF, VIP};
    let (sti, cli) = (&[0xfb_u8], &[0xfa_u8]);
    let pvi = cr4::PVI;
    // Privilege level, CR4, flags before; flags after or a fault.
    let rows = [
        (sti, 0, 0, 0, Some(IF)),
        (sti, 0, 0, IF, Some(IF)),
        (cli, 0, 0, IF, Some(0)),
        (sti, 3, 0, 0, None),
        (cli, 3, 0, IF, None),
        (sti, 3, 0, IOPL, Some(IOPL | IF)),
        (cli, 3, 0, IOPL | IF, Some(IOPL)),
        (sti, 3, pvi, 0, Some(VIF)),
        (sti, 3, pvi, VIP, None),
        (cli, 3, pvi, VIF | VIP, Some(VIP)),
        (cli, 3, pvi, VIF | IF, Some(IF)),
    ];
    for (bytes, cpl, cr4, before, after) in rows {
        let mut machine = if cpl == 3 { Machine::long_user() } else { Machine::long() };
        machine.cpu.cr4 |= cr4;
        machine.cpu.rflags |= before;
        match after {
            None => assert_eq!(run_whole(&mut machine, bytes), fault(GP), "{bytes:x?} {before:#x}"),
            Some(after) => {
                assert_eq!(run(&mut machine, bytes), RETIRED, "{bytes:x?} {before:#x}");
                assert_eq!(machine.cpu.rflags, after | rflags::FIXED, "{bytes:x?} {before:#x}");
            }
        }
    }
    let mut machine = Machine::real();
    assert_eq!(run(&mut machine, sti), RETIRED);
    assert_eq!(machine.cpu.shadow, Some(Shadow::Sti));
}

#[test]
fn only_an_sti_that_opens_interrupts_makes_a_shadow() {
    let mut machine = Machine::long();
    run(&mut machine, &[0xfb]).unwrap();
    assert!(machine.cpu.shadow == Some(Shadow::Sti) && !machine.cpu.takes_interrupts());
    assert!(machine.cpu.takes_nmi());
    run(&mut machine, &[0xfb]).unwrap();
    assert!(machine.cpu.shadow.is_none() && machine.cpu.takes_interrupts());
}
