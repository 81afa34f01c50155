//! VEX, EVEX and XOP: the defined opcodes, and their immediates.
//!
//! The maps are laid out as in the manual: a row for each high digit of the opcode, a column for each low one. The
//! hexadecimal digit in a cell is the set of `pp` values (the mandatory prefix) that are defined: 1 for none, 2 for 66,
//! 4 for F3, 8 for F2. Other reserved values of such an encoding (vvvv, W, L, memory where only registers are allowed,
//! /reg of a group) do not change the length, so they are not checked.
//!
//! Source: SDM vol. 2, appendix Opcode Map, "Two-byte Opcode Map", "Three-byte Opcode Map", and the instructions'
//! pages; AVX10.2 and its auxiliary instructions, ACE and APX: their architecture specifications; XOP: AMD64
//! Architecture Programmer's Manual vol. 6.

use crate::mode::ExecMode;

/// The properties that the prefix selects: an opcode map, `pp`, and the immediates.
#[derive(Clone, Copy)]
pub(super) struct Encoding {
    /// For each opcode, the set of `pp` values that are defined.
    map: &'static [u8; 256],
    /// The prefix's `pp`.
    pp: u8,
    /// The immediate after the operands.
    imm: VectorImm,
}

/// The immediates of one map.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VectorImm {
    /// None.
    None,
    /// Ib for all.
    Byte,
    /// Id for all.
    Dword,
    /// Ib for those opcodes of 0F that have it.
    Map0f,
    /// As in the one-byte map; Iz has this many bytes.
    Map4(usize),
}

impl Encoding {
    /// Returns true if the opcode is defined.
    #[inline]
    pub(super) fn defines(&self, opcode: u8) -> bool {
        self.map[usize::from(opcode)] >> self.pp & 1 != 0
    }

    /// Returns true if there is a ModRM byte. Only VZEROUPPER and VZEROALL have none.
    #[inline]
    pub(super) fn has_modrm(&self, opcode: u8) -> bool {
        !(opcode == 0x77 && core::ptr::eq(self.map, &VEX_0F))
    }

    /// Returns the size of the immediate in bytes.
    #[inline]
    pub(super) fn immediate(&self, opcode: u8, modrm: u8) -> usize {
        match self.imm {
            VectorImm::None => 0,
            VectorImm::Byte => 1,
            VectorImm::Dword => 4,
            VectorImm::Map0f => usize::from(matches!(opcode, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6)),
            VectorImm::Map4(z) => match opcode {
                0x24 | 0x2c | 0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xd4 => 1,
                0x69 | 0x81 => z,
                0xf6 if modrm >> 3 & 7 < 2 => 1,
                0xf7 if modrm >> 3 & 7 < 2 => z,
                _ => 0,
            },
        }
    }
}

/// Returns the encoding that a VEX prefix selects, by the map's number and the byte that ends with `pp`.
#[inline]
pub(super) fn vex(number: u8, last: u8) -> Option<Encoding> {
    let (map, imm) = match number {
        1 => (&VEX_0F, VectorImm::Map0f),
        2 => (&VEX_0F38, VectorImm::None),
        3 => (&VEX_0F3A, VectorImm::Byte),
        5 => (&VEX_5, VectorImm::None),
        7 => (&MSR_7, VectorImm::Dword),
        _ => return None,
    };
    Some(Encoding { map, pp: last & 3, imm })
}

/// Returns the encoding that an XOP prefix selects, by the map's number and the byte that ends with `pp`.
pub(super) fn xop(number: u8, last: u8) -> Option<Encoding> {
    let (map, imm) = match number {
        8 => (&XOP_8, VectorImm::Byte),
        9 => (&XOP_9, VectorImm::None),
        10 => (&XOP_A, VectorImm::Dword),
        _ => return None,
    };
    Some(Encoding { map, pp: last & 3, imm })
}

/// Returns the encoding that an EVEX prefix selects, by the first two bytes after 62.
///
/// In 64-bit mode, two bits that used to be fixed now belong to APX (B4, X4) and AVX10 (U).
pub(super) fn evex(first: u8, second: u8, mode: ExecMode) -> Option<Encoding> {
    if mode != ExecMode::Bits64 && (first & 0x08 != 0 || second & 0x04 == 0) {
        return None;
    }
    let pp = second & 3;
    let (map, imm) = match first & 7 {
        1 => (&EVEX_0F, VectorImm::Map0f),
        2 => (&EVEX_0F38, VectorImm::None),
        3 => (&EVEX_0F3A, VectorImm::Byte),
        4 if mode == ExecMode::Bits64 => {
            (&EVEX_4, VectorImm::Map4(if pp == 1 && second & 0x80 == 0 { 2 } else { 4 }))
        }
        5 => (&EVEX_5, VectorImm::None),
        6 => (&EVEX_6, VectorImm::None),
        7 if mode == ExecMode::Bits64 => (&MSR_7, VectorImm::Dword),
        _ => return None,
    };
    Some(Encoding { map, pp, imm })
}

