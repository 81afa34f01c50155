//! Tables of packets and the events that they cause.

extern crate std;

use super::*;
use crate::{
    config::{Config, Flags, Position, UnknownPackets},
    errata::Errata,
    error::{Error, ErrorKind},
    packet::{
        Bep, Cbr, Cfe, Context, Evd, Exstop, Ip, Mnt, ModeExec, ModeTsx, Mtc, Packet,
        Packet::{Fup, Ovf, Psb, PsbEnd, Tip, TipPgd, TipPge, TntShort},
        Ptw, Trig, Tsc, Unknown,
    },
};
use std::{vec, vec::Vec};

const BITS_64: Packet = mode(true, false, false);
const BITS_32: Packet = mode(false, true, false);
const BITS_64_IF: Packet = mode(true, false, true);
const NO_IP: Ip = Ip::Suppressed;
const TNT: Tnt = Tnt { bits: 0b10, len: 2 };
const PIP: Pip = Pip { cr3: 0x4000, non_root: false };
const VMCS: Vmcs = Vmcs { base: 0x7000 };
const MWAIT: Mwait = Mwait { hints: 0x20, ext: 1 };
const PWRE: Pwre = Pwre { state: 1, sub_state: 0, hw: false };
const PWRX: Pwrx = Pwrx { last: 1, deepest: 2, interrupt: true, store: false, autonomous: false };

const fn mode(cs_l: bool, cs_d: bool, iflag: bool) -> Packet {
    Packet::ModeExec(ModeExec { cs_l, cs_d, iflag })
}

const fn tsx(in_tx: bool, abort: bool) -> Packet {
    Packet::ModeTsx(ModeTsx { in_tx, abort })
}

const fn ip(ip: u64) -> Ip {
    Ip::Full(ip)
}

const fn cfe(kind: u8, vector: u8, ip: bool) -> Packet {
    Packet::Cfe(Cfe { kind, vector, ip })
}

const fn evd(kind: u8, payload: u64) -> Packet {
    Packet::Evd(Evd { kind, payload })
}

const fn ptw(value: u32, ip: bool) -> Packet {
    Packet::Ptw(Ptw { payload: PtwPayload::Four(value), ip })
}

const fn trig(icnt: Option<u16>, ip: bool) -> Packet {
    Packet::Trig(Trig { trbv: 1, icnt, mult: false, ip })
}

const fn triggered(icnt: Option<u16>) -> EventKind {
    EventKind::Trigger { trbv: 1, icnt, mult: false }
}

const fn exstop(ip: bool) -> Packet {
    Packet::Exstop(Exstop { ip })
}

const ENABLED: EventKind = EventKind::Enabled { resumed: false };
const TO_64: EventKind = EventKind::ExecMode(Some(ExecMode::Bits64));
const TO_32: EventKind = EventKind::ExecMode(Some(ExecMode::Bits32));
const ABORTED: EventKind = EventKind::Tsx { speculative: false, aborted: true };
const VMEXIT: EventKind = EventKind::Vmexit { vector: None, reason: None, qualification: None };

/// Returns the trace of these packets.
fn trace(packets: &[Packet]) -> Vec<u8> {
    let mut trace = vec![];
    for packet in packets {
        let mut bytes = [0; Packet::MAX_LEN];
        let len = packet.emit(&mut bytes).unwrap();
        trace.extend(&bytes[..len]);
    }
    trace
}

/// Returns all events up to the end or an error.
fn events(trace: &[u8], config: Config<'_>) -> (Vec<Event>, Option<Error>) {
    let mut decoder = EventDecoder::with_config(trace, config);
    decoder.sync_forward();
    let mut events = vec![];
    loop {
        match decoder.next() {
            Ok(Some(event)) => events.push(event),
            Ok(None) => return (events, None),
            Err(error) => return (events, Some(error)),
        }
    }
}

