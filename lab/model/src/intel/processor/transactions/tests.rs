//! The packets of transactions, and the events that a decoder makes of them.

use std::string::String;
use std::vec;
use std::vec::Vec;

use pugmark_decoder_core::event::{EventDecoder, EventKind};

use crate::intel::tests::machine::*;
use crate::intel::transaction::{TransactionChange, TransactionStep};
use crate::intel::{IntelProcessor, IntelProfile, IntelSettings, Overflow};
use crate::{Context, CpuidResult, FlatMemory};

/// XBEGIN to 400100h, and XEND.
const XBEGIN: &[u8] = &[0xc7, 0xf8, 0xfa, 0, 0, 0];
const XEND: &[u8] = &[0x0f, 0x01, 0xd5];
const FALLBACK: u64 = 0x40_0100;

fn report(m: &mut Machine, change: TransactionChange, after: Context) {
    let step = TransactionStep { change, before: m.at, after, tsc: m.tsc };
    m.processor.change_transaction(&step, &mut FlatMemory { base: 0, bytes: &mut m.ram });
}

fn begin(m: &mut Machine) {
    report(m, TransactionChange::Begin, Context { ip: m.at.ip + 6, ..m.at });
    m.next(XBEGIN);
}

fn commit(m: &mut Machine) {
    report(m, TransactionChange::Commit, Context { ip: m.at.ip + 3, ..m.at });
    m.next(XEND);
}

fn abort(m: &mut Machine, to: u64) {
    let after = Context { ip: to, ..m.at };
    report(m, TransactionChange::Abort, after);
    m.at = after;
}

fn traced(ctl: u64, code: impl FnOnce(&mut Machine)) -> String {
    run("skylake", IntelSettings::default(), ctl, code)
}

/// Returns the packets with 410000h to 41FFFFh in a range of the kind `range` (1: FilterEn, 2: TraceStop).
fn with_range(range: u64, code: impl FnOnce(&mut Machine)) -> String {
    let mut m = Machine::new("skylake", IntelSettings::default());
    m.write(0x580, 0x41_0000);
    m.write(0x581, 0x41_ffff);
    m.start(ALL | range << 32);
    code(&mut m);
    m.stop();
    m.body()
}

const ON: &str = "MODE.Exec 64; TIP.PGE 400000; ";

/// Cases 26 to 28 with everything traced.
#[test]
fn each_change_has_a_mode_tsx_and_the_address() {
    for (code, expected) in [
        (
            (|m| {
                begin(m);
                m.next(NOP);
                commit(m);
            }) as fn(&mut Machine),
            "MODE.TSX in; FUP 400000; MODE.TSX; FUP 400007",
        ),
        (
            |m| {
                begin(m);
                m.next(JZ);
                abort(m, FALLBACK);
            },
            "MODE.TSX in; FUP 400000; TNT 0; MODE.TSX abort; FUP 400008; TIP 400100",
        ),
        // An interrupt aborts, and is delivered from the fallback address.
        (
            |m| {
                begin(m);
                abort(m, FALLBACK);
                m.deliver(crate::DeliveryKind::Interrupt, 0x20, m.kernel(0x50_0000), None);
            },
            "MODE.TSX in; FUP 400000; MODE.TSX abort; FUP 400006; TIP 400100; FUP 400100; TIP 500000",
        ),
    ] {
        let body = traced(ALL, code);
        assert_eq!(body.strip_prefix(ON), Some(expected), "{body}");
    }
}

#[test]
fn nothing_shows_without_branch_packets_or_context() {
    let code = |m: &mut Machine| {
        begin(m);
        abort(m, FALLBACK);
    };
    assert_eq!(traced(0x000d, code), "");
    let user_only = |m: &mut Machine| {
        begin(m);
        commit(m);
        m.far(SYSCALL, m.user(0x1000));
    };
    assert_eq!(traced(0x2009, user_only), "MODE.Exec 64; TIP.PGE 1000");
}

#[test]
fn changes_in_code_that_is_filtered_out_stand_alone() {
    let body = with_range(1, |m| {
        // Cases 26a, 27a and 28e, and 28b: the fallback handler is in the range.
        begin(m);
        commit(m);
        begin(m);
        abort(m, FALLBACK);
        begin(m);
        abort(m, 0x41_0000);
        // Case 28c: it is not.
        begin(m);
        abort(m, FALLBACK);
    });
    let expected = "MODE.TSX in; MODE.TSX; MODE.TSX in; MODE.TSX abort; MODE.TSX in; MODE.TSX abort; \
                    MODE.Exec 64; TIP.PGE 410000; MODE.TSX in; FUP 410000; MODE.TSX abort; FUP 410006; TIP.PGD 400100";
    assert_eq!(body, expected);
    let stopped = with_range(2, |m| {
        begin(m);
        abort(m, 0x41_0000);
    });
    let expected = "MODE.TSX in; FUP 400000; MODE.TSX abort; FUP 400006; TIP.PGD 410000; TraceStop";
    assert_eq!(stopped.strip_prefix(ON), Some(expected), "{stopped}");
}

