//! The names of the system calls of Linux programs, by the code that makes them.
//!
//! The number of a system call is in a register, which no trace holds. It is known where the same function sets it on
//! the only way to the instruction, as the functions of C libraries do.

use crate::symbols::TracedSymbols;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
};
use pugmark_decoder_core::{
    flow::ExecutedInsn,
    image::{Asid, Image},
    mode::ExecMode,
};
use rustc_hash::FxHashMap;

/// The most bytes of a function that are looked at.
const MOST: usize = 1 << 14;

/// The system calls of a lane.
#[derive(Default)]
pub(super) struct SystemCalls<'v> {
    /// The code and its names, of programs on Linux.
    program: Option<(Image<'v>, &'v TracedSymbols)>,
    /// The names that were asked for, by the address of the instruction.
    known: FxHashMap<u64, Option<&'static str>>,
}

impl<'v> SystemCalls<'v> {
    pub(super) fn new(image: Image<'v>, names: &'v TracedSymbols) -> Self {
        Self { program: names.is_linux().then_some((image, names)), known: FxHashMap::default() }
    }

    /// Returns the name of the system call that the instruction makes, if it is one and its number is known.
    pub(super) fn name(&mut self, insn: &ExecutedInsn) -> Option<&'static str> {
        let (image, names) = self.program?;
        *self.known.entry(insn.ip).or_insert_with(|| find(image, names, insn))
    }
}

fn find(image: Image<'_>, names: &TracedSymbols, insn: &ExecutedInsn) -> Option<&'static str> {
    let begin = names.begin(insn.ip)?;
    let mut code = vec![0; MOST];
    let length = image.read(begin, Asid::default(), &mut code);
    let bits = match insn.mode {
        ExecMode::Bits64 => 64,
        ExecMode::Bits32 => 32,
        ExecMode::Bits16 => return None,
    };
    let decoder = Decoder::with_ip(bits, &code[..length], begin, DecoderOptions::NONE);
    let is_own = |other: &Instruction| other.ip() <= insn.ip || names.begin(other.ip()) == Some(begin);
    let own: Vec<Instruction> = decoder.into_iter().take_while(is_own).collect();
    let at = own.iter().position(|other| other.ip() == insn.ip)?;
    let number = number(&own, at)? as usize;
    match own[at].code() {
        Code::Syscall if bits == 64 => syscalls::x86_64::Sysno::new(number).map(|call| call.name()),
        Code::Int_imm8 if own[at].immediate8() == 0x80 => {
            syscalls::x86::Sysno::new(number).map(|call| call.name())
        }
        _ => None,
    }
}

/// Returns the value of EAX at an instruction of a function, if each way to it sets the same one.
fn number(function: &[Instruction], at: usize) -> Option<u32> {
    let mut info = InstructionInfoFactory::new();
    let is_set = |insn: &Instruction| {
        let used = info.info(insn).used_registers();
        insn.flow_control() != FlowControl::Next && insn.flow_control() != FlowControl::ConditionalBranch
            || used.iter().any(|used| {
                used.register().full_register() == Register::RAX
                    && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead)
            })
    };
    let set_at = function[..at].iter().rposition(is_set)?;
    let set = &function[set_at];
    let value = match set.code() {
        Code::Mov_r32_imm32 | Code::Mov_rm32_imm32 | Code::Mov_rm64_imm32 => set.immediate32(),
        Code::Xor_rm32_r32 | Code::Xor_r32_rm32 if set.op0_register() == set.op1_register() => 0,
        _ => return None,
    };
    let between = set.next_ip()..=function[at].ip();
    let is_entered = function.iter().any(|insn| between.contains(&insn.near_branch_target()));
    (!is_entered).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::{
        image::{AddressSpace, Section},
        insn::Class,
    };

    /// Returns the name of the system call at the end of a function, before the bytes of `after`.
    fn named(code: &[u8], after: &[u8], mode: ExecMode) -> Option<&'static str> {
        let bytes = [code, after].concat();
        let sections = [Section { base: 0x1000, bytes: &bytes, space: AddressSpace::Any }];
        let mut names = TracedSymbols::known(&[("f", 0x1000, 0x1000 + bytes.len() as u64)], &[]);
        names.set_linux();
        let ip = 0x1000 + code.len() as u64 - 2;
        let insn = ExecutedInsn { ip, len: 2, class: Class::FarCall, mode, speculative: false };
        SystemCalls::new(Image::new(&sections), &names).name(&insn)
    }

    #[test]
    fn a_call_is_named_where_its_number_is_set_on_each_way_to_it() {
        use ExecMode::{Bits32, Bits64};
        for (code, after, mode, name) in [
            // mov eax, 1; syscall, and with an instruction between that leaves EAX.
            (&b"\xb8\x01\0\0\0\x0f\x05"[..], &b"\xc3"[..], Bits64, Some("write")),
            (b"\xb8\xca\0\0\0\x45\x31\xd2\x0f\x05", b"", Bits64, Some("futex")),
            // mov rax, 1, and xor eax, eax.
            (b"\x48\xc7\xc0\x01\0\0\0\x0f\x05", b"", Bits64, Some("write")),
            (b"\x31\xc0\x0f\x05", b"", Bits64, Some("read")),
            // A conditional jump between leaves, a call does not leave EAX; mov eax, edi is not known.
            (b"\xb8\x01\0\0\0\x74\x05\x0f\x05", b"", Bits64, Some("write")),
            (b"\xb8\x01\0\0\0\xe8\0\0\0\x01\x0f\x05", b"", Bits64, None),
            (b"\xb8\x01\0\0\0\x89\xf8\x0f\x05", b"", Bits64, None),
            // A jump to the system call, from after it; and one to where the number is set.
            (b"\xb8\x01\0\0\0\x0f\x05", b"\xeb\xfc", Bits64, None),
            (b"\xb8\x01\0\0\0\x0f\x05", b"\xeb\xf7", Bits64, Some("write")),
            // No number, and one that is no system call's.
            (b"\x0f\x05", b"", Bits64, None),
            (b"\xb8\xff\xff\0\0\x0f\x05", b"", Bits64, None),
            // INT 80H has the numbers of 32-bit programs, wherever it is; SYSCALL there is another's.
            (b"\xb8\x04\0\0\0\xcd\x80", b"", Bits32, Some("write")),
            (b"\xb8\x04\0\0\0\xcd\x80", b"", Bits64, Some("write")),
            (b"\xb8\x04\0\0\0\xcd\x81", b"", Bits32, None),
            (b"\xb8\x04\0\0\0\x0f\x05", b"", Bits32, None),
        ] {
            assert_eq!(named(code, after, mode), name, "{code:x?} {after:x?} {mode:?}");
        }
    }
}
