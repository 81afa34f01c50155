//! The single pass over an instruction's bytes: prefixes, opcode, ModRM, SIB, displacement and immediate.

use super::group::{GROUP7_REGISTERS, Group, Prefix, X87_REGISTERS};
use super::legacy::{self, Attr, LegacyImm, LegacyKind, Map};
use super::{Insn, InsnError, MAX_LEN, Op, vector};
use crate::mode::ExecMode;

/// REX.W, also REX2.W.
const REX_W: u8 = 8;
/// REX.R.
const REX_R: u8 = 4;
/// REX2.R4.
const REX2_R4: u8 = 0x40;

/// Decodes as [`super::decode()`].
pub(super) fn decode(bytes: &[u8], mode: ExecMode, ip: u64) -> Result<Insn, InsnError> {
    let map = if mode == ExecMode::Bits64 { &legacy::ONE_BYTE_64 } else { &legacy::ONE_BYTE };
    let mut pass = Pass {
        bytes,
        at: 0,
        mode,
        ip,
        operand: false,
        address: false,
        rep: 0,
        lock: false,
        rex: 0,
        has_rex: false,
    };
    loop {
        let opcode = pass.byte()?;
        let attr = map[opcode as usize];
        match attr.kind {
            LegacyKind::Op(op) => return pass.operands(attr, op),
            LegacyKind::Rex => {
                pass.rex = opcode & 0xf;
                pass.has_rex = true;
                continue;
            }
            LegacyKind::OperandSize => pass.operand = true,
            LegacyKind::AddressSize => pass.address = true,
            LegacyKind::Segment => {}
            LegacyKind::Lock => pass.lock = true,
            LegacyKind::Repne => pass.rep = 3,
            LegacyKind::Rep => pass.rep = 2,
            _ => return pass.special(opcode, attr),
        }
        // A REX prefix has an effect only directly before the opcode.
        pass.rex = 0;
        pass.has_rex = false;
    }
}

/// The state of decoding one instruction.
struct Pass<'a> {
    bytes: &'a [u8],
    /// The number of bytes consumed.
    at: usize,
    mode: ExecMode,
    ip: u64,
    /// True after an operand-size prefix, 66.
    operand: bool,
    /// True after an address-size prefix, 67.
    address: bool,
    /// The last of the prefixes F3 (2) and F2 (3), or 0.
    rep: Prefix,
    /// True after a LOCK prefix, F0.
    lock: bool,
    /// The REX prefix's or the REX2 payload's bits.
    rex: u8,
    has_rex: bool,
}

