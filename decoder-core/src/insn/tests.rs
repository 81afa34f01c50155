//! Rows typed from the manual's opcode maps.

use super::{Class, Insn, InsnError, Op, decode};
use crate::mode::ExecMode::{self, Bits16, Bits32, Bits64};

/// The address of every instruction of the tables.
const IP: u64 = 0x7000;

/// One instruction: mode, bytes, op and target.
type Row = (ExecMode, &'static [u8], Op, Option<u64>);

/// Branches, and other instructions that can cause events.
const BRANCHES: &[Row] = &[
    // JO, JG; near; LOOPNE, LOOPE, LOOP, JRCXZ.
    (Bits64, &[0x70, 0x00], Op::CondJump, Some(0x7002)),
    (Bits64, &[0x7f, 0x80], Op::CondJump, Some(0x6f82)),
    (Bits64, &[0x0f, 0x80, 0x00, 0x00, 0x00, 0x80], Op::CondJump, Some(0xffff_ffff_8000_7006)),
    (Bits32, &[0x0f, 0x8f, 0x00, 0x00, 0x00, 0x80], Op::CondJump, Some(0x8000_7006)),
    (Bits16, &[0x0f, 0x84, 0x00, 0xff], Op::CondJump, Some(0x6f04)),
    (Bits64, &[0xe0, 0xfe], Op::CondJump, Some(0x7000)),
    (Bits64, &[0xe1, 0x7f], Op::CondJump, Some(0x7081)),
    (Bits64, &[0x67, 0xe2, 0xfd], Op::CondJump, Some(0x7000)),
    (Bits16, &[0xe3, 0x01], Op::CondJump, Some(0x7003)),
    // JMP, CALL. The operand-size prefix shortens the displacement, but not in 64-bit mode.
    (Bits64, &[0xeb, 0xfe], Op::Jump, Some(0x7000)),
    (Bits64, &[0xe9, 0xfb, 0xff, 0xff, 0xff], Op::Jump, Some(0x7000)),
    (Bits64, &[0x66, 0xe9, 0x00, 0x00, 0x01, 0x00], Op::Jump, Some(0x1_7006)),
    (Bits64, &[0x66, 0x0f, 0x84, 0x00, 0x00, 0x01, 0x00], Op::CondJump, Some(0x1_7007)),
    (Bits64, &[0x66, 0xeb, 0x00], Op::Jump, Some(0x7003)),
    (Bits32, &[0x66, 0xe9, 0xfc, 0x8f], Op::Jump, Some(0x0000)),
    (Bits32, &[0xe8, 0x00, 0x00, 0x00, 0x00], Op::Call, Some(0x7005)),
    (Bits16, &[0xe8, 0xfd, 0x8f], Op::Call, Some(0x0000)),
    (Bits16, &[0x66, 0xe8, 0x00, 0x00, 0x01, 0x00], Op::Call, Some(0x1_7006)),
    // Group 5.
    (Bits64, &[0xff, 0xd0], Op::IndirectCall, None),
    (Bits64, &[0xff, 0x15, 1, 2, 3, 4], Op::IndirectCall, None),
    (Bits64, &[0x41, 0xff, 0xe3], Op::IndirectJump, None),
    (Bits64, &[0x3e, 0xff, 0xe0], Op::IndirectJump, None),
    (Bits64, &[0xff, 0x24, 0xc5, 1, 2, 3, 4], Op::IndirectJump, None),
    (Bits64, &[0xff, 0x18], Op::FarCall, None),
    (Bits64, &[0x48, 0xff, 0x28], Op::FarJump, None),
    (Bits64, &[0xff, 0x30], Op::Other, None),
    (Bits64, &[0xd5, 0x00, 0xa1, 1, 2, 3, 4, 5, 6, 7, 8], Op::Jmpabs, None),
    // RET.
    (Bits64, &[0xc3], Op::Return, None),
    (Bits64, &[0xf3, 0xc3], Op::Return, None),
    (Bits64, &[0xc2, 0x08, 0x00], Op::Return, None),
    (Bits64, &[0xcb], Op::FarReturn, None),
    (Bits64, &[0x48, 0xcb], Op::FarReturn, None),
    (Bits64, &[0xca, 0x08, 0x00], Op::FarReturn, None),
    // Far pointers.
    (Bits32, &[0x9a, 1, 2, 3, 4, 5, 6], Op::FarCall, None),
    (Bits32, &[0x66, 0xea, 1, 2, 3, 4], Op::FarJump, None),
    (Bits16, &[0xea, 1, 2, 3, 4], Op::FarJump, None),
    (Bits16, &[0x66, 0x9a, 1, 2, 3, 4, 5, 6], Op::FarCall, None),
    // Interrupts and system calls.
    (Bits64, &[0xcc], Op::Int3, None),
    (Bits64, &[0xcd, 0x80], Op::IntN, None),
    (Bits64, &[0xf1], Op::Int1, None),
    (Bits32, &[0xce], Op::Into, None),
    (Bits64, &[0x48, 0xcf], Op::Iret, None),
    (Bits16, &[0xcf], Op::Iret, None),
    (Bits64, &[0x0f, 0x05], Op::Syscall, None),
    (Bits64, &[0x48, 0x0f, 0x07], Op::Sysret, None),
    (Bits64, &[0x0f, 0x34], Op::Sysenter, None),
    (Bits64, &[0x48, 0x0f, 0x35], Op::Sysexit, None),
    (Bits64, &[0x0f, 0xaa], Op::Rsm, None),
    (Bits64, &[0xf3, 0x0f, 0x01, 0xec], Op::Uiret, None),
    (Bits64, &[0xf3, 0x0f, 0x01, 0xca], Op::Eret, None),
    (Bits64, &[0xf2, 0x0f, 0x01, 0xca], Op::Eret, None),
    (Bits64, &[0x0f, 0x01, 0xca], Op::Other, None),
    // VMX.
    (Bits64, &[0x0f, 0x01, 0xc1], Op::Vmcall, None),
    (Bits64, &[0x0f, 0x01, 0xc2], Op::VmEntry, None),
    (Bits64, &[0x0f, 0x01, 0xc3], Op::VmEntry, None),
    (Bits64, &[0x66, 0x0f, 0x01, 0xcc], Op::Vmcall, None),
    (Bits64, &[0x0f, 0xc7, 0x30], Op::Vmptrld, None),
    (Bits64, &[0x66, 0x0f, 0xc7, 0x30], Op::Other, None),
    (Bits64, &[0xf3, 0x0f, 0xc7, 0x30], Op::Other, None),
    (Bits64, &[0x0f, 0xc7, 0xf0], Op::Other, None),
    // PTWRITE, and the others of group 15.
    (Bits64, &[0xf3, 0x0f, 0xae, 0xe0], Op::Ptwrite, None),
    (Bits64, &[0xf3, 0x48, 0x0f, 0xae, 0x64, 0x24, 0x08], Op::Ptwrite, None),
    (Bits64, &[0x0f, 0xae, 0x20], Op::Other, None),
    (Bits64, &[0x0f, 0xae, 0xf0], Op::Other, None),
    // MOV to and from control registers: ModRM.mod is ignored.
    (Bits64, &[0x0f, 0x22, 0xd8], Op::MovToCr3, None),
    (Bits64, &[0x0f, 0x22, 0x1d], Op::MovToCr3, None),
    (Bits32, &[0x0f, 0x22, 0xdf], Op::MovToCr3, None),
    (Bits64, &[0x0f, 0x20, 0xd8], Op::Other, None),
    (Bits64, &[0x44, 0x0f, 0x22, 0xc0], Op::Other, None),
    (Bits64, &[0x0f, 0x21, 0x05], Op::Other, None),
    // A transaction's start continues with the next instruction; its abort is an event.
    (Bits64, &[0xc7, 0xf8, 1, 2, 3, 4], Op::Other, None),
    (Bits64, &[0xc6, 0xf8, 1], Op::Other, None),
];

/// Instructions of which only the length is checked.
const LENGTHS: &[(ExecMode, &[u8])] = &[
    (Bits64, &[0x90]),
    (Bits64, &[0x00, 0x00]),
    // ModRM, SIB, displacements.
    (Bits64, &[0x8b, 0x40, 0x10]),
    (Bits64, &[0x8b, 0x80, 1, 2, 3, 4]),
    (Bits64, &[0x8b, 0x05, 1, 2, 3, 4]),
    (Bits64, &[0x8b, 0x04, 0x24]),
    (Bits64, &[0x8b, 0x04, 0x25, 1, 2, 3, 4]),
    (Bits64, &[0x8b, 0x44, 0x24, 1]),
    (Bits64, &[0x8b, 0x84, 0x24, 1, 2, 3, 4]),
    (Bits64, &[0x67, 0x8b, 0x80, 1, 2, 3, 4]),
    (Bits32, &[0x67, 0x8b, 0x80, 1, 2]),
    (Bits32, &[0x67, 0x8b, 0x06, 1, 2]),
    (Bits16, &[0x8b, 0x04]),
    (Bits16, &[0x8b, 0x44, 1]),
    (Bits16, &[0x67, 0x8b, 0x04, 0x24]),
    // Immediates by operand size; REX counts only right before the opcode.
    (Bits64, &[0x05, 1, 2, 3, 4]),
    (Bits64, &[0x66, 0x05, 1, 2]),
    (Bits64, &[0x66, 0x48, 0x05, 1, 2, 3, 4]),
    (Bits64, &[0x48, 0x66, 0x05, 1, 2]),
    (Bits64, &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8]),
    (Bits64, &[0x48, 0x66, 0xb8, 1, 2]),
    (Bits64, &[0x41, 0xb8, 1, 2, 3, 4]),
    (Bits16, &[0xb8, 1, 2]),
    (Bits16, &[0x66, 0xb8, 1, 2, 3, 4]),
    (Bits64, &[0x69, 0xc0, 1, 2, 3, 4]),
    (Bits64, &[0x6b, 0xc0, 1]),
    (Bits64, &[0xc8, 1, 2, 3]),
    // moffs by address size.
    (Bits64, &[0xa1, 1, 2, 3, 4, 5, 6, 7, 8]),
    (Bits64, &[0x67, 0xa1, 1, 2, 3, 4]),
    (Bits32, &[0xa1, 1, 2, 3, 4]),
    (Bits32, &[0x67, 0xa1, 1, 2]),
    (Bits16, &[0xa1, 1, 2]),
    // TEST has an immediate, NOT has none.
    (Bits64, &[0xf6, 0xc0, 1]),
    (Bits64, &[0xf6, 0xd0]),
    (Bits64, &[0xf7, 0xc0, 1, 2, 3, 4]),
    (Bits64, &[0x66, 0xf7, 0xc8, 1, 2]),
    (Bits64, &[0xf7, 0xd8]),
    // 0F.
    (Bits64, &[0x0f, 0x1f, 0x84, 0x00, 1, 2, 3, 4]),
    (Bits64, &[0xf3, 0x0f, 0x1e, 0xfa]),
    (Bits64, &[0x0f, 0x0b]),
    (Bits64, &[0x0f, 0xb9, 0xc0]),
    (Bits64, &[0x0f, 0xff, 0x40, 1]),
    (Bits64, &[0x0f, 0x78, 0xc0]),
    (Bits64, &[0x66, 0x0f, 0x78, 0xc0, 1, 2]),
    (Bits64, &[0xf2, 0x0f, 0x78, 0xc0, 1, 2]),
    (Bits64, &[0x66, 0x0f, 0x79, 0xc0]),
    (Bits64, &[0x0f, 0xa4, 0xc0, 1]),
    (Bits64, &[0x0f, 0xba, 0xe0, 1]),
    (Bits64, &[0x0f, 0x0f, 0xc1, 0x9e]),
    (Bits64, &[0x66, 0x0f, 0x38, 0x00, 0xc1]),
    (Bits64, &[0xf2, 0x48, 0x0f, 0x38, 0xf1, 0xc1]),
    (Bits64, &[0x66, 0x0f, 0x3a, 0x0f, 0xc1, 1]),
    // x87.
    (Bits64, &[0xd9, 0xee]),
    (Bits64, &[0xdf, 0xe0]),
    (Bits64, &[0xdd, 0x5c, 0x24, 8]),
    // VEX, and LES and LDS, which share its first byte.
    (Bits64, &[0xc5, 0xf8, 0x77]),
    (Bits64, &[0xc5, 0xf8, 0x28, 0xc1]),
    (Bits64, &[0xc5, 0xf9, 0x70, 0xc1, 1]),
    (Bits64, &[0xc4, 0xe2, 0x7d, 0x18, 0x05, 1, 2, 3, 4]),
    (Bits64, &[0xc4, 0xe3, 0x7d, 0x39, 0xc1, 1]),
    (Bits64, &[0xc4, 0xe7, 0x7b, 0xf8, 0xc1, 1, 2, 3, 4]),
    (Bits32, &[0xc5, 0xf8, 0x28, 0xc1]),
    (Bits32, &[0xc5, 0x38]),
    (Bits32, &[0xc5, 0x80, 1, 2, 3, 4]),
    (Bits32, &[0xc4, 0x44, 0x24, 1]),
    (Bits16, &[0xc5, 0x46, 1]),
    // EVEX, and BOUND, which shares its first byte.
    (Bits64, &[0x62, 0xf1, 0x7c, 0x48, 0x28, 0xc1]),
    (Bits64, &[0x62, 0xf1, 0x7c, 0x48, 0x28, 0x40, 1]),
    (Bits64, &[0x62, 0xf3, 0x7d, 0x48, 0x39, 0xc1, 1]),
    (Bits64, &[0x62, 0xf5, 0x7c, 0x48, 0x58, 0xc1]),
    (Bits32, &[0x62, 0x00]),
    (Bits32, &[0x62, 0xf1, 0x7c, 0x48, 0x28, 0xc1]),
    // B4, X4 (which is U in other encodings), and both: registers 16 to 31 as base and index.
    (Bits64, &[0x62, 0xf9, 0x7c, 0x48, 0x28, 0x00]),
    (Bits64, &[0x62, 0xf1, 0x78, 0x48, 0x28, 0x04, 0x08]),
    (Bits64, &[0x62, 0xf9, 0x78, 0x48, 0x28, 0x04, 0x08]),
    (Bits16, &[0x62, 0xf1, 0x7c, 0x48, 0x28, 0xc1]),
    // EVEX map 4 (APX): ADD, ADD with Iz by W and pp, TEST.
    (Bits64, &[0x62, 0xf4, 0x7c, 0x18, 0x01, 0xc1]),
    (Bits64, &[0x62, 0xf4, 0xfc, 0x18, 0x81, 0xc1, 1, 2, 3, 4]),
    (Bits64, &[0x62, 0xf4, 0x7c, 0x18, 0x81, 0xc1, 1, 2, 3, 4]),
    (Bits64, &[0x62, 0xf4, 0x7d, 0x18, 0x81, 0xc1, 1, 2]),
    (Bits64, &[0x62, 0xf4, 0x7c, 0x18, 0xf6, 0xc1, 1]),
    (Bits64, &[0x62, 0xf4, 0x7c, 0x18, 0xf6, 0xd1]),
    // REX2: ADD, MOV with Iv, 0F.
    (Bits64, &[0xd5, 0x10, 0x01, 0xc1]),
    (Bits64, &[0xd5, 0x18, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8]),
    (Bits64, &[0xd5, 0x80, 0xaf, 0xc1]),
    // XOP, and POP, which shares its first byte.
    (Bits64, &[0x8f, 0xe8, 0x78, 0xc0, 0xc1, 1]),
    (Bits64, &[0x8f, 0xe9, 0x78, 0x01, 0xc9]),
    (Bits64, &[0x8f, 0xea, 0x78, 0x10, 0xc1, 1, 2, 3, 4]),
    (Bits64, &[0x8f, 0xc0]),
    // Instructions that 64-bit mode does not have.
    (Bits32, &[0x06]),
    (Bits32, &[0x40]),
    (Bits32, &[0x60]),
    (Bits32, &[0x82, 0xc0, 1]),
    (Bits32, &[0xd4, 0x0a]),
    (Bits32, &[0xd6]),
    // The longest instructions.
    (Bits64, &[0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x90]),
];

