//! The opcode maps without VEX: one byte, 0F, 0F 38, 0F 3A.

use super::Op;
use super::group::Group;

/// The bytes after the opcode and the operands in ModRM, SIB and displacement, named as in the manual's opcode map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LegacyImm {
    /// Nothing.
    None,
    /// Ib.
    Byte,
    /// Iw.
    Word,
    /// Iz: 2 or 4 bytes.
    Z,
    /// Iv: 2, 4 or 8 bytes.
    V,
    /// Jb.
    Rel8,
    /// Jz; 4 bytes in 64-bit mode.
    RelZ,
    /// Ap: an offset, then a selector.
    Far,
    /// Ob, Ov: an address.
    Moffs,
    /// Iw, Ib.
    Enter,
    /// Ib for /0 and /1 (TEST).
    TestByte,
    /// Iz for /0 and /1 (TEST).
    TestZ,
    /// Ib, Ib after 66 or F2 (EXTRQ, INSERTQ).
    TwoBytes,
}

/// The kinds of opcode bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LegacyKind {
    /// Undefined.
    Undefined,
    /// An instruction.
    Op(Op),
    /// 66.
    OperandSize,
    /// 67.
    AddressSize,
    /// 26, 2E, 36, 3E, 64, 65.
    Segment,
    /// F0.
    Lock,
    /// F2.
    Repne,
    /// F3.
    Rep,
    /// 40 to 4F in 64-bit mode.
    Rex,
    /// D5 in 64-bit mode.
    Rex2,
    /// 0F.
    Escape0f,
    /// 0F 38.
    Escape38,
    /// 0F 3A.
    Escape3a,
    /// 0F 0F.
    Amd3dnow,
    /// C5, or LDS.
    Vex2,
    /// C4, or LES.
    Vex3,
    /// 62, or BOUND.
    Evex,
    /// 8F: POP, or XOP.
    PopOrXop,
    /// D8 to DF.
    X87,
    /// FF.
    Group5,
    /// C6, C7: register forms are XABORT and XBEGIN, F8 only.
    Group11,
    /// 0F 01.
    Group7,
    /// 0F C7.
    Group9,
    /// 0F AE.
    Group15,
    /// 0F 20 (from) and 0F 22 (to a control register).
    ControlRegister {
        /// True if the move writes the control register.
        write: bool,
    },
    /// 0F 21, 0F 23.
    DebugRegister,
}

/// An opcode's entry.
#[derive(Clone, Copy)]
pub(super) struct Attr {
    /// The ModRM bytes that are defined.
    pub(super) group: Group,
    /// The immediate after the operands.
    pub(super) imm: LegacyImm,
    /// The kind of the opcode.
    pub(super) kind: LegacyKind,
}

/// An opcode map.
pub(super) type Map = [Attr; 256];

/// No ModRM, no immediate, nothing special.
const PLAIN: Attr = Attr { group: Group::None, imm: LegacyImm::None, kind: LegacyKind::Op(Op::Other) };
/// An undefined opcode.
const UNDEFINED: Attr = PLAIN.kind(LegacyKind::Undefined);
/// An instruction with a ModRM byte.
const MODRM: Attr = PLAIN.group(Group::Any);
/// An instruction with a ModRM byte for memory.
const MEMORY: Attr = PLAIN.group(Group::Memory);

impl Attr {
    const fn group(mut self, group: Group) -> Self {
        self.group = group;
        self
    }

    const fn imm(mut self, imm: LegacyImm) -> Self {
        self.imm = imm;
        self
    }

    const fn kind(mut self, kind: LegacyKind) -> Self {
        self.kind = kind;
        self
    }

    const fn op(self, op: Op) -> Self {
        self.kind(LegacyKind::Op(op))
    }
}

/// Returns an entry with only a ModRM group.
const fn g(group: Group) -> Attr {
    PLAIN.group(group)
}

/// Returns an entry with only an immediate.
const fn i(imm: LegacyImm) -> Attr {
    PLAIN.imm(imm)
}

/// Returns an entry with only a kind.
const fn k(kind: LegacyKind) -> Attr {
    PLAIN.kind(kind)
}

/// Returns an entry with only an op.
const fn o(op: Op) -> Attr {
    PLAIN.op(op)
}

/// The first and the last of the opcodes that have the same entry, and that entry.
type Row = (u8, u8, Attr);

