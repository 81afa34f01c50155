//! The query layer returns the same outcomes as the event layer, from any PSB, and refuses a query for an outcome that
//! is not the next one.

#[path = "../common/mod.rs"]
mod common;

use pugmark_decoder_core::{
    Error,
    config::Config,
    errata::Errata,
    event::{Event, EventDecoder, EventKind},
    packet::{Cbr, Cyc, Encoder, Ip, Mnt, ModeExec, Mtc, Packet, Tma, Tnt, Tsc},
    query::{BranchEvent, BranchEventSink, Pending, QueryDecoder, QueryError},
};

/// Returns the event layer's events up to the end or an error, as branch events.
fn expected(mut decoder: EventDecoder<'_>) -> (Vec<BranchEvent>, Option<Error>) {
    let mut answers = vec![];
    loop {
        match decoder.next() {
            Ok(Some(Event { kind: EventKind::Tnt(tnt), .. })) => {
                answers.extend(tnt.outcomes().map(BranchEvent::Conditional));
            }
            Ok(Some(Event { kind: EventKind::Tip, ip, .. })) => answers.push(BranchEvent::Indirect(ip)),
            Ok(Some(event)) => answers.push(BranchEvent::Event(event)),
            Ok(None) => return (answers, None),
            Err(error) => return (answers, Some(error)),
        }
    }
}

/// Returns all branch events, each from its own method. Before each of them, the other methods must refuse.
fn asked(decoder: &mut QueryDecoder<'_>) -> (Vec<BranchEvent>, Option<Error>) {
    let mut answers = vec![];
    loop {
        let pending = match decoder.pending() {
            Ok(Some(pending)) => pending,
            Ok(None) => return (answers, None),
            Err(error) => return (answers, Some(error)),
        };
        let other = Err(QueryError::Other { offset: decoder.offset(), pending });
        if pending == Pending::Event {
            // Twice, because a refused branch event stays.
            assert_eq!(decoder.deferred(), other.map(|()| None));
            assert_eq!(decoder.deferred(), other.map(|()| None));
        }
        if pending != Pending::Conditional {
            assert_eq!(decoder.conditional(), other.map(|()| None));
        }
        if pending != Pending::Indirect {
            assert_eq!(decoder.indirect(), other.map(|()| None));
        }
        if pending != Pending::Event {
            assert_eq!(decoder.event(), other.map(|()| None));
        }
        answers.push(match pending {
            Pending::Conditional => BranchEvent::Conditional(decoder.conditional().unwrap().unwrap()),
            Pending::Indirect => BranchEvent::Indirect(decoder.indirect().unwrap().unwrap()),
            Pending::Event => BranchEvent::Event(decoder.event().unwrap().unwrap()),
        });
    }
}

/// A sink that collects all branch events.
#[derive(Default)]
struct All(Vec<BranchEvent>);

impl BranchEventSink for All {
    fn outcomes(&mut self, outcomes: Tnt) {
        assert_eq!(outcomes.bits >> outcomes.len, 0, "{outcomes:x?}");
        self.0.extend(outcomes.outcomes().map(BranchEvent::Conditional));
    }

    fn target(&mut self, ip: Option<u64>) {
        self.0.push(BranchEvent::Indirect(ip));
    }

    fn event(&mut self, event: &Event) {
        self.0.push(BranchEvent::Event(*event));
    }
}

