//! The instructions at which a block can be left before its end. Only they need a count of their own: where one of them
//! has begun, all that are before it in the block have, too.
//!
//! Source: SDM vol. 2, Instruction Format, "Instruction Prefixes", and the opcode maps of the appendix; QEMU's
//! `target/i386/tcg`, where none of the instructions of registers that are named here calls a function that can raise
//! an exception.

use super::PAGE;

/// The length of the longest instruction.
const LONGEST: u64 = 15;

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

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{
        Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    };

    #[test]
    fn an_instruction_of_registers_leads_to_the_next_one_and_others_may_not() {
        let stays: [&[u8]; 34] = [
            // add eax, ebx; add al, 1; sub rsp, 8; cmp eax, 1; movsxd; imul
            &[0x01, 0xd8],
            &[0x04, 1],
            &[0x48, 0x83, 0xec, 8],
            &[0x3d, 1, 0, 0, 0],
            &[0x48, 0x63, 0xc8],
            &[0x69, 0xc0, 1, 0, 0, 0],
            // test; xchg; mov; lea of memory; nop; cdqe; sahf; mov imm; shl; mov imm; not; inc; cld
            &[0x85, 0xc0],
            &[0x87, 0xc8],
            &[0x48, 0x89, 0xe5],
            &[0x48, 0x8d, 0x44, 0x24, 8],
            &[0x90],
            &[0x48, 0x98],
            &[0x9e],
            &[0xb8, 1, 0, 0, 0],
            &[0xc1, 0xe0, 2],
            &[0xc7, 0xc0, 1, 0, 0, 0],
            &[0xf7, 0xd0],
            &[0xff, 0xc0],
            &[0xfc],
            // jz; jmp; loop
            &[0x74, 0],
            &[0xe9, 0, 0, 0, 0],
            &[0xe2, 0],
            // endbr64; nop of memory; cmov; setcc; bt; movzx; bswap; popcnt
            &[0xf3, 0x0f, 0x1e, 0xfa],
            &[0x66, 0x0f, 0x1f, 0x44, 0, 0],
            &[0x0f, 0x44, 0xc1],
            &[0x0f, 0x94, 0xc0],
            &[0x0f, 0xa3, 0xc8],
            &[0x0f, 0xb6, 0xc0],
            &[0x48, 0x0f, 0xc9],
            &[0xf3, 0x0f, 0xb8, 0xc0],
            // pxor; pshufb; vpxor; vzeroupper
            &[0x66, 0x0f, 0xef, 0xc0],
            &[0x66, 0x0f, 0x38, 0, 0xc1],
            &[0xc5, 0xf9, 0xef, 0xc0],
            &[0xc5, 0xf8, 0x77],
        ];
        for bytes in stays {
            assert!(!can_leave(bytes), "{bytes:02x?}");
        }
        let leaves: [&[u8]; 35] = [
            // add [rax], ebx; add eax, [rbx]; mov of memory; movzx; cmov; setcc
            &[0x01, 0x18],
            &[0x03, 0x03],
            &[0x48, 0x8b, 0x44, 0x24, 8],
            &[0x0f, 0xb6, 0x07],
            &[0x0f, 0x44, 0x07],
            &[0x0f, 0x94, 0x07],
            // push; pop; push imm; call; ret; leave; pushf; xlat; mov al, moffs; movsb; in; fwait; x87
            &[0x50],
            &[0x41, 0x5f],
            &[0x6a, 0],
            &[0xe8, 0, 0, 0, 0],
            &[0xc3],
            &[0xc9],
            &[0x9c],
            &[0xd7],
            &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0xa4],
            &[0xec],
            &[0x9b],
            &[0xd9, 0xc0],
            // div; idiv; call of a register; mov ds; xbegin; lock; int3; syscall; rdtsc; emms; maskmovdqu; ud0
            &[0xf7, 0xf1],
            &[0x48, 0xf7, 0xf9],
            &[0xff, 0xd0],
            &[0x8e, 0xd8],
            &[0xc7, 0xf8, 0, 0, 0, 0],
            &[0xf0, 0x01, 0xd8],
            &[0xcc],
            &[0x0f, 0x05],
            &[0x0f, 0x77],
            &[0x66, 0x0f, 0xf7, 0xc1],
            &[0x0f, 0xff, 0xc0],
            // paddb of MMX; pshufb of memory; vmovdqu of memory; vpgatherdd
            &[0x0f, 0xfc, 0xc1],
            &[0x66, 0x0f, 0x38, 0, 0x07],
            &[0xc5, 0xfa, 0x6f, 0x07],
            &[0xc4, 0xe2, 0x71, 0x90, 0x04, 0x07],
            &[],
        ];
        for bytes in leaves {
            assert!(can_leave(bytes), "{bytes:02x?}");
        }
    }

    /// Returns the beginnings of instructions up to the opcode: of all opcode maps, with prefixes.
    fn opcodes() -> Vec<Vec<u8>> {
        let prefixes: [&[u8]; 13] = [
            &[],
            &[0x66],
            &[0xf2],
            &[0xf3],
            &[0x48],
            &[0x66, 0x48],
            &[0xf2, 0x48],
            &[0xf3, 0x48],
            &[0x64],
            &[0x67],
            &[0x41],
            &[0xf0],
            &[0x66, 0xf2],
        ];
        let maps: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
        let legacy = prefixes.iter().flat_map(|prefix| maps.map(|map| [prefix, map].concat()));
        let two = (0xf8..=0xff).map(|byte| vec![0xc5, byte]);
        let three = (0xe1..=0xe3)
            .flat_map(|map| [0x71, 0x75, 0x78, 0x79, 0x7a, 0x7b, 0xfd].map(|w| vec![0xc4, map, w]));
        let begins: Vec<_> = legacy.chain(two).chain(three).collect();
        begins
            .iter()
            .flat_map(|begin| (0..=u8::MAX).map(move |opcode| [begin, &[opcode][..]].concat()))
            .collect()
    }

    /// Returns true if an instruction accesses memory, raises an exception by itself, or leads elsewhere than a jump.
    fn iced_says_it_can(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
        let accesses = |access| !matches!(access, OpAccess::None | OpAccess::NoMemAccess);
        let memory = factory.info(instruction).used_memory().iter().any(|used| accesses(used.access()));
        let flow = instruction.flow_control();
        memory
            || !matches!(
                flow,
                FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
            )
            || matches!(instruction.mnemonic(), Mnemonic::Div | Mnemonic::Idiv)
            || instruction.is_privileged()
            || instruction.has_lock_prefix()
    }

    #[test]
    fn what_cannot_leave_accesses_no_memory_and_raises_nothing_as_iced_says() {
        let mut factory = InstructionInfoFactory::new();
        let mut stay = 0;
        for opcode in opcodes() {
            for modrm in 0..=u8::MAX {
                let bytes = [&opcode[..], &[modrm, 0x24], &[0; 10]].concat();
                let bytes = &bytes[..bytes.len().min(LONGEST as usize)];
                let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
                if instruction.is_invalid() || can_leave(&bytes[..instruction.len()]) {
                    continue;
                }
                stay += 1;
                // The emulator does not know LOADIWKEY: it ends its block.
                assert!(
                    instruction.mnemonic() == Mnemonic::Loadiwkey
                        || !iced_says_it_can(&instruction, &mut factory),
                    "{:?}: {bytes:02x?}",
                    instruction.code()
                );
            }
        }
        assert!(stay > 500_000, "{stay}");
    }

    #[test]
    fn each_instruction_is_counted_at_the_latest_where_the_block_can_be_left() {
        // mov eax, 1; mov [rax], eax; inc eax; inc eax; jz
        let code =
            [&[0xb8, 1, 0, 0, 0][..], &[0x89, 0x00], &[0xff, 0xc0], &[0xff, 0xc0], &[0x74, 0]].concat();
        let lengths = [5, 2, 2, 2, 2];
        assert_eq!(counted(0x1000, &lengths, &code), [(1, 2), (4, 3)]);
        // The last one may reach into the next page, and not be executed.
        for address in [0x1fe5, 0x1ff3, 0x1ff5] {
            assert_eq!(counted(address, &lengths, &code), [(1, 2), (3, 2), (4, 1)], "{address:x}");
        }
        assert_eq!(counted(0x1fe3, &lengths, &code), [(1, 2), (4, 3)]);
        for place in 0..40 {
            let sum: u64 = counted(0x1fe0 + place, &lengths, &code).iter().map(|(_, count)| count).sum();
            assert_eq!(sum, 5, "{place}");
        }
        assert_eq!(counted(0x1fff, &[2], &[0xff, 0xc0]), [(0, 1)]);
        assert_eq!(counted(0x1000, &[], &[]), []);
    }
}
