//! Reads and writes the explicit operands of an instruction, which is decoded a second time here.

use iced_x86::{Decoder, DecoderOptions, OpKind, Register};

use crate::guest::cpu::Cpu;
use crate::guest::exception::{Exception, GuestError};
use crate::guest::linear::{SegmentName, read_linear, segment_address};
use crate::guest::lookahead::Instruction;
use crate::guest::memory::GuestMemory;
use crate::guest::paging::{Access, AccessKind};

pub(super) fn decode(cpu: &Cpu, instruction: &Instruction) -> iced_x86::Instruction {
    let bits = cpu.code_bits();
    Decoder::with_ip(bits, instruction.bytes(), instruction.rip(), DecoderOptions::NONE).decode()
}

/// Reads the far pointer in the memory operand `index`: an offset of `len` bytes, and a selector.
///
/// Errors: as [`read`].
pub(super) fn read_far<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    decoded: &iced_x86::Instruction,
    index: u32,
    len: usize,
) -> Result<(u64, u16), GuestError> {
    let mut bytes = [0; 10];
    let linear = address(cpu, decoded, index, len as u64 + 2)?;
    read_linear(cpu, memory, linear, &mut bytes[..len + 2], Access::at_cpl(cpu, AccessKind::Read))?;
    let mut offset = [0; 8];
    offset[..len].copy_from_slice(&bytes[..len]);
    Ok((u64::from_le_bytes(offset), u16::from_le_bytes([bytes[len], bytes[len + 1]])))
}

/// Reads the value of operand `index`, a register or `len` bytes of memory, zero-extended.
///
/// Errors: `#GP(0)`, `#SS(0)` or a page fault of the memory access; `#UD` for another kind of operand.
pub(super) fn read<M: GuestMemory + ?Sized>(
    cpu: &Cpu,
    memory: &mut M,
    decoded: &iced_x86::Instruction,
    index: u32,
    len: usize,
) -> Result<u64, GuestError> {
    let mut bytes = [0; 8];
    match decoded.op_kind(index) {
        OpKind::Register => {
            let value = register(cpu, decoded.op_register(index)).to_le_bytes();
            bytes[..len].copy_from_slice(&value[..len]);
        }
        OpKind::Memory => {
            let linear = address(cpu, decoded, index, len as u64)?;
            read_linear(cpu, memory, linear, &mut bytes[..len], Access::at_cpl(cpu, AccessKind::Read))?;
        }
        _ => return Err(Exception::invalid_opcode().into()),
    }
    Ok(u64::from_le_bytes(bytes))
}

/// Sets a general register. A write of 16 bits leaves the other bits unchanged, a write of 32 bits clears them.
pub(super) fn set_register(cpu: &mut Cpu, name: Register, value: u64) {
    let full = &mut cpu.gpr[name.full_register().number() % 16];
    *full = match name.size() {
        2 => *full & !0xffff | value & 0xffff,
        4 => value & 0xffff_ffff,
        _ => value,
    };
}

/// Returns the linear address of the memory operand `index`, for a read of `len` bytes.
fn address(cpu: &Cpu, decoded: &iced_x86::Instruction, index: u32, len: u64) -> Result<u64, Exception> {
    // The result is the effective address, so segment bases count as 0.
    let effective = decoded
        .virtual_address(index, 0, |name, _, _| {
            Some(if name.is_segment_register() { 0 } else { register(cpu, name) })
        })
        .ok_or(Exception::invalid_opcode())?;
    segment_address(cpu, segment(decoded), effective, len, AccessKind::Read)
}

/// Returns the segment of the memory operand.
pub(super) fn segment(decoded: &iced_x86::Instruction) -> SegmentName {
    match decoded.memory_segment() {
        Register::ES => SegmentName::Es,
        Register::CS => SegmentName::Cs,
        Register::SS => SegmentName::Ss,
        Register::FS => SegmentName::Fs,
        Register::GS => SegmentName::Gs,
        _ => SegmentName::Ds,
    }
}

/// Returns a general register of 16 to 64 bits.
pub(super) fn register(cpu: &Cpu, name: Register) -> u64 {
    let value = cpu.gpr[name.full_register().number() % 16];
    match name.size() {
        2 => value & 0xffff,
        4 => value & 0xffff_ffff,
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source: SDM vol. 1, Basic Execution Environment, "General-Purpose Registers in 64-Bit Mode".
    #[test]
    fn a_write_of_32_bits_clears_the_others_and_one_of_16_bits_leaves_them() {
        const VALUE: u64 = 0x1122_3344_5566_7788;
        for (name, expected) in
            [(Register::RCX, VALUE), (Register::ECX, 0x5566_7788), (Register::CX, 0xffff_ffff_ffff_7788)]
        {
            let mut cpu = crate::guest::testing::Machine::long().cpu;
            cpu.gpr[1] = !0;
            set_register(&mut cpu, name, VALUE);
            assert_eq!(cpu.gpr[1], expected, "{name:?}");
        }
    }
}
