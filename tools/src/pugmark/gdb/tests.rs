//! Histories of random programs, against what a walk over all of the trace passes on.

use super::history::{History, Searched};
use crate::pugmark::{made_traces::made_traces, progress::Progress, visitors::TraceClock};
use crate::session::{BlockCaches, Session, SliceSink, TraceSlice};
use pugmark_decoder_core::{
    block_cache::{ExecutionSink, InstructionRun},
    config::Config,
    event::{Event, EventKind},
    image::Image,
    resume::Lost,
};
use rustc_hash::FxHashSet;

/// The addresses of each lane's instructions, its gaps, and the address at which it was interrupted at its end.
#[derive(Debug, Default)]
struct All {
    lane: usize,
    ips: Vec<Vec<u64>>,
    gaps: Vec<(usize, u64)>,
    ends: Vec<Option<u64>>,
}

impl SliceSink for All {
    const ENDS_EARLY: bool = true;

    fn begins(&mut self, slice: &TraceSlice) {
        self.lane = slice.lane;
    }
}

impl ExecutionSink for All {
    const INSNS: bool = true;

    fn insns(&mut self, insns: InstructionRun) {
        self.ips[self.lane].extend(insns);
        self.ends[self.lane] = None;
    }

    fn event(&mut self, event: &Event) {
        let number = self.ips[self.lane].len() as u64;
        match event.kind {
            EventKind::Overflow if !event.status => self.gaps.push((self.lane, number)),
            EventKind::AsyncDisabled { at } if !event.status => self.ends[self.lane] = Some(at),
            _ => {}
        }
    }

    fn lost(&mut self, _: &Lost) {
        self.gaps.push((self.lane, self.ips[self.lane].len() as u64));
    }
}

/// Cuts a trace into slices of two lanes, or leaves it whole.
fn slices(length: usize, cuts: usize, rng: &mut fastrand::Rng) -> Vec<TraceSlice> {
    let mut places: Vec<_> = (0..cuts).map(|_| rng.usize(..=length)).chain([0, length]).collect();
    places.sort_unstable();
    let slice = |(number, pair): (usize, &[usize])| TraceSlice {
        trace: 0,
        range: pair[0]..pair[1],
        lane: number % 2,
        image: 0,
        is_switch: number > 0,
        tsc: number as u64,
    };
    places.windows(2).enumerate().map(slice).collect()
}

#[test]
fn each_instruction_is_found_by_its_number_and_by_its_address_from_both_sides() {
    let never = || false;
    let (mut rng, mut searches) = (fastrand::Rng::with_seed(1), 0);
    for (made, cuts) in made_traces(if cfg!(debug_assertions) { 6 } else { 30 }).flat_map(|made| [(made, 0)])
    {
        for cuts in [cuts, 5] {
            let sections = made.code.sections();
            let image = Image::new(&sections);
            let mut session = Session::alone(&made.trace, image, Config::default());
            session.slices = slices(made.trace.len(), cuts, &mut rng);
            session.lanes = vec![0, 0];
            let mut all = [All { ips: vec![vec![]; 2], ends: vec![None; 2], ..All::default() }];
            session.follow(&mut all);
            let [all] = all;
            let mut memory = BlockCaches::memory(1);
            let mut caches = BlockCaches::new(&mut memory);
            let mut history =
                History::new(session, TraceClock::INSTRUCTIONS, &mut caches, &mut Progress::hidden());
            let gaps: Vec<_> = history.gaps.iter().map(|gap| (gap.lane, gap.before)).collect();
            assert_eq!((gaps, history.gap_count), (all.gaps.clone(), all.gaps.len()), "{}", made.what);
            for (lane, ips) in all.ips.iter().enumerate() {
                let what = format!("{}, lane {lane}, {cuts} cuts", made.what);
                let known = history.lanes[lane].clone();
                assert_eq!((known.count, known.end), (ips.len() as u64, all.ends[lane]), "{what}");
                assert_eq!(history.ip(&mut caches, lane, known.count), all.ends[lane], "{what}");
                if ips.is_empty() {
                    continue;
                }
                let mut numbers: Vec<_> = (0..ips.len()).collect();
                // A walk in either direction, and jumps.
                numbers.extend((0..ips.len()).rev().chain((0..50).map(|_| rng.usize(..ips.len()))));
                for number in numbers {
                    let ip = history.ip(&mut caches, lane, number as u64);
                    assert_eq!(ip, Some(ips[number]), "{what}: {number}");
                }
                for _ in 0..20 {
                    let wanted: FxHashSet<u64> = (0..2).map(|_| ips[rng.usize(..ips.len())]).collect();
                    let at = rng.usize(..=ips.len());
                    let number = |found: Option<usize>| {
                        found.map_or(Searched::Nothing, |number| Searched::Found(number as u64))
                    };
                    let first = (at..ips.len()).find(|number| wanted.contains(&ips[*number]));
                    let found = history.first(&mut caches, (lane, at as u64), &wanted, &never);
                    assert_eq!(found, number(first), "{what}: from {at}");
                    let last = (0..at).rev().find(|number| wanted.contains(&ips[*number]));
                    let found = history.last(&mut caches, (lane, at as u64), &wanted, &never);
                    assert_eq!(found, number(last), "{what}: before {at}");
                    searches += 1;
                }
            }
        }
    }
    assert!(searches > 1000, "{searches}");
}

#[test]
fn a_search_that_is_interrupted_says_where_it_was() {
    let made = made_traces(1).next().unwrap();
    let sections = made.code.sections();
    let session = Session::alone(&made.trace, Image::new(&sections), Config::default());
    let mut memory = BlockCaches::memory(1);
    let mut caches = BlockCaches::new(&mut memory);
    let mut history = History::new(session, TraceClock::INSTRUCTIONS, &mut caches, &mut Progress::hidden());
    let count = history.lanes[0].count;
    // No code is there.
    let nowhere = FxHashSet::from_iter([1]);
    let found = history.first(&mut caches, (0, 0), &nowhere, &|| true);
    assert!(matches!(found, Searched::Interrupted(at) if 0 < at && at < count), "{found:?} of {count}");
    let found = history.last(&mut caches, (0, count), &nowhere, &|| true);
    assert!(matches!(found, Searched::Interrupted(at) if 0 < at && at < count), "{found:?} of {count}");
    let empty = FxHashSet::default();
    assert_eq!(history.first(&mut caches, (0, 0), &empty, &|| false), Searched::Nothing);
    assert_eq!(history.last(&mut caches, (0, count), &empty, &|| false), Searched::Nothing);
}
