//! The kind of an instruction that retired, as the tracing hardware sees it.
//!
//! Source of the kinds: SDM vol. 3, Intel Processor Trace, "Change of Flow Instruction (COFI) Tracing". `iced-x86`
//! decodes the bytes of an instruction.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use crate::instruction_cache::InstructionCache;
use crate::{Context, ExecMode, Retired};

/// The kind of an instruction for tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstructionKind {
    /// Nothing to trace.
    Other,
    /// Jcc, J*CXZ, LOOP*.
    Conditional,
    /// Near direct JMP.
    DirectJump,
    /// Near direct CALL; `to_next`: its displacement is 0.
    DirectCall { to_next: bool },
    /// Near indirect JMP.
    IndirectJump,
    /// Near indirect CALL.
    IndirectCall,
    /// Near RET.
    Return,
    /// Far transfer.
    Far,
    /// Far transfer that ends a handler: IRET.
    InterruptReturn,
    /// MOV to CR3.
    MovCr3,
    /// PTWRITE of 4 or 8 bytes.
    Ptwrite { eight: bool },
    /// HLT.
    Hlt,
    /// MWAIT.
    Mwait,
}

/// An instruction's kind and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecodedInstruction {
    pub(crate) kind: InstructionKind,
    /// In bytes; 0 if the bytes are not a valid instruction.
    pub(crate) len: u8,
}

impl DecodedInstruction {
    /// Returns the address of the next instruction in memory. EIP has 32 bits in 16-bit code too: only a taken branch
    /// truncates it to the operand size.
    pub(crate) fn next_ip(self, before: &Context) -> u64 {
        let next = before.ip.wrapping_add(u64::from(self.len));
        match before.mode {
            ExecMode::Bits16 | ExecMode::Bits32 => next & 0xffff_ffff,
            ExecMode::Bits64 => next,
        }
    }

    /// Returns true if execution can continue elsewhere than after this instruction.
    pub(crate) fn may_transfer(self) -> bool {
        !matches!(
            self.kind,
            InstructionKind::Other
                | InstructionKind::MovCr3
                | InstructionKind::Ptwrite { .. }
                | InstructionKind::Hlt
                | InstructionKind::Mwait
        )
    }
}

/// Decoded instructions, cached because decoding is slow.
#[derive(Debug)]
pub(crate) struct DecodeCache(InstructionCache<DecodedInstruction>);

impl DecodeCache {
    pub(crate) const fn new() -> Self {
        Self(InstructionCache::new())
    }

    pub(crate) fn decode(&mut self, retired: &Retired) -> DecodedInstruction {
        let Context { ip, mode, .. } = retired.before;
        self.0.get_or_compute(retired, || decode(retired.bytes, mode, ip))
    }
}

