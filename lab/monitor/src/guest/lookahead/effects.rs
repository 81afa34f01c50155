//! The effects of an instruction on possible sources of a later branch target: general registers, the stack pointer,
//! and memory.

use iced_x86::{
    Code, CodeSize, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

/// The effects of an instruction. "Unknown" means that anything may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Effects {
    /// The general registers that the instruction writes, except RSP; bit numbers are register numbers of the encoding.
    pub(super) registers: u16,
    /// The increment of RSP; `None` if unknown.
    pub(super) stack: Option<i32>,
    pub(super) store: Store,
}

/// The memory that an instruction writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    None,
    /// `len` bytes at an address that is computed from the registers before the instruction.
    At {
        address: Address,
        len: u8,
    },
    Unknown,
}

/// A linear address in 64-bit mode in a segment without a base, as an instruction computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) base: Base,
    /// The number of the index register, and its scale.
    pub(super) index: Option<(u8, u8)>,
    pub(super) displacement: i32,
}

/// The base of an address, to which its displacement is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    None,
    /// A general register, by its number.
    Register(u8),
    /// The address of the instruction itself.
    Instruction,
}

/// The source of an indirect near branch's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A general register, by its number.
    Register(u8),
    /// Eight bytes of memory.
    Memory(Address),
}

/// The number of RSP in an instruction.
pub(super) const RSP: u8 = 4;

impl Effects {
    /// Nothing is known.
    pub(super) const UNKNOWN: Self = Self { registers: !0, stack: None, store: Store::Unknown };

    /// Returns the effects of `instruction`, which is 64-bit code.
    pub(super) fn of(instruction: &Instruction) -> Self {
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(instruction);
        let mut registers = 0;
        let mut writes_rsp = false;
        for used in info.used_registers().iter().filter(|used| writes(used.access())) {
            match general(used.register()) {
                Some(RSP) => writes_rsp = true,
                Some(number) => registers |= 1 << number,
                None => {}
            }
        }
        let stack = if writes_rsp { stack_increment(instruction) } else { Some(0) };
        let mut stores = info.used_memory().iter().filter(|used| writes(used.access()));
        let store = match (stores.next(), stores.next()) {
            (None, _) => Store::None,
            // The memory that a repeating string instruction writes has no fixed size.
            (Some(used), None) => store(used, instruction),
            _ => Store::Unknown,
        };
        Self { registers, stack, store }
    }
}

/// Returns the source of the target if `instruction`, which is 64-bit code with the first byte `first`, is an indirect
/// near branch; `None` if it is unknown. Branches with prefixes other than REX are excluded, because the effect of an
/// operand-size prefix depends on the processor.
pub(super) fn source(instruction: &Instruction, first: u8) -> Option<Source> {
    if !matches!(first, 0x40..=0x4f | 0xc3 | 0xff) {
        return None;
    }
    match instruction.code() {
        Code::Retnq => {
            Some(Source::Memory(Address { base: Base::Register(RSP), index: None, displacement: 0 }))
        }
        Code::Call_rm64 | Code::Jmp_rm64 => match instruction.op0_kind() {
            OpKind::Register => general(instruction.op0_register()).map(Source::Register),
            OpKind::Memory => explicit(instruction).map(Source::Memory),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the address of the memory operand.
fn explicit(instruction: &Instruction) -> Option<Address> {
    let has_base = matches!(instruction.memory_segment(), Register::FS | Register::GS);
    if has_base {
        return None;
    }
    address(
        instruction,
        instruction.memory_base(),
        instruction.memory_index(),
        instruction.memory_index_scale(),
        instruction.memory_displacement64(),
    )
}

fn store(used: &UsedMemory, instruction: &Instruction) -> Store {
    let has_base = matches!(used.segment(), Register::FS | Register::GS);
    let known = !has_base && matches!(used.address_size(), CodeSize::Code64 | CodeSize::Unknown);
    let found = known
        .then(|| address(instruction, used.base(), used.index(), used.scale(), used.displacement()))
        .flatten();
    match (found, u8::try_from(used.memory_size().size())) {
        (Some(address), Ok(len @ 1..)) => Store::At { address, len },
        _ => Store::Unknown,
    }
}

fn address(
    instruction: &Instruction,
    base: Register,
    index: Register,
    scale: u32,
    displacement: u64,
) -> Option<Address> {
    let index = match index {
        Register::None => None,
        // Registers of 32 bits wrap addresses at 4 GiB.
        index if index.is_gpr64() => Some((general(index)?, scale as u8)),
        _ => return None,
    };
    // An operand relative to RIP has its full address as displacement.
    let is_relative = instruction.is_ip_rel_memory_operand()
        && instruction.ip_rel_memory_address() == displacement
        && matches!(base, Register::None | Register::RIP);
    let (base, displacement) = match base {
        _ if is_relative => (Base::Instruction, displacement.wrapping_sub(instruction.ip())),
        Register::None => (Base::None, displacement),
        base if base.is_gpr64() => (Base::Register(general(base)?), displacement),
        _ => return None,
    };
    Some(Address { base, index, displacement: i32::try_from(displacement.cast_signed()).ok()? })
}

/// Returns the increment of RSP by `instruction`, which writes RSP.
fn stack_increment(instruction: &Instruction) -> Option<i32> {
    let immediate = || i32::try_from(instruction.immediate(1).cast_signed()).ok();
    match instruction.code() {
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 => immediate(),
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 => immediate()?.checked_neg(),
        Code::Lea_r64_m => {
            let address = explicit(instruction)?;
            let on_rsp = address.base == Base::Register(RSP) && address.index.is_none();
            on_rsp.then_some(address.displacement)
        }
        _ => {
            let pops_rsp = instruction.mnemonic() == Mnemonic::Pop
                && instruction.op0_kind() == OpKind::Register
                && general(instruction.op0_register()) == Some(RSP);
            let simple = matches!(
                instruction.mnemonic(),
                Mnemonic::Push | Mnemonic::Pop | Mnemonic::Call | Mnemonic::Ret
            );
            (simple && !pops_rsp).then(|| instruction.stack_pointer_increment())
        }
    }
}

/// Returns the number of the general register that contains `register`.
fn general(register: Register) -> Option<u8> {
    register.is_gpr().then(|| register.full_register().number() as u8)
}

const fn writes(access: OpAccess) -> bool {
    matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
}