/// Returns `base` with the entries of `rows` replaced. Later rows override earlier ones.
const fn map(base: Map, rows: &[Row]) -> Map {
    let mut map = base;
    let mut row = 0;
    while row < rows.len() {
        let (first, last, attr) = rows[row];
        let mut opcode = first as usize;
        while opcode <= last as usize {
            map[opcode] = attr;
            opcode += 1;
        }
        row += 1;
    }
    map
}

/// The one-byte map outside 64-bit mode.
///
/// Source: SDM vol. 2, appendix Opcode Map, "One-byte Opcode Map".
pub(super) static ONE_BYTE: Map = LEGACY;

/// The one-byte map in 64-bit mode.
pub(super) static ONE_BYTE_64: Map = ONE_BYTE_64_ENTRIES;

/// The map after 0F.
pub(super) static MAP_0F: Map = MAP_0F_ENTRIES;

/// The one-byte map with the changes of 64-bit mode.
pub(super) const ONE_BYTE_64_ENTRIES: Map = map(
    LEGACY,
    &[
        (0x06, 0x07, UNDEFINED),
        (0x0e, 0x0e, UNDEFINED),
        (0x16, 0x17, UNDEFINED),
        (0x1e, 0x1f, UNDEFINED),
        (0x27, 0x27, UNDEFINED),
        (0x2f, 0x2f, UNDEFINED),
        (0x37, 0x37, UNDEFINED),
        (0x3f, 0x3f, UNDEFINED),
        (0x40, 0x4f, k(LegacyKind::Rex)),
        (0x60, 0x61, UNDEFINED),
        (0x82, 0x82, UNDEFINED),
        (0x9a, 0x9a, UNDEFINED),
        (0xce, 0xce, UNDEFINED),
        (0xd4, 0xd4, UNDEFINED),
        (0xd5, 0xd5, k(LegacyKind::Rex2)),
        (0xea, 0xea, UNDEFINED),
    ],
);

/// The arithmetic rows 00 to 3F repeat every eight opcodes: four with ModRM, two with an immediate.
const ARITHMETIC: Map = {
    let mut map = [PLAIN; 256];
    let mut opcode = 0;
    while opcode < 0x40 {
        map[opcode] = match opcode & 7 {
            0..=3 => MODRM,
            4 => i(LegacyImm::Byte),
            5 => i(LegacyImm::Z),
            _ => PLAIN,
        };
        opcode += 1;
    }
    map
};

