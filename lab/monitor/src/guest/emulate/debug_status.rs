//! MOV to and from DR6. The monitor emulates it because the processor's DR6 holds the monitor's own single-step
//! condition.

use super::operand;
use crate::guest::cpu::{Cpu, dr6, dr7};
use crate::guest::exception::{Exception, GuestError};
use crate::guest::lookahead::Instruction;

/// Executes MOV from DR6. Source: SDM vol. 2, "MOV—Move to/from Debug Registers"; vol. 3, Debug, Branch Profile, TSC,
/// "Debug Status Register (DR6)".
pub(super) fn mov_from(cpu: &mut Cpu, instruction: &Instruction) -> Result<(), GuestError> {
    check(cpu)?;
    let decoded = operand::decode(cpu, instruction);
    operand::set_register(cpu, decoded.op0_register(), cpu.dr6);
    Ok(())
}

pub(super) fn mov_to(cpu: &mut Cpu, instruction: &Instruction) -> Result<(), GuestError> {
    check(cpu)?;
    let decoded = operand::decode(cpu, instruction);
    let value = operand::register(cpu, decoded.op1_register());
    if value >> 32 != 0 {
        return Err(Exception::general_protection(0).into());
    }
    cpu.dr6 = value & dr6::WRITABLE | dr6::FIXED;
    Ok(())
}

fn check(cpu: &Cpu) -> Result<(), GuestError> {
    if cpu.cpl != 0 {
        return Err(Exception::general_protection(0).into());
    }
    if cpu.dr7 & dr7::GD != 0 {
        return Err(Exception::debug(dr6::BD).into());
    }
    Ok(())
}