/// Bytes that are not instructions.
const UNDEFINED: &[(ExecMode, &[u8])] = &[
    (Bits64, &[0x06]),
    (Bits64, &[0x27]),
    (Bits64, &[0x60]),
    (Bits64, &[0x82, 0xc0, 1]),
    (Bits64, &[0x9a, 1, 2, 3, 4, 5, 6]),
    (Bits64, &[0xce]),
    (Bits64, &[0xd4, 0x0a]),
    (Bits64, &[0xea, 1, 2, 3, 4, 5, 6]),
    (Bits64, &[0x0f, 0x04]),
    (Bits64, &[0x0f, 0x24, 0xc0]),
    (Bits64, &[0x0f, 0x0f, 0xc1, 0x00]),
    // MOV to CS; LEA with a register; groups with holes.
    (Bits64, &[0x8e, 0xc8]),
    (Bits64, &[0x8d, 0xc0]),
    (Bits64, &[0xff, 0xf8]),
    (Bits64, &[0xff, 0xd8]),
    (Bits64, &[0xfe, 0xd0]),
    (Bits64, &[0xc7, 0xf9, 1, 2, 3, 4]),
    (Bits64, &[0x0f, 0xba, 0xc0, 1]),
    (Bits64, &[0x0f, 0x01, 0xd2]),
    (Bits64, &[0xd9, 0xef]),
    (Bits64, &[0xdb, 0x20]),
    // CR1, CR9; DR8.
    (Bits64, &[0x0f, 0x22, 0xc8]),
    (Bits64, &[0x44, 0x0f, 0x20, 0xc8]),
    (Bits64, &[0x44, 0x0f, 0x21, 0xc0]),
    // A prefix before VEX, EVEX, XOP.
    (Bits64, &[0x66, 0xc5, 0xf8, 0x28, 0xc1]),
    (Bits64, &[0x48, 0xc5, 0xf8, 0x28, 0xc1]),
    (Bits64, &[0xf3, 0x62, 0xf1, 0x7c, 0x48, 0x28, 0xc1]),
    (Bits64, &[0xf0, 0x8f, 0xe9, 0x78, 0x01, 0xc9]),
    (Bits64, &[0x66, 0xf3, 0x0f, 0xae, 0xe0]),
    // REX2 before opcodes that it must not precede.
    (Bits64, &[0xd5, 0x00, 0x70, 0x00]),
    (Bits64, &[0xd5, 0x00, 0xe8, 0x00, 0x00, 0x00, 0x00]),
    (Bits64, &[0xd5, 0x80, 0x80, 0x00, 0x00, 0x00, 0x00]),
    (Bits64, &[0xd5, 0x08, 0xa1, 1, 2, 3, 4, 5, 6, 7, 8]),
    (Bits64, &[0x48, 0xd5, 0x00, 0x01, 0xc1]),
    (Bits64, &[0xd5, 0x00, 0x66, 0x90]),
    (Bits32, &[0xf3, 0x0f, 0x01, 0xec]),
    (Bits32, &[0x62, 0xf4, 0x7c, 0x18, 0x01, 0xc1]),
    // EVEX with encodings that only 64-bit mode has: B4, U clear, both, and map 7.
    (Bits32, &[0x62, 0xf9, 0x7c, 0x48, 0x28, 0xc1]),
    (Bits32, &[0x62, 0xf1, 0x78, 0x48, 0x28, 0xc1]),
    (Bits32, &[0x62, 0xf9, 0x78, 0x48, 0x28, 0xc1]),
    (Bits16, &[0x62, 0xf9, 0x7c, 0x48, 0x28, 0xc1]),
    (Bits16, &[0x62, 0xf1, 0x78, 0x48, 0x28, 0xc1]),
    (Bits32, &[0x62, 0xf7, 0x7f, 0x08, 0xf8, 0xc1, 1, 2, 3, 4]),
];

