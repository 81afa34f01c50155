//! Records in blocks, with types and items typed a second time from perf's `intel_pt_blk_items`.

extern crate std;

use std::{vec, vec::Vec};

use super::*;
use crate::packet::{Bbp, Bep, BlockItemSize, Cyc, Ip};

fn bbp(kind: u8) -> Packet {
    Packet::Bbp(Bbp { size: BlockItemSize::Eight, kind })
}

fn bip(id: u8, value: u64) -> Packet {
    Packet::Bip(Bip { id, value: BipValue::Eight(value) })
}

const END: Packet = Packet::Bep(Bep { ip: false });
const END_WITH_IP: Packet = Packet::Bep(Bep { ip: true });

/// Returns a block with these items.
fn block(kind: u8, items: impl IntoIterator<Item = (u8, u64)>) -> Vec<Packet> {
    core::iter::once(bbp(kind)).chain(items.into_iter().map(|(id, value)| bip(id, value))).collect()
}

fn basic(ip: u64) -> Vec<Packet> {
    block(4, [(0, ip), (1, 0b10), (2, 0x77)])
}

/// Returns a trace of a PSB, a PSBEND and these packets.
fn trace(packets: &[Packet]) -> Vec<u8> {
    let mut bytes = vec![];
    for packet in [Packet::Psb, Packet::PsbEnd].iter().chain(packets) {
        let mut out = [0; 16];
        let len = packet.emit(&mut out).expect("room");
        bytes.extend_from_slice(&out[..len]);
    }
    bytes
}

/// A record's offset, its FUP's IP and its eventing IP.
type Found = (u64, Option<u64>, Option<u64>);

/// Returns the records and errors of a trace.
fn found(trace: &[u8]) -> Vec<Result<Found, Error>> {
    let mut records = PebsBlocks::new(trace);
    let mut all = vec![];
    while let Some(next) = records.next() {
        all.push(next.map(|found| (found.offset, found.ip, found.record.eventing_ip)));
    }
    all
}

/// PSB and PSBEND.
const BEGIN: u64 = 18;
/// The bytes of `basic`.
const BASIC: u64 = 3 + 3 * 9;

