//! Finds and classifies the next instruction of the guest before it executes.

use pugmark_truth::BranchKind;

use super::cpu::{Cpu, Mode, Shadow, rflags};
use super::exception::{Exception, GuestError, Unsupported};
use super::linear::within_limit;
use super::memory::GuestMemory;
use super::paging::Tlb;

mod classify;
mod stretch;

use classify::{Classification, ClassificationCache, classify};
pub use stretch::Stretch;

/// Maximum length of an instruction.
const MAX_LEN: usize = 15;

/// An operand size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 16 bits.
    Word,
    /// 32 bits.
    Dword,
    /// 64 bits.
    Qword,
}

impl Size {
    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Word => 2,
            Self::Dword => 4,
            Self::Qword => 8,
        }
    }
}

/// An instruction that [`execute`](super::execute) can execute by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emulation {
    /// PUSHF, PUSHFD, PUSHFQ.
    Pushf(Size),
    /// POPF, POPFD, POPFQ.
    Popf(Size),
    /// IRET, IRETD, IRETQ.
    Iret(Size),
    /// INT n.
    Int(u8),
    /// INT3.
    Int3,
    /// INT1.
    Int1,
    /// INTO.
    Into,
    /// SYSCALL.
    Syscall,
    /// SYSRET; the 64-bit form returns to 64-bit mode.
    Sysret(Size),
    /// SYSENTER.
    Sysenter,
    /// SYSEXIT; the 64-bit form returns to 64-bit mode.
    Sysexit(Size),
    /// STI.
    Sti,
    /// CLI.
    Cli,
    /// MOV to SS.
    MovSs,
    /// POP SS.
    PopSs(Size),
    /// LSS: TCG (seen in QEMU 7.2) wrongly opens an interrupt shadow after it.
    Lss,
    /// MOV from DR6.
    MovFromDr6,
    /// MOV to DR6.
    MovToDr6,
    /// PAUSE: TCG (seen in QEMU 7.2) loses the single-step trap after it.
    Pause,
    /// HLT.
    Hlt,
}

impl Emulation {
    /// Returns whether the processor must not execute the instruction while the guest is stepped, because it would show
    /// or lose TF, or swallow a step.
    pub const fn when_stepping(self) -> bool {
        !matches!(self, Self::Cli | Self::Hlt)
    }
}

/// The instruction at CS:RIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    rip: u64,
    bytes: [u8; MAX_LEN],
    classification: Classification,
    shadow: Option<Shadow>,
}

impl Instruction {
    /// A placeholder for an instruction that is not known.
    const NONE: Self =
        Self { rip: 0, bytes: [0; MAX_LEN], classification: Classification::INVALID, shadow: None };

    /// Returns the RIP of the instruction.
    pub const fn rip(&self) -> u64 {
        self.rip
    }

    /// Returns the bytes of the instruction. If it is not [valid](Self::is_valid): the bytes that the decoder looked
    /// at.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.classification.len)]
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "an instruction is never empty")]
    pub const fn len(&self) -> u8 {
        self.classification.len
    }

    /// Returns how the instruction is executed by hand, if it can be.
    pub const fn emulation(&self) -> Option<Emulation> {
        self.classification.emulation
    }

    /// Returns the interrupt shadow that the instruction opens (STI only if RFLAGS.IF is 0).
    pub const fn shadow(&self) -> Option<Shadow> {
        self.shadow
    }

    /// Returns whether this is a string instruction with a REP prefix. Single-step traps come between its iterations,
    /// with RIP still at the instruction.
    pub const fn repeats(&self) -> bool {
        self.classification.repeats
    }

    /// Returns the kind of jump, call, return or far transfer, if the instruction is one. Except for conditional
    /// branches, execution always continues at the target, even if the target is the next instruction.
    pub const fn branch(&self) -> Option<BranchKind> {
        self.classification.branch
    }

    /// Returns whether the bytes are an instruction; if not, the processor is expected to raise `#UD`.
    pub const fn is_valid(&self) -> bool {
        self.classification.valid
    }
}

