//! Instructions that execute one after the other as they lie in memory.

use super::{Instruction, Lookahead, MAX_LEN};
use crate::guest::cpu::{Cpu, Mode, dr7, rflags};
use crate::guest::memory::GuestMemory;

/// Instructions that lie one behind the other in one page. None of them transfers control, is executed by hand, or
/// changes what decides how the next one executes; each may fault, and an interrupt may come before each.
#[derive(Clone, Debug)]
pub struct Stretch {
    instructions: [Instruction; Self::MAX],
    len: usize,
    /// Physical address of the first byte.
    address: u64,
}

impl Stretch {
    /// Instructions at most.
    pub const MAX: usize = 16;

    /// The instructions, at least two.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions[..self.len]
    }

    /// RIP behind the last instruction, in the same page.
    pub fn end(&self) -> u64 {
        let last = &self.instructions[self.len - 1];
        last.rip() + u64::from(last.len())
    }

    /// How many of the instructions have executed when RIP is `rip`; `None`: it is nowhere between them.
    pub fn executed(&self, rip: u64) -> Option<usize> {
        if rip == self.end() {
            return Some(self.len);
        }
        self.instructions().iter().position(|instruction| instruction.rip() == rip)
    }

    /// Whether the instructions in memory are still those that were found. Otherwise the guest has changed instructions
    /// in front of itself, and which ones it executed is not known.
    pub fn is_unchanged<M: GuestMemory + ?Sized>(&self, memory: &M) -> bool {
        let start = self.instructions[0].rip();
        // Nothing has executed before the first.
        self.instructions().iter().skip(1).all(|instruction| {
            let mut found = [0; MAX_LEN];
            let found = &mut found[..usize::from(instruction.len())];
            memory.read(self.address + (instruction.rip() - start), found) && found == instruction.bytes()
        })
    }
}

impl Lookahead {
    /// The instructions from `first` on, which [`Lookahead::next`] has just found, that execute one after the other,
    /// `limit` at most. `None` where there is but one, or where the guest would notice: it steps itself, uses
    /// breakpoints, or has just returned to an instruction with RF set.
    pub fn stretch<M: GuestMemory + ?Sized>(
        &mut self,
        cpu: &Cpu,
        memory: &mut M,
        first: &Instruction,
        limit: usize,
    ) -> Option<Stretch> {
        let flags = rflags::TF | rflags::RF;
        if cpu.mode() != Mode::Bits64 || cpu.rflags & flags != 0 || cpu.dr7 & (dr7::ENABLED | dr7::GD) != 0 {
            return None;
        }
        let page = first.rip() >> 12;
        let follows = |instruction: &Instruction| {
            instruction.class.plain && (instruction.rip() + u64::from(instruction.len())) >> 12 == page
        };
        if !follows(first) {
            return None;
        }
        let address = self.tlb.translate_fetch(cpu, memory, first.rip()).ok()?;
        let mut stretch = Stretch { instructions: [*first; Stretch::MAX], len: 1, address };
        while stretch.len < limit.min(Stretch::MAX) {
            match self.at(cpu, stretch.end(), memory) {
                Ok(instruction) if follows(&instruction) => {
                    stretch.instructions[stretch.len] = instruction;
                    stretch.len += 1;
                }
                // What cannot be read may never be reached.
                _ => break,
            }
        }
        (stretch.len > 1).then_some(stretch)
    }
}

#[cfg(test)]
mod tests;
