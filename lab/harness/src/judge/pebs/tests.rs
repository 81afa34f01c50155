use super::*;
use crate::truth::RecordFlags;
use pugmark_protocol::Lost;

const fn record(rip: u64, cpl: u8) -> Record {
    Record { rip, cr3: 0, session: 1, flags: RecordFlags::new(cpl), cpu: 0 }
}

/// Judges with 1000: nop, nop, jmp 1000, wrmsr, ud2; 2000: stubs of nops, of which the first ends with IRETQ.
fn judged(
    records: &[Record],
    samples: &SampledSession,
    change: impl Fn(&mut SampledTruth<'_>),
) -> Result<PebsVerdict> {
    let mut stubs = vec![0x90; 4096];
    stubs[1..3].copy_from_slice(&[0x48, 0xcf]);
    let code = [(0x1000, vec![0x90, 0x90, 0xeb, 0xfc, 0x0f, 0x30, 0x0f, 0x0b]), (0x2000, stubs)];
    let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
    let symbols = Symbols::from_pairs([(STUBS, 0x2000)]);
    let mut session = SampledTruth { records, cpl: None, faults: 0, cut: false };
    change(&mut session);
    compare_session(samples, &session, &code, &mut Instructions::new(code.clone()), &symbols)
}

fn samples(event: EventKind, period: u64, lost: u64, precise: &[(Option<u64>, u64)]) -> SampledSession {
    let sample = |&(event, next)| PreciseSample { event, next: Some(next), resumed: false };
    let precise: Vec<PreciseSample> = precise.iter().map(sample).collect();
    let totals = Samples { event, period, lost, taken: precise.len() as u64, ..Samples::default() };
    SampledSession { totals, precise, ..SampledSession::default() }
}

/// Returns three iterations of the loop: nine instructions.
fn rounds() -> Vec<Record> {
    (0..9).map(|n| record(0x1000 + n % 3, 0)).collect()
}

#[test]
fn each_sample_is_at_the_event_after_its_period() {
    // With a period of 3, instructions 4 and 8 are sampled. The last one is before a WRMSR or before a jump.
    for (precise, right) in [
        (&[(None, 0x1001), (None, 0x1002)][..], true),
        (&[(Some(0x1000), 0x1001), (Some(0x1001), 0x1002)], true),
        (&[(Some(0x1000), 0x1001), (Some(0x1001), 0x1004)], true),
        (&[(Some(0x1001), 0x1001), (Some(0x1001), 0x1002)], false),
        (&[(Some(0x1000), 0x1002), (Some(0x1001), 0x1002)], false),
        (&[(Some(0x1000), 0x1001)], false),
        (&[(Some(0x1000), 0x1001), (Some(0x1001), 0x1002), (Some(0x1002), 0x1000)], false),
    ] {
        let found = judged(&rounds(), &samples(EventKind::Instructions, 3, 0, precise), |_| ());
        assert_eq!(found.is_ok(), right, "{precise:x?}: {found:?}");
    }
}

#[test]
fn a_sample_is_lost_where_its_counter_was_stopped() {
    // Instruction 3 overflows, and the counter starts a new period: 7 is sampled, and 8 and 9 are not.
    let found = judged(&rounds(), &samples(EventKind::Instructions, 3, 1, &[(Some(0x1000), 0x1001)]), |_| ());
    assert_eq!(found.unwrap(), PebsVerdict { events: 9, periods: 2, samples: 1, lost: 1 });
    // There are too few events for two lost samples.
    let two = samples(EventKind::Instructions, 3, 2, &[(Some(0x1000), 0x1001)]);
    assert!(judged(&rounds(), &two, |_| ()).is_err());
}

#[test]
fn one_of_the_places_where_a_sample_may_be_is_enough() {
    // A sample after a loss, at instruction 3 or 6: only from 6 on are at most three instructions left.
    for (period, resumed, right) in [(3, true, true), (3, false, false), (2, true, false)] {
        let mut one = samples(EventKind::Instructions, period, 0, &[(None, 0x1000)]);
        one.precise[0].resumed = resumed;
        assert_eq!(judged(&rounds(), &one, |_| ()).is_ok(), right, "{period} {resumed}");
    }
}

#[test]
fn only_events_at_the_level_count() {
    let mut records = rounds();
    records.insert(1, record(0x1002, 3));
    let user = |session: &mut SampledTruth<'_>| session.cpl = Some(3);
    let one = samples(EventKind::Instructions, 1, 0, &[]);
    assert_eq!(judged(&records, &one, user).unwrap().events, 1);
    assert!(judged(&records, &one, |session| session.cpl = Some(0)).is_err());
}

#[test]
fn branches_are_counted_alone() {
    let found = judged(&rounds(), &samples(EventKind::Branches, 1, 0, &[(Some(0x1002), 0x1000)]), |_| ());
    assert_eq!(found.unwrap(), PebsVerdict { events: 3, periods: 1, samples: 1, lost: 0 });
    assert!(
        judged(&rounds(), &samples(EventKind::Branches, 1, 0, &[(Some(0x1001), 0x1002)]), |_| ()).is_err()
    );
}

#[test]
fn software_interrupts_are_instructions_and_branches() {
    let int = Record { flags: RecordFlags::new(0).software_interrupt(), ..record(0x1000, 0) };
    let records = [record(0x1001, 0), int, record(0x2000, 0)];
    for event in [EventKind::Instructions, EventKind::Branches] {
        let found = judged(&records, &samples(event, 1, 0, &[(Some(0x1000), 0x2000)]), |_| ());
        assert_eq!(found.is_ok(), event == EventKind::Instructions, "{found:?}");
    }
    assert_eq!(judged(&records, &samples(EventKind::Branches, 2, 0, &[]), |_| ()).unwrap().events, 1);
}

#[test]
fn an_interrupt_may_come_between_a_sample_and_the_instruction_that_stops_the_counter() {
    // The WRMSR is not among the records; the handler returns to it.
    let records = [0x1000, 0x1001, 0x2000, 0x2001].map(|rip| record(rip, 0));
    for (next, right) in [(0x1004, true), (0x1002, false)] {
        let one = samples(EventKind::Instructions, 1, 0, &[(None, next), (None, 0x1004)]);
        assert_eq!(judged(&records, &one, |_| ()).is_ok(), right, "{next:x}");
    }
}

#[test]
fn an_interrupt_may_come_between_a_sample_and_the_next_instruction() {
    let records = [0x1000, 0x1001, 0x2000, 0x2001, 0x1002].map(|rip| record(rip, 0));
    assert!(
        judged(&records, &samples(EventKind::Instructions, 1, 0, &[(None, 0x1002), (None, 0x1002)]), |_| ())
            .is_ok()
    );
    // The interrupt returned to another instruction.
    assert!(
        judged(&records, &samples(EventKind::Instructions, 1, 0, &[(None, 0x1003), (None, 0x1002)]), |_| ())
            .is_err()
    );
}

#[test]
fn an_instruction_that_faults_may_come_after_a_sample() {
    let records = [0x1000, 0x1001, 0x2000, 0x2001].map(|rip| record(rip, 0));
    for (next, right) in [(0x1006, true), (0x1007, false), (0x1002, false)] {
        let found = judged(
            &records,
            &samples(EventKind::Instructions, 1, 0, &[(None, next), (None, 0x1004)]),
            |_| (),
        );
        assert_eq!(found.is_ok(), right, "{next:#x}");
    }
}

#[test]
fn a_fault_moves_the_first_sample_and_a_full_buffer_ends_them() {
    let first = samples(EventKind::Instructions, 6, 0, &[(Some(0x1001), 0x1002)]);
    assert!(judged(&rounds(), &first, |_| ()).is_err());
    assert!(judged(&rounds(), &first, |session| session.faults = 1).is_ok());
    let few = samples(EventKind::Instructions, 1, 0, &[(Some(0x1001), 0x1002)]);
    assert!(judged(&rounds(), &few, |_| ()).is_err());
    assert!(judged(&rounds(), &few, |session| session.cut = true).is_ok());
    // One more sample after the full buffer: it is at instruction 7; without the loss it would be at instruction 8.
    let mut two = samples(EventKind::Instructions, 3, 0, &[(Some(0x1000), 0x1001), (Some(0x1000), 0x1001)]);
    assert!(judged(&rounds(), &two, |_| ()).is_err());
    two.precise[1].resumed = true;
    assert!(judged(&rounds(), &two, |_| ()).is_ok());
}

#[test]
fn samples_are_missing_only_where_the_buffer_is_to_run_full() {
    let verdict = |samples, lost| PebsVerdict { events: 1000, periods: 100, samples, lost };
    for (loss, full, samples, lost, right) in [
        (Loss::Nothing, 0, 100, 0, true),
        (Loss::Nothing, 0, 80, 15, true),
        (Loss::Nothing, 0, 80, 0, false),
        (Loss::Nothing, 1, 100, 0, false),
        (Loss::Wrap, 0, 60, 0, false),
        (Loss::Stop, 2, 60, 0, true),
        (Loss::Stop, 2, 49, 0, false),
        (Loss::Stop, 0, 100, 0, false),
    ] {
        let run = Run { lost: Lost { stops: full, ..Lost::default() }, ..Run::default() };
        let found = enough_samples(&run, loss, verdict(samples, lost));
        assert_eq!(found.is_ok(), right, "{loss:?} {full} {samples} {lost}: {found:?}");
    }
    // No samples at all are never enough.
    assert!(enough_samples(&Run::default(), Loss::Nothing, PebsVerdict::default()).is_err());
}
