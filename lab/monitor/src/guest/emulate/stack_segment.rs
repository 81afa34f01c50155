//! MOV SS, POP SS and LSS.

use super::{operand, stack};
use crate::guest::cpu::{Cpu, Mode};
use crate::guest::descriptor::{Descriptor, error_code, is_null, null_stack_segment};
use crate::guest::exception::{Exception, GuestError};
use crate::guest::lookahead::{Instruction, Size};
use crate::guest::memory::GuestMemory;

pub(super) fn mov_ss<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    instruction: &Instruction,
) -> Result<(), GuestError> {
    let decoded = operand::decode(cpu, instruction);
    let selector = operand::read(cpu, memory, &decoded, 1, 2)?;
    load(cpu, memory, selector as u16)
}

pub(super) fn pop_ss<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    size: Size,
) -> Result<(), GuestError> {
    let [selector] = stack::peek::<1, M>(cpu, memory, size, 0)?;
    // The size of the old stack segment decides how the stack pointer moves.
    stack::drop_elements(cpu, size, 1);
    load(cpu, memory, selector as u16)
}

pub(super) fn lss<M: GuestMemory + ?Sized>(
    cpu: &mut Cpu,
    memory: &mut M,
    instruction: &Instruction,
) -> Result<(), GuestError> {
    let decoded = operand::decode(cpu, instruction);
    let register = decoded.op0_register();
    let (offset, selector) = operand::read_far(cpu, memory, &decoded, 1, register.size().min(8))?;
    load(cpu, memory, selector)?;
    operand::set_register(cpu, register, offset);
    Ok(())
}

fn load<M: GuestMemory + ?Sized>(cpu: &mut Cpu, memory: &mut M, selector: u16) -> Result<(), GuestError> {
    let mode = cpu.mode();
    if mode == Mode::Real {
        cpu.ss.selector = selector;
        cpu.ss.base = u64::from(selector) << 4;
        return Ok(());
    }
    let rpl = (selector & 3) as u8;
    if is_null(selector) {
        if mode != Mode::Bits64 || cpu.cpl == 3 || rpl != cpu.cpl {
            return Err(Exception::general_protection(0).into());
        }
        cpu.ss = null_stack_segment(selector, cpu.cpl);
        return Ok(());
    }
    let refused = Exception::general_protection(error_code(selector));
    let descriptor = Descriptor::find(cpu, memory, selector)?.ok_or(refused)?;
    if rpl != cpu.cpl || descriptor.segment.dpl() != cpu.cpl || !descriptor.is_writable_data() {
        return Err(refused.into());
    }
    if !descriptor.is_present() {
        return Err(Exception::stack_fault(error_code(selector)).into());
    }
    cpu.ss = descriptor.load(cpu, memory, selector)?;
    Ok(())
}
