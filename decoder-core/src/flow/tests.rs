//! Pieces, counters and synchronisation: behaviour that the scenarios do not show.

extern crate std;

use super::*;
use crate::{
    block::{BlockDecoder, BlockItem},
    config::{AddressFilter, AddressRange, Config, RangeKind},
    errata::Errata,
    error::{Error, ErrorKind},
    event::EventKind,
    image::{AddressSpace, Image, Section},
    packet::{
        Ip, ModeExec, Packet,
        Packet::{Fup, Ovf, Pad, Psb, PsbEnd, TipPgd, TipPge, TntShort, TraceStop},
        Ptw, PtwPayload, Tnt,
    },
};
use std::{vec, vec::Vec};

/// 1000: nop; 1001: jz 1000; 1003: nop; 1004: jmp 1000; 1006: jmp rax.
const CODE: [Section<'static>; 1] = [Section {
    base: 0x1000,
    bytes: &[0x90, 0x74, 0xfd, 0x90, 0xeb, 0xfa, 0xff, 0xe0],
    space: AddressSpace::Any,
}];

const MODE: Packet = Packet::ModeExec(ModeExec { cs_l: true, cs_d: false, iflag: false });
const MODE_32: Packet = Packet::ModeExec(ModeExec { cs_l: false, cs_d: true, iflag: false });
const TAKEN: Packet = TntShort(Tnt { bits: 1, len: 1 });
const NOT_TAKEN: Packet = TntShort(Tnt { bits: 0, len: 1 });
const OFF: Packet = TipPgd(Ip::Suppressed);

const fn ip(ip: u64) -> Ip {
    Ip::Full(ip)
}

const fn psb_plus(ip: u64) -> [Packet; 4] {
    [Psb, MODE, Fup(Ip::Full(ip)), PsbEnd]
}

fn trace(packets: &[&[Packet]]) -> Vec<u8> {
    let mut trace = vec![];
    for packet in packets.concat() {
        let mut bytes = [0; Packet::MAX_LEN];
        let len = packet.emit(&mut bytes).unwrap();
        trace.extend(&bytes[..len]);
    }
    trace
}

/// Returns of each piece the cause of the gap before it, its first and last address and its length.
fn pieces(pieces: &mut Pieces<'_>) -> Vec<(&'static str, u64, u64, u64)> {
    let name = |after| match after {
        After::Start => "start",
        After::Psb => "psb",
        After::Wrap => "wrap",
        After::Overflow => "ovf",
        After::Stop => "stop",
        After::Error(_) => "error",
    };
    pieces.map(|piece| (name(piece.after), piece.first, piece.last, piece.hash.count())).collect()
}

