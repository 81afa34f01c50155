//! The decoders' caches of an image's code: after a change of the image, the new code must count.

use crate::{
    damage::PSB,
    flow::{Call, DecoderKind, Decoders, likely},
    library::{Config, Library, both},
};
use std::{fs, path::PathBuf};

/// The flag of speculative instructions.
const SPECULATIVE: u64 = 1;

/// The address of the code.
pub(crate) const BASE: u64 = 0x1000;

/// Returns a trace that begins at [`BASE`] in 64-bit mode.
pub(crate) fn trace(rest: &[u8]) -> Vec<u8> {
    trace_in(0x01, rest)
}

/// Returns a trace that begins at [`BASE`] in the mode that a MODE packet gives with this byte.
fn trace_in(mode: u8, rest: &[u8]) -> Vec<u8> {
    let mut trace = PSB.to_vec();
    trace.extend([0x99, mode, 0x7d]);
    trace.extend(&BASE.to_le_bytes()[..6]);
    trace.extend([0x02, 0x23]);
    trace.extend(rest);
    trace
}

/// A file with code, which is removed at the end.
pub(crate) struct Code(pub(crate) PathBuf);

impl Code {
    pub(crate) fn new(name: &str, bytes: &[u8]) -> Self {
        let file = std::env::temp_dir().join(format!("pugmark-capi-known-{name}-{}", std::process::id()));
        fs::write(&file, bytes).unwrap();
        Self(file)
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns code padded with enough bytes for any instruction.
pub(crate) fn padded(code: &[u8]) -> Vec<u8> {
    [code, &[0x90; 32]].concat()
}

/// Calls both decoders `calls` times; both answers must be equal. Returns the items with their statuses.
fn items(decoders: &Decoders, kind: DecoderKind, mut next: Call, calls: usize) -> Vec<(i32, [u64; 8])> {
    let mut items = vec![];
    for _ in 0..calls {
        let [theirs, ours] = decoders.answers(next);
        assert_eq!(theirs, ours);
        if matches!(next, Call::Next(_)) {
            items.push((ours.status, ours.item.0));
        }
        next = likely(&theirs, kind);
    }
    items
}

#[test]
fn code_that_another_section_hides_is_not_known_any_more() {
    let Some(both) = both() else { return };
    // NOP and a jump back to it; then the same with a MOV of ten bytes between, whose last byte another file has as
    // well.
    let old = Code::new("old", &padded(&[0x90, 0xeb, 0xfd]));
    let new = Code::new("new", &padded(&[0x90, 0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8, 0xeb, 0xf3]));
    let end = Code::new("end", &padded(&[0x77, 0xeb, 0xf3]));
    let trace = trace(&[]);
    let decoders = Decoders::new(both, DecoderKind::Insns, &Config::new(&trace));
    decoders.add_file(&old.0, 0, u64::MAX, BASE, None);
    items(&decoders, DecoderKind::Insns, Call::Forward, 10);
    let mut raw = vec![];
    for (file, address) in [(&new, BASE), (&end, BASE + 10)] {
        decoders.add_cached(&file.0, 0, u64::MAX, address);
        let next = Call::Next(DecoderKind::Insns.size());
        raw.extend(
            items(&decoders, DecoderKind::Insns, next, 9).into_iter().map(|(_, item)| item[2] >> 32 & 0xff),
        );
    }
    assert!(raw.contains(&0x48), "{raw:x?}");
}

#[test]
fn the_same_code_at_two_addresses_keeps_both_addresses_and_identifiers() {
    let Some(both) = both() else { return };
    // A jump by 1000h from NOP to NOP.
    let code = Code::new("twice", &padded(&[0x90, 0xe9, 0xfa, 0x0f, 0, 0]));
    let trace = trace(&[]);
    let decoders = Decoders::new(both, DecoderKind::Insns, &Config::new(&trace));
    for base in [BASE, BASE + 0x1000] {
        decoders.add_cached(&code.0, 0, u64::MAX, base);
    }
    let items = items(&decoders, DecoderKind::Insns, Call::Forward, 8);
    let ips: Vec<_> = items.iter().map(|(_, item)| item[0]).collect();
    assert_eq!(ips[..4], [0x1000, 0x1001, 0x2000, 0x2001]);
}

#[test]
fn an_instruction_known_from_before_a_transaction_is_speculative_in_it() {
    let Some(both) = both() else { return };
    let code = Code::new("speculative", &padded(&[0x90, 0xeb, 0xfd]));
    // MODE.TSX with InTX, and the address of the jump.
    let trace = trace(&[0x99, 0x21, 0x3d, 0x01, 0x10]);
    let decoders = Decoders::new(both, DecoderKind::Insns, &Config::new(&trace));
    decoders.add_file(&code.0, 0, u64::MAX, BASE, None);
    let items = items(&decoders, DecoderKind::Insns, Call::Forward, 7);
    let flags: Vec<_> = items.iter().map(|(_, item)| (item[0], item[4] >> 32 & SPECULATIVE)).collect();
    assert!(flags.contains(&(BASE, 0)) && flags.contains(&(BASE, SPECULATIVE)), "{flags:x?}");
}

#[test]
fn a_conditional_jump_of_six_bytes_may_have_four_prefixes_and_a_short_distance() {
    let Some(both) = both() else { return };
    let code = Code::new("prefixes", &padded(&[0x2e, 0x2e, 0x2e, 0x2e, 0x74, 0xfa]));
    // Taken three times.
    let trace = trace(&[0x1e]);
    let decoders = Decoders::new(both, DecoderKind::Blocks, &Config::new(&trace));
    decoders.add_file(&code.0, 0, u64::MAX, BASE, None);
    let items = items(&decoders, DecoderKind::Blocks, Call::Forward, 5);
    assert!(items.len() >= 3 && items[..3].iter().all(|(_, item)| item[0] == BASE), "{items:x?}");
}

#[test]
fn a_known_branch_of_16_bit_code_goes_where_its_last_two_bytes_say() {
    let Some(both) = both() else { return };
    // NOP and a jump of three bytes back to it.
    let code = Code::new("short", &padded(&[0x90, 0xe9, 0xfc, 0xff]));
    let trace = trace_in(0x00, &[]);
    let decoders = Decoders::new(both, DecoderKind::Insns, &Config::new(&trace));
    decoders.add_file(&code.0, 0, u64::MAX, BASE, None);
    let items = items(&decoders, DecoderKind::Insns, Call::Forward, 8);
    let ips: Vec<_> = items.iter().map(|(_, item)| item[0]).collect();
    assert_eq!(ips[..6], [BASE, BASE + 1, BASE, BASE + 1, BASE, BASE + 1]);
}

#[test]
fn tracing_is_disabled_by_a_known_mov_to_cr3() {
    let Some(both) = both() else { return };
    // MOV to CR3, and a conditional jump back to it, taken once before a TIP.PGD without an address.
    let code = Code::new("cr3", &padded(&[0x0f, 0x22, 0xd8, 0x74, 0xfb]));
    let trace = trace(&[0x06, 0x01]);
    let decoders = Decoders::new(both, DecoderKind::Insns, &Config::new(&trace));
    decoders.add_file(&code.0, 0, u64::MAX, BASE, None);
    let items = items(&decoders, DecoderKind::Insns, Call::Forward, 5);
    let found: Vec<_> = items.iter().map(|(status, item)| (item[0], status & 1)).collect();
    assert_eq!(found[..3], [(BASE, 0), (BASE + 3, 0), (BASE, 1)]);
}

#[test]
fn a_known_instruction_after_the_last_packet_says_that_the_trace_ends() {
    let Some(both) = both() else { return };
    // NOP, and a conditional jump back to it, taken once.
    let code = Code::new("end-of-trace", &padded(&[0x90, 0x74, 0xfd]));
    let trace = trace(&[0x06]);
    let decoders = Decoders::new(both, DecoderKind::Insns, &Config::new(&trace));
    decoders.add_file(&code.0, 0, u64::MAX, BASE, None);
    let items = items(&decoders, DecoderKind::Insns, Call::Forward, 5);
    let found: Vec<_> = items.iter().map(|(status, item)| (item[0], *status)).collect();
    assert_eq!(found[..3], [(BASE, 0), (BASE + 1, 4), (BASE, 4)]);
}

#[test]
fn a_known_way_over_a_call_to_an_indirect_jump_ends_with_no_class() {
    let Some(both) = both() else { return };
    // A call of the next instruction, and JMP RAX, which goes back to the call.
    let code = Code::new("way", &padded(&[0xe8, 0, 0, 0, 0, 0xff, 0xe0]));
    let trace = trace(&[0x2d, 0x00, 0x10].repeat(4));
    let decoders = Decoders::new(both, DecoderKind::Blocks, &Config::new(&trace));
    decoders.add_file(&code.0, 0, u64::MAX, BASE, None);
    let items = items(&decoders, DecoderKind::Blocks, Call::Forward, 6);
    // If the code is decoded, the call's block ends at the jump.
    let classes: Vec<_> = items.iter().map(|(_, item)| (item[0], item[3] as u32)).collect();
    assert!(classes.len() > 3 && classes[2..4].iter().all(|&end| end == (BASE, 0)), "{classes:x?}");
}

/// Returns the blocks of code at [`BASE`]: begin, end, number of instructions, class, flags and status of each.
fn blocks(both: [&'static Library; 2], name: &str, code: &[u8], trace: &[u8], calls: usize) -> Vec<[u64; 6]> {
    let code = Code::new(name, &padded(code));
    let decoders = Decoders::new(both, DecoderKind::Blocks, &Config::new(trace));
    decoders.add_file(&code.0, 0, u64::MAX, BASE, None);
    let items = items(&decoders, DecoderKind::Blocks, Call::Forward, calls);
    let block = |(status, item): &(i32, [u64; 8])| {
        let [class, insns] = [item[3] & 0xffff_ffff, item[3] >> 32 & 0xffff];
        [item[0], item[1], insns, class, item[5] >> 48, i64::from(*status).cast_unsigned()]
    };
    items.iter().map(block).collect()
}

#[test]
fn a_known_call_of_the_next_instruction_is_nothing_to_return_to() {
    let Some(both) = both() else { return };
    // A call of the next instruction, and RET, three times by a TIP to the call and then by a TNT.
    let trace = trace(&[[0x2d, 0x00, 0x10].repeat(3), vec![0x06]].concat());
    let blocks = blocks(both, "next", &[0xe8, 0, 0, 0, 0, 0xc3], &trace, 8);
    assert!(blocks.iter().any(|block| block[2] == 2 && block[5].cast_signed() < 0), "{blocks:x?}");
}

#[test]
fn a_known_jump_into_another_part_of_its_section_ends_the_block() {
    let Some(both) = both() else { return };
    // A conditional jump that is not taken, and a jump far ahead in the same file, where another one leads back.
    // Another file hides a part between.
    let mut bytes = padded(&[0x74, 0x00, 0xe9, 0xf9, 0x0f, 0, 0]);
    bytes.resize(0x1000, 0x90);
    bytes.extend(padded(&[0xe9, 0xfb, 0xef, 0xff, 0xff]));
    let (code, other) = (Code::new("parts", &bytes), Code::new("between", &padded(&[])));
    let trace = trace(&[0x80]);
    let decoders = Decoders::new(both, DecoderKind::Blocks, &Config::new(&trace));
    decoders.set_limit(u64::MAX);
    decoders.add_cached(&code.0, 0, u64::MAX, BASE);
    decoders.add_cached(&other.0, 0, u64::MAX, BASE + 0x800);
    let ips: Vec<_> =
        items(&decoders, DecoderKind::Blocks, Call::Forward, 16).iter().map(|(_, item)| item[0]).collect();
    assert_eq!(ips[..12], [BASE, BASE + 2, BASE + 0x1000].repeat(4));
}

#[test]
fn an_event_in_known_code_ends_the_block() {
    let Some(both) = both() else { return };
    // Two NOPs and a conditional jump back, taken three times; then an interrupt at the jump, to the first NOP.
    let trace = trace(&[0x1e, 0x3d, 0x02, 0x10, 0x2d, 0x00, 0x10]);
    let blocks = blocks(both, "event", &[0x90, 0x90, 0x74, 0xfc], &trace, 6);
    assert!(blocks[..3].iter().all(|block| block[2] == 3), "{blocks:x?}");
    assert_eq!(blocks[3], [BASE, BASE + 1, 2, 1, 0, 1]);
}

#[test]
fn a_known_block_in_a_transaction_is_speculative() {
    let Some(both) = both() else { return };
    // Two NOPs and a conditional jump back, taken three times before and in a transaction.
    let trace = trace(&[0x1e, 0x99, 0x21, 0x3d, 0x00, 0x10, 0x1e]);
    let blocks = blocks(both, "transaction", &[0x90, 0x90, 0x74, 0xfc], &trace, 10);
    assert!(blocks.iter().filter(|block| block[2] == 3 && block[4] == 1).count() > 1, "{blocks:x?}");
}

#[test]
fn a_known_block_that_ends_with_a_prefix_has_all_its_instructions() {
    let Some(both) = both() else { return };
    // A call of the next instruction, and a conditional jump back to it that has a prefix, taken six times.
    let blocks = blocks(both, "jump", &[0xe8, 0, 0, 0, 0, 0x2e, 0x74, 0xf8], &trace(&[0xfe]), 7);
    assert!(blocks.iter().filter(|block| block[..3] == [BASE, BASE + 5, 2]).count() > 2, "{blocks:x?}");
}

#[test]
fn a_known_jump_with_many_prefixes_goes_where_its_last_byte_says() {
    let Some(both) = both() else { return };
    // NOP and a jump of ten bytes back to it.
    let code =
        Code::new("long", &padded(&[0x90, 0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0x2e, 0xeb, 0xf5]));
    let trace = trace(&[]);
    let decoders = Decoders::new(both, DecoderKind::Insns, &Config::new(&trace));
    decoders.add_file(&code.0, 0, u64::MAX, BASE, None);
    let items = items(&decoders, DecoderKind::Insns, Call::Forward, 8);
    let ips: Vec<_> = items.iter().map(|(_, item)| item[0]).collect();
    assert_eq!(ips[..6], [BASE, BASE + 1].repeat(3));
}

#[test]
fn a_block_that_another_section_hides_is_not_known_any_more() {
    let Some(both) = both() else { return };
    // Two NOPs and a conditional jump back, taken often; then three NOPs, in a file of the same size.
    let [old, new] = [(&[0x90, 0x90, 0x74, 0xfc][..], "two"), (&[0x90, 0x90, 0x90, 0x74, 0xfb], "three")]
        .map(|(code, name)| {
            let mut bytes = padded(code);
            bytes.resize(64, 0x90);
            Code::new(name, &bytes)
        });
    let trace = trace(&[0xfe; 4]);
    let decoders = Decoders::new(both, DecoderKind::Blocks, &Config::new(&trace));
    let mut insns = vec![];
    for (file, next) in [(&old, Call::Forward), (&new, Call::Next(DecoderKind::Blocks.size()))] {
        decoders.add_file(&file.0, 0, u64::MAX, BASE, None);
        insns.extend(
            items(&decoders, DecoderKind::Blocks, next, 7).iter().map(|(_, item)| item[3] >> 32 & 0xffff),
        );
    }
    assert!(insns.contains(&3) && insns.ends_with(&[4, 4, 4]), "{insns:?}");
}

#[test]
fn a_known_block_with_a_call_can_be_returned_to() {
    let Some(both) = both() else { return };
    // A call over a jump back to it; there a conditional jump to the next instruction, not taken, and RET, compressed.
    let code = [0xe8, 2, 0, 0, 0, 0xeb, 0xf9, 0x74, 0x00, 0xc3];
    let blocks = blocks(both, "returns", &code, &trace(&[0xaa; 4]), 25);
    assert!(blocks.len() > 20 && blocks.iter().all(|block| block[5].cast_signed() >= 0), "{blocks:x?}");
}

#[test]
fn two_known_blocks_that_would_be_in_the_same_place_are_told_apart() {
    let Some(both) = both() else { return };
    // Two NOPs and a conditional jump to 5001h, where three NOPs and another one back are.
    let mut code = padded(&[0x90, 0x90, 0x0f, 0x84, 0xf9, 0x3f, 0, 0]);
    code.resize(0x4001, 0x90);
    code.extend([0x90, 0x90, 0x90, 0x0f, 0x84, 0xf6, 0xbf, 0xff, 0xff]);
    let blocks = blocks(both, "places", &code, &trace(&[0xfe; 4]), 20);
    let insns: Vec<_> = blocks[blocks.len() - 4..].iter().map(|block| block[2]).collect();
    assert!(insns == [3, 4, 3, 4] || insns == [4, 3, 4, 3], "{blocks:x?}");
}
