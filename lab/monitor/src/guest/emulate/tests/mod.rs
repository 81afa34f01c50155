//! Tests of the emulation: one file for each family of instructions; shared code is here.

extern crate std;

use std::vec::Vec;

use super::super::testing::{Machine, at};
use super::super::{Cpu, DeliveryOutcome, Lookahead, Segment, Shadow, deliver};
use super::*;

mod debug_status;
mod flags;
mod iret;
mod processor;
mod ptwrite;
mod stack_segment;
mod string_port;
mod syscall;

const GP: Exception = Exception::general_protection(0);
const UD: Exception = Exception::invalid_opcode();
const RETIRED: Result<ExecutionOutcome, GuestError> = Ok(ExecutionOutcome::Retired { single_step: false });

/// Puts `bytes` at CS:RIP and executes the instruction.
fn run(machine: &mut Machine, bytes: &[u8]) -> Result<ExecutionOutcome, GuestError> {
    let code = machine.cpu.cs.base + machine.cpu.rip;
    machine.put(code, bytes);
    let instruction = Lookahead::new().next(&machine.cpu, &mut machine.ram).unwrap();
    execute(&mut machine.cpu, &mut machine.ram, &instruction)
}

/// Does the same as [`run`], and checks that nothing has changed after a fault.
fn run_whole(machine: &mut Machine, bytes: &[u8]) -> Result<ExecutionOutcome, GuestError> {
    let before = machine.cpu;
    let result = run(machine, bytes);
    if result.is_err() {
        assert_eq!(machine.cpu, before, "{bytes:x?}");
    }
    result
}

fn fault(exception: Exception) -> Result<ExecutionOutcome, GuestError> {
    Err(exception.into())
}

#[test]
fn software_interrupts_are_left_to_delivery() {
    let event =
        |vector, kind, length| Ok(ExecutionOutcome::Deliver(Event::Software { vector, kind, length }));
    let rows: &[(&[u8], _)] = &[
        (&[0xcd, 0x80], event(0x80, SoftwareKind::Int, 2)),
        (&[0xcd, 0x03], event(3, SoftwareKind::Int, 2)),
        (&[0xcc], event(3, SoftwareKind::Int3, 1)),
        (&[0x66, 0xcc], event(3, SoftwareKind::Int3, 2)),
        (&[0xf1], event(1, SoftwareKind::Int1, 1)),
    ];
    for (bytes, expected) in rows {
        let mut machine = Machine::long();
        machine.cpu.rflags |= rflags::TF;
        let before = machine.cpu;
        assert_eq!(run(&mut machine, bytes), *expected, "{bytes:x?}");
        assert_eq!(machine.cpu, before);
    }
    let mut machine = Machine::long();
    let Ok(ExecutionOutcome::Deliver(event)) = run(&mut machine, &[0xcd, 0x80]) else { panic!("no event") };
    assert_eq!(deliver(&mut machine.cpu, &mut machine.ram, event), Ok(DeliveryOutcome::Handler(event)));
    assert_eq!(machine.quad(at::STACK - 40), at::CODE + 2);
}

#[test]
fn into_traps_only_on_an_overflow() {
    let mut machine = Machine::protected();
    assert_eq!(run(&mut machine, &[0xce]), RETIRED);
    assert_eq!(machine.cpu.rip, at::CODE + 1);
    let mut machine = Machine::protected();
    machine.cpu.rflags |= rflags::OF;
    let event = Event::Software { vector: 4, kind: SoftwareKind::Into, length: 1 };
    assert_eq!(run(&mut machine, &[0xce]), Ok(ExecutionOutcome::Deliver(event)));
}

