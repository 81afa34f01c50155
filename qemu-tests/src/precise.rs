//! Checks that precise samples are where the truth allows them, and as many.
//!
//! Precise event-based sampling (PEBS): the processor itself writes a record at the event after a counter's overflow.

use anyhow::{Context, Result, bail, ensure};
use pugmark_protocol::{EventKind, Samples};
use std::collections::BTreeSet;
use std::fmt;
use std::iter::Sum;

use crate::code::Code;
use crate::counts::{STUBS, is_begin_of_stub};
use crate::instructions::Instructions;
use crate::report::{PreciseSample, SampledSession};
use crate::symbols::Symbols;
use crate::truth::Record;

/// What is reported of samples that agree with the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Events that happened.
    pub events: u64,
    /// Whole periods of these events: the number of samples if none is missing.
    pub due: u64,
    /// Samples that were taken.
    pub samples: u64,
    /// Samples that were lost because their counter was stopped before they were taken.
    pub lost: u64,
}

impl Sum for Verdict {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            events: sum.events + one.events,
            due: sum.due + one.due,
            samples: sum.samples + one.samples,
            lost: sum.lost + one.lost,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, due, samples, lost } = self;
        write!(f, "events={events} periods={due} samples={samples} lost={lost}, each at its event")
    }
}

/// What is known of a session besides its samples.
#[derive(Clone, Copy, Debug)]
pub struct Session<'a> {
    /// What retired while the counter was on, no more and no less.
    pub records: &'a [Record],
    /// The level that is counted: `Some(0)` for level 0, `Some(3)` for all levels above it, `None` for all.
    pub cpl: Option<u8>,
    /// How often the write of the first sample faulted.
    pub faults: u64,
    /// The buffer was full at the end, so samples are missing there.
    pub cut: bool,
}

/// Compares samples with the truth.
///
/// A counter overflows at the last event of its period, and the next event is sampled. If the counter is stopped
/// between the two, it starts a new period and the sample is lost. If the write of a record faults, the record is made
/// at the next event. After a full buffer there are no samples until it is drained; the next period may begin anywhere,
/// and one sample may be lost.
///
/// # Errors
/// A sample is in the wrong place, there are too many or too few, or a record's address has no instruction.
pub fn judge(
    samples: &SampledSession,
    session: &Session<'_>,
    code: &[Code],
    instructions: &mut Instructions,
    symbols: &Symbols,
) -> Result<Verdict> {
    let events = events(samples.totals.event, session, instructions)?;
    let stubs = symbols.address(STUBS)?;
    let fits = |at: u64, sample: &PreciseSample| {
        let index = usize::try_from(at).ok().and_then(|at| events.get(at.checked_sub(1)?));
        index.is_some_and(|index| is_there(sample, *index, session.records, stubs, code))
    };
    let SampledSession { totals: Samples { period, lost, taken, unplaced, .. }, precise, .. } = samples;
    let (period, lost) = (*period, *lost);
    let count = events.len() as u64;
    ensure!(*taken == precise.len() as u64, "{taken} samples are told, and {} are there", precise.len());
    ensure!(*unplaced == 0, "{unplaced} records are none");
    // Pairs of the number of events up to the last sample and how many of the lost samples came before it: all possible
    // ones.
    let mut places = BTreeSet::from([(session.faults, 0)]);
    for (n, sample) in precise.iter().enumerate() {
        let next = |&(at, gone): &(u64, u64)| {
            let steady = (gone..=lost).map(move |then| (at + (then - gone) * period + period + 1, then));
            let last = if sample.resumed { count } else { at };
            let resumed = (at + 1..=last).flat_map(move |at| [(at, gone), (at, gone + 1)]);
            steady.filter(|_| !sample.resumed).chain(resumed).filter(|(_, gone)| *gone <= lost)
        };
        let found: BTreeSet<_> = places.iter().flat_map(next).filter(|(at, _)| fits(*at, sample)).collect();
        if found.is_empty() {
            bail!(
                "sample {n}, {sample:x?}, is not at its event: those before it end at {places:?} of {} ({lost} lost)",
                events.len()
            );
        }
        places = found;
    }
    let ends = |&(at, gone): &(u64, u64)| {
        let end = at + (lost - gone) * period;
        session.cut || (end..=end + period).contains(&count)
    };
    ensure!(
        places.iter().any(ends),
        "samples are missing at the end: {places:?} of {count} events ({lost} lost)"
    );
    // The event after a period is sampled, and the next period begins with it.
    Ok(Verdict { events: count, due: count / (period + 1), samples: *taken, lost })
}

/// The indexes in the session of the records that are events.
fn events(event: EventKind, session: &Session<'_>, instructions: &mut Instructions) -> Result<Vec<usize>> {
    let mut events = Vec::new();
    for (index, record) in session.records.iter().enumerate() {
        let at_level = session.cpl.is_none_or(|cpl| (cpl == 0) == (record.flags.cpl() == 0));
        if !at_level {
            continue;
        }
        let happens = match event {
            EventKind::Instructions => true,
            // INT n and the like are far branches.
            EventKind::Branches => record.flags.is_software_interrupt() || instructions.of(record)?.branch,
            EventKind::Ops | EventKind::Cycles => bail!("nothing is known of {event}"),
        };
        if happens {
            events.push(index);
        }
    }
    Ok(events)
}

