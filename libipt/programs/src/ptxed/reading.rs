//! Reads instructions with another decoder (iced-x86), for their text and for `--check`, which compares classes.

use iced_x86::{Code, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction};
use pugmark_decoder_core::insn::{self, Class, MAX_LEN};
use pugmark_decoder_core::mode::ExecMode;
use std::fmt;

/// The other decoder's result for some bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum IcedReading {
    /// An instruction.
    Insn(Instruction),
    /// Bytes that only the trace's decoder takes for an instruction, or for one of this length.
    Newer,
    /// Not an instruction.
    Refused(Refusal),
}

/// The reason that bytes are not an instruction. `Display` writes XED's number and name of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The bytes end within the instruction.
    TooShort,
    /// A LOCK prefix where it is not allowed.
    Lock,
    /// More than fifteen bytes.
    TooLong,
    /// Anything else.
    Other,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooShort => "(1) BUFFER_TOO_SHORT",
            Self::Other => "(2) GENERAL_ERROR",
            Self::Lock => "(5) BAD_LOCK_PREFIX",
            Self::TooLong => "(16) INSTR_TOO_LONG",
        })
    }
}

impl IcedReading {
    /// Reads the instruction at the front of `bytes`.
    pub(super) fn of(bytes: &[u8], mode: ExecMode, ip: u64) -> Self {
        let bits = match mode {
            ExecMode::Bits16 => 16,
            ExecMode::Bits32 => 32,
            ExecMode::Bits64 => 64,
        };
        let decode = |bytes: &[u8], options| {
            let mut decoder = Decoder::with_ip(bits, bytes, ip, options);
            let insn = decoder.decode();
            (insn, decoder.last_error())
        };
        let (insn, error) = decode(bytes, DecoderOptions::NONE);
        // The trace's decoder decides the control flow; the other one only gives the text.
        let own = insn::decode(bytes, mode, ip).ok();
        if error == DecoderError::None {
            return match own {
                Some(own) if usize::from(own.len) != insn.len() => Self::Newer,
                _ => Self::Insn(insn),
            };
        }
        // The other decoder does not know the instruction at all, rather than refusing it for a reserved field.
        if own.is_some() && decode(bytes, DecoderOptions::NO_INVALID_CHECK).1 != DecoderError::None {
            return Self::Newer;
        }
        // Padding distinguishes an instruction that was cut off from bytes that are no instruction.
        let mut padded = [0; MAX_LEN + 1];
        let len = bytes.len().min(MAX_LEN);
        padded[..len].copy_from_slice(&bytes[..len]);
        Self::Refused(match decode(&padded, DecoderOptions::NONE) {
            // The padded bytes are an instruction, so the bytes alone are only its beginning.
            (_, DecoderError::None) => Refusal::TooShort,
            _ => match decode(&padded, DecoderOptions::NO_INVALID_CHECK) {
                (insn, DecoderError::None) if insn.has_lock_prefix() => Refusal::Lock,
                _ if padded[..MAX_LEN].iter().all(is_prefix) => Refusal::TooLong,
                _ => Refusal::Other,
            },
        })
    }

    /// Returns the objection if `class` does not fit the instruction.
    pub(super) fn objection(&self, class: Class) -> Option<Objection> {
        match self {
            Self::Insn(insn) if class_of(insn) != class => Some(Objection { class, code: insn.code() }),
            _ => None,
        }
    }
}

fn is_prefix(byte: &u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
}

/// A class that does not fit the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Objection {
    class: Class,
    code: Code,
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("{:?}", self.code.mnemonic()).to_uppercase();
        write!(f, "iclass: {}, xed iclass: {name}", name_of(self.class))
    }
}

/// Returns libipt's name of the class, which is the same for direct and indirect branches.
fn name_of(class: Class) -> &'static str {
    match class {
        Class::Other => "other",
        Class::NearCall | Class::IndirectCall => "near call",
        Class::NearReturn => "near return",
        Class::NearJump | Class::IndirectJump => "near jump",
        Class::CondJump => "cond jump",
        Class::FarCall => "far call",
        Class::FarReturn => "far return",
        Class::FarJump => "far jump",
        Class::Ptwrite => "ptwrite",
        _ => "unknown",
    }
}

