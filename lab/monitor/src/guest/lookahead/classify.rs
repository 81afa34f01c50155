//! Classifies the bytes of an instruction for a stepping monitor.

use alloc::boxed::Box;
use alloc::vec;

use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, FlowControl, Mnemonic, OpKind, Register};

use pugmark_truth::BranchKind;

use super::effects::{self, Effects, Source};
use super::emulation::{Emulation, MAX_LEN, Size};
use crate::guest::cpu::Shadow;

/// The properties of an instruction that are known before it executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Classification {
    pub(super) len: u8,
    pub(super) emulation: Option<Emulation>,
    /// The interrupt shadow that it opens; for STI independent of the current IF.
    pub(super) shadow: Option<Shadow>,
    pub(super) repeats: bool,
    pub(super) valid: bool,
    /// Possible next addresses, unless a fault or an interrupt intervenes; `None` if unknown.
    pub(super) successors: Option<Successors>,
    /// The source of the target of an indirect branch in 64-bit code, if known.
    pub(super) source: Option<Source>,
    /// The registers and memory that the instruction changes, in 64-bit code.
    pub(super) effects: Effects,
    /// The kind of branch, if it is a branch.
    pub(super) branch: Option<BranchKind>,
}

impl Classification {
    /// The class of bytes that are not an instruction.
    pub(super) const INVALID: Self = Self {
        len: 1,
        emulation: None,
        shadow: None,
        repeats: false,
        valid: false,
        successors: None,
        source: None,
        effects: Effects::UNKNOWN,
        branch: None,
    };
}

/// Possible next addresses after an instruction that does not change how later instructions execute. Targets are
/// relative to the next instruction in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Successors {
    /// The next instruction in memory.
    Next,
    /// The target of a direct jump or call.
    Target(i32),
    /// Either of them: a conditional branch.
    NextOrTarget(i32),
    /// A string instruction with a REP prefix: RIP stays at the instruction while it repeats, then moves to the next
    /// one in memory.
    NextOrItself,
}

/// Classifies the instruction at the start of `bytes`; `None` if it does not end within them.
pub(super) fn classify(bits: u32, rip: u64, bytes: &[u8]) -> Option<Classification> {
    let mut decoder = Decoder::with_ip(bits, bytes, rip, DecoderOptions::NONE);
    let instruction = decoder.decode();
    match decoder.last_error() {
        DecoderError::None => {}
        DecoderError::NoMoreBytes => return None,
        _ => {
            let len = decoder.position().clamp(1, bytes.len().max(1)) as u8;
            return Some(Classification { len, ..Classification::INVALID });
        }
    }
    let emulation = emulation(&instruction);
    let shadow = match emulation {
        Some(Emulation::Sti) => Some(Shadow::Sti),
        Some(Emulation::MovSs | Emulation::PopSs(_)) => Some(Shadow::MovSs),
        _ => None,
    };
    let prefixed = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let repeats = prefixed && instruction.is_string_instruction();
    let successors = successors(&instruction, bytes[0], repeats).filter(|_| emulation.is_none());
    let branch = branch(&instruction);
    let source = effects::source(&instruction, bytes[0]).filter(|_| bits == 64);
    let effects = if bits == 64 { Effects::of(&instruction) } else { Effects::UNKNOWN };
    Some(Classification {
        len: instruction.len() as u8,
        emulation,
        shadow,
        repeats,
        valid: true,
        successors,
        source,
        effects,
        branch,
    })
}

/// Returns the successors; `first` is the first byte of the instruction.
fn successors(instruction: &iced_x86::Instruction, first: u8, repeats: bool) -> Option<Successors> {
    // Branches with prefixes are excluded, because the effect of an operand-size prefix depends on the processor.
    let opcode = matches!(first, 0x0f | 0x70..=0x7f | 0xe0..=0xe3 | 0xe8 | 0xe9 | 0xeb);
    let near = opcode && instruction.op0_kind() == OpKind::NearBranch64;
    let target = instruction.near_branch64().wrapping_sub(instruction.next_ip()) as i32;
    match instruction.flow_control() {
        FlowControl::Next if instruction.is_privileged() => None,
        FlowControl::Next if instruction.is_string_instruction() => {
            repeats.then_some(Successors::NextOrItself)
        }
        FlowControl::Next => Some(Successors::Next),
        FlowControl::UnconditionalBranch | FlowControl::Call => near.then_some(Successors::Target(target)),
        FlowControl::ConditionalBranch => near.then_some(Successors::NextOrTarget(target)),
        _ => None,
    }
}