#[test]
fn each_item_of_each_block_is_its_field() {
    let general: Vec<(u8, u64)> = (0..18).map(|id| (id, 0x100 + u64::from(id))).collect();
    let registers = Registers {
        rflags: 0x100,
        rip: 0x101,
        rax: 0x102,
        rcx: 0x103,
        rdx: 0x104,
        rbx: 0x105,
        rsp: 0x106,
        rbp: 0x107,
        rsi: 0x108,
        rdi: 0x109,
        r8_r15: [0x10a, 0x10b, 0x10c, 0x10d, 0x10e, 0x10f, 0x110, 0x111],
    };
    let memory = Memory { address: 1, source: DataSourceEncoding(2), latency: 3 };
    let none = PebsRecord::default();
    let mut xmm = [0; 256];
    (0..32).for_each(|half: usize| xmm[8 * half] = half as u8 + 1);
    let rows: [(Vec<Packet>, PebsRecord<'_>); 8] = [
        (block(4, [(0, 7)]), PebsRecord { eventing_ip: Some(7), ..none }),
        (block(4, [(1, 8), (2, 9)]), PebsRecord { applicable_counters: Some(8), tsc: Some(9), ..none }),
        (block(1, general), PebsRecord { registers: Some(registers), ..none }),
        (
            block(1, [(1, 5)]),
            PebsRecord { registers: Some(Registers { rip: 5, ..Registers::default() }), ..none },
        ),
        (
            block(5, [(0, 1), (1, 2), (2, 3), (3, 4)]),
            PebsRecord { memory: Some(memory), tx_abort: Some(TxAbort(4)), ..none },
        ),
        (block(5, [(3, 4)]), PebsRecord { tx_abort: Some(TxAbort(4)), ..none }),
        (block(16, (0..32).map(|id| (id, u64::from(id) + 1))), PebsRecord { xmm: Some(&xmm), ..none }),
        (block(4, []), none),
    ];
    for (mut packets, expected) in rows {
        packets.push(END);
        let bytes = trace(&packets);
        let mut records = PebsBlocks::new(&bytes);
        let record = records.next().expect("a record").expect("a whole one");
        assert_eq!(record, TracedRecord { offset: BEGIN, ip: None, record: expected }, "{packets:?}");
        assert!(records.next().is_none());
    }
}

#[test]
fn four_byte_items_are_the_lower_half() {
    let begin = Packet::Bbp(Bbp { size: BlockItemSize::Four, kind: 4 });
    let item = Packet::Bip(Bip { id: 0, value: BipValue::Four(0xdead_beef) });
    let bytes = trace(&[begin, item, END]);
    assert_eq!(found(&bytes), [Ok((BEGIN, None, Some(0xdead_beef)))]);
}

#[test]
fn branches_are_read_whichever_items_a_second_block_has() {
    let items = |index: u64| [0x1000 + index, 0x2000 + index, index];
    let branch = |index: u64| items(index).map(u64::to_le_bytes).concat();
    for count in [1, 10, 11, 25, 30, 32] {
        // Items numbered consecutively over blocks, or ten whole branches in each block.
        for a_block in [32, 30] {
            let words: Vec<u64> = (0..count).flat_map(items).collect();
            let mut packets = vec![];
            for (index, words) in words.chunks(a_block).take(3).enumerate() {
                packets.extend(block(8 + index as u8, (0..).zip(words.iter().copied())));
            }
            packets.push(END);
            let bytes = trace(&packets);
            let mut records = PebsBlocks::new(&bytes);
            let record = records.next().expect("a record").expect("a whole one").record;
            let expected = if a_block == 30 { count.min(30) } else { count };
            let branches = record.branches.expect("branches").as_bytes();
            assert_eq!(branches, (0..expected).flat_map(branch).collect::<Vec<_>>(), "{count} {a_block}");
        }
    }
}

#[test]
fn a_branch_of_which_an_item_is_missing_is_left_out() {
    let words = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (7, 8), (8, 9)];
    let mut packets = block(8, words);
    packets.push(END);
    let bytes = trace(&packets);
    let mut records = PebsBlocks::new(&bytes);
    let branches = records.next().unwrap().unwrap().record.branches.unwrap();
    let found: Vec<_> = branches.iter().map(|branch| (branch.from, branch.to, branch.info)).collect();
    assert_eq!(found, [(1, 2, 3), (7, 8, 9)]);
}

#[test]
fn nothing_of_a_record_is_in_the_next_one() {
    let mut packets = basic(1);
    packets.extend(block(8, [(0, 1), (1, 2), (2, 3)]));
    packets.push(END);
    packets.extend(block(4, [(1, 1)]));
    packets.push(END);
    let bytes = trace(&packets);
    let mut records = PebsBlocks::new(&bytes);
    assert!(records.next().unwrap().unwrap().record.branches.is_some());
    let second = records.next().unwrap().unwrap();
    assert_eq!(second.record, PebsRecord { applicable_counters: Some(1), ..PebsRecord::default() });
}

#[test]
fn the_fup_after_a_bep_ends_the_record_and_is_compressed_against_what_was_before() {
    let mut packets = vec![Packet::TipPge(Ip::Full(0x40_1000))];
    packets.extend(basic(1));
    packets.extend([END_WITH_IP, Packet::Cyc(Cyc { cycles: 1 }), Packet::Fup(Ip::Update16(0x1234))]);
    packets.extend(basic(2));
    packets.extend([Packet::Fup(Ip::Update16(0x5678)), END_WITH_IP, Packet::Fup(Ip::Suppressed)]);
    let second = BEGIN + 9 + BASIC + 2 + 1 + 3;
    packets.extend([Packet::Psb, Packet::PsbEnd]);
    packets.extend(basic(3));
    packets.extend([END_WITH_IP, Packet::Fup(Ip::Update16(0x9abc))]);
    let third = second + BASIC + 3 + 2 + 1 + BEGIN;
    let bytes = trace(&packets);
    let first = (BEGIN + 9, Some(0x40_1234), Some(1));
    // A PSB resets the last IP.
    assert_eq!(found(&bytes), [Ok(first), Ok((second, None, Some(2))), Ok((third, Some(0x9abc), Some(3)))]);
}

