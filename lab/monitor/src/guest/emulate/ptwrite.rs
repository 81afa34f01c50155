//! PTWRITE's operand.

use iced_x86::Code;

use super::operand;
use crate::guest::cpu::Cpu;
use crate::guest::exception::GuestError;
use crate::guest::lookahead::{Instruction, Size};
use crate::guest::memory::GuestMemory;

/// PTWRITE's operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtwriteOperand {
    /// The value, zero-extended.
    pub value: u64,
    /// The size: a doubleword or a quadword.
    pub size: Size,
}

/// Reads the operand of the PTWRITE in `instruction`. Returns `None` for another instruction, or with the prefix 66H,
/// which makes PTWRITE undefined.
///
/// Errors: `#GP(0)`, `#SS(0)` or a page fault of the memory access, or a page without RAM.
///
/// Source: SDM vol. 2, "PTWRITE".
pub fn ptwrite_operand<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    instruction: &Instruction,
) -> Result<Option<PtwriteOperand>, GuestError> {
    let decoded = operand::decode(cpu, instruction);
    let size = match decoded.code() {
        Code::Ptwrite_rm32 => Size::Dword,
        Code::Ptwrite_rm64 => Size::Qword,
        _ => return Ok(None),
    };
    let value = operand::read(cpu, memory, &decoded, 0, size.bytes())?;
    Ok(Some(PtwriteOperand { value, size }))
}
