//! Instructions as libipt 2.0.5 decodes them: length, class and branch target.
//!
//! The decoder's own instruction reader refuses bytes that are no instruction, and knows newer instructions. libipt
//! refuses almost nothing: it gives every opcode a length. Callers see the difference where damaged traces lead into
//! the middle of instructions.

use super::insn::{PtInsn, class};
use crate::error::Code;
use std::ffi::c_int;

/// The detail that decoders need beyond the class of an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Detail {
    #[default]
    Other,
    MovCr3,
    /// VMLAUNCH or VMRESUME.
    VmEntry,
    Vmptrld,
}

/// The fields of an instruction that the caller does not get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extra {
    pub(crate) detail: Detail,
    /// The displacement of a direct branch, from its end.
    pub(crate) displacement: Option<i32>,
    /// The displacement's size in bytes, at the end of the instruction: 1, 2 or 4.
    pub(crate) width: u8,
}

impl Extra {
    pub(crate) const NONE: Self = Self { detail: Detail::Other, displacement: None, width: 0 };
}

/// `enum pt_exec_mode`, and the size of operands or addresses of that many bits.
const BITS_16: c_int = 1;
const BITS_32: c_int = 2;
const BITS_64: c_int = 3;

/// Opcode maps: three bytes, 3DNow!, and none.
const MAP_3: u8 = 3;
const MAP_3DNOW: u8 = 4;
const MAP_NONE: u8 = 5;

/// An instruction that is being decoded.
struct Reader<'a> {
    bytes: &'a [u8],
    mode: c_int,
    map: u8,
    opcode: u8,
    modrm: u8,
    operand_prefix: bool,
    address_prefix: bool,
    has_f3: bool,
    /// True if the last of the prefixes f2 and f3 is f2.
    last_is_f2: bool,
    rex_w: bool,
    rex_r: bool,
    vex: bool,
    displacement: (usize, usize),
    immediate: usize,
}

type Length = Result<usize, Code>;

/// Returns true if an opcode of one byte has a ModR/M byte.
const fn has_modrm(opcode: u8) -> bool {
    match opcode {
        0x0f | 0x26 | 0x2e | 0x36 | 0x3e => false,
        0x00..0x40 => opcode & 7 < 4,
        0x62 | 0x63 | 0x69 | 0x6b | 0x80..=0x8f | 0xc0 | 0xc1 | 0xc4..=0xc7 => true,
        0xd0..=0xd3 | 0xd8..=0xdf | 0xf6 | 0xf7 | 0xfe | 0xff => true,
        _ => false,
    }
}

/// Returns true if an opcode of two bytes has a ModR/M byte.
const fn has_modrm_0f(opcode: u8) -> bool {
    matches!(
        opcode,
        0x00..=0x03 | 0x0d | 0x10..=0x23 | 0x28..=0x2f | 0x40..=0x76 | 0x78..=0x7f
            | 0x90..=0x9f | 0xa3..=0xa5 | 0xab..=0xb8 | 0xba..=0xc7 | 0xd0..=0xfe
    )
}

const fn word_or_more(size: c_int) -> usize {
    if size == BITS_16 { 2 } else { 4 }
}

const fn whole(size: c_int) -> usize {
    match size {
        BITS_16 => 2,
        BITS_32 => 4,
        _ => 8,
    }
}

