//! Every packet's bytes, typed from the manual, and every kind of malformed packet.

#![expect(clippy::unusual_byte_groupings, reason = "grouped by the packets' fields")]

extern crate std;

use super::*;
use crate::config::{Clocks, Config, Position, UnknownPackets};
use crate::errata::Errata;
use crate::error::{Error, ErrorKind};
use std::vec::Vec;

/// The configuration and the context, which affect how a packet is read.
type Reading = (Config<'static>, Context);

const OUTSIDE: Reading = (Config::new(), Context::OUTSIDE);
const FOUR: Reading = (Config::new(), Context { block: Some(BlockItemSize::Four) });
const EIGHT: Reading = (Config::new(), Context { block: Some(BlockItemSize::Eight) });

fn parse(bytes: &[u8], (config, context): Reading) -> Parsed<Packet> {
    Packet::parse_with(bytes, &config, context)
}

fn with_errata(errata: Errata) -> Reading {
    (Config { errata, ..Config::new() }, Context::OUTSIDE)
}

fn exec(cs_l: bool, cs_d: bool, iflag: bool) -> Packet {
    Packet::ModeExec(ModeExec { cs_l, cs_d, iflag })
}

fn tsx(in_tx: bool, abort: bool) -> Packet {
    Packet::ModeTsx(ModeTsx { in_tx, abort })
}

fn cyc(cycles: u64) -> Packet {
    Packet::Cyc(Cyc { cycles })
}

/// Returns packets, and their bytes according to the manual, with reserved bits zero.
fn table() -> Vec<(Reading, &'static [u8], Packet)> {
    let outside: &[(&[u8], Packet)] = &[
        (&[0x00], Packet::Pad),
        (b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82", Packet::Psb),
        (&[0x02, 0x23], Packet::PsbEnd),
        (&[0x02, 0xf3], Packet::Ovf),
        (&[0x02, 0x83], Packet::TraceStop),
        (&[0b0000_0100], Packet::TntShort(Tnt { bits: 0, len: 1 })),
        (&[0b0000_0110], Packet::TntShort(Tnt { bits: 1, len: 1 })),
        (&[0b0010_1100], Packet::TntShort(Tnt { bits: 0b0110, len: 4 })),
        (&[0b1000_0000], Packet::TntShort(Tnt { bits: 0, len: 6 })),
        (&[0b1111_1110], Packet::TntShort(Tnt { bits: 0b11_1111, len: 6 })),
        (&[0x02, 0xa3, 2, 0, 0, 0, 0, 0], Packet::TntLong(Tnt { bits: 0, len: 1 })),
        (&[0x02, 0xa3, 0x80, 1, 0, 0, 0, 0], Packet::TntLong(Tnt { bits: 0x80, len: 8 })),
        (&[0x02, 0xa3, 1, 0, 0, 0, 0, 0x80], Packet::TntLong(Tnt { bits: 1, len: 47 })),
        (&[0x0d], Packet::Tip(Ip::Suppressed)),
        (&[0x2d, 0x34, 0x12], Packet::Tip(Ip::Update16(0x1234))),
        (&[0x4d, 4, 3, 2, 1], Packet::Tip(Ip::Update32(0x0102_0304))),
        (&[0x6d, 6, 5, 4, 3, 2, 0x81], Packet::Tip(Ip::SignExtend48(0x8102_0304_0506))),
        (&[0x8d, 6, 5, 4, 3, 2, 0x81], Packet::Tip(Ip::Update48(0x8102_0304_0506))),
        (&[0xcd, 8, 7, 6, 5, 4, 3, 2, 0x81], Packet::Tip(Ip::Full(0x8102_0304_0506_0708))),
        (&[0x11], Packet::TipPge(Ip::Suppressed)),
        (&[0x31, 0x34, 0x12], Packet::TipPge(Ip::Update16(0x1234))),
        (&[0x51, 4, 3, 2, 1], Packet::TipPge(Ip::Update32(0x0102_0304))),
        (&[0x71, 6, 5, 4, 3, 2, 1], Packet::TipPge(Ip::SignExtend48(0x0102_0304_0506))),
        (&[0x91, 6, 5, 4, 3, 2, 1], Packet::TipPge(Ip::Update48(0x0102_0304_0506))),
        (&[0xd1, 8, 7, 6, 5, 4, 3, 2, 1], Packet::TipPge(Ip::Full(0x0102_0304_0506_0708))),
        (&[0x01], Packet::TipPgd(Ip::Suppressed)),
        (&[0x21, 0x34, 0x12], Packet::TipPgd(Ip::Update16(0x1234))),
        (&[0x41, 4, 3, 2, 1], Packet::TipPgd(Ip::Update32(0x0102_0304))),
        (&[0x61, 6, 5, 4, 3, 2, 1], Packet::TipPgd(Ip::SignExtend48(0x0102_0304_0506))),
        (&[0x81, 6, 5, 4, 3, 2, 1], Packet::TipPgd(Ip::Update48(0x0102_0304_0506))),
        (&[0xc1, 8, 7, 6, 5, 4, 3, 2, 1], Packet::TipPgd(Ip::Full(0x0102_0304_0506_0708))),
        (&[0x1d], Packet::Fup(Ip::Suppressed)),
        (&[0x3d, 0x34, 0x12], Packet::Fup(Ip::Update16(0x1234))),
        (&[0x5d, 4, 3, 2, 1], Packet::Fup(Ip::Update32(0x0102_0304))),
        (&[0x7d, 6, 5, 4, 3, 2, 1], Packet::Fup(Ip::SignExtend48(0x0102_0304_0506))),
        (&[0x9d, 6, 5, 4, 3, 2, 1], Packet::Fup(Ip::Update48(0x0102_0304_0506))),
        (&[0xdd, 8, 7, 6, 5, 4, 3, 2, 1], Packet::Fup(Ip::Full(0x0102_0304_0506_0708))),
        (&[0x99, 0b000_00000], exec(false, false, false)),
        (&[0x99, 0b000_00001], exec(true, false, false)),
        (&[0x99, 0b000_00010], exec(false, true, false)),
        (&[0x99, 0b000_00100], exec(false, false, true)),
        (&[0x99, 0b001_00000], tsx(false, false)),
        (&[0x99, 0b001_00001], tsx(true, false)),
        (&[0x99, 0b001_00010], tsx(false, true)),
        (&[0x02, 0x43, 0, 0x10, 0, 0, 0, 0], Packet::Pip(Pip { cr3: 0x1_0000, non_root: false })),
        (
            &[0x02, 0x43, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            Packet::Pip(Pip { cr3: 0xf_ffff_ffff_ffe0, non_root: true }),
        ),
        (&[0x02, 0xc8, 5, 4, 3, 2, 0x81], Packet::Vmcs(Vmcs { base: 0x8_1020_3040_5000 })),
        (&[0x19, 7, 6, 5, 4, 3, 2, 0x81], Packet::Tsc(Tsc { tsc: 0x81_0203_0405_0607 })),
        (&[0x02, 0x03, 0x24, 0x00], Packet::Cbr(Cbr { ratio: 0x24, reserved: 0 })),
        (&[0x02, 0x03, 0xff, 0x5a], Packet::Cbr(Cbr { ratio: 0xff, reserved: 0x5a })),
        (&[0x02, 0x73, 0x34, 0x12, 0, 0xcd, 0x01], Packet::Tma(Tma { ctc: 0x1234, fc: 0x1cd })),
        (&[0x59, 0x94], Packet::Mtc(Mtc { ctc: 0x94 })),
        (&[0b00000_0_11], cyc(0)),
        (&[0b10001_0_11], cyc(0x11)),
        (&[0b11111_0_11], cyc(31)),
        (&[0b00000_1_11, 0b0000001_0], cyc(32)),
        (&[0b11111_1_11, 0b1111111_0], cyc((1 << 12) - 1)),
        (&[0b00000_1_11, 0b0000000_1, 0b0000001_0], cyc(1 << 12)),
        (&[0xff, 0xff, 0xff, 0xfe], cyc((1 << 26) - 1)),
        (&[0xff, 0xff, 0xff, 0xff, 0xfe], cyc((1 << 33) - 1)),
        (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xfe], cyc((1 << 40) - 1)),
        (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe], cyc((1 << 47) - 1)),
        (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe], cyc((1 << 54) - 1)),
        (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe], cyc((1 << 61) - 1)),
        (&[0x02, 0xc3, 0x88, 8, 7, 6, 5, 4, 3, 2, 0x81], Packet::Mnt(Mnt { payload: 0x8102_0304_0506_0708 })),
        (&[0x02, 0x62], Packet::Exstop(Exstop { ip: false })),
        (&[0x02, 0xe2], Packet::Exstop(Exstop { ip: true })),
        (&[0x02, 0xc2, 0x21, 0, 0, 0, 1, 0, 0, 0], Packet::Mwait(Mwait { hints: 0x21, ext: 1 })),
        (&[0x02, 0x22, 0x00, 0x21], Packet::Pwre(Pwre { state: 2, sub_state: 1, hw: false })),
        (&[0x02, 0x22, 0x80, 0x5f], Packet::Pwre(Pwre { state: 5, sub_state: 15, hw: true })),
        (
            &[0x02, 0xa2, 0x25, 0b0001, 0, 0, 0],
            Packet::Pwrx(Pwrx { last: 2, deepest: 5, interrupt: true, store: false, autonomous: false }),
        ),
        (
            &[0x02, 0xa2, 0xf0, 0b0100, 0, 0, 0],
            Packet::Pwrx(Pwrx { last: 15, deepest: 0, interrupt: false, store: true, autonomous: false }),
        ),
        (
            &[0x02, 0xa2, 0x0f, 0b1000, 0, 0, 0],
            Packet::Pwrx(Pwrx { last: 0, deepest: 15, interrupt: false, store: false, autonomous: true }),
        ),
        (&[0x02, 0x12, 4, 3, 2, 1], Packet::Ptw(Ptw { payload: PtwPayload::Four(0x0102_0304), ip: false })),
        (&[0x02, 0x92, 4, 3, 2, 1], Packet::Ptw(Ptw { payload: PtwPayload::Four(0x0102_0304), ip: true })),
        (
            &[0x02, 0x32, 8, 7, 6, 5, 4, 3, 2, 1],
            Packet::Ptw(Ptw { payload: PtwPayload::Eight(0x0102_0304_0506_0708), ip: false }),
        ),
        (
            &[0x02, 0xb2, 8, 7, 6, 5, 4, 3, 2, 1],
            Packet::Ptw(Ptw { payload: PtwPayload::Eight(0x0102_0304_0506_0708), ip: true }),
        ),
        (&[0x02, 0x63, 0x01], Packet::Bbp(Bbp { size: BlockItemSize::Eight, kind: 1 })),
        (&[0x02, 0x63, 0x9f], Packet::Bbp(Bbp { size: BlockItemSize::Four, kind: 31 })),
        (&[0x02, 0x33], Packet::Bep(Bep { ip: false })),
        (&[0x02, 0xb3], Packet::Bep(Bep { ip: true })),
        (&[0x02, 0x13, 0x01, 0x0e], Packet::Cfe(Cfe { kind: 1, vector: 14, ip: false })),
        (&[0x02, 0x13, 0x9f, 0xff], Packet::Cfe(Cfe { kind: 31, vector: 255, ip: true })),
        (
            &[0x02, 0x53, 0x02, 8, 7, 6, 5, 4, 3, 2, 1],
            Packet::Evd(Evd { kind: 2, payload: 0x0102_0304_0506_0708 }),
        ),
        (&[0x02, 0x53, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0], Packet::Evd(Evd { kind: 63, payload: 0 })),
        (&[0xd9, 0x00, 0xa1], Packet::Trig(Trig { trbv: 0xa1, icnt: None, mult: false, ip: false })),
        (&[0xd9, 0xa0, 0xa1], Packet::Trig(Trig { trbv: 0xa1, icnt: None, mult: true, ip: true })),
        (
            &[0xd9, 0x40, 1, 0x17, 2],
            Packet::Trig(Trig { trbv: 1, icnt: Some(0x217), mult: false, ip: false }),
        ),
    ];
    let mut rows: Vec<_> = outside.iter().map(|&(bytes, packet)| (OUTSIDE, bytes, packet)).collect();
    rows.extend([
        (FOUR, &[0x04, 4, 3, 2, 1][..], Packet::Bip(Bip { id: 0, value: BipValue::Four(0x0102_0304) })),
        (FOUR, &[0xfc, 4, 3, 2, 1], Packet::Bip(Bip { id: 31, value: BipValue::Four(0x0102_0304) })),
        (
            EIGHT,
            &[0x14, 8, 7, 6, 5, 4, 3, 2, 1],
            Packet::Bip(Bip { id: 2, value: BipValue::Eight(0x0102_0304_0506_0708) }),
        ),
    ]);
    rows
}

