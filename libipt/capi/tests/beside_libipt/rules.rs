//! Rules of libipt that damaged traces seldom exercise, each with its own trace.

use crate::{
    flow::{Call, DecoderKind, Decoders, likely},
    known_code::{BASE, Code, padded, trace},
    library::{Config, both},
};

/// Bits of errata.
const SKD010: u32 = 1 << 4;
const SKL014: u32 = 1 << 5;
const APL12: u32 = 1 << 6;

/// Kinds of events.
const ENABLED: i32 = 0;
const DISABLED: i32 = 1;
const ASYNC_BRANCH: i32 = 3;
const ASYNC_PAGING: i32 = 5;
const OVERFLOW: i32 = 6;
const TSX: i32 = 8;
const ASYNC_VMCS: i32 = 11;

/// The error of a return without a call.
const RETURN_WITHOUT_CALL: i32 = -20;

/// The flag of an event that has no address.
const SUPPRESSED: u32 = 1;
/// The flag of an event that only gives the state at a PSB.
const STATUS: u32 = 1 << 1;

const OVF: [u8; 2] = [0x02, 0xf3];

fn tsc(time: u8) -> Vec<u8> {
    vec![0x19, time, 0, 0, 0, 0, 0, 0]
}

/// Returns a packet with the two lower bytes of an address.
fn ip(packet: u8, address: u64) -> Vec<u8> {
    [vec![0x20 | packet], (address as u16).to_le_bytes().to_vec()].concat()
}

/// The first bytes of packets with an address.
const TIP: u8 = 0x0d;
const TIP_PGE: u8 = 0x11;
const FUP: u8 = 0x1d;
/// A TIP.PGD without an address.
const TIP_PGD: u8 = 0x01;

/// An event: kind, time, the first word after the fields of all kinds, and true if it has no address.
type Event = (i32, u64, u64, bool);

/// The results of both libraries, which must be equal.
#[derive(Default)]
struct Given {
    /// Addresses of the first and the last instruction, and the number of instructions.
    items: Vec<[u64; 3]>,
    events: Vec<Event>,
    statuses: Vec<i32>,
}

fn given(decoders: &Decoders, kind: DecoderKind) -> Given {
    let (mut given, mut next) = (Given::default(), Call::Forward);
    for _ in 0..20 {
        let [theirs, ours] = decoders.answers(next);
        assert_eq!(theirs, ours);
        given.statuses.push(ours.status);
        let item = ours.item.0;
        match (next, ours.status, kind) {
            (Call::Event(_), 0.., _) if ours.event.flags & STATUS == 0 => {
                let event = ours.event;
                let is_suppressed = event.flags & SUPPRESSED != 0;
                given.events.push((event.kind, event.rest[0], event.rest[4], is_suppressed));
            }
            (Call::Next(_), 0.., DecoderKind::Insns) => given.items.push([item[0], item[0], 1]),
            (Call::Next(_), 0.., DecoderKind::Blocks) => {
                given.items.push([item[0], item[1], item[3] >> 32 & 0xffff]);
            }
            _ => {}
        }
        if next == Call::Forward && ours.status < 0 {
            break;
        }
        next = likely(&theirs, kind);
    }
    given
}

/// Returns the events of a trace that goes over NOPs.
fn events(name: &str, errata: u32, rest: &[Vec<u8>]) -> Option<Vec<Event>> {
    let both = both()?;
    let code = Code::new(name, &padded(&[]));
    let trace = trace(&rest.concat());
    let mut config = Config::new(&trace);
    config.errata[0] = errata;
    let decoders = Decoders::new(both, DecoderKind::Insns, &config);
    decoders.add_file(&code.0, 0, u64::MAX, BASE, None);
    Some(given(&decoders, DecoderKind::Insns).events)
}

#[test]
fn an_overflow_with_a_fup_too_many_has_the_time_of_what_is_before_the_fup() {
    let rest = [tsc(1), OVF.into(), tsc(2), ip(FUP, BASE + 1), tsc(3), ip(TIP_PGE, BASE)];
    let Some(events) = events("apl12", APL12, &rest) else { return };
    assert_eq!(events, [(OVERFLOW, 2, 0, true), (ENABLED, 3, BASE, false)]);
}