pub(crate) fn decode(bytes: &[u8], mode: ExecMode, ip: u64) -> DecodedInstruction {
    let bits = match mode {
        ExecMode::Bits16 => 16,
        ExecMode::Bits32 => 32,
        ExecMode::Bits64 => 64,
    };
    let mut decoder = Decoder::with_ip(bits, bytes, ip, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if instruction.is_invalid() {
        return DecodedInstruction { kind: InstructionKind::Other, len: 0 };
    }
    DecodedInstruction { kind: classify(&instruction), len: instruction.len() as u8 }
}

/// Returns true if a near direct call has displacement 0. The operand size gives the width of its target.
fn is_call_to_next(instruction: &Instruction) -> bool {
    match instruction.op0_kind() {
        OpKind::NearBranch16 => instruction.near_branch16() == instruction.next_ip16(),
        OpKind::NearBranch32 => instruction.near_branch32() == instruction.next_ip32(),
        _ => instruction.near_branch64() == instruction.next_ip(),
    }
}

fn classify(instruction: &Instruction) -> InstructionKind {
    if instruction.is_jcc_short_or_near() || instruction.is_jcx_short() {
        return InstructionKind::Conditional;
    }
    if instruction.is_loop() || instruction.is_loopcc() {
        return InstructionKind::Conditional;
    }
    if instruction.is_jmp_short_or_near() {
        return InstructionKind::DirectJump;
    }
    if instruction.is_call_near() {
        return InstructionKind::DirectCall { to_next: is_call_to_next(instruction) };
    }
    if instruction.is_jmp_near_indirect() {
        return InstructionKind::IndirectJump;
    }
    if instruction.is_call_near_indirect() {
        return InstructionKind::IndirectCall;
    }
    if instruction.is_jmp_far()
        || instruction.is_jmp_far_indirect()
        || instruction.is_call_far()
        || instruction.is_call_far_indirect()
    {
        return InstructionKind::Far;
    }
    match instruction.mnemonic() {
        Mnemonic::Ret => InstructionKind::Return,
        Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq => InstructionKind::InterruptReturn,
        Mnemonic::Retf
        | Mnemonic::Syscall
        | Mnemonic::Sysret
        | Mnemonic::Sysretq
        | Mnemonic::Sysenter
        | Mnemonic::Sysexit
        | Mnemonic::Sysexitq
        | Mnemonic::Int
        | Mnemonic::Int1
        | Mnemonic::Int3
        | Mnemonic::Rsm
        | Mnemonic::Uiret
        | Mnemonic::Vmlaunch
        | Mnemonic::Vmresume => InstructionKind::Far,
        Mnemonic::Mov if instruction.op0_register() == Register::CR3 => InstructionKind::MovCr3,
        Mnemonic::Ptwrite => InstructionKind::Ptwrite { eight: instruction.code() == Code::Ptwrite_rm64 },
        Mnemonic::Hlt => InstructionKind::Hlt,
        Mnemonic::Mwait => InstructionKind::Mwait,
        _ => InstructionKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_each_kind_by_its_bytes() {
        use ExecMode::{Bits16, Bits32, Bits64};
        let rows: [(ExecMode, &[u8], InstructionKind, u8); 40] = [
            (Bits64, &[0x90], InstructionKind::Other, 1),
            (Bits64, &[0x74, 0x02], InstructionKind::Conditional, 2),
            (Bits64, &[0x0f, 0x85, 0, 1, 0, 0], InstructionKind::Conditional, 6),
            (Bits64, &[0xe3, 0x02], InstructionKind::Conditional, 2),
            (Bits64, &[0xe2, 0xfe], InstructionKind::Conditional, 2),
            (Bits64, &[0xe1, 0xfe], InstructionKind::Conditional, 2),
            (Bits64, &[0xe0, 0xfe], InstructionKind::Conditional, 2),
            (Bits64, &[0xeb, 0xfe], InstructionKind::DirectJump, 2),
            (Bits64, &[0xe9, 0, 0, 0, 0], InstructionKind::DirectJump, 5),
            (Bits64, &[0xe8, 1, 0, 0, 0], InstructionKind::DirectCall { to_next: false }, 5),
            (Bits64, &[0xe8, 0, 0, 0, 0], InstructionKind::DirectCall { to_next: true }, 5),
            (Bits64, &[0xff, 0xe0], InstructionKind::IndirectJump, 2),
            (Bits64, &[0xff, 0x25, 0, 0, 0, 0], InstructionKind::IndirectJump, 6),
            (Bits64, &[0x3e, 0xff, 0xe0], InstructionKind::IndirectJump, 3),
            (Bits64, &[0xff, 0xd0], InstructionKind::IndirectCall, 2),
            (Bits64, &[0xff, 0x15, 0, 0, 0, 0], InstructionKind::IndirectCall, 6),
            (Bits64, &[0xc3], InstructionKind::Return, 1),
            (Bits64, &[0xc2, 8, 0], InstructionKind::Return, 3),
            (Bits64, &[0xf3, 0xc3], InstructionKind::Return, 2),
            (Bits64, &[0xcb], InstructionKind::Far, 1),
            (Bits64, &[0x48, 0xcb], InstructionKind::Far, 2),
            (Bits64, &[0x48, 0xcf], InstructionKind::InterruptReturn, 2),
            (Bits32, &[0xcf], InstructionKind::InterruptReturn, 1),
            (Bits64, &[0x0f, 0x05], InstructionKind::Far, 2),
            (Bits64, &[0x48, 0x0f, 0x07], InstructionKind::Far, 3),
            (Bits64, &[0x0f, 0x34], InstructionKind::Far, 2),
            (Bits64, &[0x48, 0x0f, 0x35], InstructionKind::Far, 3),
            (Bits64, &[0xff, 0x2c, 0x24], InstructionKind::Far, 3),
            (Bits64, &[0xff, 0x1c, 0x24], InstructionKind::Far, 3),
            (Bits32, &[0xea, 0, 0, 0, 0, 8, 0], InstructionKind::Far, 7),
            (Bits16, &[0x9a, 0, 0, 8, 0], InstructionKind::Far, 5),
            (Bits64, &[0x0f, 0x22, 0xd8], InstructionKind::MovCr3, 3),
            (Bits64, &[0x0f, 0x22, 0xe0], InstructionKind::Other, 3),
            (Bits64, &[0x0f, 0x20, 0xd8], InstructionKind::Other, 3),
            (Bits64, &[0xf3, 0x0f, 0xae, 0xe0], InstructionKind::Ptwrite { eight: false }, 4),
            (Bits64, &[0xf3, 0x48, 0x0f, 0xae, 0xe0], InstructionKind::Ptwrite { eight: true }, 5),
            (Bits64, &[0xf4], InstructionKind::Hlt, 1),
            (Bits64, &[0x0f, 0x01, 0xc9], InstructionKind::Mwait, 3),
            (Bits64, &[0x0f, 0x30], InstructionKind::Other, 2),
            (Bits64, &[0x06], InstructionKind::Other, 0),
        ];
        for (mode, bytes, kind, len) in rows {
            assert_eq!(
                decode(bytes, mode, 0x1000),
                DecodedInstruction { kind, len },
                "{mode:?} {bytes:02x?}"
            );
        }
    }

    #[test]
    fn a_call_of_the_next_instruction_has_displacement_0_wherever_it_is() {
        use ExecMode::{Bits16, Bits32, Bits64};
        for (mode, ip, bytes, to_next) in [
            (Bits16, 0x1000, &[0xe8, 0, 0][..], true),
            (Bits16, 0x12_3000, &[0xe8, 0, 0], true),
            (Bits16, 0xfffd, &[0xe8, 0, 0], true),
            (Bits16, 0x12_3000, &[0xe8, 1, 0], false),
            (Bits16, 0x12_3000, &[0x66, 0xe8, 0, 0, 0, 0], true),
            (Bits16, 0x12_3000, &[0x66, 0xe8, 0, 0, 1, 0], false),
            (Bits32, 0xffff_fffb, &[0xe8, 0, 0, 0, 0], true),
            (Bits32, 0x12_3000, &[0x66, 0xe8, 0, 0], true),
            (Bits64, 0xffff_fffb, &[0xe8, 0, 0, 0, 0], true),
        ] {
            assert_eq!(
                decode(bytes, mode, ip).kind,
                InstructionKind::DirectCall { to_next },
                "{mode:?} {ip:x} {bytes:02x?}"
            );
        }
    }

    #[test]
    fn only_64_bit_code_goes_on_beyond_4_gib() {
        use ExecMode::{Bits16, Bits32, Bits64};
        // EIP has 32 bits in 16-bit code too.
        for (mode, ip, next) in [
            (Bits16, 0x1000, 0x1002),
            (Bits16, 0xfffe, 0x1_0000),
            (Bits16, 0x12_fffe, 0x13_0000),
            (Bits16, 0xffff_fffe, 0),
            (Bits32, 0xfffe, 0x1_0000),
            (Bits32, 0xffff_fffe, 0),
            (Bits64, 0xffff_fffe, 0x1_0000_0000),
        ] {
            let before = Context { ip, cs_base: 0, cr3: 0, cpl: 0, mode, iflag: false };
            assert_eq!(decode(&[0x74, 0x02], mode, ip).next_ip(&before), next, "{mode:?} {ip:x}");
        }
    }

    #[test]
    fn the_cache_sees_code_that_changes_in_place() {
        let context = |mode| Context { ip: 0x1000, cs_base: 0, cr3: 0, cpl: 0, mode, iflag: false };
        let retired =
            |mode, bytes| Retired { before: context(mode), after: context(mode), bytes, tsc: 0, operand: 0 };
        let mut cache = DecodeCache::new();
        for _ in 0..2 {
            assert_eq!(
                cache.decode(&retired(ExecMode::Bits64, &[0xeb, 0])).kind,
                InstructionKind::DirectJump
            );
            assert_eq!(
                cache.decode(&retired(ExecMode::Bits64, &[0x74, 0])).kind,
                InstructionKind::Conditional
            );
            assert_eq!(cache.decode(&retired(ExecMode::Bits64, &[0x74])).len, 0);
            assert_eq!(
                cache.decode(&retired(ExecMode::Bits64, &[0x48, 0xcf])).kind,
                InstructionKind::InterruptReturn
            );
            assert_eq!(cache.decode(&retired(ExecMode::Bits32, &[0x48, 0xcf])).kind, InstructionKind::Other);
        }
    }
}