#[test]
fn parses_and_emits_each_packet_as_the_manual_has_it() {
    for (context, bytes, packet) in table() {
        assert_eq!(parse(bytes, context), Ok(Some((packet, bytes.len()))), "{bytes:02x?}");
        let more = [bytes, &[0xff; 16]].concat();
        assert_eq!(parse(&more, context), Ok(Some((packet, bytes.len()))), "{bytes:02x?} and more");

        let mut out = [0xee; 17];
        assert_eq!(packet.emit(&mut out), Ok(bytes.len()), "{packet:?}");
        assert_eq!(&out[..bytes.len()], bytes, "{packet:?}");
        assert!(out[bytes.len()..].iter().all(|&byte| byte == 0xee), "{packet:?} writes after its end");
        assert_eq!(packet.len(), bytes.len(), "{packet:?}");
    }
}

#[test]
fn a_packet_that_is_cut_short_is_the_end_of_the_trace() {
    for (context, bytes, _) in table() {
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut], context), Ok(None), "{:02x?}", &bytes[..cut]);
        }
    }
}

#[test]
fn writes_nothing_where_a_packet_does_not_fit() {
    for (_, bytes, packet) in table() {
        let mut out = [0xee; 16];
        let (size, room) = (bytes.len(), bytes.len() - 1);
        assert_eq!(packet.emit(&mut out[..room]), Err(EmitError::Full { size, room }), "{packet:?}");
        assert_eq!(out, [0xee; 16], "{packet:?}");
    }
}

