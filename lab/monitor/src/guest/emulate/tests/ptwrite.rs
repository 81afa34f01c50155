use super::*;
use crate::guest::{Gpr, PtwriteOperand, Size, ptwrite_operand};

fn operand(machine: &mut Machine, bytes: &[u8]) -> Result<Option<PtwriteOperand>, GuestError> {
    machine.put(at::CODE, bytes);
    let instruction = Lookahead::new().next(&machine.cpu, &mut machine.ram).unwrap();
    ptwrite_operand(&machine.cpu, &mut machine.ram, &instruction)
}

#[test]
fn reads_registers_and_memory() {
    let data = 0x3_0000;
    let value = 0x1122_3344_5566_7788;
    let rows: &[(&[u8], Size, u64)] = &[
        // PTWRITE EAX, RAX, R9, [RBX] in both sizes, [RSP+8].
        (&[0xf3, 0x0f, 0xae, 0xe0], Size::Dword, 0x0506_0708),
        (&[0xf3, 0x48, 0x0f, 0xae, 0xe0], Size::Qword, 0x0102_0304_0506_0708),
        (&[0xf3, 0x49, 0x0f, 0xae, 0xe1], Size::Qword, 9),
        (&[0xf3, 0x0f, 0xae, 0x23], Size::Dword, 0x5566_7788),
        (&[0xf3, 0x48, 0x0f, 0xae, 0x23], Size::Qword, value),
        (&[0xf3, 0x48, 0x0f, 0xae, 0x64, 0x24, 0x08], Size::Qword, 77),
    ];
    for (bytes, size, value_read) in rows {
        let mut machine = Machine::long();
        machine.put_quads(data, &[value]);
        machine.put_quads(at::STACK + 8, &[77]);
        machine.cpu.set(Gpr::Rax, 0x0102_0304_0506_0708);
        machine.cpu.set(Gpr::R9, 9);
        machine.cpu.set(Gpr::Rbx, data);
        let expected = PtwriteOperand { value: *value_read, size: *size };
        assert_eq!(operand(&mut machine, bytes), Ok(Some(expected)), "{bytes:x?}");
    }
}

#[test]
fn the_operand_faults_as_the_access_does() {
    let data = 0x3_0000;
    let (rbx, rsp) = (&[0xf3_u8, 0x48, 0x0f, 0xae, 0x23] as &[u8], &[0xf3_u8, 0x48, 0x0f, 0xae, 0x24, 0x24]);
    // Bytes, pointer, fault.
    let rows = [
        (rbx, data, Exception::page_fault(4, data)),
        (rbx, data - 4, Exception::page_fault(4, data)),
        (rbx, 0x7fff_ffff_fffc, GP),
        (rsp, 0x8000_0000_0000, Exception::stack_fault(0)),
    ];
    for (bytes, pointer, exception) in rows {
        let mut machine = Machine::long_user();
        machine.set_page(data, 0);
        machine.cpu.set(Gpr::Rbx, pointer);
        machine.cpu.set(Gpr::Rsp, pointer);
        assert_eq!(operand(&mut machine, bytes), Err(exception.into()), "{bytes:x?} {pointer:#x}");
    }
    let mut machine = Machine::protected();
    machine.cpu.ds.limit = 0x30;
    machine.cpu.set(Gpr::Rbx, 0x2e);
    assert_eq!(operand(&mut machine, &[0xf3, 0x0f, 0xae, 0x23]), fault_of(GP));
}

fn fault_of(exception: Exception) -> Result<Option<PtwriteOperand>, GuestError> {
    Err(exception.into())
}

#[test]
fn other_instructions_have_none() {
    // CLWB, XRSTOR, PTWRITE with 66H.
    for bytes in [&[0x66_u8, 0x0f, 0xae, 0x33] as &[u8], &[0x0f, 0xae, 0x2b], &[0x66, 0xf3, 0x0f, 0xae, 0xe0]]
    {
        assert_eq!(operand(&mut Machine::long(), bytes), Ok(None), "{bytes:x?}");
    }
}
