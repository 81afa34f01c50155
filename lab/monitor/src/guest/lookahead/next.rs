//! Reads the next instruction of the guest.

use pugmark_truth::BranchKind;

use super::classify::{Classification, ClassificationCache, classify};
use super::emulation::{Emulation, MAX_LEN};
use super::known_stretches::KnownStretches;
use crate::guest::cpu::{Cpu, Mode, Shadow, rflags};
use crate::guest::exception::{Exception, GuestError};
use crate::guest::linear::within_limit;
use crate::guest::memory::GuestMemory;
use crate::guest::paging::Tlb;

/// The instruction at CS:RIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    rip: u64,
    /// The physical address of its first byte.
    pub(super) address: u64,
    bytes: [u8; MAX_LEN],
    pub(super) classification: Classification,
    shadow: Option<Shadow>,
}

impl Instruction {
    /// A placeholder for an unknown instruction.
    pub(super) const NONE: Self = Self {
        rip: 0,
        address: 0,
        bytes: [0; MAX_LEN],
        classification: Classification::INVALID,
        shadow: None,
    };

    /// Returns the RIP of the instruction.
    pub const fn rip(&self) -> u64 {
        self.rip
    }

    /// Returns the RIP of the next instruction in memory.
    pub(super) const fn next_rip(&self) -> u64 {
        self.rip.wrapping_add(self.len() as u64)
    }

    /// Returns the bytes of the instruction; if it is not [valid](Self::is_valid), the bytes that the decoder looked
    /// at.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.classification.len)]
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "an instruction is never empty")]
    pub const fn len(&self) -> u8 {
        self.classification.len
    }

    /// Returns the way to emulate the instruction, if there is one.
    pub const fn emulation(&self) -> Option<Emulation> {
        self.classification.emulation
    }

    /// Returns the interrupt shadow that the instruction opens (STI only if RFLAGS.IF is 0).
    pub const fn shadow(&self) -> Option<Shadow> {
        self.shadow
    }

    /// Returns whether this is a string instruction with a REP prefix. Single-step traps are raised between its
    /// iterations, with RIP still at the instruction.
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
/// The bytes are read again each time, so that self-modifying code is seen; only the classification of bytes is cached.
/// Translations are cached too: see [`Tlb`] for the events that must flush them.
pub struct Lookahead {
    pub(super) tlb: Tlb,
    cache: ClassificationCache,
    pub(super) known: KnownStretches,
}

impl Lookahead {
    /// Makes a lookahead with empty caches.
    pub fn new() -> Self {
        Self { tlb: Tlb::new(), cache: ClassificationCache::new(), known: KnownStretches::new() }
    }

    /// Returns the instruction at CS:RIP. The following page is read only if the instruction extends into it.
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
    pub(super) fn at<M: GuestMemory + ?Sized>(
        &mut self,
        cpu: &Cpu,
        rip: u64,
        memory: &mut M,
    ) -> Result<Instruction, GuestError> {
        let bits = cpu.code_bits();
        let mut bytes = [0; MAX_LEN];
        let first = MAX_LEN.min(4096 - (linear(cpu, rip)? & 0xfff) as usize);
        let address = self.fetch(cpu, rip, memory, &mut bytes[..first])?;
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
        Ok(Instruction { rip, address, bytes, classification: class, shadow })
    }

    /// Flushes cached translations: see [`Tlb`] for the events that require it.
    pub fn flush(&mut self) {
        self.tlb.flush();
    }

    /// Reads `bytes`, which must be within one page, at CS:`rip`, and returns their physical address.
    fn fetch<M: GuestMemory + ?Sized>(
        &mut self,
        cpu: &Cpu,
        rip: u64,
        memory: &mut M,
        bytes: &mut [u8],
    ) -> Result<u64, GuestError> {
        let address = self.tlb.translate_fetch(cpu, memory, linear(cpu, rip)?)?;
        memory.load(address, bytes);
        Ok(address)
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