/// Checks that `bytes` are one instruction, that bytes after it change nothing, and that any shorter part is truncated.
fn whole(mode: ExecMode, bytes: &[u8]) -> Insn {
    let insn = decode(bytes, mode, IP);
    assert_eq!(insn.map(|insn| usize::from(insn.len)), Ok(bytes.len()), "{mode:?} {bytes:02x?}");
    let mut longer = [0xff; 24];
    longer[..bytes.len()].copy_from_slice(bytes);
    assert_eq!(decode(&longer, mode, IP), insn, "{mode:?} {bytes:02x?}");
    for cut in 0..bytes.len() {
        assert_eq!(
            decode(&bytes[..cut], mode, IP),
            Err(InsnError::Truncated),
            "{mode:?} {bytes:02x?}, {cut} bytes"
        );
    }
    insn.unwrap()
}

#[test]
fn knows_branches_and_where_they_go() {
    for &(mode, bytes, op, target) in BRANCHES {
        let insn = whole(mode, bytes);
        assert_eq!((insn.op, insn.target), (op, target), "{mode:?} {bytes:02x?}");
        assert_eq!(insn.class, op.class());
        let direct = matches!(insn.class, Class::CondJump | Class::NearJump | Class::NearCall);
        assert_eq!(insn.target.is_some(), direct, "{mode:?} {bytes:02x?}");
    }
}