#[test]
fn after_an_overflow_without_its_fup_tracing_goes_on_at_the_mode_tsx_before_the_next_one() {
    let in_tx = vec![0x99, 0x21];
    let rest = [tsc(1), OVF.into(), tsc(2), in_tx, tsc(3), ip(FUP, BASE + 1)];
    let Some(events) = events("skd010", SKD010, &rest) else { return };
    assert_eq!(events, [(OVERFLOW, 2, BASE + 1, false), (TSX, 2, BASE + 1, false)]);
}

#[test]
fn a_vmcs_comes_before_the_paging_of_the_same_tip_and_has_its_time() {
    let (pip, vmcs) = (vec![0x02, 0x43, 0, 1, 0, 0, 0, 0], vec![0x02, 0xc8, 5, 0, 0, 0, 0]);
    let rest = [tsc(1), ip(FUP, BASE + 1), tsc(2), pip, tsc(3), vmcs, ip(TIP, BASE)];
    let Some(events) = events("vmcs", 0, &rest) else { return };
    let expected = [
        (ASYNC_BRANCH, 1, BASE + 1, false),
        (ASYNC_VMCS, 2, 0x5000, false),
        (ASYNC_PAGING, 2, 0x1000, false),
    ];
    assert_eq!(events, expected);
}

#[test]
fn a_call_of_the_next_instruction_is_nothing_to_return_to() {
    let Some(both) = both() else { return };
    // Without an address to return to the RET of a TNT is an error.
    for (distance, is_error) in [(0, true), (1, false)] {
        for kind in [DecoderKind::Insns, DecoderKind::Blocks] {
            let code = Code::new(
                &format!("call-{distance}-{kind:?}"),
                &padded(&[0xe8, distance, 0, 0, 0, 0xc3, 0xc3]),
            );
            let trace = trace(&[0x06]);
            let decoders = Decoders::new(both, kind, &Config::new(&trace));
            decoders.add_file(&code.0, 0, u64::MAX, BASE, None);
            let given = given(&decoders, kind);
            assert_eq!(given.statuses.contains(&RETURN_WITHOUT_CALL), is_error, "{kind:?}, {distance}");
        }
    }
}

#[test]
fn a_direct_jump_into_a_range_that_stops_tracing_disables_it() {
    let Some(both) = both() else { return };
    let mut code = padded(&[0xeb, 0x0e]);
    // From the jump's target to 1100h, and back from there.
    code.resize(0x200, 0x90);
    code[0x10..0x15].copy_from_slice(&[0xe9, 0xeb, 0, 0, 0]);
    code[0x100..0x105].copy_from_slice(&[0xe9, 0xfb, 0xfe, 0xff, 0xff]);
    for kind in [DecoderKind::Insns, DecoderKind::Blocks] {
        // With a range that is traced, and without one.
        for kinds in [0x21, 0x20] {
            let code = Code::new(&format!("stop-{kinds:x}-{kind:?}"), &code);
            let trace = trace(&[TIP_PGD]);
            let mut config = Config::new(&trace);
            config.errata[0] = SKL014;
            config.rest[..5].copy_from_slice(&[kinds, BASE, BASE + 0xfff, BASE + 0x100, BASE + 0x1ff]);
            let decoders = Decoders::new(both, kind, &config);
            decoders.add_file(&code.0, 0, u64::MAX, BASE, None);
            let given = given(&decoders, kind);
            assert_eq!(given.items.iter().map(|item| item[1]).max(), Some(BASE + 0x10));
            assert_eq!(given.events, [(DISABLED, 0, 0, true)]);
        }
    }
}

#[test]
fn a_block_on_the_way_to_an_event_ends_with_its_section() {
    let Some(both) = both() else { return };
    let files = [Code::new("section-1", &[0x90, 0x90]), Code::new("section-2", &padded(&[]))];
    let trace = trace(&[ip(FUP, BASE + 4), ip(TIP, BASE)].concat());
    let decoders = Decoders::new(both, DecoderKind::Blocks, &Config::new(&trace));
    for (file, base) in files.iter().zip([BASE, BASE + 2]) {
        decoders.add_cached(&file.0, 0, u64::MAX, base);
    }
    let given = given(&decoders, DecoderKind::Blocks);
    assert_eq!(given.items[..2], [[BASE, BASE + 1, 2], [BASE + 2, BASE + 3, 2]]);
    assert_eq!(given.events[0], (ASYNC_BRANCH, 0, BASE + 4, false));
}
