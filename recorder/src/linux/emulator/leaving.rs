//! The instructions at which a block can be left before its end. Only they need a count of their own: where one of them
//! has begun, all that are before it in the block have, too.
//!
//! Source: SDM vol. 2, Instruction Format, "Instruction Prefixes", and the opcode maps of the appendix; QEMU's
//! `target/i386/tcg`, where none of the instructions of registers that are named here calls a function that can raise
//! an exception.

use super::PAGE;

/// The length of the longest instruction.
pub(super) const LONGEST: u64 = 15;

/// Returns which instructions of a block are to be counted where they begin, in order: their numbers, and how many
/// instructions began since the one before. The sum of all is the number of the block's instructions.
///
/// The emulator takes the last instruction back if it reaches into the next page and is not the first, which its length
/// does not show: it was read no further than to the end of the page. So the one before is counted, too.
pub(super) fn counted(address: u64, lengths: &[u8], code: &[u8]) -> Vec<(usize, u64)> {
    let end = address + code.len() as u64;
    let is_last_uncertain = address / PAGE != (end + LONGEST) / PAGE;
    let certain = lengths.len().saturating_sub(1 + usize::from(is_last_uncertain));
    let mut points = vec![];
    let (mut at, mut since) = (0, 0);
    for (number, length) in lengths.iter().enumerate() {
        let begin = at;
        at = (at + usize::from(*length)).min(code.len());
        since += 1;
        if number >= certain || can_leave(&code[begin..at]) {
            points.push((number, since));
            since = 0;
        }
    }
    points
}

/// Returns false if the next instruction begins if this one has begun: it accesses no memory and raises no exception.
/// Returns true in doubt.
fn can_leave(instruction: &[u8]) -> bool {
    let is_prefix = |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3);
    let prefixes = instruction.iter().take_while(|byte| is_prefix(byte)).count();
    let (prefixes, rest) = instruction.split_at(prefixes);
    let opcode = match rest {
        [0x40..=0x4f, opcode @ ..] => opcode,
        opcode => opcode,
    };
    // Without a prefix that chooses them, most of these are of the MMX registers, which are those of the x87.
    let is_sse = prefixes.iter().any(|prefix| matches!(prefix, 0x66 | 0xf2 | 0xf3));
    !match *opcode {
        [0x0f, 0x38, opcode, modrm, ..] | [0x0f, 0x3a, opcode, modrm, ..] => {
            is_sse && opcode < 0xf0 && is_register(modrm)
        }
        [0x0f, opcode, modrm, ..] => of_two_bytes(opcode, modrm, is_sse),
        [0x0f, opcode] => matches!(opcode, 0xc8..=0xcf),
        [0xc5, _, 0x77, ..] => true,
        [0xc5, _, opcode, modrm, ..] => of_two_bytes(opcode, modrm, true),
        [0xc4, map, _, opcode, modrm, ..] => match map & 0x1f {
            1 => of_two_bytes(opcode, modrm, true),
            2 | 3 => is_register(modrm),
            _ => false,
        },
        [opcode, modrm, ..] => of_one_byte(opcode, modrm),
        [opcode] => matches!(opcode, 0x90..=0x99 | 0x9e | 0x9f | 0xf5 | 0xf8 | 0xf9 | 0xfc | 0xfd),
        [] => false,
    }
}

const fn is_register(modrm: u8) -> bool {
    modrm >> 6 == 3
}

/// Returns true if an instruction of the opcode map of one byte cannot leave its block.
fn of_one_byte(opcode: u8, modrm: u8) -> bool {
    let extension = modrm >> 3 & 7;
    match opcode {
        0x00..=0x3f => matches!(opcode & 7, 4 | 5) || opcode & 7 < 4 && is_register(modrm),
        0x63 | 0x69 | 0x6b | 0x80 | 0x81 | 0x83..=0x8b | 0xc0 | 0xc1 | 0xd0..=0xd3 => is_register(modrm),
        0xc6 | 0xc7 => is_register(modrm) && extension == 0,
        // Not DIV and IDIV.
        0xf6 | 0xf7 => is_register(modrm) && extension < 6,
        // INC and DEC.
        0xfe | 0xff => is_register(modrm) && extension < 2,
        // Conditional jumps, and those that need no memory; LEA; constants.
        0x70..=0x7f | 0x8d | 0xa8 | 0xa9 | 0xb0..=0xbf | 0xe0..=0xe3 | 0xe9 | 0xeb => true,
        _ => false,
    }
}

/// Returns true if an instruction of the opcode map that 0F begins cannot leave its block.
fn of_two_bytes(opcode: u8, modrm: u8, is_sse: bool) -> bool {
    match opcode {
        // NOP of memory; conditional jumps.
        0x1f | 0x80..=0x8f => true,
        0x10..=0x17 | 0x28 | 0x29 | 0x2e | 0x2f | 0x50..=0x5f | 0xc2 | 0xc6 => is_register(modrm),
        0x1e | 0x40..=0x4f | 0x90..=0x9f | 0xa3..=0xa5 | 0xab..=0xad | 0xaf | 0xb0 | 0xb1 | 0xb3 => {
            is_register(modrm)
        }
        0xb6..=0xb8 | 0xba..=0xbf | 0xc0 | 0xc1 => is_register(modrm),
        // MASKMOVDQU has a register here, and memory that is not named.
        0x2a | 0x2c | 0x2d | 0x60..=0x76 | 0x7c..=0x7f | 0xc4 | 0xc5 | 0xd0..=0xf6 | 0xf8..=0xfe => {
            is_sse && is_register(modrm)
        }
        _ => false,
    }
}