/// Returns the value of a hexadecimal digit.
pub(super) const fn hex_digit(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => digit - b'a' + 10,
    }
}

/// Converts rows of hexadecimal digits to a table.
const fn map(rows: [&[u8; 16]; 16]) -> [u8; 256] {
    let mut map = [0; 256];
    let mut opcode = 0;
    while opcode < 256 {
        map[opcode] = hex_digit(rows[opcode / 16][opcode % 16]);
        opcode += 1;
    }
    map
}

/// VEX after 0F.
static VEX_0F: [u8; 256] = map([
    b"0000000000000000", // 00
    b"fff3337300000000", // 10
    b"0000000033c3cc33", // 20
    b"0000000000000000", // 30
    b"0330333300330000", // 40
    b"3f553333fff7ffff", // 50
    b"2222222222222226", // 60
    b"e22222210000aa66", // 70
    b"0000000000000000", // 80
    b"33bb000033000000", // 90
    b"0000000000000010", // A0
    b"0000000000000000", // B0
    b"00f0223000000000", // C0
    b"a222222222222222", // D0
    b"222222e222222222", // E0
    b"8222222222222220", // F0
]);

/// VEX after 0F 38.
static VEX_0F38: [u8; 256] = map([
    b"2222222222222222", // 00
    b"0002002222202220", // 10
    b"2222220022222222", // 20
    b"2222222222222222", // 30
    b"22000222fbae0000", // 40
    b"ff2200002220c0ff", // 50
    b"00000000000ff0ff", // 60
    b"0040000022000000", // 70
    b"0000000000002020", // 80
    b"2222002222222222", // 90
    b"0000002222222222", // A0
    b"f600222222222222", // B0
    b"0000000000088802", // C0
    b"0077000000f22222", // D0
    b"2222222222222222", // E0
    b"00110d8f00000000", // F0
]);

/// VEX after 0F 3A.
static VEX_0F3A: [u8; 256] = map([
    b"2220222022222222", // 00
    b"0000222222000200", // 10
    b"2220000000000000", // 20
    b"2222000022000000", // 30
    b"2220202022222000", // 40
    b"0000000000002222", // 50
    b"2222000022222222", // 60
    b"0000000022222222", // 70
    b"0000000000000000", // 80
    b"0000000000000000", // 90
    b"0000000000000000", // A0
    b"0000000000000000", // B0
    b"0000000000000022", // C0
    b"0000000000000022", // D0
    b"0000000000000000", // E0
    b"8000000000000000", // F0
]);

/// VEX map 5: AMX.
static VEX_5: [u8; 256] = map([
    b"0000000000000000", // 00
    b"0000000000000000", // 10
    b"0000000000000000", // 20
    b"0000000000000000", // 30
    b"0000000000000000", // 40
    b"0000000000000000", // 50
    b"0000000000000000", // 60
    b"0000000000000000", // 70
    b"0000000000000000", // 80
    b"0000000000000000", // 90
    b"0000000000000000", // A0
    b"0000000000000000", // B0
    b"0000000000000000", // C0
    b"0000000000000000", // D0
    b"0000000000000000", // E0
    b"00000000ff000f00", // F0
]);

/// VEX and EVEX map 7: RDMSR, WRMSRNS, URDMSR, UWRMSR with an immediate.
static MSR_7: [u8; 256] = map([
    b"0000000000000000", // 00
    b"0000000000000000", // 10
    b"0000000000000000", // 20
    b"0000000000000000", // 30
    b"0000000000000000", // 40
    b"0000000000000000", // 50
    b"0000000000000000", // 60
    b"0000000000000000", // 70
    b"0000000000000000", // 80
    b"0000000000000000", // 90
    b"0000000000000000", // A0
    b"0000000000000000", // B0
    b"0000000000000000", // C0
    b"0000000000000000", // D0
    b"0000000000000000", // E0
    b"000000c0c0000000", // F0
]);

/// XOP map 8.
static XOP_8: [u8; 256] = map([
    b"0000000000000000", // 00
    b"0000000000000000", // 10
    b"0000000000000000", // 20
    b"0000000000000000", // 30
    b"0000000000000000", // 40
    b"0000000000000000", // 50
    b"0000000000000000", // 60
    b"0000000000000000", // 70
    b"0000011100000011", // 80
    b"0000011100000011", // 90
    b"0011001000000000", // A0
    b"0000001000000000", // B0
    b"1111000000001111", // C0
    b"0000000000000000", // D0
    b"0000000000001111", // E0
    b"0000000000000000", // F0
]);

/// XOP map 9.
static XOP_9: [u8; 256] = map([
    b"0110000000000000", // 00
    b"0010000000000000", // 10
    b"0000000000000000", // 20
    b"0000000000000000", // 30
    b"0000000000000000", // 40
    b"0000000000000000", // 50
    b"0000000000000000", // 60
    b"0000000000000000", // 70
    b"1111000000000000", // 80
    b"1111111111110000", // 90
    b"0000000000000000", // A0
    b"0000000000000000", // B0
    b"0111001100010000", // C0
    b"0111001100010000", // D0
    b"0111000000000000", // E0
    b"0000000000000000", // F0
]);