#[test]
fn no_ret_compresses_across_an_abort() {
    let body = traced(ALL, |m| {
        begin(m);
        m.go(CALL, 0x40_2000);
        abort(m, FALLBACK);
        m.go(RET, 0x40_000b);
    });
    assert!(body.ends_with("TIP 400100; TIP 40000b"), "{body}");
}

#[test]
fn a_psb_reports_the_transaction_that_executes() {
    let mut m = Machine::new("skylake", IntelSettings::default());
    m.start(ALL);
    begin(&mut m);
    for n in 0..2000 {
        m.go(JMP_RAX, 0x40_0000 + n % 2);
    }
    commit(&mut m);
    m.stop();
    let trace = m.trace().join("; ");
    assert!(trace.contains("PSB; CBR 30; PIP 5000; MODE.TSX in; MODE.Exec 64; FUP"), "{trace}");
    // A trace that begins later does not begin in it.
    m.write(STATUS, 0);
    m.write(MASK_PTRS, 0xffff);
    begin(&mut m);
    m.start(ALL);
    m.stop();
    assert!(m.trace().join("; ").contains("PIP 5000; MODE.TSX; "));
}

/// Returns the events of transactions and asynchronous branches in the trace.
fn events(m: &Machine, len: usize) -> Vec<(EventKind, Option<u64>)> {
    let mut events = EventDecoder::new(&m.ram[RANGE..RANGE + len]);
    events.sync_forward().expect("a PSB");
    let mut found = vec![];
    while let Some(event) = events.next().expect("an event") {
        if matches!(event.kind, EventKind::Tsx { .. } | EventKind::AsyncBranch { .. }) && !event.status {
            found.push((event.kind, event.ip));
        }
    }
    found
}

fn tsx(speculative: bool, aborted: bool) -> EventKind {
    EventKind::Tsx { speculative, aborted }
}

#[test]
fn a_decoder_finds_each_change_at_its_address() {
    let mut m = Machine::new("skylake", IntelSettings::default());
    m.start(ALL);
    begin(&mut m);
    commit(&mut m);
    begin(&mut m);
    m.next(NOP);
    abort(&mut m, FALLBACK);
    m.stop();
    let len = (m.read(MASK_PTRS) >> 32) as usize;
    let expected = [
        (tsx(true, false), Some(0x40_0000)),
        (tsx(false, false), Some(0x40_0006)),
        (tsx(true, false), Some(0x40_0009)),
        (tsx(false, true), Some(0x40_0010)),
        (EventKind::AsyncBranch { from: 0x40_0010 }, Some(FALLBACK)),
    ];
    assert_eq!(events(&m, len), expected);
}

#[test]
fn a_change_that_an_overflow_hid_is_repeated() {
    let overflow = Some(Overflow { capacity: 128, drain: 1 });
    let settings = IntelSettings { overflow, visibility: 0, ..IntelSettings::default() };
    let mut m = Machine::new("skylake", settings);
    m.start(ALL);
    for n in 0..40_u64 {
        m.go(JMP_RAX, if n % 2 == 0 { 0xffff_8000_0000_0000 } else { 0x40_0000 });
    }
    begin(&mut m);
    (0..200).for_each(|_| m.next(NOP));
    m.go(JMP_RAX, 0x40_2000);
    m.stop();
    let body = m.body();
    let (_, rest) = body.split_once("OVF; ").expect("an overflow");
    assert!(rest.starts_with("MODE.TSX in; TIP.PGE 4000"), "{body}");
    assert!(rest.ends_with("TIP 402000"), "{body}");
    let len = (m.read(MASK_PTRS) >> 32) as usize;
    assert_eq!(events(&m, len), [(tsx(true, false), None)]);
    // Without such a change there is nothing to repeat.
    let unchanged = run("skylake", settings, ALL, |m| {
        for n in 0..40_u64 {
            m.go(JMP_RAX, if n % 2 == 0 { 0xffff_8000_0000_0000 } else { 0x40_0000 });
        }
        (0..200).for_each(|_| m.next(NOP));
    });
    assert!(unchanged.split_once("OVF; ").is_some_and(|(_, rest)| rest.starts_with("FUP")), "{unchanged}");
}

#[test]
fn only_a_processor_that_is_told_to_has_tsx() {
    let profile = IntelProfile::by_name("skylake").unwrap();
    let without = IntelProcessor::new(profile, IntelSettings::default());
    let hardware = CpuidResult { ebx: !0, ..CpuidResult::default() };
    let bits =
        |processor: &IntelProcessor, leaf, subleaf| processor.cpuid(leaf, subleaf, hardware).ebx & 0x810;
    assert_eq!(bits(&without, 7, 0), 0);
    let with = without.with_tsx();
    assert_eq!((bits(&with, 7, 0), with.cpuid(7, 1, CpuidResult::default()).ebx), (0x810, 0));
}
