use super::*;
use crate::pugmark::{
    coverage::Executed,
    made_traces::{MadeTrace, made_traces},
    visitors::{CallEvent, Time, TraceClock, WalkedLane, walk_lanes},
};
use crate::session::{Session, SliceSink};
use crate::symbols::TracedSymbols;
use pugmark_decoder_core::{
    block::Block,
    block_cache::{ExecutionSink, InstructionRun},
    config::Config,
    event::Event,
    image::Image,
};

#[test]
fn a_part_is_two_edges_or_a_function() {
    let time = |text: &str| Some(PartEdge::Time(GivenTime::of(text).unwrap()));
    let function = |name: &str| Some(PartEdge::Function(name.into()));
    for (text, from, to) in [
        ("1.5,2", time("1.5"), time("2").map_or(PartEnd::Trace, PartEnd::PartEdge)),
        ("20us,", time("20us"), PartEnd::Trace),
        (",ptw:0x10", None, PartEnd::PartEdge(PartEdge::Written(16))),
        ("work", function("work"), PartEnd::Return),
        ("work,leave", function("work"), PartEnd::PartEdge(PartEdge::Function("leave".into()))),
        ("map<int, f(int, int)>::get,", function("map<int, f(int, int)>::get"), PartEnd::Trace),
        ("map<int, long>::get", function("map<int, long>::get"), PartEnd::Return),
        (",", None, PartEnd::Trace),
    ] {
        assert_eq!(text.parse::<Between>().unwrap(), Between { from, to }, "{text}");
    }
    for bad in ["", "1.5", "ptw:1", "1.0000000001,2", "1,2.x", "1x,2", "ptw:x,", "99999999999999,"] {
        assert!(bad.parse::<Between>().is_err(), "{bad}");
    }
}

#[test]
fn a_time_is_in_seconds_or_in_what_the_trace_counts() {
    for (text, nanoseconds) in [
        ("1.5", Some(1_500_000_000)),
        ("0.000000007", Some(7)),
        ("7ns", Some(7)),
        ("1.25us", Some(1250)),
        ("3ms", Some(3_000_000)),
        ("2s", Some(2_000_000_000)),
    ] {
        let time = GivenTime::of(text).unwrap();
        assert_eq!(time.at(Unit::Nanoseconds).ok(), nanoseconds, "{text}");
        let has_unit = text.ends_with('s');
        assert_eq!(time.at(Unit::Instructions).is_err(), has_unit, "{text}");
    }
    assert_eq!(GivenTime::of("123").unwrap().at(Unit::Ticks).ok(), Some(123));
}

/// The instructions that were executed, as instructions and as the numbers of those of blocks.
#[derive(Debug, Default)]
struct Listed<const BLOCKS: bool> {
    insns: Vec<u64>,
    in_blocks: u64,
}

impl<const BLOCKS: bool> SliceSink for Listed<BLOCKS> {}

impl<const BLOCKS: bool> ExecutionSink for Listed<BLOCKS> {
    const INSNS: bool = true;
    const BLOCKS: bool = BLOCKS;

    fn insns(&mut self, insns: InstructionRun) {
        self.insns.extend(insns);
    }

    fn block(&mut self, block: &Block) {
        self.in_blocks += u64::from(block.insns);
        let own = self.insns[self.insns.len() - block.insns as usize..].iter();
        assert_eq!((own.clone().next(), own.last()), (Some(&block.ip), Some(&block.end_ip)));
    }

    fn event(&mut self, _: &Event) {}
}

fn listed<const BLOCKS: bool>(session: &Session<'_>) -> Vec<u64> {
    let mut sink = [Listed::<BLOCKS>::default()];
    session.follow(&mut sink);
    let [Listed { insns, in_blocks }] = sink;
    assert!(!BLOCKS || in_blocks == insns.len() as u64);
    insns
}

/// Counts what a walk counts that follows calls.
fn walked(session: &Session<'_>) -> Executed {
    let names = TracedSymbols::default();
    let lane = WalkedLane { names: &names, visitor: &mut |_: Time, _: CallEvent| {} };
    let progress = &mut Progress::hidden();
    let end = walk_lanes(session, TraceClock::INSTRUCTIONS, true, progress, vec![lane]).remove(0);
    Executed::of(end.counted.unwrap())
}

#[test]
fn two_windows_that_meet_have_all_instructions_and_branches_once() {
    let mut random = fastrand::Rng::with_seed(43);
    for MadeTrace { what, trace, code, .. } in made_traces(4) {
        let sections = code.sections();
        let all = Session::alone(&trace, Image::new(&sections), Config::default());
        let windowed = |window| Session { windows: vec![window], ..all.clone() };
        let (insns, whole) = (listed::<false>(&all), walked(&all));
        let count = insns.len() as u64;
        for at in [0, 1, count, count + 1].into_iter().chain((0..6).map(|_| random.u64(0..=count))) {
            let halves = [0..at, at..u64::MAX].map(windowed);
            for listed in [listed::<false>, listed::<true>] {
                let [before, after] = halves.each_ref().map(listed);
                assert_eq!(before.len() as u64, at.min(count), "{what} {at}");
                assert_eq!([before, after].concat(), insns, "{what} {at}");
            }
            let counted = halves.each_ref().map(|half| {
                let executed = Executed::in_lanes(half, &mut Progress::hidden()).remove(0);
                assert_eq!(walked(half), executed, "{what} {at}");
                // A loss counts wherever it is.
                assert_eq!(executed.errors, whole.errors, "{what} {at}");
                executed
            });
            let [mut sum, after] = counted;
            sum.add(after);
            sum.errors = whole.errors;
            assert_eq!(sum, whole, "{what} {at}");
        }
    }
}
