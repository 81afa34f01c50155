//! Permitted differences of the two decoders, with reasons: always bytes that iced rejects and this crate accepts.

use iced_x86::DecoderOptions;
use pugmark_decoder_core::insn::decode;
use pugmark_decoder_core::mode::ExecMode;

use crate::iced;

/// A class of differences.
pub(crate) struct DifferenceClass {
    /// Its name.
    pub(crate) name: &'static str,
    /// The reason why the difference is correct.
    pub(crate) why: &'static str,
    /// A predicate: true if a string that iced rejects belongs to the class.
    pub(crate) is: fn(&Case) -> bool,
}

/// A string that iced rejects.
pub(crate) struct Case<'a> {
    bytes: &'a [u8],
    mode: ExecMode,
    bits: u32,
    /// The length according to this crate.
    len: usize,
    /// The bytes after the legacy and REX prefixes.
    code: &'a [u8],
    /// True after a mandatory prefix.
    mandatory: bool,
    /// True after a LOCK prefix, F0.
    lock: bool,
}

impl<'a> Case<'a> {
    /// Finds the opcode.
    pub(crate) fn new(bytes: &'a [u8], mode: ExecMode, bits: u32, len: usize) -> Self {
        let is_prefix = |byte: &u8| match byte {
            0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 => true,
            0x40..=0x4f => mode == ExecMode::Bits64,
            _ => false,
        };
        let start = bytes.iter().take_while(|byte| is_prefix(byte)).count();
        let (prefixes, code) = bytes.split_at(start);
        let mandatory = prefixes.iter().any(|byte| matches!(byte, 0x66 | 0xf2 | 0xf3));
        Self { bytes, mode, bits, len, code, mandatory, lock: prefixes.contains(&0xf0) }
    }

    /// Returns true if iced accepts the string with the same length when it does not check reserved fields.
    fn reserved_field(&self) -> bool {
        iced(self.bytes, self.bits, 0, crate::OPTIONS | DecoderOptions::NO_INVALID_CHECK)
            .is_ok_and(|insn| insn.len() == self.len)
    }

    /// Returns true if the same code in 64-bit mode is an instruction of the same length for both decoders.
    fn is_64_bit_code(&self) -> bool {
        self.mode != ExecMode::Bits64
            && iced(self.bytes, 64, 0, crate::OPTIONS | DecoderOptions::NO_INVALID_CHECK).is_ok()
            && decode(self.bytes, ExecMode::Bits64, 0).is_ok()
    }
}

/// All classes. A string belongs to the first one that fits.
pub(crate) const CLASSES: [DifferenceClass; 9] = [
    DifferenceClass {
        name: "LOCK",
        why: "LOCK before what it is not defined for: the length stays",
        is: |case| case.lock && case.reserved_field(),
    },
    DifferenceClass {
        name: "vector encoding",
        why: "VEX, EVEX, XOP: fields that make an encoding reserved do not change its length and are not looked at; \
              the opcodes have a test of their own",
        is: |case| matches!(case.code[0], 0x62 | 0xc4 | 0xc5 | 0x8f),
    },
    DifferenceClass {
        name: "reserved field",
        why: "a legacy encoding with a field or combination that iced checks and can be told not to",
        is: |case| case.reserved_field(),
    },
    DifferenceClass {
        name: "REX2",
        why: "APX is newer than iced",
        is: |case| case.mode == ExecMode::Bits64 && case.code[0] == 0xd5,
    },
    DifferenceClass {
        name: "64-bit only",
        why: "LKGS, SENDUIPI, SEAMRET and their kin outside 64-bit mode: #UD there, with the same length",
        is: |case| case.is_64_bit_code(),
    },
    DifferenceClass {
        name: "prefix on an opcode without ModRM",
        why: "EMMS and GETSEC with 66, F2 or F3: #UD, with the same length",
        is: |case| matches!(case.code, [0x0f, 0x37 | 0x77, ..]) && case.mandatory,
    },
    DifferenceClass {
        name: "prefix in group 7",
        why: "0F 01 D8 to FF are AMD's for the most part; what prefixes do there is not looked at",
        is: |case| matches!(case.code, [0x0f, 0x01, 0xd8..=0xff, ..]) && case.mandatory,
    },
    DifferenceClass {
        name: "PFRCPV, PFRSQRTV",
        why: "two 3DNow! operations of the Geode that iced has under an option for Cyrix",
        is: |case| matches!(case.code, [0x0f, 0x0f, ..]) && matches!(case.bytes[case.len - 1], 0x86 | 0x87),
    },
    DifferenceClass {
        name: "newer than iced",
        why: "UDB, MOVRS, PBNDKB, URDMSR, UWRMSR; HRESET where iced wants no REX",
        is: |case| {
            matches!(
                case.code,
                [0xd6, ..]
                    | [0x0f, 0x38, 0x8a | 0x8b | 0xf8, ..]
                    | [0x0f, 0x01, 0xc7, ..]
                    | [0x0f, 0x3a, 0xf0, ..]
            )
        },
    },
];