fn class_of(insn: &Instruction) -> Class {
    match insn.code() {
        Code::Ptwrite_rm32 | Code::Ptwrite_rm64 => Class::Ptwrite,
        Code::Vmcall | Code::Tdcall | Code::Seamcall | Code::Syscall | Code::Sysenter => Class::FarCall,
        Code::Vmlaunch | Code::Vmresume | Code::Seamret => Class::FarReturn,
        Code::Iretw | Code::Iretd | Code::Iretq => Class::FarReturn,
        Code::Retfw | Code::Retfd | Code::Retfq => Class::FarReturn,
        Code::Retfw_imm16 | Code::Retfd_imm16 | Code::Retfq_imm16 => Class::FarReturn,
        Code::Sysretd | Code::Sysretq | Code::Sysexitd | Code::Sysexitq => Class::FarReturn,
        Code::Rsm | Code::Uiret | Code::Erets | Code::Eretu => Class::FarReturn,
        // AMD's virtualization instructions, which no processor with Intel PT has.
        Code::Vmmcall | Code::Vmgexit | Code::Vmgexit_F2 => Class::Other,
        Code::Vmrunw | Code::Vmrund | Code::Vmrunq | Code::Skinit => Class::Other,
        _ if insn.is_jmp_far() || insn.is_jmp_far_indirect() => Class::FarJump,
        _ if insn.is_call_far() || insn.is_call_far_indirect() => Class::FarCall,
        _ => match insn.flow_control() {
            FlowControl::ConditionalBranch => Class::CondJump,
            FlowControl::UnconditionalBranch => Class::NearJump,
            FlowControl::Call => Class::NearCall,
            FlowControl::IndirectBranch => Class::IndirectJump,
            FlowControl::IndirectCall => Class::IndirectCall,
            FlowControl::Return => Class::NearReturn,
            FlowControl::Interrupt => Class::FarCall,
            FlowControl::Next | FlowControl::Exception | FlowControl::XbeginXabortXend => Class::Other,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pugmark_decoder_core::insn;

    const MODE: ExecMode = ExecMode::Bits64;

    #[test]
    fn what_is_no_instruction_is_refused_with_a_reason() {
        for (bytes, refusal) in [
            (&[0x0f][..], Refusal::TooShort),
            (&[0xe8, 0, 0, 0], Refusal::TooShort),
            (&[0x06], Refusal::Other),
            (&[0x66, 0x06], Refusal::Other),
            (&[0x0f, 0xff], Refusal::TooShort),
            (&[0xf0, 0x90, 0x90], Refusal::Lock),
            (&[0x66; 15], Refusal::TooLong),
        ] {
            let IcedReading::Refused(found) = IcedReading::of(bytes, MODE, 0) else { panic!("{bytes:x?}") };
            assert_eq!(found, refusal, "{bytes:x?}");
        }
    }

    #[test]
    fn classes_have_libipts_names() {
        for (class, name) in [
            (Class::Other, "other"),
            (Class::NearCall, "near call"),
            (Class::IndirectCall, "near call"),
            (Class::NearReturn, "near return"),
            (Class::NearJump, "near jump"),
            (Class::IndirectJump, "near jump"),
            (Class::CondJump, "cond jump"),
            (Class::FarCall, "far call"),
            (Class::FarReturn, "far return"),
            (Class::FarJump, "far jump"),
            (Class::Ptwrite, "ptwrite"),
        ] {
            let objection = Objection { class, code: Code::Vmcall };
            assert_eq!(objection.to_string(), format!("iclass: {name}, xed iclass: VMCALL"));
        }
    }

    #[test]
    fn what_the_library_does_not_know_is_not_refused() {
        // An instruction with a REX2 prefix, and one of APX: ADD with three operands.
        for bytes in [&[0xd5, 0x48, 0x01, 0xc0][..], &[0x62, 0xf4, 0xfc, 0x18, 0x01, 0xc8]] {
            assert!(matches!(IcedReading::of(bytes, MODE, 0), IcedReading::Newer), "{bytes:x?}");
        }
        // Outside of 64-bit mode, 0xd5 is AAD.
        assert!(matches!(IcedReading::of(&[0xd5, 0x48], ExecMode::Bits32, 0), IcedReading::Insn(_)));
    }

    #[test]
    fn a_class_that_does_not_fit_is_objected_to() {
        for bytes in [
            &[0x90][..],
            &[0x74, 0],
            &[0xeb, 0],
            &[0xe8, 0, 0, 0, 0],
            &[0xff, 0xe0],
            &[0xff, 0xd0],
            &[0xc3],
            &[0xff, 0x28],
            &[0xff, 0x18],
            &[0xcb],
            &[0x48, 0xcf],
            &[0x0f, 0x05],
            &[0xcd, 0x80],
            &[0xcc],
            &[0x0f, 0x01, 0xc2],
            &[0xf3, 0x48, 0x0f, 0xae, 0xe0],
        ] {
            let class = insn::decode(bytes, MODE, 0).unwrap().class;
            assert_eq!(IcedReading::of(bytes, MODE, 0).objection(class), None, "{bytes:x?}");
        }
        // A far jump and a far call with the target in the instruction.
        for bytes in [&[0xea, 0, 0, 0, 0, 8, 0][..], &[0x9a, 0, 0, 0, 0, 8, 0]] {
            let class = insn::decode(bytes, ExecMode::Bits32, 0).unwrap().class;
            assert_eq!(IcedReading::of(bytes, ExecMode::Bits32, 0).objection(class), None, "{bytes:x?}");
        }
        for (bytes, class, text) in [
            (&[0x90][..], Class::NearCall, "iclass: near call, xed iclass: NOP"),
            (&[0xc3], Class::Other, "iclass: other, xed iclass: RET"),
            (&[0xff, 0xe0], Class::NearJump, "iclass: near jump, xed iclass: JMP"),
        ] {
            let objection = IcedReading::of(bytes, MODE, 0).objection(class);
            assert_eq!(objection.map(|objection| objection.to_string()).as_deref(), Some(text));
        }
    }
}