const LEGACY: Map = map(
    ARITHMETIC,
    &[
        (0x0f, 0x0f, k(LegacyKind::Escape0f)),
        (0x26, 0x26, k(LegacyKind::Segment)),
        (0x2e, 0x2e, k(LegacyKind::Segment)),
        (0x36, 0x36, k(LegacyKind::Segment)),
        (0x3e, 0x3e, k(LegacyKind::Segment)),
        (0x62, 0x62, MEMORY.kind(LegacyKind::Evex)),
        (0x63, 0x63, MODRM),
        (0x64, 0x65, k(LegacyKind::Segment)),
        (0x66, 0x66, k(LegacyKind::OperandSize)),
        (0x67, 0x67, k(LegacyKind::AddressSize)),
        (0x68, 0x68, i(LegacyImm::Z)),
        (0x69, 0x69, MODRM.imm(LegacyImm::Z)),
        (0x6a, 0x6a, i(LegacyImm::Byte)),
        (0x6b, 0x6b, MODRM.imm(LegacyImm::Byte)),
        (0x70, 0x7f, i(LegacyImm::Rel8).op(Op::CondJump)),
        (0x80, 0x80, MODRM.imm(LegacyImm::Byte)),
        (0x81, 0x81, MODRM.imm(LegacyImm::Z)),
        (0x82, 0x83, MODRM.imm(LegacyImm::Byte)),
        (0x84, 0x8b, MODRM),
        (0x8c, 0x8c, g(Group::FromSegment)),
        (0x8d, 0x8d, MEMORY),
        (0x8e, 0x8e, g(Group::ToSegment)),
        (0x8f, 0x8f, g(Group::Reg0).kind(LegacyKind::PopOrXop)),
        (0x9a, 0x9a, i(LegacyImm::Far).op(Op::FarCall)),
        (0xa0, 0xa3, i(LegacyImm::Moffs)),
        (0xa8, 0xa8, i(LegacyImm::Byte)),
        (0xa9, 0xa9, i(LegacyImm::Z)),
        (0xb0, 0xb7, i(LegacyImm::Byte)),
        (0xb8, 0xbf, i(LegacyImm::V)),
        (0xc0, 0xc1, MODRM.imm(LegacyImm::Byte)),
        (0xc2, 0xc2, i(LegacyImm::Word).op(Op::Return)),
        (0xc3, 0xc3, o(Op::Return)),
        (0xc4, 0xc4, MEMORY.kind(LegacyKind::Vex3)),
        (0xc5, 0xc5, MEMORY.kind(LegacyKind::Vex2)),
        (0xc6, 0xc6, g(Group::Group11).imm(LegacyImm::Byte).kind(LegacyKind::Group11)),
        (0xc7, 0xc7, g(Group::Group11).imm(LegacyImm::Z).kind(LegacyKind::Group11)),
        (0xc8, 0xc8, i(LegacyImm::Enter)),
        (0xca, 0xca, i(LegacyImm::Word).op(Op::FarReturn)),
        (0xcb, 0xcb, o(Op::FarReturn)),
        (0xcc, 0xcc, o(Op::Int3)),
        (0xcd, 0xcd, i(LegacyImm::Byte).op(Op::IntN)),
        (0xce, 0xce, o(Op::Into)),
        (0xcf, 0xcf, o(Op::Iret)),
        (0xd0, 0xd3, MODRM),
        (0xd4, 0xd5, i(LegacyImm::Byte)),
        (0xd8, 0xd8, g(Group::D8).kind(LegacyKind::X87)),
        (0xd9, 0xd9, g(Group::D9).kind(LegacyKind::X87)),
        (0xda, 0xda, g(Group::D8).kind(LegacyKind::X87)),
        (0xdb, 0xdb, g(Group::Db).kind(LegacyKind::X87)),
        (0xdc, 0xdc, g(Group::D8).kind(LegacyKind::X87)),
        (0xdd, 0xdd, g(Group::Dd).kind(LegacyKind::X87)),
        (0xde, 0xdf, g(Group::D8).kind(LegacyKind::X87)),
        (0xe0, 0xe3, i(LegacyImm::Rel8).op(Op::CondJump)),
        (0xe4, 0xe7, i(LegacyImm::Byte)),
        (0xe8, 0xe8, i(LegacyImm::RelZ).op(Op::Call)),
        (0xe9, 0xe9, i(LegacyImm::RelZ).op(Op::Jump)),
        (0xea, 0xea, i(LegacyImm::Far).op(Op::FarJump)),
        (0xeb, 0xeb, i(LegacyImm::Rel8).op(Op::Jump)),
        (0xf0, 0xf0, k(LegacyKind::Lock)),
        (0xf1, 0xf1, o(Op::Int1)),
        (0xf2, 0xf2, k(LegacyKind::Repne)),
        (0xf3, 0xf3, k(LegacyKind::Rep)),
        (0xf6, 0xf6, MODRM.imm(LegacyImm::TestByte)),
        (0xf7, 0xf7, MODRM.imm(LegacyImm::TestZ)),
        (0xfe, 0xfe, g(Group::Group4)),
        (0xff, 0xff, g(Group::Group5).kind(LegacyKind::Group5)),
    ],
);