#[test]
fn a_piece_goes_on_over_filters_and_ends_with_a_loss() {
    let start = psb_plus(0x1000);
    let off_and_on = [Fup(ip(0x1003)), OFF, Packet::Pad, MODE, TipPge(ip(0x1000))];
    for (packets, expected) in [
        (trace(&[&start, &[TAKEN]]), &[("start", 0x1000, 0x1001, 2)][..]),
        // Tracing is disabled and enabled again, also with a new PSB+ in between, as when a driver changes buffers.
        (trace(&[&start, &[NOT_TAKEN], &off_and_on, &[TAKEN]]), &[("start", 0x1000, 0x1001, 4)]),
        (
            trace(&[
                &start,
                &[Fup(ip(0x1001)), OFF],
                &[MODE, TipPge(ip(0x1001))],
                &psb_plus(0x1001),
                &[TAKEN],
            ]),
            &[("start", 0x1000, 0x1001, 2)],
        ),
        (
            trace(&[&start, &[Fup(ip(0x1001)), OFF, Psb, PsbEnd, MODE, TipPge(ip(0x1001)), TAKEN]]),
            &[("start", 0x1000, 0x1001, 2)],
        ),
        (
            trace(&[&start, &[TAKEN, Ovf, Fup(ip(0x1001)), NOT_TAKEN, Fup(ip(0x1004)), OFF]]),
            &[("start", 0x1000, 0x1001, 2), ("ovf", 0x1001, 0x1003, 2)],
        ),
        // A MODE.Exec was lost: the next PSB+ has another mode.
        (
            trace(&[&start, &[TAKEN, Ovf, Fup(ip(0x1000)), Psb, MODE_32, Fup(ip(0x1000)), PsbEnd, TAKEN]]),
            &[("start", 0x1000, 0x1001, 2), ("ovf", 0x1000, 0x1001, 2)],
        ),
        // A PSB+ that lost its FUP does not mean that tracing is off.
        (
            trace(&[&start, &[TAKEN, Psb, Ovf, Fup(ip(0x1001)), TAKEN]]),
            &[("start", 0x1000, 0x1001, 2), ("ovf", 0x1001, 0x1001, 1)],
        ),
        (
            trace(&[&start, &[TAKEN, Ovf, MODE, TipPge(ip(0x1000)), TAKEN]]),
            &[("start", 0x1000, 0x1001, 2), ("ovf", 0x1000, 0x1001, 2)],
        ),
        // Losses without an instruction between them are one gap.
        (
            trace(&[&start, &[TAKEN, Ovf, Fup(ip(0x1000)), Ovf, Fup(ip(0x1001)), TAKEN]]),
            &[("start", 0x1000, 0x1001, 2), ("ovf", 0x1001, 0x1001, 1)],
        ),
        (
            trace(&[&start, &[TipPgd(ip(0x1000)), TraceStop, MODE, TipPge(ip(0x1001)), TAKEN]]),
            &[("stop", 0x1001, 0x1001, 1)],
        ),
        (
            trace(&[&start, &[TAKEN, PsbEnd], &start, &[TAKEN]]),
            &[("start", 0x1000, 0x1001, 2), ("error", 0x1000, 0x1001, 2)],
        ),
        // The decoder does not return to a PSB+ after which instructions were reported.
        (
            trace(&[&start, &[TAKEN], &start, &[TAKEN, PsbEnd], &start, &[TAKEN]]),
            &[("start", 0x1000, 0x1001, 4), ("error", 0x1000, 0x1001, 2)],
        ),
        // A PSB+ that contradicts earlier packets is used completely. Here it contradicts that tracing is off.
        (
            trace(&[&start, &[Fup(ip(0x1001)), OFF], &start, &[TAKEN]]),
            &[("start", 0x1000, 0x1000, 1), ("error", 0x1000, 0x1001, 2)],
        ),
        // The jump out of the image is detected only after the next PSB+ was read.
        (
            trace(&[&psb_plus(0x1006), &[Packet::Tip(ip(0x9000))], &start, &[TAKEN]]),
            &[("start", 0x1006, 0x1006, 1), ("error", 0x1000, 0x1001, 2)],
        ),
    ] {
        let mut found = Pieces::new(InsnDecoder::new(&packets, Image::new(&CODE)));
        assert_eq!(pieces(&mut found), expected, "{packets:02x?}");
    }
}

#[test]
fn the_first_piece_says_whether_something_is_before_it() {
    let (start, end) = (psb_plus(0x1000), [TAKEN]);
    for (before, wrapped, expected) in [
        (&[][..], false, "start"),
        (&[Pad, Pad], false, "start"),
        // The first enable begins with these packets.
        (&[MODE, TipPge(ip(0x1000))], false, "start"),
        (&[TAKEN], false, "psb"),
        (&[Fup(ip(0x1000)), OFF], false, "psb"),
        (&[TAKEN], true, "wrap"),
        (&[], true, "wrap"),
    ] {
        let trace = trace(&[before, &start, &end]);
        let decoder = InsnDecoder::new(&trace, Image::new(&CODE));
        let mut found = if wrapped { Pieces::wrapped(decoder) } else { Pieces::new(decoder) };
        assert_eq!(pieces(&mut found), [(expected, 0x1000, 0x1001, 2)], "{before:?}");
    }
}

#[test]
fn pieces_count_what_was_lost_also_at_the_end() {
    let start = psb_plus(0x1000);
    let trace = trace(&[&start, &[TAKEN, PsbEnd], &start, &[TAKEN, Ovf]]);
    let mut found = Pieces::new(InsnDecoder::new(&trace, Image::new(&CODE)));
    assert_eq!(pieces(&mut found).len(), 2);
    assert_eq!((found.errors(), found.after()), (1, Some(After::Overflow)));
    let counters = found.decoder().counters();
    assert_eq!((counters.psbs, counters.overflows, counters.stops), (2, 1, 0));
}

#[test]
fn visits_each_instruction_of_a_piece() {
    let trace = trace(&[&psb_plus(0x1000), &[NOT_TAKEN, TAKEN]]);
    let mut found = Pieces::new(InsnDecoder::new(&trace, Image::new(&CODE)));
    let mut visited = vec![];
    let piece = found.next_with(|insn| visited.push((insn.ip, insn.len, insn.class))).unwrap();
    let (other, jump) = (Class::Other, Class::CondJump);
    let once = [(0x1000, 1, other), (0x1001, 2, jump)];
    let expected = [&once[..], &[(0x1003, 1, other), (0x1004, 2, Class::NearJump)], &once].concat();
    assert_eq!(visited, expected);
    let mut hash = crate::hash::AddressHash::new();
    visited.iter().for_each(|(ip, ..)| hash.add(*ip));
    assert_eq!(piece.hash, hash);
}