/// Whether a sample can be that of the instruction at `index`.
fn is_there(sample: &PreciseSample, index: usize, records: &[Record], stubs: u64, code: &[Code]) -> bool {
    let behind = &records[index + 1..];
    sample.event.is_none_or(|event| event == records[index].rip)
        && sample.next.is_none_or(|ip| match behind.first() {
            Some(next) if next.rip == ip => true,
            // Either an interrupt came there and later returned, or the instruction there faults and the handler steps
            // over it.
            Some(next) if is_begin_of_stub(next.rip, stubs) => {
                is_at(ip, UD2, code) || behind.iter().any(|record| record.rip == ip)
            }
            // The instruction that stops the counter is not among the records.
            _ => is_at(ip, WRMSR, code),
        })
}

const UD2: [u8; 2] = [0x0f, 0x0b];
const WRMSR: [u8; 2] = [0x0f, 0x30];

fn is_at(ip: u64, instruction: [u8; 2], code: &[Code]) -> bool {
    let here = |code: &Code| {
        let at = usize::try_from(ip.checked_sub(code.base)?).ok()?;
        Some(*code.bytes.get(at..at + 2)? == instruction)
    };
    code.iter().any(|code| here(code).unwrap_or(false))
}

/// Finds the session that samples `what`.
///
/// # Errors
/// No session samples it.
pub fn of(samples: &[SampledSession], event: EventKind) -> Result<&SampledSession> {
    let mut samples = samples.iter();
    samples
        .find(|samples| samples.totals.event == event)
        .with_context(|| format!("no session samples {event}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::truth::RecordFlags;

    const fn record(rip: u64, cpl: u8) -> Record {
        Record { rip, cr3: 0, session: 1, flags: RecordFlags::new(cpl), cpu: 0 }
    }

    /// 1000: nop, nop, jmp 1000, wrmsr, ud2; 2000: stubs of nops, of which the first ends with IRETQ.
    fn judged(
        records: &[Record],
        samples: &SampledSession,
        change: impl Fn(&mut Session<'_>),
    ) -> Result<Verdict> {
        let mut stubs = vec![0x90; 4096];
        stubs[1..3].copy_from_slice(&[0x48, 0xcf]);
        let code = [(0x1000, vec![0x90, 0x90, 0xeb, 0xfc, 0x0f, 0x30, 0x0f, 0x0b]), (0x2000, stubs)];
        let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
        let symbols = Symbols::from_pairs([(STUBS, 0x2000)]);
        let mut session = Session { records, cpl: None, faults: 0, cut: false };
        change(&mut session);
        judge(samples, &session, &code, &mut Instructions::new(code.clone()), &symbols)
    }

    fn samples(event: EventKind, period: u64, lost: u64, precise: &[(Option<u64>, u64)]) -> SampledSession {
        let sample = |&(event, next)| PreciseSample { event, next: Some(next), resumed: false };
        let precise: Vec<PreciseSample> = precise.iter().map(sample).collect();
        let totals = Samples { event, period, lost, taken: precise.len() as u64, ..Samples::default() };
        SampledSession { totals, precise, ..SampledSession::default() }
    }

    /// Three turns of the loop: nine instructions.
    fn rounds() -> Vec<Record> {
        (0..9).map(|n| record(0x1000 + n % 3, 0)).collect()
    }

    #[test]
    fn each_sample_is_at_the_event_behind_its_period() {
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
        let found =
            judged(&rounds(), &samples(EventKind::Instructions, 3, 1, &[(Some(0x1000), 0x1001)]), |_| ());
        assert_eq!(found.unwrap(), Verdict { events: 9, due: 2, samples: 1, lost: 1 });
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
        let user = |session: &mut Session<'_>| session.cpl = Some(3);
        let one = samples(EventKind::Instructions, 1, 0, &[]);
        assert_eq!(judged(&records, &one, user).unwrap().events, 1);
        assert!(judged(&records, &one, |session| session.cpl = Some(0)).is_err());
    }

    #[test]
    fn branches_are_counted_alone() {
        let found = judged(&rounds(), &samples(EventKind::Branches, 1, 0, &[(Some(0x1002), 0x1000)]), |_| ());
        assert_eq!(found.unwrap(), Verdict { events: 3, due: 1, samples: 1, lost: 0 });
        assert!(
            judged(&rounds(), &samples(EventKind::Branches, 1, 0, &[(Some(0x1001), 0x1002)]), |_| ())
                .is_err()
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
    fn an_interrupt_may_come_between_a_sample_and_the_next_instruction() {
        let records = [0x1000, 0x1001, 0x2000, 0x2001, 0x1002].map(|rip| record(rip, 0));
        assert!(
            judged(
                &records,
                &samples(EventKind::Instructions, 1, 0, &[(None, 0x1002), (None, 0x1002)]),
                |_| ()
            )
            .is_ok()
        );
        // The interrupt returned to another instruction.
        assert!(
            judged(
                &records,
                &samples(EventKind::Instructions, 1, 0, &[(None, 0x1003), (None, 0x1002)]),
                |_| ()
            )
            .is_err()
        );
    }

    #[test]
    fn an_instruction_that_faults_may_stand_behind_a_sample() {
        let records = [0x1000, 0x1001, 0x2000, 0x2001].map(|rip| record(rip, 0));
        for (behind, right) in [(0x1006, true), (0x1007, false), (0x1004, false)] {
            let found = judged(
                &records,
                &samples(EventKind::Instructions, 1, 0, &[(None, behind), (None, 0x1004)]),
                |_| (),
            );
            assert_eq!(found.is_ok(), right, "{behind:#x}");
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
        let mut two =
            samples(EventKind::Instructions, 3, 0, &[(Some(0x1000), 0x1001), (Some(0x1000), 0x1001)]);
        assert!(judged(&rounds(), &two, |_| ()).is_err());
        two.precise[1].resumed = true;
        assert!(judged(&rounds(), &two, |_| ()).is_ok());
    }
}