/// The prefix that selects a vector map.
#[derive(Clone, Copy)]
pub(crate) enum Head {
    /// C4.
    Vex,
    /// 8F.
    Xop,
    /// 62.
    Evex,
}

/// The vector maps that iced has; VEX maps 5 and 7, EVEX maps 4 and 7 are newer.
pub(crate) const VECTOR_MAPS: [(&str, u8, Head); 11] = [
    ("VEX", 1, Head::Vex),
    ("VEX", 2, Head::Vex),
    ("VEX", 3, Head::Vex),
    ("XOP", 8, Head::Xop),
    ("XOP", 9, Head::Xop),
    ("XOP", 10, Head::Xop),
    ("EVEX", 1, Head::Evex),
    ("EVEX", 2, Head::Evex),
    ("EVEX", 3, Head::Evex),
    ("EVEX", 5, Head::Evex),
    ("EVEX", 6, Head::Evex),
];

/// Returns forms of an opcode, at least one of which is valid if the opcode is defined: all /reg with memory and
/// registers, W, L, vvvv, mask and broadcast.
pub(crate) fn vector_forms(head: Head, map: u8, opcode: u8, pp: u8) -> impl Iterator<Item = [u8; 16]> {
    // Only EVEX has masks, broadcast and a third L.
    let forms = if matches!(head, Head::Evex) { 32 * 2 * 3 * 2 * 4 } else { 32 * 2 * 3 * 2 };
    (0..forms).map(move |form: u32| {
        let (modrm, form) = (form % 32, form / 32);
        let (w, form) = (form as u8 % 2, form / 2);
        let (vvvv, form) = ([15, 3, 5][form as usize % 3], form / 3);
        let (mask, form) = if matches!(head, Head::Evex) { (form as u8 % 2, form / 2) } else { (0, form) };
        let (l, broadcast) = [(0, 0), (1, 0), (2, 0), (2, 1)][form as usize];
        let modrm = [0x00, 0x04, 0xc0, 0xc1][modrm as usize % 4] | (modrm as u8 / 4) << 3;
        let mut bytes = [0; 16];
        let mut put = |head: &[u8]| {
            bytes[..head.len()].copy_from_slice(head);
            bytes[head.len()..head.len() + 3].copy_from_slice(&[opcode, modrm, 0x88]);
        };
        match head {
            Head::Vex => put(&[0xc4, 0xe0 | map, w << 7 | vvvv << 3 | l << 2 | pp]),
            Head::Xop => put(&[0x8f, 0xe0 | map, w << 7 | vvvv << 3 | l << 2 | pp]),
            Head::Evex => put(&[
                0x62,
                0xf0 | map,
                w << 7 | vvvv << 3 | 0x04 | pp,
                l << 5 | broadcast << 4 | 0x08 | mask,
            ]),
        }
        bytes
    })
}