/// XOP map 10.
static XOP_A: [u8; 256] = map([
    b"0000000000000000", // 00
    b"1010000000000000", // 10
    b"0000000000000000", // 20
    b"0000000000000000", // 30
    b"0000000000000000", // 40
    b"0000000000000000", // 50
    b"0000000000000000", // 60
    b"0000000000000000", // 70
    b"0000000000000000", // 80
    b"0000000000000000", // 90
    b"0000000000000000", // A0
    b"0000000000000000", // B0
    b"0000000000000000", // C0
    b"0000000000000000", // D0
    b"0000000000000000", // E0
    b"0000000000000000", // F0
]);

/// EVEX after 0F.
static EVEX_0F: [u8; 256] = map([
    b"0000000000000000", // 00
    b"fff3337300000000", // 10
    b"0000000033c3ccff", // 20
    b"0000000000000000", // 30
    b"0000000000000000", // 40
    b"0f003333fff7ffff", // 50
    b"222222222222222e", // 60
    b"e2222220ffee006e", // 70
    b"0000000000000000", // 80
    b"bbbb000000000000", // 90
    b"0000000000000000", // A0
    b"0000000000000000", // B0
    b"00f0223000000000", // C0
    b"0222222022222222", // D0
    b"222222e222222222", // E0
    b"0222222022222220", // F0
]);

/// EVEX after 0F 38.
static EVEX_0F38: [u8; 256] = map([
    b"2000200000022200", // 00
    b"6666662022222222", // 10
    b"6666666666622200", // 20
    b"6666662266622222", // 30
    b"242222220fff2222", // 40
    b"ffff2200222240f0", // 50
    b"0022222f80000f00", // 60
    b"22e2f22222222222", // 70
    b"0002000022220202", // 80
    b"2222002222aa2222", // 90
    b"2222002222aa2222", // A0
    b"0000222222222222", // B0
    b"0000202220222202", // C0
    b"0077000000c02222", // D0
    b"2222222222222222", // E0
    b"00110d8f00000000", // F0
]);

/// EVEX after 0F 3A.
static EVEX_0F3A: [u8; 256] = map([
    b"2202220fb2320002", // 00
    b"0000222222220222", // 10
    b"222202b300000002", // 20
    b"0000000022220122", // 30
    b"0062200000000000", // 40
    b"22bb22b300000000", // 50
    b"000000b300000000", // 60
    b"2222000f00000000", // 70
    b"0000000000000f08", // 80
    b"0000000000000000", // 90
    b"0000000000000000", // A0
    b"0000000000000000", // B0
    b"00d0000000000022", // C0
    b"0000000000000000", // D0
    b"0000000000000000", // E0
    b"8000000000000000", // F0
]);

/// EVEX map 4: APX forms of the one-byte map's instructions and of a few others.
static EVEX_4: [u8; 256] = map([
    b"3333000033330000", // 00
    b"3333000033330000", // 10
    b"3333300033333000", // 20
    b"33330000ffff0000", // 30
    b"ffffffffffffffff", // 40
    b"0000000000000000", // 50
    b"3300027003030000", // 60
    b"0000000000000000", // 70
    b"ff0fff0030330001", // 80
    b"0000000000000000", // 90
    b"0000030000000303", // A0
    b"0000000000000000", // B0
    b"3300000000000000", // C0
    b"3333100055555550", // D0
    b"0000000000000000", // E0
    b"774033ffe100f033", // F0
]);

/// EVEX map 5: half precision.
static EVEX_5: [u8; 256] = map([
    b"0000000000000000", // 00
    b"44000000f00f0380", // 10
    b"00000000004044df", // 20
    b"0000001375754440", // 30
    b"0000000000000000", // 40
    b"0700000077f77777", // 50
    b"00000000ffffff6c", // 60
    b"0000f00077a63f60", // 70
    b"0000000000000000", // 80
    b"0000000000000000", // 90
    b"0000000000000000", // A0
    b"0000000000000000", // B0
    b"0000000000000000", // C0
    b"0000000000000000", // D0
    b"0000000000000000", // E0
    b"0000000000000000", // F0
]);

/// EVEX map 6: half precision.
static EVEX_6: [u8; 256] = map([
    b"0000000000000000", // 00
    b"0003000000000000", // 10
    b"0000000000003200", // 20
    b"0000000000000000", // 30
    b"0032000000003232", // 40
    b"000000cc00000000", // 50
    b"0000000000000000", // 60
    b"0000000000000000", // 70
    b"0000000000000000", // 80
    b"00000d2232323232", // 90
    b"0000002232323232", // A0
    b"0000002232323232", // B0
    b"0000000000000000", // C0
    b"000000cc00000000", // D0
    b"0000000000000000", // E0
    b"0000000000000000", // F0
]);
