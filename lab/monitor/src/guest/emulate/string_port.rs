//! INS and OUTS at a port that the monitor emulates: one iteration at a time.

use iced_x86::{OpKind, Register};

use super::operand::{decode, register, segment, set_register};
use crate::guest::cpu::{Cpu, rflags};
use crate::guest::exception::GuestError;
use crate::guest::linear::{SegmentName, read_linear, segment_address, write_linear};
use crate::guest::lookahead::Instruction;
use crate::guest::memory::GuestMemory;
use crate::guest::paging::{Access, AccessKind, translate};

/// One iteration of INS or OUTS that has passed every check of its memory access.
///
/// Source: SDM vol. 2, "INS/INSB/INSW/INSD", "OUTS/OUTSB/OUTSW/OUTSD", "REP/REPE/REPZ/REPNE/REPNZ".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StringPort {
    /// The value to write to the port; `None` for INS.
    pub output: Option<u32>,
    linear: u64,
    bytes: usize,
    index: Register,
    count: Option<Register>,
}

impl StringPort {
    /// Prepares the next iteration of `instruction` with elements of `bytes` bytes. Returns `None` if none is left.
    ///
    /// # Errors
    /// Returns the fault of the memory access. `cpu` and memory are unchanged then, and the port must not be accessed.
    pub fn next<M: GuestMemory + ?Sized>(
        cpu: &Cpu,
        memory: &mut M,
        instruction: &Instruction,
        bytes: usize,
    ) -> Result<Option<Self>, GuestError> {
        let decoded = decode(cpu, instruction);
        let operand = [decoded.op0_kind(), decoded.op1_kind()];
        let is = |kinds: [OpKind; 2]| kinds.iter().any(|kind| operand.contains(kind));
        let [index, count] = if is([OpKind::MemoryESDI, OpKind::MemorySegSI]) {
            [Register::DI, Register::CX]
        } else if is([OpKind::MemoryESEDI, OpKind::MemorySegESI]) {
            [Register::EDI, Register::ECX]
        } else {
            [Register::RDI, Register::RCX]
        };
        let count = instruction.repeats().then_some(count);
        if count.is_some_and(|count| register(cpu, count) == 0) {
            return Ok(None);
        }
        let is_input =
            is([OpKind::MemoryESDI, OpKind::MemoryESEDI]) || operand.contains(&OpKind::MemoryESRDI);
        let size = bytes as u64;
        if is_input {
            let kind = AccessKind::Write;
            let linear = segment_address(cpu, SegmentName::Es, register(cpu, index), size, kind)?;
            // A fault precedes the read of the port.
            for byte in [linear, linear.wrapping_add(size - 1)] {
                translate(cpu, memory, byte, Access::at_cpl(cpu, kind))?;
            }
            return Ok(Some(Self { output: None, linear, bytes, index, count }));
        }
        let index = match index {
            Register::DI => Register::SI,
            Register::EDI => Register::ESI,
            _ => Register::RSI,
        };
        let linear = segment_address(cpu, segment(&decoded), register(cpu, index), size, AccessKind::Read)?;
        let mut value = [0; 4];
        read_linear(cpu, memory, linear, &mut value[..bytes], Access::at_cpl(cpu, AccessKind::Read))?;
        Ok(Some(Self { output: Some(u32::from_le_bytes(value)), linear, bytes, index, count }))
    }

    /// Ends the iteration: stores `input`, which INS has read, and advances. Returns whether it was the last one.
    ///
    /// # Errors
    /// Returns the fault of the store, if another processor changed the page tables after the iteration was prepared.
    pub fn end<M: GuestMemory + ?Sized>(
        self,
        cpu: &mut Cpu,
        memory: &mut M,
        input: u32,
    ) -> Result<bool, GuestError> {
        if self.output.is_none() {
            let access = Access::at_cpl(cpu, AccessKind::Write);
            write_linear(cpu, memory, self.linear, &input.to_le_bytes()[..self.bytes], access)?;
        }
        let step = self.bytes as u64;
        let index = register(cpu, self.index);
        let down = cpu.rflags & rflags::DF != 0;
        set_register(cpu, self.index, if down { index.wrapping_sub(step) } else { index.wrapping_add(step) });
        let Some(count) = self.count else { return Ok(true) };
        let left = register(cpu, count).wrapping_sub(1);
        set_register(cpu, count, left);
        Ok(left == 0)
    }
}
