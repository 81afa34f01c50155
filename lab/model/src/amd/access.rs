//! The data that an instruction accesses.
//!
//! `iced-x86` gives the operands of an instruction.

use core::fmt;

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess,
    Register, UsedMemory,
};

use crate::branch::{DecodedInstruction, decode};
use crate::instruction_cache::InstructionCache;
use crate::{Context, ExecMode, Mapping, PhysMemory, Retired};

/// The registers before an instruction, from which the addresses of its operands are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataRegisters {
    /// The general-purpose registers, by their number in an instruction: RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8 …
    pub general: [u64; 16],
    /// The base of FS.
    pub fs_base: u64,
    /// The base of GS.
    pub gs_base: u64,
}

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AccessKind {
    pub(super) read: bool,
    pub(super) write: bool,
    /// PREFETCH, which neither loads into a register nor stores.
    pub(super) prefetch: bool,
    pub(super) locked: bool,
    /// A store with a non-temporal hint.
    pub(super) streaming: bool,
    /// In bytes; 0 if the size varies, and for a prefetch.
    pub(super) bytes: u32,
}

/// The address of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataAddress {
    pub(super) linear: u64,
    /// `None` if the address has no translation.
    pub(super) mapping: Option<Mapping>,
}

/// The form of an access, which does not depend on the contents of registers.
#[derive(Clone, Copy)]
struct AccessForm {
    access: AccessKind,
    memory: UsedMemory,
}

/// The properties of an instruction that follow from its bytes.
#[derive(Clone, Copy)]
pub(super) struct InstructionForm {
    pub(super) decoded: DecodedInstruction,
    access: Option<AccessForm>,
}

/// Finds the forms of instructions, and caches them.
pub(super) struct InstructionForms {
    factory: InstructionInfoFactory,
    cache: InstructionCache<InstructionForm>,
}

impl fmt::Debug for InstructionForms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InstructionForms").finish_non_exhaustive()
    }
}

impl InstructionForms {
    pub(super) fn new() -> Self {
        Self { factory: InstructionInfoFactory::new(), cache: InstructionCache::new() }
    }

    /// Returns the form of the instruction that retired.
    pub(super) fn of(&mut self, retired: &Retired) -> InstructionForm {
        let Context { ip, mode, .. } = retired.before;
        let Self { factory, cache } = self;
        cache.get_or_compute(retired, || InstructionForm {
            decoded: decode(retired.bytes, mode, ip),
            access: access_form(factory, retired.bytes, mode, ip),
        })
    }
}

impl InstructionForm {
    /// Returns the data access. Of several accesses, it is the first one that loads, otherwise the first one.
    pub(super) fn access(&self) -> Option<AccessKind> {
        self.access.map(|form| form.access)
    }

    /// Returns the linear address of the data access of an instruction that was executed in this mode.
    pub(super) fn address(&self, mode: ExecMode, registers: &DataRegisters) -> Option<u64> {
        let AccessForm { memory, .. } = self.access?;
        let address = memory.virtual_address(0, |register, _, _| value(register, registers))?;
        Some(if mode == ExecMode::Bits64 { address } else { address & 0xffff_ffff })
    }
}

fn access_form(
    factory: &mut InstructionInfoFactory,
    bytes: &[u8],
    mode: ExecMode,
    ip: u64,
) -> Option<AccessForm> {
    let bits = match mode {
        ExecMode::Bits16 => 16,
        ExecMode::Bits32 => 32,
        ExecMode::Bits64 => 64,
    };
    let instruction = Decoder::with_ip(bits, bytes, ip, DecoderOptions::NONE).decode();
    if instruction.is_invalid() {
        return None;
    }
    let prefetch = is_prefetch(&instruction);
    let memory = if prefetch { operand(&instruction) } else { accessed(factory, &instruction)? };
    let access = AccessKind {
        read: reads(memory.access()),
        write: writes(memory.access()),
        prefetch,
        streaming: writes(memory.access()) && is_streaming(&instruction),
        locked: instruction.has_lock_prefix() || instruction.mnemonic() == Mnemonic::Xchg,
        bytes: if prefetch { 0 } else { memory.memory_size().size() as u32 },
    };
    Some(AccessForm { access, memory })
}

/// Returns the access of an instruction; of several, the first one that loads, otherwise the first one.
fn accessed(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> Option<UsedMemory> {
    let info = factory.info_options(instruction, InstructionInfoOptions::NO_REGISTER_USAGE);
    let mut all = info.used_memory().iter();
    let first = *all.clone().find(|memory| reads(memory.access()) || writes(memory.access()))?;
    Some(all.find(|memory| reads(memory.access())).copied().unwrap_or(first))
}

/// Returns the operand of a prefetch, which iced-x86 does not treat as an access.
fn operand(instruction: &Instruction) -> UsedMemory {
    let relative = instruction.is_ip_rel_memory_operand();
    UsedMemory::new(
        instruction.memory_segment(),
        if relative { Register::None } else { instruction.memory_base() },
        instruction.memory_index(),
        instruction.memory_index_scale(),
        instruction.memory_displacement64(),
        instruction.memory_size(),
        OpAccess::NoMemAccess,
    )
}

fn is_prefetch(instruction: &Instruction) -> bool {
    use Mnemonic::{Prefetch, Prefetchnta, Prefetcht0, Prefetcht1, Prefetcht2, Prefetchw};
    matches!(
        instruction.mnemonic(),
        Prefetch | Prefetchnta | Prefetcht0 | Prefetcht1 | Prefetcht2 | Prefetchw
    )
}

/// Returns true for the stores with a non-temporal hint.
///
/// Source: APM vol. 1, "Streaming Stores"; vol. 4, the instructions themselves.
fn is_streaming(instruction: &Instruction) -> bool {
    use Mnemonic::{
        Maskmovdqu, Maskmovq, Movntdq, Movnti, Movntpd, Movntps, Movntq, Movntsd, Movntss, Vmaskmovdqu,
        Vmovntdq, Vmovntpd, Vmovntps,
    };
    matches!(
        instruction.mnemonic(),
        Maskmovdqu
            | Maskmovq
            | Movntdq
            | Movnti
            | Movntpd
            | Movntps
            | Movntq
            | Movntsd
            | Movntss
            | Vmaskmovdqu
            | Vmovntdq
            | Vmovntpd
            | Vmovntps
    )
}

const fn reads(access: OpAccess) -> bool {
    matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

const fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}

/// Returns the value of a register in an address; the bases of segments other than FS and GS are 0.
fn value(register: Register, registers: &DataRegisters) -> Option<u64> {
    Some(match register {
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        Register::ES | Register::CS | Register::SS | Register::DS | Register::None => 0,
        _ if register.is_gpr64() => registers.general[register.number()],
        _ if register.is_gpr32() => registers.general[register.number()] & 0xffff_ffff,
        _ if register.is_gpr16() => registers.general[register.number()] & 0xffff,
        _ => return None,
    })
}

/// Translates `linear`.
pub(super) fn mapping(mem: &mut dyn PhysMemory, linear: u64) -> Option<Mapping> {
    mem.translate(linear, false).ok()
}
