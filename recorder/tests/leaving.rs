//! The instructions that the emulator's plugin counts: each at the latest where its block can be left, as iced-x86
//! says.

#[path = "../src/linux/emulator/leaving.rs"]
mod leaving;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
};
use leaving::counted;

/// The size of a page, which the module takes from its parent.
const PAGE: u64 = 4096;

/// Returns true if an instruction has a count of its own although another one follows.
fn can_leave(instruction: &[u8]) -> bool {
    let code = [instruction, &[0x90]].concat();
    let lengths = [u8::try_from(instruction.len()).unwrap(), 1];
    counted(0x1000, &lengths, &code) == [(0, 1), (1, 1)]
}

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
    let three =
        (0xe1..=0xe3).flat_map(|map| [0x71, 0x75, 0x78, 0x79, 0x7a, 0x7b, 0xfd].map(|w| vec![0xc4, map, w]));
    let begins: Vec<_> = legacy.chain(two).chain(three).collect();
    begins.iter().flat_map(|begin| (0..=u8::MAX).map(move |opcode| [begin, &[opcode][..]].concat())).collect()
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
            let bytes = &bytes[..bytes.len().min(15)];
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
    let code = [&[0xb8, 1, 0, 0, 0][..], &[0x89, 0x00], &[0xff, 0xc0], &[0xff, 0xc0], &[0x74, 0]].concat();
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