impl Reader<'_> {
    fn at(&self, at: usize) -> Result<u8, Code> {
        self.bytes.get(at).copied().ok_or(Code::BadInstruction)
    }

    /// Fails unless that many bytes are there.
    fn needs(&self, len: usize) -> Length {
        if len > self.bytes.len() { Err(Code::BadInstruction) } else { Ok(len) }
    }

    const fn reg(&self) -> u8 {
        self.modrm >> 3 & 7
    }

    /// Returns the size of operands if it is `default` in 64-bit mode.
    const fn operands(&self, default: c_int) -> c_int {
        match self.mode {
            BITS_64 if self.rex_w => BITS_64,
            BITS_64 if self.operand_prefix => BITS_16,
            BITS_64 => default,
            BITS_32 if self.operand_prefix => BITS_16,
            BITS_32 => BITS_32,
            _ if self.operand_prefix => BITS_32,
            _ => BITS_16,
        }
    }

    const fn addresses(&self) -> c_int {
        match (self.mode, self.address_prefix) {
            (BITS_64, false) => BITS_64,
            (BITS_64, true) | (BITS_32, false) => BITS_32,
            (BITS_32, true) => BITS_16,
            (_, true) => BITS_32,
            (_, false) => BITS_16,
        }
    }

    /// Returns the length of the instruction.
    fn length(&mut self) -> Length {
        let (mut at, mut rex) = (0, 0);
        loop {
            let byte = self.at(at)?;
            let is_long = self.mode == BITS_64;
            match byte {
                0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0 => rex = 0,
                0x66 => (self.operand_prefix, rex) = (true, 0),
                0x67 => (self.address_prefix, rex) = (true, 0),
                0xf2 => (self.last_is_f2, rex) = (true, 0),
                0xf3 => (self.has_f3, self.last_is_f2, rex) = (true, false, 0),
                0x40..=0x4f if is_long => rex = byte,
                // In 64-bit mode the byte is a REX prefix, elsewhere an instruction.
                0x40..=0x4f => return self.opcode(at),
                // Outside 64-bit mode these are LES, LDS and BOUND unless their operand were a register.
                0xc4 | 0xc5 | 0x62 => {
                    let second = self.at(at + 1)?;
                    if !is_long && second & 0xc0 != 0xc0 {
                        return self.opcode(at);
                    }
                    return self.vex(at, byte, second);
                }
                _ => {
                    self.rex_r |= rex & 4 != 0;
                    self.rex_w |= rex & 8 != 0;
                    return self.opcode(at);
                }
            }
            at += 1;
        }
    }

    fn vex(&mut self, at: usize, first: u8, second: u8) -> Length {
        let size = match first {
            0xc5 => 2,
            0xc4 => 3,
            _ => 4,
        };
        self.needs(at + size + 1)?;
        self.vex = true;
        self.rex_r |= second & 0x80 != 0;
        if first == 0xc5 {
            self.map = 1;
        } else {
            self.rex_w |= self.at(at + 2)? & 0x80 != 0;
            self.map = if first == 0xc4 { second & 0x1f } else { second & 3 };
            if self.map >= MAP_NONE {
                return Err(Code::BadInstruction);
            }
            self.immediate = usize::from(self.map == MAP_3);
        }
        self.opcode = self.at(at + size)?;
        self.modrm(at + size + 1)
    }

    fn opcode(&mut self, at: usize) -> Length {
        let first = self.at(at)?;
        if first != 0x0f {
            (self.map, self.opcode) = (0, first);
            return self.modrm(at + 1);
        }
        let second = self.at(at + 1)?;
        if second & 0xf8 == 0x38 {
            (self.map, self.immediate) = match second {
                0x38 => (2, 0),
                0x3a => (MAP_3, 1),
                _ => (MAP_NONE, 0),
            };
            self.opcode = self.at(at + 2)?;
            return self.modrm(at + 3);
        }
        // The opcode of 3DNow! comes last.
        (self.map, self.opcode) = (if second == 0x0f { MAP_3DNOW } else { 1 }, second);
        self.modrm(at + 2)
    }

    fn modrm(&mut self, at: usize) -> Length {
        let has = match self.map {
            0 => has_modrm(self.opcode),
            1 => has_modrm_0f(self.opcode),
            _ => true,
        };
        if !has {
            return self.displacement(at);
        }
        self.modrm = self.at(at)?;
        let (mode, rm) = (self.modrm >> 6, self.modrm & 7);
        // MOV to and from control and debug registers has registers only.
        let registers = self.map == 1 && matches!(self.opcode, 0x20..=0x23);
        let mut next = at + 1;
        if !registers {
            let short = self.addresses() == BITS_16;
            let mut size = match mode {
                0 if short && rm == 6 => 2,
                0 if !short && rm == 5 => 4,
                1 => 1,
                2 if short => 2,
                2 => 4,
                _ => 0,
            };
            if !short && rm == 4 && mode != 3 {
                let sib = self.at(next)?;
                next += 1;
                if sib & 7 == 5 && mode == 0 {
                    size = 4;
                }
            }
            self.displacement.1 = size;
        }
        self.displacement(next)
    }

    fn displacement(&mut self, at: usize) -> Length {
        if self.displacement.1 == 0 {
            let branch = if self.mode == BITS_64 { 4 } else { word_or_more(self.operands(BITS_32)) };
            self.displacement.1 = match (self.map, self.opcode) {
                (0, 0x70..=0x7f | 0xe0..=0xe3 | 0xeb) => 1,
                (0, 0xe8 | 0xe9) | (1, 0x80..=0x8f) => branch,
                (0, 0x9a | 0xea) => word_or_more(self.operands(BITS_32)),
                (0, 0xa0..=0xa3) => whole(self.addresses()),
                (0, 0xc7) if self.reg() == 7 => word_or_more(self.operands(BITS_32)),
                _ => 0,
            };
        }
        self.displacement.0 = at;
        let next = self.needs(at + self.displacement.1)?;
        self.immediate(next)
    }

    fn immediate(&mut self, at: usize) -> Length {
        if self.map == MAP_3DNOW {
            self.opcode = self.at(at)?;
            return Ok(at + 1);
        }
        let operand = || word_or_more(self.operands(BITS_32));
        let size = match (self.map, self.opcode) {
            (0, 0x04 | 0x0c | 0x14 | 0x1c | 0x24 | 0x2c | 0x34 | 0x3c) => 1,
            (0, 0x05 | 0x0d | 0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d) => operand(),
            (0, 0x6a | 0x6b | 0x80 | 0x82 | 0x83 | 0xa8 | 0xb0..=0xb7 | 0xc0 | 0xc1 | 0xc6) => 1,
            (0, 0xcd | 0xd4 | 0xd5 | 0xe4..=0xe7) => 1,
            (0, 0x69 | 0x81 | 0xa9) => operand(),
            (0, 0x68) => word_or_more(self.operands(BITS_64)),
            (0, 0xb8..=0xbf) => whole(self.operands(BITS_32)),
            (0, 0x9a | 0xc2 | 0xca | 0xea) => 2,
            (0, 0xc7) if self.reg() == 0 => operand(),
            (0, 0xf6) if self.reg() < 2 => 1,
            (0, 0xf7) if self.reg() < 2 => operand(),
            (0, 0xc8) => 3,
            (1, 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6) => 1,
            // EXTRQ and INSERTQ.
            (1, 0x78) if self.operand_prefix || self.last_is_f2 => 2,
            _ => self.immediate,
        };
        self.needs(at + size)
    }

    /// Returns the class of the instruction, and its detail.
    fn classify(&self) -> (c_int, Detail) {
        let other = (class::OTHER, Detail::Other);
        if self.map > 1 || self.vex {
            return other;
        }
        let plain = |class| (class, Detail::Other);
        match (self.map, self.opcode) {
            (0, 0x70..=0x7f | 0xe0..=0xe3) | (1, 0x80..=0x8f) => plain(class::COND_JUMP),
            (0, 0x9a) => plain(class::FAR_CALL),
            (0, 0xff) => match self.reg() {
                2 => plain(class::CALL),
                3 => plain(class::FAR_CALL),
                4 => plain(class::JUMP),
                5 => plain(class::FAR_JUMP),
                _ => other,
            },
            (0, 0xe8) => plain(class::CALL),
            (0, 0xcc | 0xcd | 0xce | 0xf1) | (1, 0x05 | 0x34) => plain(class::FAR_CALL),
            (0, 0xcf) | (1, 0x07 | 0x35) => plain(class::FAR_RETURN),
            (0, 0xe9 | 0xeb) => plain(class::JUMP),
            (0, 0xea) => plain(class::FAR_JUMP),
            (0, 0xc2 | 0xc3) => plain(class::RETURN),
            (0, 0xca | 0xcb) => plain(class::FAR_RETURN),
            (1, 0x22) if self.reg() == 3 && !self.rex_r => (class::OTHER, Detail::MovCr3),
            (1, 0x01) => match self.modrm {
                0xc1 => plain(class::FAR_CALL),
                0xc2 | 0xc3 => (class::FAR_RETURN, Detail::VmEntry),
                0xec => plain(class::FAR_RETURN),
                _ => other,
            },
            (1, 0xc7) if self.modrm < 0xc0 && self.reg() == 6 => (class::OTHER, Detail::Vmptrld),
            (1, 0xae) if self.has_f3 && !self.operand_prefix && self.reg() == 4 => plain(class::PTWRITE),
            _ => other,
        }
    }

    /// Returns the displacement of a direct branch.
    fn target(&self, class: c_int) -> Option<i32> {
        let is_direct =
            class == class::COND_JUMP || matches!(class, class::CALL | class::JUMP) && self.opcode != 0xff;
        let (at, size) = self.displacement;
        let bytes = self.bytes.get(at..at + size).filter(|_| is_direct)?;
        match *bytes {
            [byte] => Some(byte.cast_signed().into()),
            [low, high] => Some(i16::from_le_bytes([low, high]).into()),
            [a, b, c, d] => Some(i32::from_le_bytes([a, b, c, d])),
            _ => None,
        }
    }
}

/// Decodes the instruction in `insn.raw`, which holds `insn.size` bytes. Sets its size and class.
pub(crate) fn decode(insn: &mut PtInsn) -> Result<Extra, Code> {
    if !(BITS_16..=BITS_64).contains(&insn.mode) {
        return Err(Code::BadInstruction);
    }
    let mut bytes = Reader {
        bytes: &insn.raw[..usize::from(insn.size).min(15)],
        mode: insn.mode,
        map: MAP_NONE,
        opcode: 0,
        modrm: 0,
        operand_prefix: false,
        address_prefix: false,
        has_f3: false,
        last_is_f2: false,
        rex_w: false,
        rex_r: false,
        vex: false,
        displacement: (0, 0),
        immediate: 0,
    };
    let size = bytes.length()?;
    let (class, detail) = bytes.classify();
    // At most 8.
    let width = bytes.displacement.1 as u8;
    let extra = Extra { detail, displacement: bytes.target(class), width };
    // At most 15.
    insn.size = size as u8;
    insn.class = class;
    Ok(extra)
}