impl Pass<'_> {
    /// Consumes the next byte.
    #[inline]
    fn byte(&mut self) -> Result<u8, InsnError> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    /// Returns the next byte, without consuming it.
    #[inline]
    fn peek(&self) -> Result<u8, InsnError> {
        if self.at >= MAX_LEN {
            return Err(InsnError::TooLong);
        }
        self.bytes.get(self.at).copied().ok_or(InsnError::Truncated)
    }

    /// Returns the mandatory prefix, numbered as in VEX.pp.
    #[inline]
    fn prefix(&self) -> Prefix {
        if self.rep != 0 { self.rep } else { usize::from(self.operand) }
    }

    /// Decodes opcodes that need more than an entry in a table.
    fn special(&mut self, opcode: u8, attr: Attr) -> Result<Insn, InsnError> {
        match attr.kind {
            LegacyKind::Escape0f => {
                let opcode = self.byte()?;
                self.opcode_0f(opcode)
            }
            LegacyKind::Vex2 | LegacyKind::Vex3 | LegacyKind::Evex => {
                // Outside 64-bit mode, LDS, LES and BOUND take only memory. With a register, the byte is a VEX or EVEX
                // prefix.
                if self.mode != ExecMode::Bits64 && self.peek()? < 0xc0 {
                    return self.operands(attr, Op::Other);
                }
                self.vector(attr.kind)
            }
            LegacyKind::PopOrXop if self.peek()? & 0x1f >= 8 => self.vector(attr.kind),
            LegacyKind::Rex2 => self.rex2(),
            _ => self.by_modrm(opcode, attr),
        }
    }

    /// Decodes from the opcode after 0F.
    fn opcode_0f(&mut self, opcode: u8) -> Result<Insn, InsnError> {
        let attr = legacy::MAP_0F[opcode as usize];
        match attr.kind {
            LegacyKind::Op(op) => self.operands(attr, op),
            LegacyKind::Escape38 => self.escaped(&legacy::MAP_0F38),
            LegacyKind::Escape3a => self.escaped(&legacy::MAP_0F3A),
            _ => self.by_modrm(opcode, attr),
        }
    }

    /// Decodes from the opcode after 0F 38 or 0F 3A.
    fn escaped(&mut self, map: &Map) -> Result<Insn, InsnError> {
        let attr = map[self.byte()? as usize];
        match attr.kind {
            LegacyKind::Op(op) => self.operands(attr, op),
            _ => Err(InsnError::Undefined),
        }
    }

    /// Decodes opcodes whose ModRM byte selects the instruction.
    fn by_modrm(&mut self, opcode: u8, attr: Attr) -> Result<Insn, InsnError> {
        if attr.kind == LegacyKind::Undefined {
            return Err(InsnError::Undefined);
        }
        let modrm = self.peek()?;
        let register = modrm >= 0xc0;
        let reg = modrm >> 3 & 7;
        let prefix = self.prefix();
        let defined = |defined: bool| if defined { Ok(Op::Other) } else { Err(InsnError::Undefined) };
        let op = match attr.kind {
            LegacyKind::Group5 => match reg {
                2 => Op::IndirectCall,
                3 => Op::FarCall,
                4 => Op::IndirectJump,
                5 => Op::FarJump,
                _ => Op::Other,
            },
            LegacyKind::X87 => {
                let bits = X87_REGISTERS[usize::from(opcode & 7)];
                defined(!register || bits >> (modrm & 0x3f) & 1 != 0)?
            }
            LegacyKind::Group11 => defined(!register || reg == 0 || modrm == 0xf8)?,
            LegacyKind::Group7 if register => {
                defined(GROUP7_REGISTERS[usize::from(modrm & 0x3f)] >> prefix & 1 != 0)?;
                self.group7(modrm, prefix)?
            }
            LegacyKind::Group9 => match (register, reg, prefix) {
                (false, 6, 0) => Op::Vmptrld,
                _ => Op::Other,
            },
            LegacyKind::Group15 => match (reg, prefix) {
                (4, 2) => {
                    defined(!self.operand)?;
                    Op::Ptwrite
                }
                // RDFSBASE to WRGSBASE.
                (0..=3, 2) => defined(self.mode == ExecMode::Bits64)?,
                _ => Op::Other,
            },
            LegacyKind::ControlRegister { write } => return self.control_register(write),
            LegacyKind::DebugRegister => {
                defined(self.rex & (REX_R | REX2_R4) == 0)?;
                return self.finish(self.at + 1, Op::Other);
            }
            LegacyKind::Amd3dnow => return self.amd_3dnow(attr),
            LegacyKind::PopOrXop | LegacyKind::Group7 => Op::Other,
            _ => return Err(InsnError::Undefined),
        };
        self.operands(attr, op)
    }

    /// Returns the instruction of 0F 01 with a register.
    fn group7(&self, modrm: u8, prefix: Prefix) -> Result<Op, InsnError> {
        let op = match (modrm, prefix) {
            (0xc1, _) | (0xcc, 1) | (0xcf, 1) => Op::Vmcall,
            (0xc2 | 0xc3, _) | (0xcd, 1) => Op::VmEntry,
            (0xca, 2 | 3) => Op::Eret,
            (0xec, 2) => Op::Uiret,
            // SWAPGS, user interrupts, MSR lists.
            (0xf8, _) | (0xed..=0xef, 2) | (0xc6, 2 | 3) => Op::Other,
            _ => return Ok(Op::Other),
        };
        let only_64 = matches!(modrm, 0xca | 0xec..=0xef | 0xf8 | 0xc6);
        if only_64 && self.mode != ExecMode::Bits64 { Err(InsnError::Undefined) } else { Ok(op) }
    }

    /// Decodes MOV from and to a control register. ModRM.mod is ignored, so there is never a displacement.
    fn control_register(&self, write: bool) -> Result<Insn, InsnError> {
        let mut number = self.peek()? >> 3 & 7;
        // LOCK acts as REX.R, so that CR8 is accessible outside 64-bit mode (AMD64 vol. 3, "MOV CRn").
        if self.rex & REX_R != 0 || self.lock {
            number |= 8;
        }
        if self.rex & REX2_R4 != 0 {
            number |= 16;
        }
        match number {
            3 if write => self.finish(self.at + 1, Op::MovToCr3),
            0 | 2 | 3 | 4 | 8 => self.finish(self.at + 1, Op::Other),
            _ => Err(InsnError::Undefined),
        }
    }

    /// Decodes 0F 0F, where the opcode is after the operands.
    fn amd_3dnow(&mut self, attr: Attr) -> Result<Insn, InsnError> {
        let insn = self.operands(attr, Op::Other)?;
        match self.bytes.get(usize::from(insn.len) - 1) {
            Some(&suffix) if legacy::SUFFIX_3DNOW[usize::from(suffix)] => Ok(insn),
            _ => Err(InsnError::Undefined),
        }
    }

    /// Decodes REX2: its payload byte has the register bits, and a bit that selects the opcode map instead of 0F.
    ///
    /// Source: Intel APX architecture specification, "REX2 Prefix".
    fn rex2(&mut self) -> Result<Insn, InsnError> {
        if self.has_rex {
            return Err(InsnError::Undefined);
        }
        let payload = self.byte()?;
        let opcode = self.byte()?;
        self.rex = payload & 0x7f;
        if payload & 0x80 != 0 {
            // Rows 3 and 8 are reserved: escapes, MSR and SYSENTER instructions, and Jcc.
            return if matches!(opcode >> 4, 3 | 8) {
                Err(InsnError::Undefined)
            } else {
                self.opcode_0f(opcode)
            };
        }
        let attr = legacy::ONE_BYTE_64[opcode as usize];
        match attr.kind {
            _ if opcode == 0xa1 && payload & REX_W == 0 => self.finish(self.at + 8, Op::Jmpabs),
            _ if matches!(opcode >> 4, 4 | 7 | 0xa | 0xe) => Err(InsnError::Undefined),
            LegacyKind::Op(op) => self.operands(attr, op),
            LegacyKind::PopOrXop if self.peek()? & 0x1f >= 8 => Err(InsnError::Undefined),
            _ => self.by_modrm(opcode, attr),
        }
    }

    /// Decodes instructions with a VEX, EVEX or XOP prefix.
    fn vector(&mut self, kind: LegacyKind) -> Result<Insn, InsnError> {
        if self.has_rex || self.operand || self.rep != 0 || self.lock {
            return Err(InsnError::Undefined);
        }
        let first = self.byte()?;
        let encoding = match kind {
            LegacyKind::Vex2 => vector::vex(1, first),
            LegacyKind::Vex3 => vector::vex(first & 0x1f, self.byte()?),
            LegacyKind::Evex => {
                let second = self.byte()?;
                self.byte()?;
                vector::evex(first, second, self.mode)
            }
            _ => vector::xop(first & 0x1f, self.byte()?),
        };
        let encoding = encoding.ok_or(InsnError::Undefined)?;
        let opcode = self.byte()?;
        if !encoding.defines(opcode) {
            return Err(InsnError::Undefined);
        }
        if !encoding.has_modrm(opcode) {
            return self.finish(self.at, Op::Other);
        }
        let modrm = self.byte()?;
        self.finish(self.at + self.address_bytes(modrm)? + encoding.immediate(opcode, modrm), Op::Other)
    }

    /// Decodes ModRM, SIB, displacement and the immediate.
    #[inline]
    fn operands(&mut self, attr: Attr, op: Op) -> Result<Insn, InsnError> {
        let mut modrm = 0;
        let mut end = self.at;
        if attr.group != Group::None {
            modrm = self.byte()?;
            if attr.group != Group::Any && !attr.group.forms().allow(self.prefix(), modrm) {
                return Err(InsnError::Undefined);
            }
            end = self.at + self.address_bytes(modrm)?;
        }
        if attr.imm == LegacyImm::None {
            return self.finish(end, op);
        }
        self.immediate(attr.imm, modrm, end, op)
    }

    /// Returns the number of bytes of SIB and displacement.
    #[inline]
    fn address_bytes(&self, modrm: u8) -> Result<usize, InsnError> {
        if modrm >= 0xc0 {
            return Ok(0);
        }
        if (self.mode == ExecMode::Bits16) != (self.address && self.mode != ExecMode::Bits64) {
            return Ok(match (modrm >> 6, modrm & 7) {
                (0, 6) | (2, _) => 2,
                (0, _) => 0,
                _ => 1,
            });
        }
        let displacement = match modrm >> 6 {
            0 => 0,
            1 => 1,
            _ => 4,
        };
        Ok(match modrm & 7 {
            4 => {
                let base = self.peek()? & 7;
                1 + if modrm < 0x40 && base == 5 { 4 } else { displacement }
            }
            5 if modrm < 0x40 => 4,
            _ => displacement,
        })
    }

    /// Adds the immediate, which follows at `end`.
    #[inline]
    fn immediate(&self, imm: LegacyImm, modrm: u8, end: usize, op: Op) -> Result<Insn, InsnError> {
        let test = modrm >> 3 & 7 < 2;
        let size = match imm {
            LegacyImm::None => 0,
            LegacyImm::Byte => 1,
            LegacyImm::Word => 2,
            LegacyImm::Z => self.z(),
            LegacyImm::V if self.rex & REX_W != 0 => 8,
            LegacyImm::V => self.z(),
            LegacyImm::Rel8 => return self.branch(end, 1, op),
            LegacyImm::RelZ => {
                let size = if self.mode == ExecMode::Bits64 { 4 } else { self.z() };
                return self.branch(end, size, op);
            }
            LegacyImm::Far => self.z() + 2,
            LegacyImm::Moffs => match (self.mode, self.address) {
                (ExecMode::Bits64, false) => 8,
                (ExecMode::Bits16, false) | (ExecMode::Bits32, true) => 2,
                _ => 4,
            },
            LegacyImm::Enter => 3,
            LegacyImm::TestByte => usize::from(test),
            LegacyImm::TestZ => {
                if test {
                    self.z()
                } else {
                    0
                }
            }
            LegacyImm::TwoBytes => {
                if self.prefix() == 0 {
                    0
                } else {
                    2
                }
            }
        };
        self.finish(end + size, op)
    }

    /// Returns the size of an immediate that has only 4 bytes with 64-bit operands.
    #[inline]
    fn z(&self) -> usize {
        if self.operand_16() { 2 } else { 4 }
    }

    /// Returns true if operands are 16 bits wide.
    #[inline]
    fn operand_16(&self) -> bool {
        self.rex & REX_W == 0 && (self.mode == ExecMode::Bits16) != self.operand
    }

    /// Decodes a direct branch with `size` bytes of displacement at the offset `at`.
    #[inline]
    fn branch(&self, at: usize, size: usize, op: Op) -> Result<Insn, InsnError> {
        let mut insn = self.finish(at + size, op)?;
        let displacement = match *self.bytes.get(at..at + size).ok_or(InsnError::Truncated)? {
            [a] => i64::from(a as i8),
            [a, b] => i64::from(i16::from_le_bytes([a, b])),
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            _ => 0,
        };
        let target = insn.next(self.ip).wrapping_add_signed(displacement);
        insn.target = Some(match self.mode {
            ExecMode::Bits64 => target,
            ExecMode::Bits16 if self.ip > 0xffff => target & 0xffff_ffff,
            _ if self.operand_16() => target & 0xffff,
            _ => target & 0xffff_ffff,
        });
        Ok(insn)
    }

    /// Returns the instruction if `bytes` holds all of its bytes.
    #[inline]
    fn finish(&self, len: usize, op: Op) -> Result<Insn, InsnError> {
        if len > MAX_LEN {
            return Err(InsnError::TooLong);
        }
        if len > self.bytes.len() {
            return Err(InsnError::Truncated);
        }
        Ok(Insn { len: len as u8, class: op.class(), op, target: None })
    }
}