/// Compares all branch events by [`QueryDecoder::next`], and the state after them, with a visit. Returns their number.
fn compare_visit(trace: &[u8], config: Config<'_>, what: &str) -> usize {
    let said = |query: &QueryDecoder<'_>| {
        (query.offset(), query.time(), query.lost_mtc(), query.lost_cyc(), query.counters())
    };
    let mut slow = QueryDecoder::with_config(trace, config);
    let mut fast = slow.clone();
    let mut count = 0;
    while let Some(psb) = slow.sync_forward() {
        assert_eq!(fast.sync_forward(), Some(psb), "{what}");
        let mut middle = fast.clone();
        let mut expected = vec![];
        let error = loop {
            match slow.next() {
                Ok(Some(answer)) => expected.push(answer),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let mut found = All::default();
        let found_error = fast.visit(&mut found).err();
        let same = found.0.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        assert_eq!(found.0.get(same), expected.get(same), "{what}, answer {same}");
        assert_eq!((found_error, said(&fast)), (error, said(&slow)), "{what}");
        // From the middle, where the next event may already be read.
        let taken = trace.len() % (expected.len() + 1);
        (0..taken).for_each(|_| _ = middle.next());
        if middle.pending().is_ok() {
            let mut found = All::default();
            let found_error = middle.visit(&mut found).err();
            assert_eq!((&found.0[..], found_error), (&expected[taken..], error), "{what}, after {taken}");
            assert_eq!(said(&middle), said(&slow), "{what}, after {taken}");
        }
        count += expected.len();
    }
    count
}

/// Returns the trace with up to three wrong bytes, twice, because the end of a trace is never read by the fast path.
fn damaged(trace: &[u8], rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut damaged = [trace, trace].concat();
    for _ in 0..rng.usize(0..4) {
        let at = rng.usize(..damaged.len());
        damaged[at] = if rng.bool() { rng.u8(..) } else { 1 << rng.u8(..8) ^ damaged[at] };
    }
    damaged
}

/// Decodes as many traces as `PUGMARK_TRACES` says, or 20 000.
#[test]
fn a_visit_gives_the_same_answers_of_many_damaged_traces() {
    let traces = std::env::var("PUGMARK_TRACES").map_or(20_000, |number| number.parse().expect("a number"));
    let scenarios: Vec<_> = common::scenarios().into_iter().collect();
    let mut rng = fastrand::Rng::with_seed(traces);
    let mut count = 0;
    for _ in 0..traces {
        let (name, scenario) = &scenarios[rng.usize(..scenarios.len())];
        count += compare_visit(&damaged(&scenario.trace, &mut rng), scenario.config, name);
    }
    println!("{traces} traces, {count} answers");
}

#[test]
fn a_visit_gives_the_same_answers() {
    let mut count = 0;
    let mut rng = fastrand::Rng::with_seed(1);
    for (name, scenario) in common::scenarios() {
        let (trace, config) = (scenario.trace, scenario.config);
        for end in 0..=trace.len() {
            count += compare_visit(&trace[..end], config, &format!("{name} up to {end}"));
        }
        for _ in 0..200 {
            let damaged = damaged(&trace, &mut rng);
            count += compare_visit(&damaged, config, &format!("{name} damaged: {damaged:x?}"));
        }
    }
    assert!(count > 100_000, "{count}");
}

#[test]
fn a_visit_gives_the_same_answers_of_branches_and_clocks_in_any_order() {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut count = 0;
    for round in 0..3000 {
        let mut memory = vec![0; 4096];
        let mut encoder = Encoder::new(&mut memory);
        let mut write = |packet: Packet| encoder.emit(&packet).expect("there is room");
        write(Packet::Psb);
        write(Packet::Tsc(Tsc { tsc: 0x1000 }));
        write(Packet::Tma(Tma { ctc: 0x10, fc: 3 }));
        if rng.bool() {
            write(Packet::Cbr(Cbr { ratio: 20, reserved: 0 }));
        }
        write(Packet::ModeExec(ModeExec { cs_l: true, cs_d: false, iflag: false }));
        write(Packet::Fup(Ip::SignExtend48(0x1000)));
        write(Packet::PsbEnd);
        let mut ctc = 0_u8;
        for _ in 0..rng.usize(1..200) {
            let most = if rng.u8(..10) == 0 { Tnt::LONG } else { Tnt::SHORT };
            let (len, width) = (rng.u8(1..=most), rng.u8(1..20));
            write(match rng.u8(..20) {
                0..8 => Tnt { bits: rng.u64(..1 << len), len }.packet(),
                8..12 => Packet::Tip(
                    [
                        Ip::Update16(rng.u64(..0x1_0000)),
                        Ip::Update32(rng.u64(..1 << 32)),
                        Ip::Full(rng.u64(..)),
                    ][rng.usize(..3)],
                ),
                12..16 => Packet::Cyc(Cyc { cycles: rng.u64(..1 << width) }),
                16 => {
                    ctc = ctc.wrapping_add(rng.u8(1..3));
                    Packet::Mtc(Mtc { ctc })
                }
                17 => Packet::Pad,
                18 if rng.u8(..8) == 0 => Packet::Mnt(Mnt { payload: 7 }),
                _ => Packet::Tip(Ip::Suppressed),
            });
        }
        let mut trace = encoder.trace().to_vec();
        trace.extend(match round % 2 {
            // Two CYCs, or by erratum SKD007 a stray byte and an OVF; FUP (1000), TNT.
            0 => &b"\x17\x02\xf3\x3d\0\x10\x06\x0c"[..],
            // TNT, and a CYC after the last branch.
            _ => b"\x06\x9b",
        });
        // Enough bytes for the fast path.
        trace.extend([0; 16]);
        let mut config = Config::new();
        if rng.bool() {
            config.clocks.mtc_freq = 3;
            config.clocks.nom_freq = 0x24;
            (config.clocks.cpuid_15h_eax, config.clocks.cpuid_15h_ebx) = (2, 168);
        }
        config.errata.skd007 = rng.u8(..4) == 0;
        count += compare_visit(&trace, config, &format!("round {round}: {trace:x?}"));
    }
    assert!(count > 300_000, "{count}");
}

#[test]
fn gives_the_events_and_each_outcome_from_every_psb_on() {
    let (mut psbs, mut answers, mut backward) = (0, 0, 0);
    for (name, scenario) in common::scenarios() {
        let (trace, config) = (scenario.trace, scenario.config);
        let mut events = EventDecoder::with_config(&trace, config);
        let mut query = QueryDecoder::with_config(&trace, config);
        let mut offsets = vec![];
        while let Some(psb) = events.sync_forward() {
            assert_eq!(query.sync_forward(), Some(psb), "{name}");
            assert_eq!(query.sync_offset(), Some(psb), "{name}");
            offsets.push(psb);
            // Both decoders stay in place, so that the next PSB can be found.
            let expected = expected(events.clone());
            answers += expected.0.len();
            let mut at = query.clone();
            assert_eq!((at.trace(), at.config().errata), (&trace[..], config.errata), "{name}");
            let start = match expected.0.first() {
                Some(BranchEvent::Event(event)) => {
                    assert!(event.status, "{name} from {psb:#x}");
                    Ok(event.ip)
                }
                Some(_) => Ok(None),
                None => expected.1.map_or(Ok(None), Err),
            };
            assert_eq!(at.start(), start, "{name} from {psb:#x}");
            if start.is_ok() {
                assert_eq!(asked(&mut at), expected, "{name} from {psb:#x}");
            }
            assert_eq!(asked(&mut query.clone()), expected, "{name} from {psb:#x}");
            for taken in 0..=expected.0.len() + 1 {
                let mut at = query.clone();
                (0..taken).for_each(|_| at.next().map_or((), |_| ()));
                let mut unmoved = at.clone();
                assert!(!unmoved.sync_at(psb + 1), "{name}");
                assert_eq!((unmoved.time(), unmoved.offset()), (at.time(), at.offset()), "{name}");
                assert_eq!(asked(&mut unmoved), asked(&mut at.clone()), "{name} at {psb:#x} after {taken}");
                // The decoder has then read an event, perhaps one after outcomes.
                let _ = at.deferred();
                let mut back = at.clone();
                if let Some(before) = back.sync_backward() {
                    let mut new = QueryDecoder::with_config(&trace, config);
                    assert!(new.sync_at(before), "{name}");
                    assert_eq!((back.time(), back.offset()), (None, new.offset()), "{name}");
                    assert_eq!(asked(&mut back), asked(&mut new), "{name} back to {before:#x} after {taken}");
                    backward += 1;
                }
                assert!(at.sync_at(psb), "{name}");
                assert_eq!((at.offset(), at.sync_offset()), (psb, Some(psb)), "{name}");
                assert_eq!((at.time(), at.core_bus_ratio()), (None, None), "{name}");
                assert_eq!(asked(&mut at), expected, "{name} at {psb:#x} after {taken}");
            }
        }
        assert_eq!(query.sync_forward(), None, "{name}");
        for &psb in offsets.iter().rev().skip(1) {
            assert_eq!(query.sync_backward(), Some(psb), "{name}");
        }
        psbs += offsets.len();
    }
    assert!(psbs > 60 && answers > 300, "{answers} answers after {psbs} PSBs");
    assert!(backward > 500, "{backward}");
}

#[test]
fn a_tip_that_is_not_deferred_is_asked_for_in_either_way() {
    // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken), TIP (2000), TNT (taken), TIP.PGD, TIP.PGE (1000).
    let trace = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
        \x06\x2d\0\x20\x06\x01\x31\0\x10";
    let mut query = QueryDecoder::new(trace);
    query.sync_forward();
    while query.next().unwrap().is_some() {
        assert_eq!(query.clone().deferred(), query.clone().indirect());
    }
}

#[test]
fn a_deferred_tip_that_is_not_there_leaves_what_is() {
    // PSB, MODE.Exec (64 bit), FUP (1000), PSBEND, TNT (taken, not taken), TIP.PGD.
    let trace = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
        \x0c\x01";
    let mut query = QueryDecoder::new(trace);
    query.sync_forward();
    while query.pending() == Ok(Some(Pending::Event)) {
        query.event().unwrap();
    }
    assert_eq!(query.conditional(), Ok(Some(true)));
    for _ in 0..3 {
        assert_eq!(query.deferred(), Err(QueryError::Other { offset: 0x1c, pending: Pending::Event }));
    }
    assert_eq!(query.conditional(), Ok(Some(false)));
    assert!(matches!(query.event(), Ok(Some(Event { kind: EventKind::Disabled, .. }))));
    assert_eq!(query.next(), Ok(None));
}

#[test]
fn errors_say_what_comes_next() {
    for (pending, what) in [
        (Pending::Event, "an event"),
        (Pending::Conditional, "the outcome of a conditional branch"),
        (Pending::Indirect, "the target of an indirect branch"),
    ] {
        assert_eq!(
            QueryError::Other { offset: 0x1f, pending }.to_string(),
            format!("0x1f: {what} comes next, and something else was asked for")
        );
    }
    let error = QueryDecoder::new(&[]).next().unwrap_err();
    assert_eq!(QueryError::Trace(error).to_string(), error.to_string());
}

#[test]
fn a_deferred_tip_is_given_before_the_outcomes_in_front_of_it() {
    // PSB, PSBEND, FUP (1000) before it; TNT (taken, not taken), TIP (2000), TNT (taken).
    let trace = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
        \x0c\x2d\0\x20\x06";
    let mut query = QueryDecoder::new(trace);
    query.sync_forward();
    while query.pending() == Ok(Some(Pending::Event)) {
        query.event().unwrap();
    }
    assert_eq!(query.conditional(), Ok(Some(true)));
    assert_eq!(query.deferred(), Ok(Some(Some(0x2000))));
    assert_eq!(query.deferred(), Err(QueryError::Other { offset: 0x1f, pending: Pending::Conditional }));
    assert_eq!(query.conditional(), Ok(Some(false)));
    assert_eq!(query.conditional(), Ok(Some(true)));
    assert_eq!((query.conditional(), query.event()), (Ok(None), Ok(None)));
}

#[test]
fn time_and_bus_ratio_are_those_of_what_was_given_out_last() {
    // PSB, TSC (5), CBR (20), MODE.Exec, FUP (1000), PSBEND, TNT (taken), TSC (9), TNT (taken).
    let trace = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x19\x05\0\0\0\0\0\0\x02\x03\x20\0\
        \x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x06\x19\x09\0\0\0\0\0\0\x06";
    let mut query = QueryDecoder::new(trace);
    query.sync_forward();
    assert_eq!((query.time(), query.core_bus_ratio()), (None, None));
    while query.pending() == Ok(Some(Pending::Event)) {
        query.event().unwrap();
    }
    assert_eq!((query.time(), query.core_bus_ratio()), (Some(5), Some(0x20)));
    query.conditional().unwrap();
    assert_eq!((query.time(), query.lost_cyc()), (Some(5), 0));
    query.conditional().unwrap();
    assert_eq!(query.time(), Some(9));
}

#[test]
fn lost_mtcs_and_lost_cycs_are_counted_apart() {
    // PSB, MODE.Exec, FUP (1000), PSBEND, then CYC (1) twice, before which no TSC came; TNT (taken).
    let trace = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x99\x01\x7d\0\x10\0\0\0\0\x02\x23\
        \x0b\x0b\x06";
    let mut query = QueryDecoder::new(trace);
    query.sync_forward();
    while query.next().unwrap().is_some() {}
    assert_eq!((query.lost_mtc(), query.lost_cyc()), (0, 2));
}

#[test]
fn an_overflow_has_its_own_time_where_the_next_branch_shows_that_tracing_goes_on() {
    // PSB, TSC (5), MODE.Exec, FUP (1000), PSBEND; OVF, TSC (9), TIP (2000), TNT (taken).
    let trace = b"\
        \x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x19\x05\0\0\0\0\0\0\
        \x99\x01\x7d\0\x10\0\0\0\0\x02\x23\x02\xf3\x19\x09\0\0\0\0\0\0\x2d\0\x20\x06";
    let config = Config { errata: Errata { skd010: true, ..Errata::NONE }, ..Config::new() };
    let mut query = QueryDecoder::with_config(trace, config);
    query.sync_forward();
    let mut times = vec![];
    while let Some(answer) = query.next().unwrap() {
        match answer {
            BranchEvent::Event(Event { kind: EventKind::Overflow, ip, when, .. }) => {
                times.push((ip, when.tsc))
            }
            BranchEvent::Conditional(true) => times.push((None, query.time())),
            _ => {}
        }
    }
    assert_eq!(times, [(Some(0x2000), Some(5)), (None, Some(9))]);
}

#[test]
fn a_synchronisation_forgets_the_time() {
    // PSB, TSC (5), PSBEND; PSB, PSBEND.
    let psb: [u8; 16] = *b"\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82\x02\x82";
    let trace = [&psb[..], b"\x19\x05\0\0\0\0\0\0\x02\x23", &psb, b"\x02\x23"].concat();
    let mut query = QueryDecoder::new(&trace);
    query.sync_forward();
    query.event().unwrap();
    assert_eq!(query.time(), Some(5));
    assert_eq!((query.sync_forward(), query.time()), (Some(0x1a), None));
}
