//! A fast path for the most frequent instructions of 64-bit code: an opcode of the one-byte map or of the map after 0F,
//! with or without a REX prefix.
//!
//! Its entries are derived from the tables of [`legacy`](super::legacy). Every other opcode, and every instruction near
//! the end of the bytes, takes the slow path: the full pass over its bytes.

use super::group::Group;
use super::legacy::{Attr, LegacyImm, LegacyKind, MAP_0F_ENTRIES, ONE_BYTE_64_ENTRIES};
use super::{Insn, Op};

/// The number of bytes that the fast path requires. It reads fewer.
pub(super) const WINDOW: usize = 16;

/// An opcode whose length follows from its ModRM byte, REX.W and this entry.
#[derive(Clone, Copy)]
struct FastEntry {
    /// The ModRM.reg values that are defined: with memory, with a register. If no bit is set, there is no ModRM byte.
    modrm: [u8; 2],
    /// The number of bytes of the immediate.
    imm: u8,
    /// The number of additional bytes of the immediate with REX.W.
    wide: u8,
    /// True if the immediate is a displacement.
    relative: bool,
    /// The op; `None` if the opcode takes the slow path.
    op: Option<Op>,
}

/// The one-byte map, then the map after 0F.
static ENTRIES: [FastEntry; 512] = {
    let mut entries = [entry(&ONE_BYTE_64_ENTRIES[0]); 512];
    let mut opcode = 0;
    while opcode < 256 {
        entries[opcode] = entry(&ONE_BYTE_64_ENTRIES[opcode]);
        entries[opcode + 256] = entry(&MAP_0F_ENTRIES[opcode]);
        opcode += 1;
    }
    entries
};

const fn entry(attr: &Attr) -> FastEntry {
    const LONG_WAY: FastEntry = FastEntry { modrm: [0; 2], imm: 0, wide: 0, relative: false, op: None };
    let [memory, register] = attr.group.forms().without_prefix();
    if memory | register == 0 && !matches!(attr.group, Group::None) {
        // Defined only after a mandatory prefix.
        return LONG_WAY;
    }
    let (op, modrm) = match attr.kind {
        LegacyKind::Op(op) => (op, [memory, register]),
        // The register forms are XABORT and XBEGIN.
        LegacyKind::Group11 => (Op::Other, [memory, 0]),
        _ => return LONG_WAY,
    };
    let (imm, wide, relative) = match attr.imm {
        LegacyImm::None => (0, 0, false),
        LegacyImm::Byte => (1, 0, false),
        LegacyImm::Word => (2, 0, false),
        LegacyImm::Z => (4, 0, false),
        LegacyImm::V => (4, 4, false),
        LegacyImm::Rel8 => (1, 0, true),
        LegacyImm::RelZ => (4, 0, true),
        _ => return LONG_WAY,
    };
    FastEntry { modrm, imm, wide, relative, op: Some(op) }
}

/// For each ModRM byte, its length with SIB and displacement; 0 if the length depends on SIB.base.
static TAILS: [u8; 256] = {
    let mut tails = [0; 256];
    let mut modrm = 0;
    while modrm < 256 {
        let sib = (modrm & 7 == 4) as u8;
        tails[modrm] = match modrm >> 6 {
            0 if modrm & 7 == 4 => 0,
            0 if modrm & 7 == 5 => 5,
            0 | 3 => 1,
            1 => 2 + sib,
            _ => 5 + sib,
        };
        modrm += 1;
    }
    tails
};

/// Decodes the instruction at the start of `bytes`, in 64-bit mode at `ip`. `None` if it must take the slow path.
#[inline]
pub(super) fn decode(bytes: &[u8; WINDOW], ip: u64) -> Option<Insn> {
    // No index below is above 3 + 1 + 4. The mask lets the compiler omit the bounds checks.
    let byte = |at: usize| bytes[at & (WINDOW - 1)];
    let rex = usize::from(byte(0) & 0xf0 == 0x40);
    let opcode = byte(rex);
    let escaped = usize::from(opcode == 0x0f);
    let mut at = rex + escaped;
    let entry = &ENTRIES[(escaped << 8) | usize::from(byte(at))];
    let op = entry.op?;
    at += 1;
    if entry.modrm != [0; 2] {
        let modrm = byte(at);
        if entry.modrm[usize::from(modrm >= 0xc0)] >> (modrm >> 3 & 7) & 1 == 0 {
            return None;
        }
        at += match TAILS[usize::from(modrm)] {
            0 => 2 + if byte(at + 1) & 7 == 5 { 4 } else { 0 },
            tail => usize::from(tail),
        };
    }
    let wide = rex & usize::from(byte(0) >> 3);
    let len = at + usize::from(entry.imm) + wide * usize::from(entry.wide);
    let mut target = None;
    if entry.relative {
        let displacement = if entry.imm == 1 {
            i64::from(byte(at) as i8)
        } else {
            i64::from(i32::from_le_bytes([byte(at), byte(at + 1), byte(at + 2), byte(at + 3)]))
        };
        target = Some(ip.wrapping_add(len as u64).wrapping_add_signed(displacement));
    }
    Some(Insn { len: len as u8, class: op.class(), op, target })
}