#[test]
fn the_trap_of_a_guest_that_steps_itself_comes_when_the_processor_gives_it() {
    let tf = rflags::TF;
    let iret_frame = |flags| [at::CODE, 8, flags, at::STACK, 0x10];
    // Bytes, TF before, quadwords on the stack, FMASK, R11; `true` if the trap is due.
    type Row<'a> = (&'a [u8], u64, &'a [u64], u64, u64, bool);
    let (with_tf, without) = (iret_frame(tf | 2), iret_frame(2));
    let rows: &[Row<'_>] = &[
        (&[0x9c], 0, &[], 0, 0, false),
        (&[0x9c], tf, &[], 0, 0, true),
        // POPF and IRET: TF before the instruction decides.
        (&[0x9d], 0, &[tf], 0, 0, false),
        (&[0x9d], tf, &[0], 0, 0, true),
        (&[0x48, 0xcf], 0, &with_tf, 0, 0, false),
        (&[0x48, 0xcf], tf, &without, 0, 0, true),
        (&[0xfa], tf, &[], 0, 0, true),
        (&[0xfb], tf, &[], 0, 0, true),
        // SYSCALL and SYSRET: TF after the instruction decides.
        (&[0x0f, 0x05], tf, &[], 0, 0, true),
        (&[0x0f, 0x05], tf, &[], tf, 0, false),
        (&[0x48, 0x0f, 0x07], 0, &[], 0, tf, true),
        (&[0x48, 0x0f, 0x07], tf, &[], 0, 0, false),
        // The shadow delays the trap.
        (&[0x8e, 0xd0], tf, &[], 0, 0, false),
    ];
    for (bytes, flags, stack, fmask, r11, single_step) in rows {
        let mut machine = Machine::long();
        machine.cpu.rflags |= flags;
        machine.cpu.sfmask = *fmask;
        machine.cpu.gpr[11] = *r11;
        machine.put_quads(at::STACK, stack);
        machine.cpu.gpr[0] = 0x10;
        assert_eq!(
            run(&mut machine, bytes),
            Ok(ExecutionOutcome::Retired { single_step: *single_step }),
            "{bytes:x?}"
        );
    }
    let mut machine = Machine::long();
    machine.cpu.rflags |= tf;
    assert_eq!(run(&mut machine, &[0xf4]), Ok(ExecutionOutcome::Halted { single_step: true }));
}

#[test]
fn every_retired_instruction_ends_rf_and_the_shadow() {
    for bytes in [&[0x9c_u8] as &[u8], &[0xfa], &[0xf4]] {
        let mut machine = Machine::long();
        machine.cpu.rflags |= rflags::RF;
        machine.cpu.shadow = Some(Shadow::Sti);
        run(&mut machine, bytes).unwrap();
        assert_eq!((machine.cpu.rflags & rflags::RF, machine.cpu.shadow), (0, None), "{bytes:x?}");
    }
    let mut machine = Machine::long();
    machine.cpu.rflags |= rflags::RF | rflags::TF;
    machine.cpu.shadow = Some(Shadow::MovSs);
    machine.put(at::CODE, &[0x0f, 0xa2]);
    let cpuid = Lookahead::new().next(&machine.cpu, &mut machine.ram).unwrap();
    assert_eq!(retire(&mut machine.cpu, &cpuid), ExecutionOutcome::Retired { single_step: true });
    assert_eq!((machine.cpu.rip, machine.cpu.shadow), (at::CODE + 2, None));
    assert_eq!(machine.cpu.rflags & rflags::RF, 0);
}

#[test]
fn pause_does_nothing_and_retires() {
    for start in [Machine::long, Machine::long_user] {
        let mut machine = start();
        machine.cpu.rflags |= rflags::TF;
        let before = machine.cpu;
        assert_eq!(run(&mut machine, &[0xf3, 0x90]), Ok(ExecutionOutcome::Retired { single_step: true }));
        assert_eq!(machine.cpu, Cpu { rip: at::CODE + 2, ..before });
    }
}

#[test]
fn halts_at_level_0_only() {
    let mut machine = Machine::long();
    assert_eq!(run(&mut machine, &[0xf4]), Ok(ExecutionOutcome::Halted { single_step: false }));
    assert_eq!(machine.cpu.rip, at::CODE + 1);
    let mut machine = Machine::long_user();
    assert_eq!(run_whole(&mut machine, &[0xf4]), fault(GP));
}

#[test]
fn refuses_what_it_does_not_know() {
    let mut machine = Machine::long();
    let unsupported = Err(Unsupported::Instruction { rip: at::CODE }.into());
    assert_eq!(run_whole(&mut machine, &[0x0f, 0xa2]), unsupported);
    let mut machine = Machine::protected_user();
    machine.cpu.rflags |= rflags::VM;
    machine.cpu.cs.attributes = 0xfb;
    let unsupported = Err(Unsupported::Virtual8086 { rip: at::CODE }.into());
    assert_eq!(run_whole(&mut machine, &[0x9c]), unsupported);
}