/// Opcodes that iced does not have: encoding, map, opcodes, set of `pp` (bit 0 none, 1 66, 2 F3, 3 F2).
pub(crate) const NEWER: &[(&str, u8, std::ops::RangeInclusive<u8>, u8)] = &[
    ("EVEX", 1, 0x2e..=0x2f, 0b1100),
    ("EVEX", 1, 0x90..=0x93, 0b1011),
    ("EVEX", 2, 0x41..=0x41, 0b0100),
    ("EVEX", 2, 0x49..=0x4b, 0b1111),
    ("EVEX", 2, 0x50..=0x51, 0b1101),
    ("EVEX", 2, 0x52..=0x52, 0b0001),
    ("EVEX", 2, 0x53..=0x53, 0b0101),
    ("EVEX", 2, 0x5c..=0x5c, 0b0100),
    ("EVEX", 2, 0x5e..=0x5e, 0b1111),
    ("EVEX", 2, 0x67..=0x67, 0b1111),
    ("EVEX", 2, 0x6d..=0x6d, 0b1111),
    ("EVEX", 2, 0x74..=0x74, 0b1111),
    ("EVEX", 2, 0xd2..=0xd3, 0b0111),
    ("EVEX", 2, 0xda..=0xda, 0b1100),
    ("EVEX", 2, 0xe0..=0xef, 0b0010),
    ("EVEX", 2, 0xf2..=0xf3, 0b0001),
    ("EVEX", 2, 0xf5..=0xf5, 0b1101),
    ("EVEX", 2, 0xf6..=0xf6, 0b1000),
    ("EVEX", 2, 0xf7..=0xf7, 0b1111),
    ("EVEX", 3, 0x07..=0x07, 0b1111),
    ("EVEX", 3, 0x08..=0x08, 0b1000),
    ("EVEX", 3, 0x26..=0x26, 0b1000),
    ("EVEX", 3, 0x2f..=0x2f, 0b0010),
    ("EVEX", 3, 0x3d..=0x3d, 0b0001),
    ("EVEX", 3, 0x42..=0x42, 0b0100),
    ("EVEX", 3, 0x52..=0x53, 0b1011),
    ("EVEX", 3, 0x56..=0x56, 0b1000),
    ("EVEX", 3, 0x66..=0x66, 0b1000),
    ("EVEX", 3, 0x77..=0x77, 0b1111),
    ("EVEX", 3, 0x8d..=0x8d, 0b1111),
    ("EVEX", 3, 0x8f..=0x8f, 0b1000),
    ("EVEX", 3, 0xc2..=0xc2, 0b1000),
    ("EVEX", 3, 0xf0..=0xf0, 0b1000),
    ("EVEX", 5, 0x18..=0x18, 0b1111),
    ("EVEX", 5, 0x1b..=0x1b, 0b1111),
    ("EVEX", 5, 0x1e..=0x1e, 0b1000),
    ("EVEX", 5, 0x2e..=0x2e, 0b1100),
    ("EVEX", 5, 0x2f..=0x2f, 0b1110),
    ("EVEX", 5, 0x36..=0x36, 0b0001),
    ("EVEX", 5, 0x37..=0x37, 0b0011),
    ("EVEX", 5, 0x38..=0x38, 0b0111),
    ("EVEX", 5, 0x39..=0x39, 0b0101),
    ("EVEX", 5, 0x3a..=0x3a, 0b0111),
    ("EVEX", 5, 0x3b..=0x3b, 0b0101),
    ("EVEX", 5, 0x3c..=0x3e, 0b0100),
    ("EVEX", 5, 0x51..=0x51, 0b0010),
    ("EVEX", 5, 0x58..=0x59, 0b0010),
    ("EVEX", 5, 0x5c..=0x5f, 0b0010),
    ("EVEX", 5, 0x68..=0x6d, 0b1111),
    ("EVEX", 5, 0x6e..=0x6e, 0b0100),
    ("EVEX", 5, 0x6f..=0x6f, 0b1100),
    ("EVEX", 5, 0x74..=0x74, 0b1111),
    ("EVEX", 5, 0x7e..=0x7e, 0b0100),
    ("EVEX", 6, 0x2c..=0x2c, 0b0001),
    ("EVEX", 6, 0x42..=0x42, 0b0001),
    ("EVEX", 6, 0x4c..=0x4c, 0b0001),
    ("EVEX", 6, 0x4e..=0x4e, 0b0001),
    ("EVEX", 6, 0x95..=0x95, 0b1101),
    ("EVEX", 6, 0x98..=0x98, 0b0001),
    ("EVEX", 6, 0x9a..=0x9a, 0b0001),
    ("EVEX", 6, 0x9c..=0x9c, 0b0001),
    ("EVEX", 6, 0x9e..=0x9e, 0b0001),
    ("EVEX", 6, 0xa8..=0xa8, 0b0001),
    ("EVEX", 6, 0xaa..=0xaa, 0b0001),
    ("EVEX", 6, 0xac..=0xac, 0b0001),
    ("EVEX", 6, 0xae..=0xae, 0b0001),
    ("EVEX", 6, 0xb8..=0xb8, 0b0001),
    ("EVEX", 6, 0xba..=0xba, 0b0001),
    ("EVEX", 6, 0xbc..=0xbc, 0b0001),
    ("EVEX", 6, 0xbe..=0xbe, 0b0001),
    ("VEX", 2, 0x48..=0x48, 0b1111),
    ("VEX", 2, 0x4a..=0x4a, 0b1010),
    ("VEX", 2, 0x5f..=0x5f, 0b1111),
    ("VEX", 2, 0x6b..=0x6b, 0b1111),
    ("VEX", 2, 0x6c..=0x6c, 0b1100),
    ("VEX", 2, 0x6e..=0x6f, 0b1111),
];