#[test]
fn an_error_is_followed_by_out_of_sync_until_a_psb() {
    let trace = trace(&[&psb_plus(0x1000), &[Packet::Tip(ip(0x1000))], &psb_plus(0x1003)]);
    let mut decoder = InsnDecoder::new(&trace, Image::new(&CODE));
    let kind = |next: Result<Option<FlowItem>, Error>| next.map(|_| ()).map_err(|error| error.kind);
    assert_eq!(kind(decoder.next()), Err(ErrorKind::OutOfSync));
    assert_eq!(decoder.sync_forward(), Some(0));
    assert_eq!((kind(decoder.next()), decoder.ip()), (Ok(()), Some(0x1000)));
    assert_eq!((kind(decoder.next()), decoder.ip()), (Ok(()), Some(0x1001)));
    assert_eq!(kind(decoder.next()), Err(ErrorKind::TraceMismatch { ip: 0x1001 }));
    assert_eq!(kind(decoder.next()), Err(ErrorKind::OutOfSync));
    assert_eq!(decoder.resync(), Some(38));
    assert_eq!(decoder.next(), Ok(None));
    assert_eq!(decoder.sync_backward(), Some(38));
    assert_eq!(decoder.sync_backward(), Some(0));
    assert_eq!(decoder.sync_backward(), None);
}

#[test]
fn what_was_reported_after_a_psb_is_not_reported_again() {
    // The overflow comes after the second PSB+, with no instruction between them.
    let overflow = [Ovf, Fup(ip(0x1001))];
    let reads_on = trace(&[&psb_plus(0x1000), &psb_plus(0x1000), &overflow]);
    // The JE has no outcome, so an error follows the overflow.
    let fails = trace(&[&psb_plus(0x1000), &psb_plus(0x1000), &overflow, &[Packet::Tip(ip(0x1000))]]);
    for (trace, errors) in [(reads_on, 0), (fails, 1)] {
        let mut decoder = InsnDecoder::new(&trace, Image::new(&CODE));
        let (mut overflows, mut failed, mut synced) = (0, 0, vec![]);
        while let Some(psb) = decoder.resync() {
            synced.push(psb);
            loop {
                match decoder.next() {
                    Ok(Some(FlowItem::Event(_))) => overflows += 1,
                    Ok(Some(FlowItem::Insn(_))) => {}
                    Ok(None) => break,
                    Err(_) => {
                        failed += 1;
                        break;
                    }
                }
            }
        }
        assert_eq!((overflows, failed, &synced[..]), (1, errors, &[0][..]));
        let mut decoder = BlockDecoder::new(&trace, Image::new(&CODE));
        let mut overflows = 0;
        while decoder.resync().is_some() {
            while let Ok(Some(item)) = decoder.next() {
                overflows += u32::from(matches!(item, BlockItem::Event(_)));
            }
        }
        assert_eq!(overflows, 1);
    }
}

