use super::super::stubs::STUBS;
use super::*;
use crate::code::Code;
use crate::testing::{record, samples_at};
use pugmark_protocol::Samples;

#[test]
fn samples_are_of_what_retired() {
    let records = [record(1, 0x1000), record(1, 0x1001)];
    assert!(all_retired(&samples_at(&[(0x1001, 3)]), &records).is_ok());
    assert!(all_retired(&samples_at(&[(0x1002, 3)]), &records).is_err());
    for totals in
        [Samples { taken: 4, ..Samples::default() }, Samples { taken: 3, lost: 1, ..Samples::default() }]
    {
        let samples = SampledSession { totals, ..samples_at(&[(0x1001, 3)]) };
        assert!(all_retired(&samples, &records).is_err(), "{totals}");
    }
}

#[test]
fn ops_outside_the_handler_are_sampled_evenly() {
    // 1000: nop, ret in `a`; 1100: nop in `b`; 2000: stubs of nops, 2022: iretq.
    let mut stubs = vec![0x90; 4096];
    stubs[0x22..0x24].copy_from_slice(&[0x48, 0xcf]);
    let code = [(0x1000, vec![0x90, 0xc3]), (0x1100, vec![0x90]), (0x2000, stubs)];
    let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
    let symbols = Symbols::from_pairs([("a", 0x1000), ("b", 0x1100), (STUBS, 0x2000)]);
    // Three ops of `a` and one of `b`, with the handler in between.
    let records = [0x1000, 0x2020, 0x2021, 0x2022, 0x1001, 0x1100].map(|rip| record(1, rip));
    let fit_of = |addresses: &[(u64, u64)]| {
        fit(&samples_at(addresses), &records, &mut Instructions::new(code.clone()), &symbols)
    };
    let even = fit_of(&[(0x1000, 25), (0x1001, 50), (0x1100, 25)]).unwrap();
    assert_eq!(even, Fit { samples: 100, statistic: 0.0, freedom: 1 });
    assert!(fit_of(&[(0x1000, 50), (0x1100, 50)]).unwrap().p_value() < 1e-6);
    assert!(fit_of(&[(0x2021, 1), (0x1000, 50)]).is_err());
}

#[test]
fn ops_are_sampled_as_often_as_they_retire_in_the_handler_or_without() {
    // 1000: nop; 2000: stubs of nops, 2022: iretq.
    let mut stubs = vec![0x90; 4096];
    stubs[0x22..0x24].copy_from_slice(&[0x48, 0xcf]);
    let code = [(0x1000, vec![0x90]), (0x2000, stubs)];
    let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
    let symbols = Symbols::from_pairs([("a", 0x1000), (STUBS, 0x2000)]);
    // 7000 ops elsewhere, and 35000 in the handler: an IRETQ is 8.
    let round = [0x1000, 0x1000, 0x2020, 0x2021, 0x2022].map(|rip| record(1, rip));
    let records = round.repeat(3500);
    // (period, samples, `true` if that many are possible)
    for (period, taken, can_be) in [
        (0x600, 2, false),
        (0x600, 3, true),
        (0x600, 32, true),
        (0x600, 33, false),
        (0x2000, 0, true),
        (0x100, 99, false),
        (0, 0, false),
    ] {
        let totals = Samples { period, taken, ..Samples::default() };
        let samples = SampledSession { totals, ..SampledSession::default() };
        let found = as_often(&samples, &records, &mut Instructions::new(code.clone()), &symbols);
        assert_eq!(found.ok(), can_be.then_some(taken), "{period:#x} {taken}");
    }
}

#[test]
fn each_session_has_samples() {
    let session = |taken| {
        let totals = Samples { taken, ..Samples::default() };
        SampledSession { totals, ..SampledSession::default() }
    };
    assert_eq!(by_clocks(&[session(2), session(1)]).ok(), Some(3));
    assert!(by_clocks(&[session(2), session(0)]).is_err());
}
