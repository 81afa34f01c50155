//! The view that the guest's tracing hardware has of its processor: memory through its page tables, and its registers.

use pugmark_model::intel::Registers;
use pugmark_model::{Mapping, Memory, PageFault, PageSize, PhysMemory, amd};

use crate::guest::{Access, AccessKind, Cpu, Gpr, GuestMemory, walk};

/// The guest's memory as the processor itself accesses it, for example to store samples.
#[derive(Debug)]
pub struct TracingMemory<'a, M> {
    /// The processor whose page tables are used.
    pub cpu: &'a Cpu,
    /// The guest's memory.
    pub memory: &'a mut M,
}

impl<M: GuestMemory> PhysMemory for TracingMemory<'_, M> {
    fn read(&self, addr: u64, out: &mut [u8]) -> bool {
        self.memory.read(addr, out)
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> bool {
        self.memory.write(addr, bytes)
    }

    /// Translates an address; a non-canonical one is treated as not mapped.
    fn translate(&mut self, addr: u64, write: bool) -> Result<Mapping, PageFault> {
        let kind = if write { AccessKind::Write } else { AccessKind::Read };
        let absent = PageFault { address: addr, code: if write { 2 } else { 0 } };
        if !self.cpu.is_canonical(addr) {
            return Err(absent);
        }
        match walk(self.cpu, self.memory, addr, Access::implicit(kind)) {
            Ok(found) => Ok(Mapping {
                physical: found.physical,
                supervisor: !found.user,
                marked: found.marked,
                page: match found.page_bits {
                    0..21 => PageSize::K4,
                    21..30 => PageSize::M2,
                    30.. => PageSize::G1,
                },
                memory: match (self.memory.read(found.physical, &mut [0]), found.uncached) {
                    (true, false) => Memory::Cached,
                    (true, true) => Memory::Uncached,
                    (false, _) => Memory::Device,
                },
            }),
            Err(fault) => Err(PageFault {
                address: fault.cr2.unwrap_or(addr),
                code: fault.error_code.unwrap_or_default(),
            }),
        }
    }
}

/// Returns the registers that a sample contains.
#[must_use]
pub fn registers(cpu: &Cpu) -> Registers {
    let of = |register: Gpr| cpu.get(register);
    let mut r8_r15 = [0; 8];
    r8_r15.copy_from_slice(&cpu.gpr[8..]);
    Registers {
        rflags: cpu.rflags,
        rip: cpu.rip,
        rax: of(Gpr::Rax),
        rbx: of(Gpr::Rbx),
        rcx: of(Gpr::Rcx),
        rdx: of(Gpr::Rdx),
        rsi: of(Gpr::Rsi),
        rdi: of(Gpr::Rdi),
        rbp: of(Gpr::Rbp),
        rsp: of(Gpr::Rsp),
        r8_r15,
    }
}

/// Returns the registers from which data addresses are computed.
#[must_use]
pub const fn registers_before(cpu: &Cpu) -> amd::DataRegisters {
    amd::DataRegisters { general: cpu.gpr, fs_base: cpu.fs.base, gs_base: cpu.gs.base }
}

#[cfg(test)]
mod tests;