/// The map after 0F.
///
/// Source: SDM vol. 2, appendix Opcode Map, "Two-byte Opcode Map".
pub(super) const MAP_0F_ENTRIES: Map = map(
    [UNDEFINED; 256],
    &[
        (0x00, 0x00, g(Group::Group6)),
        (0x01, 0x01, g(Group::Group7).kind(LegacyKind::Group7)),
        (0x02, 0x03, MODRM),
        (0x05, 0x05, o(Op::Syscall)),
        (0x06, 0x06, PLAIN),
        (0x07, 0x07, o(Op::Sysret)),
        (0x08, 0x09, PLAIN),
        (0x0b, 0x0b, PLAIN),
        (0x0d, 0x0d, MODRM),
        (0x0e, 0x0e, PLAIN),
        (0x0f, 0x0f, MODRM.imm(LegacyImm::Byte).kind(LegacyKind::Amd3dnow)),
        (0x10, 0x11, MODRM),
        (0x12, 0x12, g(Group::MovLow)),
        (0x13, 0x13, g(Group::NpP66Memory)),
        (0x14, 0x15, g(Group::NpP66)),
        (0x16, 0x16, g(Group::MovHigh)),
        (0x17, 0x17, g(Group::NpP66Memory)),
        (0x18, 0x1f, MODRM),
        (0x20, 0x20, k(LegacyKind::ControlRegister { write: false })),
        (0x21, 0x21, k(LegacyKind::DebugRegister)),
        (0x22, 0x22, k(LegacyKind::ControlRegister { write: true })),
        (0x23, 0x23, k(LegacyKind::DebugRegister)),
        (0x28, 0x29, g(Group::NpP66)),
        (0x2a, 0x2a, MODRM),
        (0x2b, 0x2b, g(Group::MovNt)),
        (0x2c, 0x2d, MODRM),
        (0x2e, 0x2f, g(Group::NpP66)),
        (0x30, 0x33, PLAIN),
        (0x34, 0x34, o(Op::Sysenter)),
        (0x35, 0x35, o(Op::Sysexit)),
        (0x37, 0x37, PLAIN),
        (0x38, 0x38, k(LegacyKind::Escape38)),
        (0x3a, 0x3a, k(LegacyKind::Escape3a)),
        (0x40, 0x4f, MODRM),
        (0x50, 0x50, g(Group::NpP66Register)),
        (0x51, 0x51, MODRM),
        (0x52, 0x53, g(Group::NpF3)),
        (0x54, 0x57, g(Group::NpP66)),
        (0x58, 0x5a, MODRM),
        (0x5b, 0x5b, g(Group::NotF2)),
        (0x5c, 0x5f, MODRM),
        (0x60, 0x6b, g(Group::NpP66)),
        (0x6c, 0x6d, g(Group::P66)),
        (0x6e, 0x6e, g(Group::NpP66)),
        (0x6f, 0x6f, g(Group::NotF2)),
        (0x70, 0x70, MODRM.imm(LegacyImm::Byte)),
        (0x71, 0x72, g(Group::Group12).imm(LegacyImm::Byte)),
        (0x73, 0x73, g(Group::Group14).imm(LegacyImm::Byte)),
        (0x74, 0x76, g(Group::NpP66)),
        (0x77, 0x77, PLAIN),
        (0x78, 0x78, g(Group::Vmread).imm(LegacyImm::TwoBytes)),
        (0x79, 0x79, g(Group::Vmwrite)),
        (0x7c, 0x7d, g(Group::P66F2)),
        (0x7e, 0x7f, g(Group::NotF2)),
        (0x80, 0x8f, i(LegacyImm::RelZ).op(Op::CondJump)),
        (0x90, 0x9f, MODRM),
        (0xa0, 0xa2, PLAIN),
        (0xa3, 0xa3, MODRM),
        (0xa4, 0xa4, MODRM.imm(LegacyImm::Byte)),
        (0xa5, 0xa5, MODRM),
        (0xa6, 0xa6, g(Group::F3Register)),
        (0xa7, 0xa7, g(Group::Padlock)),
        (0xa8, 0xa9, PLAIN),
        (0xaa, 0xaa, o(Op::Rsm)),
        (0xab, 0xab, MODRM),
        (0xac, 0xac, MODRM.imm(LegacyImm::Byte)),
        (0xad, 0xad, MODRM),
        (0xae, 0xae, g(Group::Group15).kind(LegacyKind::Group15)),
        (0xaf, 0xb1, MODRM),
        (0xb2, 0xb2, MEMORY),
        (0xb3, 0xb3, MODRM),
        (0xb4, 0xb5, MEMORY),
        (0xb6, 0xb7, MODRM),
        (0xb8, 0xb8, g(Group::F3)),
        (0xb9, 0xb9, MODRM),
        (0xba, 0xba, g(Group::Group8).imm(LegacyImm::Byte)),
        (0xbb, 0xc1, MODRM),
        (0xc2, 0xc2, MODRM.imm(LegacyImm::Byte)),
        (0xc3, 0xc3, g(Group::NpMemory)),
        (0xc4, 0xc4, g(Group::NpP66).imm(LegacyImm::Byte)),
        (0xc5, 0xc5, g(Group::NpP66Register).imm(LegacyImm::Byte)),
        (0xc6, 0xc6, g(Group::NpP66).imm(LegacyImm::Byte)),
        (0xc7, 0xc7, g(Group::Group9).kind(LegacyKind::Group9)),
        (0xc8, 0xcf, PLAIN),
        (0xd0, 0xd0, g(Group::P66F2)),
        (0xd1, 0xd5, g(Group::NpP66)),
        (0xd6, 0xd6, g(Group::MovQ)),
        (0xd7, 0xd7, g(Group::NpP66Register)),
        (0xd8, 0xe5, g(Group::NpP66)),
        (0xe6, 0xe6, g(Group::NotNp)),
        (0xe7, 0xe7, g(Group::NpP66Memory)),
        (0xe8, 0xef, g(Group::NpP66)),
        (0xf0, 0xf0, g(Group::F2Memory)),
        (0xf1, 0xf6, g(Group::NpP66)),
        (0xf7, 0xf7, g(Group::NpP66Register)),
        (0xf8, 0xfe, g(Group::NpP66)),
        (0xff, 0xff, MODRM),
    ],
);