#[test]
fn opcodes_that_are_not_in_the_manual_are_unknown() {
    let known = [0x00, 0x02, 0x19, 0x59, 0x99, 0xd9];
    for first in 0..=u8::MAX {
        let taken = known.contains(&first)
            || first & 1 == 0
            || first & 3 == 3
            || matches!(first & 0x1f, 0x01 | 0x0d | 0x11 | 0x1d);
        let unknown = parse(&[first], OUTSIDE) == Err(ErrorKind::UnknownOpcode(first));
        assert_eq!(unknown, !taken, "{first:02x}");
    }
    let known = [
        0x82, 0x23, 0xf3, 0x83, 0xa3, 0x43, 0xc8, 0x03, 0x73, 0xc3, 0x62, 0xe2, 0xc2, 0x22, 0xa2, 0x13, 0x53,
        0x63, 0x33, 0xb3,
    ];
    for second in 0..=u8::MAX {
        let unknown = parse(&[0x02, second], OUTSIDE) == Err(ErrorKind::UnknownExtendedOpcode(second));
        assert_eq!(unknown, !known.contains(&second) && second & 0x1f != 0x12, "02 {second:02x}");
    }
    for third in (0..=u8::MAX).filter(|&third| third != 0x88) {
        let parsed = parse(&[0x02, 0xc3, third], OUTSIDE);
        assert_eq!(parsed, Err(ErrorKind::UnknownOpcodeAfterC3(third)), "02 c3 {third:02x}");
    }
}

