//! Predicts the target of an indirect branch before the instructions that precede it have executed.
//!
//! The target comes from a register or from memory. It is known if no instruction since the guest stopped can have
//! changed the source. Each instruction names the registers and the memory that it writes
//! ([`Effects`](super::effects::Effects)). After a write to an unknown address no memory is known, except for later
//! pushes.

use pugmark_truth::BranchKind;

use super::effects::{Address, Base, RSP, Source, Store};
use super::next::Instruction;
use crate::guest::cpu::{Cpu, Gpr};
use crate::guest::linear::read_array;
use crate::guest::memory::GuestMemory;
use crate::guest::paging::{Access, AccessKind};

/// The known state of registers and memory after some instructions that have not executed.
#[derive(Debug)]
pub(super) struct Prediction {
    /// The general registers that have been written, a bit for each.
    written: u16,
    /// RSP, if known.
    rsp: Option<u64>,
    writes: [Write; Self::MAX],
    count: usize,
    /// Memory may have been written anywhere before `writes`.
    is_blind: bool,
    /// No other processor writes memory.
    alone: bool,
}

/// Memory that has been written.
#[derive(Clone, Copy, Debug)]
struct Write {
    address: u64,
    len: u8,
    /// The value written, if it is a return address.
    value: Option<u64>,
}

impl Prediction {
    /// Maximum number of tracked writes.
    const MAX: usize = 32;

    /// Returns the state before anything has executed. `alone`: no other processor writes memory meanwhile.
    pub(super) const fn new(cpu: &Cpu, alone: bool) -> Self {
        let nothing = Write { address: 0, len: 0, value: None };
        let rsp = Some(cpu.gpr[Gpr::Rsp as usize]);
        Self { written: 0, rsp, writes: [nothing; Self::MAX], count: 0, is_blind: false, alone }
    }

    /// Accounts for an instruction.
    pub(super) fn executes(&mut self, cpu: &Cpu, instruction: &Instruction) {
        let effects = &instruction.classification.effects;
        match effects.store {
            Store::None => {}
            Store::At { address, len } => match self.address(cpu, instruction.rip(), address) {
                Some(address) => {
                    let is_call = instruction.branch() == Some(BranchKind::Call);
                    self.write(Write { address, len, value: is_call.then(|| instruction.next_rip()) });
                }
                None => self.forget_memory(),
            },
            Store::Unknown => self.forget_memory(),
        }
        self.written |= effects.registers;
        self.rsp = match (self.rsp, effects.stack) {
            (Some(rsp), Some(added)) => Some(rsp.wrapping_add_signed(i64::from(added))),
            _ => None,
        };
    }

    /// Returns the target of an indirect near branch, if known.
    pub(super) fn target<M: GuestMemory + ?Sized>(
        &self,
        cpu: &Cpu,
        memory: &mut M,
        instruction: &Instruction,
    ) -> Option<u64> {
        match instruction.classification.source? {
            Source::Register(number) => self.register(cpu, number),
            Source::Memory(address) => {
                // Only a stack is private to one processor.
                let is_shared = address.base != Base::Register(RSP) && !self.alone;
                let address = (!is_shared).then(|| self.address(cpu, instruction.rip(), address))??;
                self.read(cpu, memory, address)
            }
        }
    }

    fn register(&self, cpu: &Cpu, number: u8) -> Option<u64> {
        match number {
            RSP => self.rsp,
            number if self.written & 1 << number == 0 => Some(cpu.gpr[usize::from(number)]),
            _ => None,
        }
    }

    fn address(&self, cpu: &Cpu, rip: u64, address: Address) -> Option<u64> {
        let base = match address.base {
            Base::None => 0,
            Base::Register(number) => self.register(cpu, number)?,
            Base::Instruction => rip,
        };
        let index = match address.index {
            None => 0,
            Some((number, scale)) => self.register(cpu, number)?.wrapping_mul(u64::from(scale)),
        };
        Some(base.wrapping_add(index).wrapping_add_signed(i64::from(address.displacement)))
    }

    fn write(&mut self, write: Write) {
        if self.count == Self::MAX {
            self.forget_memory();
        }
        self.writes[self.count] = write;
        self.count += 1;
    }

    fn forget_memory(&mut self) {
        (self.count, self.is_blind) = (0, true);
    }

    /// Returns the eight bytes at `address`, if known.
    fn read<M: GuestMemory + ?Sized>(&self, cpu: &Cpu, memory: &mut M, address: u64) -> Option<u64> {
        let overlaps = |write: &&Write| {
            let after = address.wrapping_sub(write.address) < u64::from(write.len);
            after || write.address.wrapping_sub(address) < 8
        };
        if let Some(write) = self.writes[..self.count].iter().rev().find(overlaps) {
            return write.value.filter(|_| write.address == address);
        }
        if self.is_blind {
            return None;
        }
        read_array(cpu, memory, address, Access::at_cpl(cpu, AccessKind::Read)).ok().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
