//! Encodes instructions as bytes.

use fastrand::Rng;
use pugmark_model::ExecMode;

/// An instruction that does not branch: fixed bytes, then `random` random bytes.
struct InstructionTemplate {
    head: &'static [u8],
    /// Number of random bytes: displacement and immediate.
    random: usize,
}

const fn template(head: &'static [u8], random: usize) -> InstructionTemplate {
    InstructionTemplate { head, random }
}

/// Instructions of 1 to 15 bytes in 64-bit code.
const PLAIN_64: [InstructionTemplate; 36] = [
    template(&[0x90], 0),
    template(&[0x50], 0),
    template(&[0x99], 0),
    template(&[0x31, 0xc0], 0),
    template(&[0x89, 0xd8], 0),
    template(&[0x6a], 1),
    template(&[0x04], 1),
    template(&[0x48, 0x01, 0xd8], 0),
    template(&[0x83, 0xc0], 1),
    template(&[0x8b, 0x45], 1),
    template(&[0x0f, 0xb6, 0xc1], 0),
    template(&[0x66, 0x05], 2),
    template(&[0x48, 0x83, 0xec], 1),
    template(&[0x48, 0x66, 0x05], 2),
    template(&[0x0f, 0x44, 0x44, 0x24], 1),
    template(&[0xb8], 4),
    template(&[0xf3, 0x0f, 0x10, 0x45], 1),
    template(&[0xc5, 0xf8, 0x28, 0xc1], 0),
    template(&[0x8b, 0x05], 4),
    template(&[0xc4, 0xe3, 0x7d, 0x39, 0xc1], 1),
    template(&[0x62, 0xf1, 0x7c, 0x48, 0x28, 0xc1], 0),
    template(&[0x48, 0x8d, 0x05], 4),
    template(&[0x66, 0x0f, 0x3a, 0x0f, 0xc1], 1),
    template(&[0x48, 0x8b, 0x84, 0x24], 4),
    template(&[0x0f, 0x1f, 0x84, 0x00], 4),
    template(&[0x67, 0x8b, 0x84, 0xc8], 4),
    template(&[0x65, 0x48, 0x8b, 0x04, 0x25], 4),
    template(&[0x48, 0xb8], 8),
    template(&[0x48, 0xa3], 8),
    template(&[0xc7, 0x84, 0x24], 8),
    template(&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00], 4),
    template(&[0x48, 0x81, 0xbc, 0x24], 8),
    template(&[0xf0, 0x48, 0x81, 0x84, 0x24], 8),
    template(&[0x64, 0xf0, 0x48, 0x81, 0x84, 0x24], 8),
    template(&[0x67, 0x64, 0xf0, 0x48, 0x81, 0x84, 0x24], 8),
    template(&[0xf7, 0xc0], 4),
];

/// Instructions in 32-bit code; most have another length or meaning in 64-bit code.
const PLAIN_32: [InstructionTemplate; 12] = [
    template(&[0x40], 0),
    template(&[0x4b], 0),
    template(&[0x06], 0),
    template(&[0x60], 0),
    template(&[0x90], 0),
    template(&[0xd4, 0x0a], 0),
    template(&[0x62, 0x45], 1),
    template(&[0xc5, 0x45], 1),
    template(&[0xa1], 4),
    template(&[0x67, 0xa1], 2),
    template(&[0x66, 0xb8], 2),
    template(&[0x8d, 0x84, 0x24], 4),
];

/// Loads and stores that may fault.
const MEMORY: [InstructionTemplate; 4] = [
    template(&[0x8b, 0x06], 0),
    template(&[0x89, 0x47], 1),
    template(&[0xff, 0x83], 4),
    template(&[0x81, 0x04, 0x83], 4),
];

/// Repeated string instructions.
const REP: [&[u8]; 5] =
    [&[0xf3, 0xa4], &[0xf3, 0x48, 0xab], &[0xf2, 0xae], &[0xf3, 0xa6], &[0xf3, 0x66, 0xa5]];

/// JMP through a register or memory.
const JUMP: [&[u8]; 5] = [
    &[0xff, 0xe0],
    &[0x41, 0xff, 0xe3],
    &[0x3e, 0xff, 0xe2],
    &[0xff, 0x24, 0xc5, 0x00, 0x10, 0x40, 0x00],
    &[0xff, 0x25, 0x10, 0x20, 0x00, 0x00],
];

/// JMP through a register or memory, in 32-bit code.
const JUMP_32: [&[u8]; 3] =
    [&[0xff, 0xe2], &[0xff, 0x24, 0x85, 0x00, 0x10, 0x40, 0x00], &[0x67, 0xff, 0x67, 0x10]];

/// CALL through a register or memory.
const CALL: [&[u8]; 4] =
    [&[0xff, 0xd0], &[0x41, 0xff, 0x53, 0x18], &[0xff, 0x15, 0x10, 0x20, 0x00, 0x00], &[0xff, 0x10]];

fn fill(template: &InstructionTemplate, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = template.head.to_vec();
    bytes.extend((0..template.random).map(|_| rng.u8(..)));
    bytes
}

/// Draws an instruction that does not branch.
pub(crate) fn plain(mode: ExecMode, rng: &mut Rng) -> Vec<u8> {
    let templates: &[InstructionTemplate] = if mode == ExecMode::Bits64 { &PLAIN_64 } else { &PLAIN_32 };
    fill(&templates[rng.usize(..templates.len())], rng)
}

/// Draws a load or store that may fault.
pub(crate) fn memory(rng: &mut Rng) -> Vec<u8> {
    fill(&MEMORY[rng.usize(..MEMORY.len())], rng)
}

/// Draws a repeated string instruction.
pub(crate) fn rep(rng: &mut Rng) -> Vec<u8> {
    REP[rng.usize(..REP.len())].to_vec()
}

/// Draws an indirect jump.
pub(crate) fn jump(mode: ExecMode, rng: &mut Rng) -> Vec<u8> {
    let forms: &[&[u8]] = if mode == ExecMode::Bits64 { &JUMP } else { &JUMP_32 };
    forms[rng.usize(..forms.len())].to_vec()
}

/// Draws an indirect call.
pub(crate) fn call(rng: &mut Rng) -> Vec<u8> {
    CALL[rng.usize(..CALL.len())].to_vec()
}

/// Draws a return, with or without an immediate or a prefix.
pub(crate) fn ret(rng: &mut Rng) -> Vec<u8> {
    match rng.u8(..8) {
        0 => vec![0xc2, 8, 0],
        1 => vec![0xf3, 0xc3],
        _ => vec![0xc3],
    }
}