#[test]
fn values_that_the_manual_does_not_allow_are_errors_with_that_value() {
    let cases: &[(&[u8], &str, u64)] = &[
        (b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x83", "PSB", 0x83),
        (b"\x02\x82\x77\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x83", "PSB", 0x77),
        (&[0xad], "TIP", 5),
        (&[0xed], "TIP", 7),
        (&[0xb1], "TIP.PGE", 5),
        (&[0xf1], "TIP.PGE", 7),
        (&[0xa1], "TIP.PGD", 5),
        (&[0xe1], "TIP.PGD", 7),
        (&[0xbd], "FUP", 5),
        (&[0xfd], "FUP", 7),
        (&[0x02, 0xa3, 0, 0, 0, 0, 0, 0], "TNT", 0),
        (&[0x02, 0xa3, 1, 0, 0, 0, 0, 0], "TNT", 1),
        (&[0x99, 0x40], "MODE", 0x40),
        (&[0x99, 0xe3], "MODE", 0xe3),
        (&[0x02, 0x73, 0, 0, 1, 0, 0], "TMA", 0x00_0001),
        (&[0x02, 0x73, 0, 0, 0, 0, 2], "TMA", 0x02_0000),
        (&[0x02, 0x73, 0, 0, 0, 0xff, 0xff], "TMA", 0xff_ff00),
        (&[0x07, 1, 1, 1, 1, 1, 1, 1, 1, 0x55], "CYC", 0x55),
        (&[0x02, 0x52], "PTW", 2),
        (&[0x02, 0x72], "PTW", 3),
        (&[0x02, 0xd2], "PTW", 2),
        (&[0x02, 0xf2], "PTW", 3),
    ];
    for &(bytes, packet, value) in cases {
        let error = Err(ErrorKind::MalformedPacket { packet, value });
        assert_eq!(parse(bytes, OUTSIDE), error, "{bytes:02x?}");
        // A wrong value is an error as soon as its byte is there. A packet whose last bytes are checked can still be
        // truncated.
        let needs = match packet {
            "PSB" | "TNT" | "TMA" | "CYC" => bytes.len(),
            "MODE" | "PTW" => 2,
            _ => 1,
        };
        assert_eq!(parse(&bytes[..needs - 1], OUTSIDE), Ok(None), "{bytes:02x?} cut");
        assert_eq!(parse(&[bytes, &[0; 9]].concat(), OUTSIDE), error, "{bytes:02x?} and more");
    }
}

#[test]
fn reserved_bits_are_not_looked_at() {
    let cases: &[(&[u8], Packet)] = &[
        (&[0x99, 0b000_11001], exec(true, false, false)),
        (&[0x99, 0b001_11101], tsx(true, false)),
        (&[0x02, 0x22, 0x7f, 0x10], Packet::Pwre(Pwre { state: 1, sub_state: 0, hw: false })),
        (
            &[0x02, 0xa2, 0x12, 0xf2, 1, 2, 3],
            Packet::Pwrx(Pwrx { last: 1, deepest: 2, interrupt: false, store: false, autonomous: false }),
        ),
        (&[0x02, 0x63, 0x61], Packet::Bbp(Bbp { size: BlockItemSize::Eight, kind: 1 })),
        (&[0x02, 0x13, 0x62, 0], Packet::Cfe(Cfe { kind: 2, vector: 0, ip: false })),
        (&[0x02, 0x53, 0xc1, 0, 0, 0, 0, 0, 0, 0, 0], Packet::Evd(Evd { kind: 1, payload: 0 })),
        (&[0xd9, 0x1f, 0], Packet::Trig(Trig { trbv: 0, icnt: None, mult: false, ip: false })),
        // A count may take more bytes than necessary.
        (&[0x07, 0x01, 0x00], cyc(0)),
    ];
    for &(bytes, packet) in cases {
        assert_eq!(parse(bytes, OUTSIDE), Ok(Some((packet, bytes.len()))), "{bytes:02x?}");
        assert_re_emits(&packet, OUTSIDE);
    }
}

#[test]
fn who_knows_unknown_packets_is_asked_for_their_size_and_value() {
    let trace =
        [0x00, 0x05, 9, 8, 0x02, 0xff, 0x02, 0xc3, 0x89, 0x02, 0x63, 0x80, 0x02, 0x0c, 0x0c, 7, 0, 0, 0, 5];
    let asked = |config: &Config<'_>, position: Position<'_>, context: Context| {
        assert_eq!((position.trace, config.clocks.mtc_freq), (&trace[..], 3));
        let bytes = position.bytes();
        let value = position.offset as u64 | u64::from(context.block.is_some()) << 8;
        match bytes {
            [0x05, ..] => Ok(Unknown { size: 3, value }),
            [0x02, 0xff | 0x0c, ..] => Ok(Unknown { size: 2, value }),
            [0x02, 0xc3, third, ..] => Err(ErrorKind::Refused((*third).into())),
            _ => Ok(Unknown { size: 0, value }),
        }
    };
    let config = Config {
        clocks: Clocks { mtc_freq: 3, ..Clocks::UNKNOWN },
        unknown: Some(UnknownPackets::new(&asked)),
        ..Config::new()
    };
    let mut packets = Packets::with_config(&trace, config);
    let unknown = |offset, size, value| Some(Ok((offset, Packet::Unknown(Unknown { size, value }))));
    assert_eq!(packets.next(), Some(Ok((0, Packet::Pad))));
    assert_eq!(packets.next(), unknown(1, 3, 1));
    assert_eq!(packets.next(), unknown(4, 2, 4));
    assert_eq!(packets.next(), Some(Err(Error { offset: 6, kind: ErrorKind::Refused(0x89) })));
    packets.set_offset(9);
    assert!(matches!(packets.next(), Some(Ok((9, Packet::Bbp(_))))));
    assert_eq!(packets.next(), unknown(12, 2, 12 | 1 << 8));
    // The block is still open.
    let item = Bip { id: 1, value: BipValue::Four(7) };
    assert_eq!(packets.next(), Some(Ok((14, Packet::Bip(item)))));
    // The last packet would extend past the end.
    assert_eq!((packets.next(), packets.offset()), (None, 19));

    let sizeless = |_: &Config<'_>, _: Position<'_>, _: Context| Ok(Unknown { size: 0, value: 0 });
    let config = Config { unknown: Some(UnknownPackets::new(&sizeless)), ..Config::new() };
    for (bytes, kind) in [
        (&[0x05, 0][..], ErrorKind::UnknownOpcode(5)),
        (&[0x02, 0x0c, 0], ErrorKind::UnknownExtendedOpcode(0x0c)),
        (&[0x02, 0xc3, 0x87, 0], ErrorKind::UnknownOpcodeAfterC3(0x87)),
        (&[0xad, 0], ErrorKind::MalformedPacket { packet: "TIP", value: 5 }),
    ] {
        assert_eq!(Packet::parse_with(bytes, &config, Context::OUTSIDE), Err(kind), "{bytes:02x?}");
    }
}

#[test]
fn skd007_makes_an_ovf_of_a_cyc() {
    let skd007 = with_errata(Errata { skd007: true, ..Errata::NONE });
    for (bytes, with, without) in [
        (&[0x07, 0x02, 0xf3][..], (Packet::Ovf, 3), (cyc(0x20), 2)),
        (&[0xff, 0x02, 0xf3, 0x00], (Packet::Ovf, 3), (cyc(0x3f), 2)),
        (&[0x07, 0x04, 0xf3], (cyc(0x40), 2), (cyc(0x40), 2)),
        (&[0x07, 0x02, 0xf2], (cyc(0x20), 2), (cyc(0x20), 2)),
        (&[0x07, 0x02], (cyc(0x20), 2), (cyc(0x20), 2)),
        (&[0x03, 0x02, 0xf3], (cyc(0), 1), (cyc(0), 1)),
    ] {
        assert_eq!(parse(bytes, skd007), Ok(Some(with)), "{bytes:02x?}");
        assert_eq!(parse(bytes, OUTSIDE), Ok(Some(without)), "{bytes:02x?}");
    }
}

#[test]
fn skz84_makes_eight_bytes_of_a_damaged_tma() {
    let skz84 = with_errata(Errata { skz84: true, ..Errata::NONE });
    for bytes in [[0x02, 0x73, 1, 1, 1, 1, 0, 0], [0x02, 0x73, 1, 1, 0, 0, 2, 0xff]] {
        assert_eq!(parse(&bytes, skz84), Ok(Some((Packet::DamagedTma(bytes), 8))), "{bytes:02x?}");
        assert!(parse(&bytes, OUTSIDE).is_err(), "{bytes:02x?}");
        assert_re_emits(&Packet::DamagedTma(bytes), skz84);
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut], skz84), Ok(None), "{bytes:02x?}");
        }
    }
    let whole = Packet::Tma(Tma { ctc: 0x101, fc: 1 });
    assert_eq!(parse(&[0x02, 0x73, 1, 1, 0, 1, 0, 0], skz84), Ok(Some((whole, 7))));
}