/// Returns the events that `packets` cause after a PSB+ with tracing on at 1000 in 64-bit mode, or off.
fn events_after(on: bool, packets: &[Packet]) -> (Vec<(EventKind, Option<u64>)>, Option<ErrorKind>) {
    let start: &[Packet] = if on { &[Psb, BITS_64, Fup(ip(0x1000)), PsbEnd] } else { &[Psb, PsbEnd] };
    let config = Config { flags: Flags { iflags: true, ..Flags::NONE }, ..Config::new() };
    let (events, error) = events(&trace(&[start, packets].concat()), config);
    let plain = events.iter().filter(|event| !event.status).map(|event| (event.kind, event.ip));
    (plain.collect(), error.map(|error| error.kind))
}

/// Packets, and the events that they cause, with their IPs.
type Row<'a> = (&'a [Packet], &'a [(EventKind, Option<u64>)]);

#[track_caller]
fn check(on: bool, rows: &[Row<'_>]) {
    for (packets, expected) in rows {
        assert_eq!(events_after(on, packets), (expected.to_vec(), None), "{packets:x?}");
    }
}

#[track_caller]
fn check_errors(on: bool, rows: &[(&[Packet], ErrorKind)]) {
    for (packets, expected) in rows {
        assert_eq!(events_after(on, packets).1, Some(*expected), "{packets:x?}");
    }
}

#[test]
fn branches() {
    let at = |ip| Some(ip);
    check(
        true,
        &[
            (&[TntShort(TNT)], &[(EventKind::Tnt(TNT), None)]),
            (&[Packet::TntLong(TNT)], &[(EventKind::Tnt(TNT), None)]),
            (&[Tip(ip(0x2000))], &[(EventKind::Tip, at(0x2000))]),
            (&[Tip(NO_IP)], &[(EventKind::Tip, None)]),
            // Compressed against the IP in the PSB+.
            (&[Tip(Ip::Update16(0x2000))], &[(EventKind::Tip, at(0x2000))]),
            (&[Fup(ip(0x1001)), Tip(ip(0x2000))], &[(EventKind::AsyncBranch { from: 0x1001 }, at(0x2000))]),
            (&[Fup(ip(0x1001))], &[]),
            // Compressed against zero after a PSB.
            (
                &[
                    Tip(ip(0xffff_0000_1234)),
                    Psb,
                    Fup(Ip::Update16(0x1000)),
                    PsbEnd,
                    Tip(Ip::Update16(0x2000)),
                ],
                &[(EventKind::Tip, at(0xffff_0000_1234)), (EventKind::Tip, at(0x2000))],
            ),
            (&[TipPgd(ip(0x2000))], &[(EventKind::Disabled, at(0x2000))]),
            (&[TipPgd(NO_IP)], &[(EventKind::Disabled, None)]),
            (&[Fup(ip(0x1001)), TipPgd(NO_IP)], &[(EventKind::AsyncDisabled { at: 0x1001 }, None)]),
            (
                &[Fup(ip(0x1001)), TipPgd(ip(0x2000))],
                &[(EventKind::AsyncDisabled { at: 0x1001 }, at(0x2000))],
            ),
            (&[TipPgd(NO_IP), TipPge(ip(0x2000))], &[(EventKind::Disabled, None), (ENABLED, at(0x2000))]),
            (&[Packet::TraceStop], &[(EventKind::Stop, None)]),
        ],
    );
    check_errors(
        true,
        &[
            (&[TipPge(ip(0x2000))], ErrorKind::UnexpectedPacket("TIP.PGE")),
            (&[Fup(NO_IP)], ErrorKind::IpSuppressed("FUP")),
            (&[Fup(ip(1)), Fup(ip(2))], ErrorKind::UnexpectedPacket("FUP")),
            (&[Fup(ip(1)), TntShort(TNT)], ErrorKind::UnexpectedPacket("TNT")),
            (&[Fup(ip(1)), Psb], ErrorKind::UnexpectedPacket("PSB")),
            (&[PsbEnd], ErrorKind::UnexpectedPacket("PSBEND")),
        ],
    );
    check_errors(
        false,
        &[
            (&[TntShort(TNT)], ErrorKind::UnexpectedPacket("TNT")),
            (&[Tip(ip(0x2000))], ErrorKind::UnexpectedPacket("TIP")),
            (&[TipPgd(ip(0x2000))], ErrorKind::UnexpectedPacket("TIP.PGD")),
            (&[Fup(ip(0x2000))], ErrorKind::UnexpectedPacket("FUP")),
            (&[TipPge(NO_IP)], ErrorKind::IpSuppressed("TIP.PGE")),
        ],
    );
}

#[test]
fn changes_of_context_belong_to_the_branch_around_them() {
    let target = Some(0x2000);
    check(
        true,
        &[
            (&[Packet::Pip(PIP)], &[(EventKind::Paging(PIP), None)]),
            (&[Packet::Vmcs(VMCS)], &[(EventKind::Vmcs(VMCS), None)]),
            (
                &[Fup(ip(0x1001)), Packet::Pip(PIP), BITS_32, Packet::Vmcs(VMCS), Tip(ip(0x2000))],
                &[
                    (EventKind::AsyncBranch { from: 0x1001 }, target),
                    (EventKind::AsyncVmcs(VMCS), target),
                    (TO_32, target),
                    (EventKind::AsyncPaging(PIP), target),
                ],
            ),
            (
                &[Fup(ip(0x1001)), Packet::Vmcs(VMCS), BITS_32, Packet::Pip(PIP), TipPgd(NO_IP)],
                &[
                    (EventKind::AsyncDisabled { at: 0x1001 }, None),
                    (EventKind::AsyncVmcs(VMCS), None),
                    (TO_32, None),
                    (EventKind::AsyncPaging(PIP), None),
                ],
            ),
            (
                &[Packet::Pip(PIP), Tip(ip(0x2000))],
                &[(EventKind::Paging(PIP), None), (EventKind::Tip, target)],
            ),
        ],
    );
}

#[test]
fn a_mode_waits_for_its_place_and_is_reported_when_it_changes_something() {
    let (here, iflags) = (Some(0x2000), |enabled| EventKind::Iflags { enabled });
    check(
        true,
        &[
            (&[BITS_64, Tip(ip(0x2000))], &[(EventKind::Tip, here)]),
            (&[BITS_32, Tip(ip(0x2000))], &[(EventKind::Tip, here), (TO_32, here)]),
            (&[BITS_64_IF, Tip(ip(0x2000))], &[(EventKind::Tip, here), (iflags(true), here)]),
            (&[BITS_64_IF, Fup(ip(0x2000))], &[(iflags(true), here)]),
            (&[BITS_32, TipPgd(NO_IP)], &[(EventKind::Disabled, None), (TO_32, None)]),
            (&[mode(true, true, false), Fup(ip(0x2000))], &[(EventKind::ExecMode(None), here)]),
            (
                &[mode(false, false, false), Fup(ip(0x2000))],
                &[(EventKind::ExecMode(Some(ExecMode::Bits16)), here)],
            ),
        ],
    );
    check(
        false,
        &[
            (&[BITS_64_IF, TipPge(ip(0x2000))], &[(ENABLED, here), (TO_64, here), (iflags(true), here)]),
            (&[BITS_32, Fup(ip(0x2000))], &[(TO_32, here), (iflags(false), here)]),
        ],
    );
    check_errors(true, &[(&[BITS_32, Psb], ErrorKind::UnexpectedPacket("PSB"))]);
}

#[test]
fn packets_that_need_a_fup_take_the_next_one() {
    let here = Some(0x1001);
    let begun = EventKind::Tsx { speculative: true, aborted: false };
    let mwait = EventKind::Mwait(MWAIT);
    check(
        true,
        &[
            (&[tsx(true, false), Fup(ip(0x1001))], &[(begun, here)]),
            (
                &[tsx(false, true), Fup(ip(0x1001)), Tip(ip(0x2000))],
                &[(ABORTED, here), (EventKind::AsyncBranch { from: 0x1001 }, Some(0x2000))],
            ),
            (&[ptw(7, false)], &[(EventKind::Ptwrite(PtwPayload::Four(7)), None)]),
            (&[ptw(7, true), Fup(ip(0x1001))], &[(EventKind::Ptwrite(PtwPayload::Four(7)), here)]),
            (&[exstop(true), Fup(ip(0x1001))], &[(EventKind::Exstop, here)]),
            (&[exstop(false)], &[(EventKind::Exstop, None)]),
            (
                &[Packet::Mwait(MWAIT), exstop(true), Fup(ip(0x1001))],
                &[(mwait, here), (EventKind::Exstop, here)],
            ),
            (&[Packet::Mwait(MWAIT), exstop(false)], &[(mwait, None), (EventKind::Exstop, None)]),
            (&[Packet::Mwait(MWAIT)], &[]),
            (&[trig(None, false)], &[(triggered(None), None)]),
            (&[trig(Some(3), false)], &[(triggered(Some(3)), None)]),
            (&[trig(Some(0), true), Fup(ip(0x1001))], &[(triggered(None), here)]),
            (
                &[Packet::Bep(Bep { ip: true }), Fup(ip(0x1001)), Tip(ip(0x2000))],
                &[(EventKind::Tip, Some(0x2000))],
            ),
        ],
    );
    check(
        false,
        &[
            (&[tsx(true, false)], &[(begun, None)]),
            (&[tsx(false, true)], &[(ABORTED, None)]),
            (&[ptw(7, true), Fup(ip(0x1001))], &[(EventKind::Ptwrite(PtwPayload::Four(7)), here)]),
        ],
    );
    check_errors(
        true,
        &[
            (&[tsx(true, false), Tip(ip(1))], ErrorKind::UnexpectedPacket("TIP")),
            (&[exstop(true), TipPgd(NO_IP)], ErrorKind::UnexpectedPacket("TIP.PGD")),
            (&[exstop(true), Psb], ErrorKind::UnexpectedPacket("PSB")),
            (&[exstop(true), Fup(NO_IP)], ErrorKind::IpSuppressed("FUP")),
            (&[trig(None, true)], ErrorKind::MalformedPacket { packet: "TRIG", value: 0 }),
            (&[trig(Some(2), true)], ErrorKind::MalformedPacket { packet: "TRIG", value: 2 }),
            (&[exstop(true); 15], ErrorKind::TooManyWaiting("EXSTOP")),
        ],
    );
}

#[test]
fn power_states_are_reported_when_they_are_left() {
    let (pwre, pwrx) = ((EventKind::Pwre(PWRE), None), (EventKind::Pwrx(PWRX), None));
    check(
        true,
        &[
            (&[Packet::Pwre(PWRE)], &[]),
            (&[Packet::Pwrx(PWRX)], &[pwrx]),
            (&[Packet::Pwre(PWRE), Packet::Pwrx(PWRX)], &[pwre, pwrx]),
            (&[Packet::Pwre(PWRE), Packet::Pwre(PWRE), Packet::Pwrx(PWRX)], &[pwre, pwre, pwrx]),
        ],
    );
    check_errors(true, &[(&[Packet::Pwre(PWRE); 15], ErrorKind::TooManyWaiting("PWRE"))]);
}

#[test]
fn control_flow_events_have_their_own_fup_or_share_one_or_stand_alone() {
    let here = Some(0x1001);
    let (interrupt, branch) = (
        EventKind::Interrupt { vector: 14, cr2: None },
        (EventKind::AsyncBranch { from: 0x1001 }, Some(0x2000)),
    );
    let fault = EventKind::Interrupt { vector: 14, cr2: Some(0xf00) };
    let exit = EventKind::Vmexit { vector: Some(14), reason: Some(0x30), qualification: Some(5) };
    check(
        true,
        &[
            (&[cfe(1, 14, true), Fup(ip(0x1001))], &[(interrupt, here)]),
            (&[cfe(1, 14, false), Fup(ip(0x1001)), Tip(ip(0x2000))], &[(interrupt, here), branch]),
            (&[evd(0, 0xf00), cfe(1, 14, true), Fup(ip(0x1001))], &[(fault, here)]),
            (&[evd(1, 5), evd(2, 0x30), cfe(9, 14, true), Fup(ip(0x1001))], &[(exit, here)]),
            (&[cfe(8, 0, false), Fup(ip(0x1001)), Tip(ip(0x2000))], &[(VMEXIT, here), branch]),
            (&[cfe(2, 0, false)], &[(EventKind::Iret, None)]),
            (&[cfe(7, 0, false)], &[(EventKind::Vmentry, None)]),
            (&[cfe(10, 0, false)], &[(EventKind::Shutdown, None)]),
            (&[cfe(13, 0, false)], &[(EventKind::Uiret, None)]),
            (&[cfe(15, 0, false)], &[(EventKind::Syscall, None)]),
            (&[cfe(31, 0, true), Fup(ip(0x1001)), Tip(ip(0x2000))], &[(EventKind::Tip, Some(0x2000))]),
            (&[cfe(31, 0, false), evd(31, 0)], &[]),
        ],
    );
    check(
        false,
        &[
            (&[cfe(1, 14, false)], &[(interrupt, None)]),
            (&[cfe(5, 0xce, false)], &[(EventKind::Sipi { vector: 0xce }, None)]),
            (&[cfe(4, 0, false)], &[(EventKind::Rsm, None)]),
            (&[cfe(3, 0, true), Fup(ip(0x1001))], &[(EventKind::Smi, here)]),
        ],
    );
    check_errors(
        true,
        &[
            (&[evd(0, 1), cfe(2, 0, false)], ErrorKind::UnexpectedPacket("CFE")),
            (&[evd(1, 1), cfe(1, 0, false)], ErrorKind::UnexpectedPacket("CFE")),
            (&[evd(0, 1), evd(0, 1)], ErrorKind::UnexpectedPacket("EVD")),
            (&[cfe(4, 0, true)], ErrorKind::MalformedPacket { packet: "CFE", value: 4 }),
            (&[cfe(5, 0, true)], ErrorKind::MalformedPacket { packet: "CFE", value: 5 }),
            (&[evd(0, 1), Psb], ErrorKind::UnexpectedPacket("PSB")),
        ],
    );
}

#[test]
fn an_overflow_is_decided_by_what_follows() {
    let (lost, found) = ((EventKind::Overflow, None), (EventKind::Overflow, Some(0x2000)));
    let cbr = Packet::Cbr(Cbr { ratio: 9, reserved: 0 });
    let mnt = Packet::Mnt(Mnt { payload: 5 });
    check(
        true,
        &[
            (&[Ovf], &[lost]),
            (&[Ovf, Fup(ip(0x2000))], &[found]),
            (
                &[Ovf, cbr, Packet::Mtc(Mtc { ctc: 1 }), mnt, Packet::Pad, Fup(ip(0x2000))],
                &[(EventKind::Cbr { ratio: 9 }, None), (EventKind::Mnt { payload: 5 }, None), found],
            ),
            (&[Ovf, TipPge(ip(0x2000))], &[lost, (ENABLED, Some(0x2000))]),
            (&[Ovf, Ovf, Fup(ip(0x2000))], &[lost, found]),
            (&[Ovf, Packet::TraceStop], &[lost, (EventKind::Stop, None)]),
            (&[Ovf, Psb, PsbEnd], &[lost]),
            (
                &[Ovf, Psb, BITS_64, Fup(ip(0x2000)), PsbEnd, TntShort(TNT)],
                &[lost, (EventKind::Tnt(TNT), None)],
            ),
            // Pending events are lost, and the mode is unknown.
            (
                &[tsx(true, false), Ovf, Fup(ip(0x2000)), Tip(ip(0x3000))],
                &[found, (EventKind::Tip, Some(0x3000))],
            ),
            (&[Fup(ip(0x1001)), Ovf, Fup(ip(0x2000)), TntShort(TNT)], &[found, (EventKind::Tnt(TNT), None)]),
            // The last IP is unchanged.
            (
                &[Tip(ip(0xffff_0000_1234)), Ovf, Fup(Ip::Update16(0x2000))],
                &[(EventKind::Tip, Some(0xffff_0000_1234)), (EventKind::Overflow, Some(0xffff_0000_2000))],
            ),
            (
                &[Ovf, Fup(ip(0x2000)), BITS_64, Tip(ip(0x3000))],
                &[
                    found,
                    (EventKind::Tip, Some(0x3000)),
                    (TO_64, Some(0x3000)),
                    (EventKind::Iflags { enabled: false }, Some(0x3000)),
                ],
            ),
        ],
    );
    check(
        false,
        &[
            (&[Ovf, Fup(ip(0x2000)), TntShort(TNT)], &[found, (EventKind::Tnt(TNT), None)]),
            (
                &[Packet::Mwait(MWAIT), Packet::Pwre(PWRE), exstop(true), Ovf],
                &[
                    (EventKind::Pwre(PWRE), None),
                    (EventKind::Mwait(MWAIT), None),
                    (EventKind::Exstop, None),
                    lost,
                ],
            ),
        ],
    );
    check_errors(
        true,
        &[
            (&[Ovf, TntShort(TNT)], ErrorKind::UnexpectedPacket("TNT")),
            (&[Ovf, Tip(ip(1))], ErrorKind::UnexpectedPacket("TIP")),
            (&[Ovf, TipPgd(ip(1))], ErrorKind::UnexpectedPacket("TIP.PGD")),
            (&[Ovf, PsbEnd], ErrorKind::UnexpectedPacket("PSBEND")),
            (&[Ovf, Fup(NO_IP)], ErrorKind::IpSuppressed("FUP")),
        ],
    );
}

#[test]
fn what_is_complete_comes_before_what_is_wrong() {
    let found = events_after(false, &[exstop(true), Ovf, TntShort(TNT)]);
    assert_eq!(found, (vec![(EventKind::Exstop, None)], Some(ErrorKind::UnexpectedPacket("TNT"))));
}

#[test]
fn a_psb_plus_gives_status_updates_in_its_order_after_the_state_of_tracing() {
    let packets = [
        Psb,
        Packet::Tsc(Tsc { tsc: 0x55 }),
        Packet::Cbr(Cbr { ratio: 9, reserved: 0 }),
        tsx(true, false),
        Packet::Pip(PIP),
        BITS_64_IF,
        Packet::Mnt(Mnt { payload: 5 }),
        Fup(ip(0x1000)),
        Packet::Vmcs(VMCS),
        PsbEnd,
    ];
    let (got, error) =
        events(&trace(&packets), Config { flags: Flags { iflags: true, ..Flags::NONE }, ..Config::new() });
    assert_eq!(error, None);
    let got: Vec<_> = got.iter().map(|event| (event.offset, event.status, event.ip, event.kind)).collect();
    let expected = [
        (0x00, true, Some(0x1000), ENABLED),
        (0x18, true, None, EventKind::Cbr { ratio: 9 }),
        (0x1c, true, None, EventKind::Tsx { speculative: true, aborted: false }),
        (0x1e, true, None, EventKind::Paging(PIP)),
        (0x26, true, None, TO_64),
        (0x26, true, None, EventKind::Iflags { enabled: true }),
        (0x3c, true, None, EventKind::Vmcs(VMCS)),
        (0x28, false, None, EventKind::Mnt { payload: 5 }),
    ];
    assert_eq!(got, expected);
}

#[test]
fn a_psb_plus_holds_nothing_but_state() {
    for (packet, name) in [
        (Psb, "PSB"),
        (TntShort(TNT), "TNT"),
        (Packet::TntLong(TNT), "TNT"),
        (Tip(ip(1)), "TIP"),
        (TipPge(ip(1)), "TIP.PGE"),
        (TipPgd(ip(1)), "TIP.PGD"),
        (Packet::TraceStop, "TraceStop"),
        (exstop(false), "EXSTOP"),
        (Packet::Mwait(MWAIT), "MWAIT"),
        (Packet::Pwre(PWRE), "PWRE"),
        (Packet::Pwrx(PWRX), "PWRX"),
        (ptw(1, false), "PTW"),
        (cfe(2, 0, false), "CFE"),
        (evd(0, 0), "EVD"),
        (trig(None, false), "TRIG"),
        (Packet::Bep(Bep { ip: false }), "BEP"),
    ] {
        let (got, error) = events(&trace(&[Psb, BITS_64, packet, PsbEnd]), Config::new());
        let expected = Error { offset: 18, kind: ErrorKind::UnexpectedPacket(name) };
        // The row of the PSB needs the MODE packet: the decoder would synchronise on the second of two PSBs in a row.
        assert_eq!((got, error), (vec![], Some(expected)), "{packet:?}");
    }
}

#[test]
fn a_psb_plus_ends_with_an_overflow_as_well() {
    let (got, error) = events(&trace(&[Psb, BITS_64, Fup(ip(0x1000)), Ovf, Fup(ip(0x2000))]), Config::new());
    let plain = |events: &[Event]| -> Vec<_> {
        events.iter().map(|event| (event.kind, event.ip, event.status)).collect()
    };
    let got = plain(&got);
    let expected =
        [(ENABLED, Some(0x1000), true), (TO_64, None, true), (EventKind::Overflow, Some(0x2000), false)];
    assert_eq!((&got[..], error), (&expected[..], None));
    // A PSB+ that ends with an overflow and has no FUP does not mean that tracing is off.
    let (got, error) = events(&trace(&[Psb, BITS_64, Ovf, Fup(ip(0x2000))]), Config::new());
    assert_eq!((&plain(&got)[..], error), (&expected[1..], None));
}

#[test]
fn a_psb_plus_that_is_cut_off_gives_nothing() {
    for packets in [&[Psb][..], &[Psb, BITS_64], &[Psb, BITS_64, Fup(ip(0x1000))]] {
        assert_eq!(events(&trace(packets), Config::new()), (vec![], None), "{packets:?}");
    }
}

#[test]
fn bdm70_makes_nothing_of_a_fup_in_psb_that_an_enable_follows() {
    let packets = [Psb, BITS_64, Fup(ip(0x9000)), PsbEnd, Packet::Pad, TipPge(ip(0x1000))];
    let config = Config { errata: Errata { bdm70: true, ..Errata::NONE }, ..Config::new() };
    let (got, error) = events(&trace(&packets), config);
    let got: Vec<_> = got.iter().map(|event| (event.kind, event.ip)).collect();
    assert_eq!(got, [(EventKind::Disabled, None), (TO_64, None), (ENABLED, Some(0x1000))]);
    assert_eq!(error, None);
    let (got, error) = events(&trace(&[Psb, BITS_64, Fup(ip(0x9000)), PsbEnd, Tip(ip(0x1000))]), config);
    assert_eq!((got[0].kind, got[0].ip, error), (ENABLED, Some(0x9000), None));
    // Nothing is dropped either if the next packet disables tracing before it is enabled.
    let off_and_on = [Psb, BITS_64, Fup(ip(0x9000)), PsbEnd, TipPgd(NO_IP), TipPge(ip(0x1000))];
    let (got, error) = events(&trace(&off_and_on), config);
    assert_eq!((got[0].kind, got[0].ip, error), (ENABLED, Some(0x9000), None));
    let (_, error) = events(&trace(&packets), Config::new());
    assert_eq!(error.map(|error| error.kind), Some(ErrorKind::UnexpectedPacket("TIP.PGE")));
}

#[test]
fn events_have_the_last_tsc_and_pwre_its_own() {
    let at = |tsc| Packet::Tsc(Tsc { tsc });
    let packets = [Psb, PsbEnd, Packet::Pwre(PWRE), at(5), Packet::Pwrx(PWRX), at(6), Packet::TraceStop];
    let (got, _) = events(&trace(&packets), Config::new());
    let got: Vec<_> = got.iter().map(|event| (event.kind, event.when.tsc)).collect();
    let expected = [
        (EventKind::Disabled, None),
        (EventKind::Pwre(PWRE), None),
        (EventKind::Pwrx(PWRX), Some(5)),
        (EventKind::Stop, Some(6)),
    ];
    assert_eq!(got, expected);
}

#[test]
fn counts_packets_and_losses() {
    let bytes = trace(&[Psb, PsbEnd, Ovf, Packet::Pad, Psb, BITS_64, Fup(ip(1)), PsbEnd, Ovf, Fup(ip(2))]);
    let mut decoder = EventDecoder::new(&bytes);
    decoder.sync_forward();
    while decoder.next().unwrap().is_some() {}
    assert_eq!(decoder.counters(), Counters { packets: 10, psbs: 2, overflows: 2, stops: 0 });
}

#[test]
fn gives_only_out_of_sync_before_a_psb_and_after_an_error() {
    let bytes = trace(&[PsbEnd, Psb, PsbEnd, PsbEnd, Psb, PsbEnd]);
    let mut decoder = EventDecoder::new(&bytes);
    let out_of_sync = |offset| Err(Error { offset, kind: ErrorKind::OutOfSync });
    assert_eq!(decoder.next(), out_of_sync(0));
    assert_eq!(decoder.sync_forward(), Some(2));
    assert!(decoder.next().is_ok_and(|event| event.is_some()));
    assert_eq!(decoder.next(), Err(Error { offset: 20, kind: ErrorKind::UnexpectedPacket("PSBEND") }));
    assert_eq!(decoder.next(), out_of_sync(20));
    assert_eq!(decoder.sync_forward(), Some(22));
    assert!(decoder.next().is_ok_and(|event| event.is_some()));
    assert_eq!(decoder.next(), Ok(None));
    assert_eq!(decoder.sync_forward(), None);
    assert!(decoder.next().is_err());
    assert_eq!(decoder.sync_backward(), Some(22));
}

#[test]
fn packets_that_only_the_reader_knows_are_passed_over() {
    let sizes = |_: &Config<'_>, position: Position<'_>, _: Context| match position.bytes() {
        [0x05, 0, ..] => Ok(Unknown { size: 2, value: 0 }),
        _ => Err(ErrorKind::Refused(1)),
    };
    let config = Config { unknown: Some(UnknownPackets::new(&sizes)), ..Config::new() };
    let parts = [
        trace(&[Psb, BITS_64]),
        trace(&[Fup(ip(0x1000)), PsbEnd, Fup(ip(0x2000))]),
        trace(&[Tip(ip(0x3000)), Ovf]),
        trace(&[Fup(ip(0x4000))]),
    ];
    let kinds = |events: Vec<Event>| events.iter().map(|event| (event.ip, event.kind)).collect::<Vec<_>>();
    let (plain, error) = events(&parts.concat(), config);
    assert_eq!((plain.len(), error), (4, None));
    let (mixed, error) = events(&parts.join(&[5, 0][..]), config);
    assert_eq!((kinds(mixed), error), (kinds(plain), None));
    let (_, error) = events(&parts.join(&[5, 1][..]), config);
    assert_eq!(error, Some(Error { offset: 18, kind: ErrorKind::Refused(1) }));
}