#[test]
fn from_a_psb_that_was_gone_to_the_next_one_is_found_whatever_came_last_before() {
    let trace = trace(&[&psb_plus(0x1000), &psb_plus(0x1000), &psb_plus(0x1000)]);
    let size = trace.len() as u64 / 3;
    type Go = fn(&mut InsnDecoder<'_>) -> Option<u64>;
    for (go, at, next) in [
        ((|decoder| decoder.sync_at(0).then_some(0)) as Go, 0, Some(size)),
        (|decoder| decoder.sync_backward(), 2 * size, None),
    ] {
        let mut decoder = InsnDecoder::new(&trace, Image::new(&CODE));
        decoder.sync_forward();
        // The last PSB+ was read, and no instruction since.
        assert_eq!(decoder.next(), Ok(None));
        assert_eq!((go(&mut decoder), decoder.resync()), (Some(at), next));
    }
}

#[test]
fn the_address_space_follows_the_trace() {
    let pip = |cr3| Packet::Pip(crate::packet::Pip { cr3, non_root: false });
    let trace = trace(&[&[Psb, MODE, pip(0x5000), Fup(ip(0x1000)), PsbEnd, TAKEN, pip(0x6000)]]);
    let mut decoder = InsnDecoder::new(&trace, Image::new(&CODE));
    decoder.sync_forward();
    assert_eq!(decoder.asid().cr3, None);
    decoder.next().unwrap();
    assert_eq!(decoder.asid().cr3, Some(0x5000));
}

#[test]
fn recovers_once_at_the_place_of_an_event() {
    let ptw = Packet::Ptw(Ptw { payload: PtwPayload::Four(7), ip: true });
    // A PTWRITE in an address range without code, then an interrupt in code.
    let trace =
        trace(&[&psb_plus(0x5000), &[ptw, Fup(ip(0x5000)), Fup(ip(0x1003)), Packet::Tip(ip(0x1000))]]);
    let mut decoder = InsnDecoder::new(&trace, Image::new(&CODE));
    decoder.sync_forward();
    let no_memory = |decoder: &mut InsnDecoder<'_>| {
        let kind = decoder.next().map_err(|error| error.kind);
        assert_eq!(kind, Err(ErrorKind::NoMemory { ip: 0x5000 }));
    };
    no_memory(&mut decoder);
    assert_eq!(decoder.recover(), Ok(Recovered::Place));
    no_memory(&mut decoder);
    assert_eq!(decoder.recover(), Ok(Recovered::Place));
    let kind = |item| match item {
        Ok(Some(FlowItem::Event(event))) => Some(event.kind),
        _ => None,
    };
    assert_eq!(kind(decoder.next()), Some(EventKind::AsyncBranch { from: 0x1003 }));
}

#[test]
fn by_erratum_skl014_only_an_end_without_an_ip_may_be_that_of_a_direct_jump() {
    let range = AddressRange { kind: RangeKind::Filter, first: 0x1000, last: 0x1005 };
    let filter = AddressFilter { ranges: [range; 4] };
    // The jump at 1004 leads to 1006, out of the range. In `CODE` it leads to 1000, and a conditional one comes next.
    let out = [Section { bytes: &[0x90, 0x74, 0xfd, 0x90, 0xeb, 0x00, 0xff, 0xe0], ..CODE[0] }];
    for (skl014, code, to, last, placed) in [
        (false, out, ip(0x1006), 0x1004, Placed::Here),
        (true, out, ip(0x1006), 0x1004, Placed::Here),
        (false, out, Ip::Suppressed, 0x1006, Placed::After),
        (true, out, Ip::Suppressed, 0x1004, Placed::After),
        (true, CODE, Ip::Suppressed, 0x1001, Placed::After),
    ] {
        let trace = trace(&[&psb_plus(0x1003), &[TipPgd(to)]]);
        let config = Config { filter, errata: Errata { skl014, ..Errata::NONE }, ..Config::new() };
        let mut decoder = InsnDecoder::with_config(&trace, Image::new(&code), config);
        decoder.sync_forward();
        let mut found = None;
        while let Some(FlowItem::Insn(insn)) = decoder.next().unwrap() {
            found = Some(insn.ip);
        }
        assert_eq!((found, decoder.placed()), (Some(last), placed), "{skl014} {to:x?}");
    }
}

#[test]
fn what_is_given_out_after_a_recovery_depends_on_what_it_found() {
    // 5000 is not in the image, and no packet begins with 09.
    let start = trace(&[&psb_plus(0x5000), &[TAKEN]]);
    let (tip, unknown) = (trace(&[&[Packet::Tip(ip(0x1000)), TAKEN]]), [9; 16]);
    let failed = Err(Some(ErrorKind::UnknownOpcode(9)));
    for (after, found, next) in [
        (&tip[..], Ok(Recovered::Place), Ok(0x1000)),
        (&[], Ok(Recovered::End), Err(Some(ErrorKind::OutOfSync))),
        (&unknown, failed, Err(Some(ErrorKind::OutOfSync))),
    ] {
        let trace = [&start, after].concat();
        let mut decoder = InsnDecoder::new(&trace, Image::new(&CODE));
        decoder.sync_forward();
        while decoder.next().is_ok() {}
        assert_eq!(decoder.recover().map_err(|error| Some(error.kind)), found, "{after:02x?}");
        let given = match decoder.next() {
            Ok(Some(FlowItem::Insn(insn))) => Ok(insn.ip),
            Ok(_) => Err(None),
            Err(error) => Err(Some(error.kind)),
        };
        assert_eq!(given, next, "{after:02x?}");
        // If there was no place to continue, a second search finds none either.
        if found != Ok(Recovered::Place) {
            assert_eq!(decoder.recover().map_err(|error| Some(error.kind)), found, "{after:02x?}");
        }
    }
}