/// Reads and classifies the next instruction.
///
/// The bytes are read again each time, so that self-modifying code is seen; only the meaning of bytes is cached.
/// Translations are cached too: see [`Tlb`] for when they must be dropped.
pub struct Lookahead {
    tlb: Tlb,
    cache: ClassificationCache,
}

impl Lookahead {
    /// Makes a lookahead with empty caches.
    pub fn new() -> Self {
        Self { tlb: Tlb::new(), cache: ClassificationCache::new() }
    }

    /// Returns the instruction at CS:RIP. The following page is read only if the instruction reaches into it.
    ///
    /// Errors: the fault of the fetch: `#PF`, or `#GP(0)` if RIP is not canonical or beyond the limit of CS.
    pub fn next<M: GuestMemory + ?Sized>(
        &mut self,
        cpu: &Cpu,
        memory: &mut M,
    ) -> Result<Instruction, GuestError> {
        self.at(cpu, cpu.rip, memory)
    }

    /// Returns the instruction at CS:`rip`.
    fn at<M: GuestMemory + ?Sized>(
        &mut self,
        cpu: &Cpu,
        rip: u64,
        memory: &mut M,
    ) -> Result<Instruction, GuestError> {
        let bits = cpu.code_bits();
        let mut bytes = [0; MAX_LEN];
        let first = MAX_LEN.min(4096 - (linear(cpu, rip)? & 0xfff) as usize);
        self.fetch(cpu, rip, memory, &mut bytes[..first])?;
        let class = match self.cache.find(rip, bits, &bytes, first) {
            Some(class) => class,
            None => {
                let mut class = classify(bits, rip, &bytes[..first]);
                if class.is_none() && first < MAX_LEN {
                    self.fetch(cpu, rip.wrapping_add(first as u64), memory, &mut bytes[first..])?;
                    class = self.cache.find(rip, bits, &bytes, MAX_LEN);
                    class = class.or_else(|| classify(bits, rip, &bytes));
                }
                // The instruction does not end within fifteen bytes.
                let class = class.ok_or(Exception::general_protection(0))?;
                self.cache.insert(rip, bits, &bytes, class);
                class
            }
        };
        // The last byte must be within the code segment, too.
        linear(cpu, rip.wrapping_add(u64::from(class.len) - 1))?;
        let shadow = match class.shadow {
            Some(Shadow::Sti) if cpu.rflags & rflags::IF != 0 => None,
            shadow => shadow,
        };
        Ok(Instruction { rip, bytes, classification: class, shadow })
    }

    /// Drops cached translations: see [`Tlb`] for when.
    pub fn flush(&mut self) {
        self.tlb.flush();
    }

    /// Reads `bytes`, which must be within one page, at CS:`rip`.
    fn fetch<M: GuestMemory + ?Sized>(
        &mut self,
        cpu: &Cpu,
        rip: u64,
        memory: &mut M,
        bytes: &mut [u8],
    ) -> Result<(), GuestError> {
        let address = self.tlb.translate_fetch(cpu, memory, linear(cpu, rip)?)?;
        if !memory.read(address, bytes) {
            return Err(Unsupported::NoMemory { address }.into());
        }
        Ok(())
    }
}

impl Default for Lookahead {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the linear address of CS:`rip`.
fn linear(cpu: &Cpu, rip: u64) -> Result<u64, Exception> {
    if cpu.mode() == Mode::Bits64 {
        return if cpu.is_canonical(rip) { Ok(rip) } else { Err(Exception::general_protection(0)) };
    }
    if !within_limit(&cpu.cs, rip, 1) {
        return Err(Exception::general_protection(0));
    }
    Ok(cpu.cs.base.wrapping_add(rip) & 0xffff_ffff)
}

#[cfg(test)]
mod tests;