#[test]
fn what_is_wrong_is_told_with_its_place_and_the_next_record_is_read() {
    let (ovf, tnt) = (Packet::Ovf, Packet::TipPgd(Ip::Suppressed));
    let unexpected = ErrorKind::UnexpectedPacket;
    let item = |kind, id| ErrorKind::UnknownBlockItem { kind, id };
    let after = BEGIN + BASIC;
    // Packets, and the place and kind of the error.
    let rows: Vec<(Vec<Packet>, u64, ErrorKind)> = vec![
        ([basic(1), vec![ovf]].concat(), after, unexpected("OVF")),
        ([basic(1), vec![tnt]].concat(), after, unexpected("TIP.PGD")),
        (vec![END], BEGIN, unexpected("BEP")),
        ([basic(1), vec![END_WITH_IP, tnt]].concat(), after + 2, unexpected("TIP.PGD")),
        ([basic(1), vec![END_WITH_IP], basic(3), vec![END]].concat(), after + 2, unexpected("BBP")),
        ([vec![bbp(3), bip(0, 1)], basic(3), vec![END]].concat(), BEGIN, ErrorKind::UnknownBlock { kind: 3 }),
        (vec![bbp(4), bip(3, 0), bip(0, 1), END], BEGIN + 3, item(4, 3)),
        (vec![bbp(1), bip(18, 0), END_WITH_IP], BEGIN + 3, item(1, 18)),
        (vec![bbp(5), bip(4, 0), END], BEGIN + 3, item(5, 4)),
        (
            [basic(1), vec![bbp(4), bip(2, 1), END]].concat(),
            after + 3,
            ErrorKind::RepeatedBlockItem { kind: 4, id: 2 },
        ),
    ];
    for (mut packets, offset, kind) in rows {
        let next = trace(&packets).len() as u64;
        packets.extend(basic(2));
        packets.push(END);
        let expected = [Err(Error { offset, kind }), Ok((next, None, Some(2)))];
        assert_eq!(found(&trace(&packets)), expected, "{packets:?}");
    }
}

#[test]
fn an_unknown_packet_is_an_error_and_the_next_psb_begins_anew() {
    let mut bytes = trace(&basic(1));
    let bad = bytes.len() as u64;
    // No packet begins with these bytes.
    bytes.extend([0x02, 0x01]);
    let second = bytes.len() as u64;
    bytes.extend(trace(&[basic(2), vec![END]].concat()));
    let error = Error { offset: bad, kind: ErrorKind::UnknownExtendedOpcode(1) };
    assert_eq!(found(&bytes), [Err(error), Ok((second + BEGIN, None, Some(2)))]);
}

#[test]
fn a_trace_that_is_cut_gives_the_records_before_the_cut() {
    let bytes = trace(&[basic(1), vec![END], basic(2), vec![END]].concat());
    let ends = [BEGIN + BASIC + 2, BEGIN + 2 * (BASIC + 2)];
    for len in 0..=bytes.len() {
        let whole = ends.iter().filter(|end| **end <= len as u64).count();
        let found = found(&bytes[..len]);
        assert!(found.iter().all(Result::is_ok) && found.len() == whole, "{len}: {found:?}");
    }
}

#[test]
fn packets_that_come_one_by_one_give_the_same() {
    let packets = [basic(1), vec![Packet::Mnt(crate::packet::Mnt { payload: 3 }), END]].concat();
    let mut assembly = PebsAssembly::default();
    for (offset, packet) in (100..).zip(&packets) {
        let found = assembly.take(offset, packet).expect("nothing is wrong").map(|found| found.offset);
        assert_eq!(found, (*packet == END).then_some(100));
    }
    // The incomplete record leaves nothing in the next one.
    assembly.take(1, &bbp(4)).unwrap();
    assembly.restart();
    let error = Error { offset: 2, kind: ErrorKind::UnexpectedPacket("BEP") };
    assert_eq!(assembly.take(2, &END), Err(error));
}