fn branch(instruction: &iced_x86::Instruction) -> Option<BranchKind> {
    let near = |near: bool, kind| if near { kind } else { BranchKind::Far };
    Some(match instruction.flow_control() {
        FlowControl::ConditionalBranch => BranchKind::Conditional,
        FlowControl::UnconditionalBranch => near(instruction.is_jmp_short_or_near(), BranchKind::Jump),
        FlowControl::IndirectBranch => near(instruction.is_jmp_near_indirect(), BranchKind::Jump),
        FlowControl::Call => near(instruction.is_call_near(), BranchKind::Call),
        FlowControl::IndirectCall => near(instruction.is_call_near_indirect(), BranchKind::Call),
        FlowControl::Return => near(instruction.mnemonic() == Mnemonic::Ret, BranchKind::Return),
        _ => return None,
    })
}

fn emulation(instruction: &iced_x86::Instruction) -> Option<Emulation> {
    Some(match instruction.mnemonic() {
        Mnemonic::Pushf => Emulation::Pushf(Size::Word),
        Mnemonic::Pushfd => Emulation::Pushf(Size::Dword),
        Mnemonic::Pushfq => Emulation::Pushf(Size::Qword),
        Mnemonic::Popf => Emulation::Popf(Size::Word),
        Mnemonic::Popfd => Emulation::Popf(Size::Dword),
        Mnemonic::Popfq => Emulation::Popf(Size::Qword),
        Mnemonic::Iret => Emulation::Iret(Size::Word),
        Mnemonic::Iretd => Emulation::Iret(Size::Dword),
        Mnemonic::Iretq => Emulation::Iret(Size::Qword),
        Mnemonic::Int => Emulation::Int(instruction.immediate8()),
        Mnemonic::Int3 => Emulation::Int3,
        Mnemonic::Int1 => Emulation::Int1,
        Mnemonic::Into => Emulation::Into,
        Mnemonic::Syscall => Emulation::Syscall,
        Mnemonic::Sysret => Emulation::Sysret(Size::Dword),
        Mnemonic::Sysretq => Emulation::Sysret(Size::Qword),
        Mnemonic::Sysenter => Emulation::Sysenter,
        Mnemonic::Sysexit => Emulation::Sysexit(Size::Dword),
        Mnemonic::Sysexitq => Emulation::Sysexit(Size::Qword),
        Mnemonic::Sti => Emulation::Sti,
        Mnemonic::Cli => Emulation::Cli,
        Mnemonic::Hlt => Emulation::Hlt,
        Mnemonic::Pause => Emulation::Pause,
        Mnemonic::Lss => Emulation::Lss,
        // DR4, an alias of DR6 if CR4.DE is clear, is left to the processor.
        Mnemonic::Mov => match (instruction.op0_register(), instruction.op1_register()) {
            (Register::SS, _) => Emulation::MovSs,
            (Register::DR6, _) => Emulation::MovToDr6,
            (_, Register::DR6) => Emulation::MovFromDr6,
            _ => return None,
        },
        Mnemonic::Pop => match instruction.code() {
            Code::Popw_SS => Emulation::PopSs(Size::Word),
            Code::Popd_SS => Emulation::PopSs(Size::Dword),
            _ => return None,
        },
        _ => return None,
    })
}

/// A cache of classes. A hit requires equal bytes; RIP only selects the slot.
pub(super) struct ClassificationCache {
    /// [`Self::ENTRIES`] slots.
    entries: Box<[Option<CacheEntry>]>,
}

#[derive(Clone, Copy)]
struct CacheEntry {
    bits: u8,
    /// The instruction's bytes; those after its length are ignored.
    bytes: [u8; MAX_LEN],
    class: Classification,
}

impl ClassificationCache {
    /// Number of slots. A kernel executes thousands of different instructions between two interrupts, and two that
    /// share a slot in a loop are reclassified in each iteration.
    const ENTRIES: usize = 1 << 14;

    pub(super) fn new() -> Self {
        Self { entries: vec![None; Self::ENTRIES].into() }
    }

    /// Returns the class of the instruction at the start of `bytes`; only the first `available` bytes have been read.
    pub(super) fn find(
        &self,
        rip: u64,
        bits: u32,
        bytes: &[u8; MAX_LEN],
        available: usize,
    ) -> Option<Classification> {
        let entry = self.entries[entry_index(rip)].as_ref()?;
        let len = usize::from(entry.class.len);
        let same = u32::from(entry.bits) == bits && len <= available && entry.bytes[..len] == bytes[..len];
        same.then_some(entry.class)
    }

    /// Caches a class. The class of an invalid instruction is not cached, because the number of its bytes that mattered
    /// is unknown.
    pub(super) fn insert(&mut self, rip: u64, bits: u32, bytes: &[u8; MAX_LEN], class: Classification) {
        if class.valid {
            self.entries[entry_index(rip)] = Some(CacheEntry { bits: bits as u8, bytes: *bytes, class });
        }
    }
}

fn entry_index(rip: u64) -> usize {
    (rip ^ rip >> 14) as usize % ClassificationCache::ENTRIES
}