#[test]
fn knows_lengths() {
    for &(mode, bytes) in LENGTHS {
        let insn = whole(mode, bytes);
        assert_eq!(
            (insn.class, insn.op, insn.target),
            (Class::Other, Op::Other, None),
            "{mode:?} {bytes:02x?}"
        );
    }
}

#[test]
fn refuses_what_is_undefined() {
    for &(mode, bytes) in UNDEFINED {
        assert_eq!(decode(bytes, mode, IP), Err(InsnError::Undefined), "{mode:?} {bytes:02x?}");
    }
}

#[test]
fn refuses_more_than_fifteen_bytes() {
    let mut bytes = [0x66; 20];
    assert_eq!(decode(&bytes, Bits64, IP), Err(InsnError::TooLong));
    assert_eq!(decode(&bytes[..15], Bits64, IP), Err(InsnError::TooLong));
    assert_eq!(decode(&bytes[..14], Bits64, IP), Err(InsnError::Truncated));
    bytes[11..13].copy_from_slice(&[0x05, 1]);
    assert_eq!(decode(&bytes, Bits64, IP).map(|insn| insn.len), Ok(14));
    bytes[10] = 0x48;
    assert_eq!(decode(&bytes, Bits64, IP), Err(InsnError::TooLong));
}

#[test]
fn keeps_the_segment_base_in_16_bit_linear_addresses() {
    // JMP +10h at F000:FFF0, given as a linear address, and at an IP that wraps.
    let jump = [0xe9, 0x10, 0x00];
    assert_eq!(decode(&jump, Bits16, 0xf_fff0).unwrap().target, Some(0x10_0003));
    assert_eq!(decode(&jump, Bits16, 0xfff0).unwrap().target, Some(0x0003));
}

#[test]
fn tells_what_an_instruction_can_cause() {
    let rows: &[(&[u8], bool, bool)] = &[
        (&[0x0f, 0x22, 0xd8], true, false),
        (&[0x0f, 0x05], true, true),
        (&[0xc3], false, false),
        (&[0x0f, 0x01, 0xc2], true, true),
        (&[0x0f, 0xc7, 0x30], false, true),
    ];
    for &(bytes, cr3, vmcs) in rows {
        let insn = decode(bytes, Bits64, IP).unwrap();
        assert_eq!((insn.can_write_cr3(), insn.can_change_vmcs()), (cr3, vmcs), "{bytes:02x?}");
    }
}