#[test]
fn values_too_big_are_emitted_as_their_docs_say() {
    let cases: &[(Packet, &[u8])] = &[
        (Packet::Tip(Ip::Update48(u64::MAX)), &[0x8d, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        (Packet::Fup(Ip::SignExtend48(u64::MAX)), &[0x7d, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        (Packet::Tsc(Tsc { tsc: u64::MAX }), &[0x19, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        (
            Packet::Pip(Pip { cr3: u64::MAX, non_root: false }),
            &[0x02, 0x43, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff],
        ),
        (Packet::Vmcs(Vmcs { base: u64::MAX }), &[0x02, 0xc8, 0xff, 0xff, 0xff, 0xff, 0xff]),
        (Packet::Tma(Tma { ctc: 0, fc: 0xffff }), &[0x02, 0x73, 0, 0, 0, 0xff, 0x01]),
        (cyc(u64::MAX), &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]),
        (Packet::Pwre(Pwre { state: 0x12, sub_state: 0x34, hw: false }), &[0x02, 0x22, 0, 0x24]),
        (
            Packet::Pwrx(Pwrx {
                last: 0x12,
                deepest: 0x34,
                interrupt: false,
                store: false,
                autonomous: false,
            }),
            &[0x02, 0xa2, 0x24, 0, 0, 0, 0],
        ),
        (Packet::Bbp(Bbp { size: BlockItemSize::Eight, kind: 0xff }), &[0x02, 0x63, 0x1f]),
        (Packet::Bip(Bip { id: 0xff, value: BipValue::Four(0) }), &[0xfc, 0, 0, 0, 0]),
        (Packet::Cfe(Cfe { kind: 0xff, vector: 0, ip: false }), &[0x02, 0x13, 0x1f, 0]),
        (Packet::Evd(Evd { kind: 0xff, payload: 0 }), &[0x02, 0x53, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0]),
        (Packet::TntShort(Tnt { bits: u64::MAX, len: 2 }), &[0b0000_1110]),
    ];
    for &(packet, bytes) in cases {
        let mut out = [0xee; 16];
        assert_eq!(packet.emit(&mut out), Ok(bytes.len()), "{packet:x?}");
        assert_eq!(&out[..bytes.len()], bytes, "{packet:x?}");
    }
    let unknown = Unknown { size: 3, value: 7 };
    for (packet, error) in [
        (Packet::TntShort(Tnt { bits: 0, len: 7 }), EmitError::Outcomes(7)),
        (Packet::TntLong(Tnt { bits: 0, len: 48 }), EmitError::Outcomes(48)),
        (Packet::TntLong(Tnt { bits: 0, len: 255 }), EmitError::Outcomes(255)),
        (Packet::TntShort(Tnt::EMPTY), EmitError::Outcomes(0)),
        (Packet::TntLong(Tnt::EMPTY), EmitError::Outcomes(0)),
        (Packet::Unknown(unknown), EmitError::Unknown(unknown)),
    ] {
        let mut out = [0xee; 16];
        assert_eq!((packet.emit(&mut out), packet.len()), (Err(error), 0), "{packet:x?}");
        assert_eq!(out, [0xee; 16], "{packet:x?}");
    }
}

fn assert_re_emits(packet: &Packet, context: Reading) {
    let mut out = [0; Packet::MAX_LEN];
    let size = packet.emit(&mut out).unwrap();
    assert_eq!(parse(&out[..size], context), Ok(Some((*packet, size))), "{packet:x?}");
}

/// Returns a pseudorandom sequence that is the same each time (xorshift64*).
pub(super) fn random() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[test]
fn what_parses_re_emits_to_an_equal_packet_whatever_the_bytes() {
    let mut random = random();
    for context in [OUTSIDE, FOUR, EIGHT] {
        let check = |bytes: &[u8]| match parse(bytes, context) {
            Ok(Some((packet, size))) => {
                assert!((1..=bytes.len()).contains(&size), "{bytes:02x?}");
                assert_re_emits(&packet, context);
                for cut in 0..size {
                    let cut = parse(&bytes[..cut], context);
                    assert_eq!(cut, Ok(None), "{bytes:02x?}");
                }
            }
            Ok(None) => assert!(bytes.len() < Packet::MAX_LEN, "{bytes:02x?}"),
            Err(_) => {}
        };
        for first in 0..=u8::MAX {
            check(&[first]);
            for second in 0..=u8::MAX {
                check(&[first, second]);
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&random().to_le_bytes());
                bytes[8..].copy_from_slice(&random().to_le_bytes());
                [bytes[0], bytes[1]] = [first, second];
                check(&bytes);
            }
        }
        for _ in 0..crate::rounds(20_000) {
            let third = random() as u8;
            let mut bytes = [0x02, random() as u8, third, 0, 0, 0, 0, 0, 0, 0, 0];
            bytes[3..].copy_from_slice(&random().to_le_bytes());
            check(&bytes);
            check(&bytes[..3]);
        }
    }
}

#[test]
fn pushed_outcomes_become_the_smaller_packet() {
    let mut tnt = Tnt::EMPTY;
    for len in 1..=Tnt::LONG {
        assert!(tnt.push(len % 3 == 0));
        assert_eq!((tnt.len, tnt.packet().len()), (len, if len <= Tnt::SHORT { 1 } else { 8 }));
    }
    assert!(tnt.outcomes().eq((1..=Tnt::LONG).map(|len| len % 3 == 0)));
    let full = tnt;
    assert!(!tnt.push(true));
    assert_eq!(tnt, full);
}

#[test]
fn tnt_outcomes_come_oldest_first() {
    let outcomes = |bits, len| Tnt { bits, len }.outcomes().collect::<Vec<_>>();
    assert_eq!(outcomes(0b100, 3), [true, false, false]);
    assert_eq!(outcomes(0b1, 1), [true]);
    assert_eq!(outcomes(0, 0), [false; 0]);
    assert_eq!(outcomes(u64::MAX, 255).len(), 64);
}

#[test]
fn outcomes_that_are_folded_are_those_that_come_one_by_one() {
    let mut random = random();
    for round in 0..crate::rounds(1000) {
        let tnt = Tnt { bits: random(), len: (round % 70) as u8 };
        let mut folded = Vec::new();
        tnt.outcomes().for_each(|taken| folded.push(taken));
        let mut one_by_one = Vec::new();
        let mut left = tnt.outcomes();
        while let Some(taken) = left.next() {
            one_by_one.push(taken);
            assert_eq!(left.size_hint().0, usize::from(tnt.len.min(64)) - one_by_one.len());
        }
        assert_eq!(folded, one_by_one, "{tnt:x?}");
    }
}

#[test]
fn a_block_lasts_until_a_packet_that_cannot_be_inside_one() {
    let inside: &[&[u8]] = &[&[0x00], &[0x59, 1], &[0x13], &[0x02, 0x62], &[0x3d, 1, 2]];
    let outside: &[&[u8]] = &[&[0x02, 0x33], &[0x02, 0xb3], &[0x02, 0xf3], &[0x06], &[0x2d, 1, 2], &PSB];
    for (packets, still_inside) in [(inside, true), (outside, false)] {
        for packet in packets {
            let trace = [&[0x02, 0x63, 0x80][..], packet, &[0x0c, 1, 0, 0, 0]].concat();
            let last = Packets::new(&trace).nth(2).unwrap().unwrap().1;
            assert_eq!(matches!(last, Packet::Bip(_)), still_inside, "{packet:02x?}");
            assert_eq!(matches!(last, Packet::TntShort(_)), !still_inside, "{packet:02x?}");
        }
    }
    // Another BBP opens another block.
    let trace = [0x02, 0x63, 0x80, 0x02, 0x63, 0x00, 0x0c, 1, 0, 0, 0, 0, 0, 0, 0];
    let item = Packet::Bip(Bip { id: 1, value: BipValue::Eight(1) });
    assert_eq!(Packets::new(&trace).last(), Some(Ok((6, item))));
}
