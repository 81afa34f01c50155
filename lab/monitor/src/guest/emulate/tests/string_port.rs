use super::*;
use crate::guest::{Gpr, StringPort};

const DATA: u64 = 0x3_0000;

/// Executes an instruction to its end; returns the data written to the port, and the number of accesses. An input of
/// the port is the number of the access.
fn run_string(machine: &mut Machine, bytes: &[u8], size: usize) -> Result<(Vec<u32>, u32), GuestError> {
    machine.put(at::CODE, bytes);
    let instruction = Lookahead::new().next(&machine.cpu, &mut machine.ram).unwrap();
    let (mut outputs, mut accesses) = (Vec::new(), 0);
    while let Some(next) = StringPort::next(&machine.cpu, &mut machine.ram, &instruction, size)? {
        accesses += 1;
        outputs.extend(next.output);
        if next.end(&mut machine.cpu, &mut machine.ram, accesses)? {
            break;
        }
    }
    Ok((outputs, accesses))
}

fn machine(count: u64) -> Machine {
    let mut machine = Machine::long();
    machine.put_quads(DATA, &[0x8877_6655_4433_2211, 0xffee_ddcc_bbaa_9900]);
    machine.cpu.set(Gpr::Rsi, DATA);
    machine.cpu.set(Gpr::Rdi, DATA + 0x100);
    machine.cpu.set(Gpr::Rcx, count);
    machine
}

#[test]
fn outs_sends_memory_and_moves_on() {
    // The instruction, its size, the direction, the count; the data sent, and the registers after it.
    for (bytes, size, down, count, sent, rsi, rcx) in [
        (&[0x6e][..], 1, false, 5, &[0x11][..], DATA + 1, 5),
        (&[0x66, 0x6f], 2, false, 5, &[0x2211], DATA + 2, 5),
        (&[0x6f], 4, false, 5, &[0x4433_2211], DATA + 4, 5),
        (&[0xf3, 0x6e], 1, false, 3, &[0x11, 0x22, 0x33], DATA + 3, 0),
        (&[0xf3, 0x6f], 4, false, 2, &[0x4433_2211, 0x8877_6655], DATA + 8, 0),
        (&[0xf3, 0x6e], 1, true, 2, &[0x11, 0], DATA - 2, 0),
        (&[0xf3, 0x6e], 1, false, 0, &[], DATA, 0),
    ] {
        let mut machine = machine(count);
        machine.cpu.rflags |= if down { rflags::DF } else { 0 };
        let (outputs, _) = run_string(&mut machine, bytes, size).unwrap();
        assert_eq!(outputs, sent, "{bytes:x?}");
        assert_eq!((machine.cpu.get(Gpr::Rsi), machine.cpu.get(Gpr::Rcx)), (rsi, rcx), "{bytes:x?}");
        assert_eq!(machine.cpu.get(Gpr::Rdi), DATA + 0x100);
    }
}

#[test]
fn ins_stores_what_the_port_gives() {
    for (bytes, size, count, stored) in [
        (&[0x6c][..], 1, 7, 0x01),
        (&[0xf3, 0x6c], 1, 3, 0x03_0201),
        (&[0xf3, 0x66, 0x6d], 2, 2, 0x0002_0001),
        (&[0xf3, 0x6d], 4, 2, 0x0000_0002_0000_0001),
    ] {
        let mut machine = machine(count);
        let (outputs, accesses) = run_string(&mut machine, bytes, size).unwrap();
        assert!(outputs.is_empty(), "{bytes:x?}");
        assert_eq!(machine.quad(DATA + 0x100), stored, "{bytes:x?}");
        assert_eq!(machine.cpu.get(Gpr::Rdi), DATA + 0x100 + u64::from(accesses) * size as u64);
    }
}

#[test]
fn the_address_size_selects_the_registers() {
    // 32-bit addresses in 64-bit code: the upper halves are ignored and cleared.
    let mut long = machine(0x7_0000_0002);
    long.cpu.set(Gpr::Rsi, 0x9_0000_0000 | DATA);
    assert_eq!(run_string(&mut long, &[0x67, 0xf3, 0x6e], 1).unwrap().0, [0x11, 0x22]);
    assert_eq!((long.cpu.get(Gpr::Rsi), long.cpu.get(Gpr::Rcx)), (DATA + 2, 0));
    // Real mode: 16 bits, and a segment other than DS.
    let mut real = Machine::real();
    real.cpu.es = Segment { selector: 0x3000, attributes: 0x93, limit: 0xffff, base: DATA };
    real.cpu.fs = real.cpu.es;
    real.put(DATA, &[0x77]);
    real.put(0x1_0010, &[0x64, 0x6e]);
    real.cpu.set(Gpr::Rsi, 0x1_0000);
    let instruction = Lookahead::new().next(&real.cpu, &mut real.ram).unwrap();
    let next = StringPort::next(&real.cpu, &mut real.ram, &instruction, 1).unwrap().unwrap();
    assert_eq!(next.output, Some(0x77));
    assert_eq!(next.end(&mut real.cpu, &mut real.ram, 0), Ok(true));
    assert_eq!(real.cpu.get(Gpr::Rsi), 0x1_0001);
}

#[test]
fn a_fault_comes_before_the_port_is_accessed() {
    for (bytes, size, entry, code) in
        [(&[0xf3, 0x6c][..], 1, 0, 2), (&[0xf3, 0x6d], 4, (DATA + 0x1000) | 5, 3), (&[0xf3, 0x6e], 1, 0, 0)]
    {
        let mut machine = machine(8);
        machine.set_page(DATA + 0x1000, entry);
        // The last byte of the first element is in the unmapped page.
        let at = DATA + 0x1001 - size as u64;
        machine.cpu.set(Gpr::Rdi, at);
        machine.cpu.set(Gpr::Rsi, at);
        let before = machine.cpu;
        let error = run_string(&mut machine, bytes, size).unwrap_err();
        assert_eq!(error, Exception::page_fault(code, DATA + 0x1000).into(), "{bytes:x?}");
        assert_eq!(machine.cpu, before, "{bytes:x?}");
    }
}
