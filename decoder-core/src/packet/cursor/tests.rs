extern crate std;

use super::*;
use crate::{
    errata::Errata,
    error::ErrorKind,
    packet::{PSB, tests::random},
};
use std::vec::Vec;

#[test]
fn the_cursor_stops_at_an_error_and_goes_on_at_the_next_psb() {
    let trace = [&[0x00][..], &PSB, &[0x02, 0x23, 0x05, 0x00], &PSB, &[0x02, 0x23, 0x02]].concat();
    let mut packets = Packets::new(&trace);
    assert_eq!(packets.sync_forward(), Some(1));
    let error = Error { offset: 19, kind: ErrorKind::UnknownOpcode(0x05) };
    assert!(packets.by_ref().eq([Ok((1, Packet::Psb)), Ok((17, Packet::PsbEnd)), Err(error)]));
    assert_eq!((packets.next(), packets.offset()), (None, 19));
    assert_eq!(packets.sync_forward(), Some(21));
    assert!(packets.by_ref().eq([Ok((21, Packet::Psb)), Ok((37, Packet::PsbEnd))]));
    // The last packet is incomplete.
    assert_eq!(packets.offset(), 39);
    assert_eq!(packets.sync_forward(), None);
    assert_eq!(packets.sync_backward(), Some(21));
    assert_eq!(packets.sync_backward(), Some(1));
    assert_eq!(packets.sync_backward(), None);
    assert_eq!(packets.offset(), 1);
}

#[test]
fn synchronising_finds_a_psb_that_a_damaged_packet_reached_into() {
    // A long TNT takes the first four bytes of the PSB; the rest is no PSB.
    let trace = [&PSB[..], &[0x02, 0xa3, 1, 1], &PSB, &[0x02, 0x23, 0x00, 0x00]].concat();
    let mut packets = Packets::new(&trace);
    assert_eq!(packets.sync_forward(), Some(0));
    assert!(packets.by_ref().last().unwrap().is_err());
    assert_eq!(packets.offset(), 24);
    assert_eq!(packets.sync_forward(), Some(20));
    assert_eq!(packets.next(), Some(Ok((20, Packet::Psb))));
}

#[test]
fn synchronising_never_finds_the_psb_it_was_on() {
    let trace = [&PSB[..], &[0x02, 0x23]].concat();
    let mut packets = Packets::new(&trace);
    assert_eq!(packets.sync_forward(), Some(0));
    for _ in 0..2 {
        assert_eq!(packets.clone().sync_forward(), None);
        packets.next();
    }
    assert_eq!(packets.sync_forward(), None);
    packets.set_offset(0);
    for (offset, psb) in [(5, Some(0)), (u64::MAX, None)] {
        let mut packets = Packets::new(&trace);
        packets.set_offset(offset);
        assert_eq!(packets.sync_forward(), psb);
    }
}

#[test]
fn synchronising_at_an_offset_wants_a_psb_there() {
    let trace = [&[0x00][..], &PSB, &[0x02, 0x23], &PSB, &PSB, &[0x02, 0x23]].concat();
    let mut packets = Packets::new(&trace);
    // In a run of PSBs the last one counts.
    for (offset, psb) in
        [(1, Some(1)), (0, None), (2, None), (19, Some(35)), (35, Some(35)), (u64::MAX, None)]
    {
        let before = (packets.offset(), packets.sync_offset());
        assert_eq!(packets.sync_at(offset), psb.is_some(), "{offset}");
        let after = (packets.offset(), packets.sync_offset());
        assert_eq!(after, psb.map_or(before, |psb| (psb, Some(psb))), "{offset}");
    }
}

/// Returns the packets that [`Packet::parse_with`] reads from a trace, one by one.
fn one_by_one(trace: &[u8], config: &Config<'_>) -> Vec<Result<(u64, Packet), Error>> {
    let (mut offset, mut context, mut packets) = (0, Context::OUTSIDE, Vec::new());
    loop {
        match Packet::parse_with(&trace[offset..], config, context) {
            Ok(Some((packet, size))) => {
                packets.push(Ok((offset as u64, packet)));
                offset += size;
                context = context.after(&packet);
            }
            Ok(None) => return packets,
            Err(kind) => {
                packets.push(Err(Error { offset: offset as u64, kind }));
                return packets;
            }
        }
    }
}

/// Returns random bytes, mostly packets of the kinds that are frequent in traces.
fn some_trace(random: &mut impl FnMut() -> u64) -> Vec<u8> {
    let mut trace = Vec::new();
    while trace.len() < 40 {
        let number = random();
        let bytes = number.to_le_bytes();
        match number >> 56 {
            0..64 => trace.extend([bytes[0] | 4]),
            64..96 => trace.extend([bytes[0] | 0b11]),
            96..112 => trace.extend([[0x2d, 0x4d, 0x6d, 0xcd][bytes[1] as usize % 4]]),
            112..128 => trace.extend([0x59, bytes[0]]),
            128..136 => trace.extend([0x02, 0x63, bytes[0]]),
            136..144 => trace.extend([0x07, 0x02, 0xf3]),
            144..148 => trace.extend([0x02, 0xf3]),
            148..152 => trace.extend([0x02, 0x33]),
            152..160 => trace.extend([0x19]),
            160..168 => trace.extend([0x03 | bytes[0], bytes[1] | 1, bytes[2]]),
            168 => trace.extend(bytes),
            _ => trace.extend([bytes[0] & !1]),
        }
    }
    trace
}

#[test]
fn gives_the_packets_that_are_read_one_by_one() {
    let mut random = random();
    let (mut packets, mut errors) = (0, 0);
    for round in 0..10_000 {
        let config = Config { errata: Errata { skd007: round % 2 == 0, ..Errata::NONE }, ..Config::new() };
        let trace = some_trace(&mut random);
        let expected = one_by_one(&trace, &config);
        let mut iterator = Packets::with_config(&trace, config);
        let given: Vec<_> = iterator.by_ref().collect();
        assert_eq!(given, expected, "{trace:02x?}");
        assert_eq!(iterator.next(), None, "goes on after an error");
        packets += expected.len();
        errors += usize::from(expected.last().is_some_and(Result::is_err));
    }
    assert!(packets > 100_000 && (1000..9000).contains(&errors), "{packets} packets, {errors} errors");
}

#[test]
fn looking_ahead_within_a_block_does_not_leave_the_block() {
    // 0C begins an item in a block, and is a TNT elsewhere.
    let trace = [&[0x02, 0x63, 0x80][..], &[0x0c, 1, 0, 0, 0], &[0; 40]].concat();
    let whole: Vec<_> = Packets::new(&trace).flatten().take(2).collect();
    assert!(matches!(whole[..], [(0, Packet::Bbp(_)), (3, Packet::Bip(_))]), "{whole:?}");
    let input = Input { bytes: &trace, base: 0, more: false, reach: 16 };
    let mut packets = Packets::new(&[]).resumed(input, Config::new());
    assert_eq!(packets.next(), Some(Ok(whole[0])));
    packets.set_fence(3);
    packets.clear_fence();
    assert_eq!(packets.next(), Some(Ok(whole[1])));
}