/// The map after 0F 38.
///
/// Source: SDM vol. 2, appendix Opcode Map, "Three-byte Opcode Map".
pub(super) static MAP_0F38: Map = map(
    [UNDEFINED; 256],
    &[
        (0x00, 0x0b, g(Group::NpP66)),
        (0x10, 0x10, g(Group::P66)),
        (0x14, 0x15, g(Group::P66)),
        (0x17, 0x17, g(Group::P66)),
        (0x1c, 0x1e, g(Group::NpP66)),
        (0x20, 0x25, g(Group::P66)),
        (0x28, 0x29, g(Group::P66)),
        (0x2a, 0x2a, g(Group::P66Memory)),
        (0x2b, 0x2b, g(Group::P66)),
        (0x30, 0x35, g(Group::P66)),
        (0x37, 0x41, g(Group::P66)),
        (0x80, 0x82, g(Group::P66Memory)),
        (0x8a, 0x8b, g(Group::NpP66Memory)),
        (0xc8, 0xcd, g(Group::Np)),
        (0xcf, 0xcf, g(Group::P66)),
        (0xd8, 0xd8, g(Group::KeyLockerWide)),
        (0xdb, 0xdb, g(Group::P66)),
        (0xdc, 0xdc, g(Group::AesLoad)),
        (0xdd, 0xdf, g(Group::Aes)),
        (0xf0, 0xf1, g(Group::Movbe)),
        (0xf5, 0xf5, g(Group::P66Memory)),
        (0xf6, 0xf6, g(Group::Adx)),
        (0xf8, 0xf8, g(Group::Enqcmd)),
        (0xf9, 0xf9, g(Group::NpMemory)),
        (0xfa, 0xfb, g(Group::F3Register)),
        (0xfc, 0xfc, MEMORY),
    ],
);

/// The map after 0F 3A; all with Ib.
pub(super) static MAP_0F3A: Map = map(
    [UNDEFINED; 256],
    &[
        (0x08, 0x0e, g(Group::P66).imm(LegacyImm::Byte)),
        (0x0f, 0x0f, g(Group::NpP66).imm(LegacyImm::Byte)),
        (0x14, 0x17, g(Group::P66).imm(LegacyImm::Byte)),
        (0x20, 0x22, g(Group::P66).imm(LegacyImm::Byte)),
        (0x40, 0x42, g(Group::P66).imm(LegacyImm::Byte)),
        (0x44, 0x44, g(Group::P66).imm(LegacyImm::Byte)),
        (0x60, 0x63, g(Group::P66).imm(LegacyImm::Byte)),
        (0xcc, 0xcc, g(Group::Np).imm(LegacyImm::Byte)),
        (0xce, 0xcf, g(Group::P66).imm(LegacyImm::Byte)),
        (0xdf, 0xdf, g(Group::P66).imm(LegacyImm::Byte)),
        (0xf0, 0xf0, g(Group::Hreset).imm(LegacyImm::Byte)),
    ],
);

/// The opcodes that are defined after the operands of 0F 0F.
///
/// Source: AMD64 Architecture Programmer's Manual vol. 3, appendix Opcode and Operand Encodings, "3DNow! Opcodes".
pub(super) static SUFFIX_3DNOW: [bool; 256] = {
    const SUFFIXES: [u8; 26] = [
        0x0c, 0x0d, 0x1c, 0x1d, 0x86, 0x87, 0x8a, 0x8e, 0x90, 0x94, 0x96, 0x97, 0x9a, 0x9e, 0xa0, 0xa4, 0xa6,
        0xa7, 0xaa, 0xae, 0xb0, 0xb4, 0xb6, 0xb7, 0xbb, 0xbf,
    ];
    let mut table = [false; 256];
    let mut at = 0;
    while at < SUFFIXES.len() {
        table[SUFFIXES[at] as usize] = true;
        at += 1;
    }
    table
};
