//! Joint work of several processors: the workloads of our kernel that need more than one.

use pugmark_harness::images::Images;
use pugmark_harness::machine::{Machine, Outcome};
use pugmark_harness::report::End;
use pugmark_harness::time_limits::TimeLimits;
use pugmark_harness::truth::hash;
use std::collections::HashSet;
use std::time::Duration;

const PROCESSORS: u16 = 4;

fn boot(monitor_options: &str, words: &str) -> Outcome {
    let images = Images::build().unwrap();
    let words = format!("{words} processors={PROCESSORS}");
    let options = format!("profile=skylake {monitor_options}");
    // As long as the machine makes progress.
    let time_limits = TimeLimits { total: Duration::from_secs(4 * 3600), ..TimeLimits::default() };
    let machine = Machine::on_monitor(&images, &options, &words).time_limits(time_limits);
    machine.processors(PROCESSORS).run(|_| {}).unwrap()
}

/// Number of PMIs on each processor, and with PUGMARK_LONG=1.
const PMIS: u64 = 200;
const LONG: u64 = 10_000;

#[test]
fn dense_pmis_on_four_processors_lose_no_byte_and_double_none() {
    let long = std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1");
    let pmis = if long { LONG } else { PMIS };
    // There are too many instructions to log each: only their sums are kept.
    let outcome = boot("log-mode=hash times=0", &format!("only=dense pmis={pmis}"));
    let runs = &outcome.transcript.runs;
    assert_eq!(runs.len(), usize::from(PROCESSORS));
    let mut cpus = vec![];
    for run in runs {
        assert_eq!(run.end, Some(End::Ok), "{}", run.name);
        let (session, stat) = (run.session.unwrap(), run.stat.unwrap());
        let sums: Vec<_> = outcome.truth.sums().iter().filter(|sum| sum.session == session).collect();
        let [truth] = &sums[..] else { panic!("{}: {sums:?}", run.name) };
        assert_eq!((stat.count, stat.hash), (truth.instructions, truth.hash), "{}", run.name);
        assert!(stat.loss == 0 && stat.pmis >= pmis, "{}: {stat:?}", run.name);
        cpus.push(truth.cpu);
        let per_pmi = stat.count / stat.pmis;
        println!(
            "{} on processor {}: {} PMIs, {} bytes, {} instructions, {per_pmi} from PMI to PMI: equal",
            run.name, truth.cpu, stat.pmis, stat.bytes, stat.count
        );
    }
    cpus.sort_unstable();
    assert_eq!(cpus, [0, 1, 2, 3], "each has traced itself");
}

/// Checks a run against its session in the log; returns the processors that were in it, and the number of instructions.
fn is_the_truth(outcome: &Outcome, name: &str) -> (Vec<u16>, u64) {
    let run = outcome.transcript.runs.iter().find(|run| run.name == name);
    let run = run.unwrap_or_else(|| panic!("{name} is missing"));
    assert_eq!(run.end, Some(End::Ok), "{name}");
    let (session, stat) = (run.session.unwrap(), run.stat.unwrap());
    let records = outcome.truth.session(session);
    let addresses: Vec<u64> = records.iter().map(|record| record.rip).collect();
    assert_eq!((stat.count, stat.hash, stat.loss), (addresses.len() as u64, hash(&addresses), 0), "{name}");
    let mut cpus: Vec<u16> = records.iter().map(|record| record.cpu).collect();
    cpus.dedup();
    println!("{name}: {} instructions equal, on {} processors in turn", stat.count, cpus.len());
    (cpus, stat.count)
}

#[test]
fn the_trace_of_a_thread_goes_on_where_it_left_on_the_next_processor() {
    let outcome = boot("", "only=migration");
    for thread in 0..PROCESSORS {
        let (cpus, count) = is_the_truth(&outcome, &format!("migration-{thread}"));
        // Twenty-four times on the next of four processors, each time with forty calls of a few instructions each.
        assert_eq!(cpus.len(), 24, "{cpus:?}");
        assert!(count > 24 * 40 * 5, "{count} instructions");
        let around = cpus.windows(5).all(|five| {
            let [first, second, third, fourth, fifth] = five else { return false };
            first == fifth && HashSet::from([first, second, third, fourth]).len() == 4
        });
        assert!(around, "{cpus:?}");
    }
}

#[test]
fn what_two_processors_do_in_turns_is_in_that_order_when_their_traces_are_merged_by_time() {
    let outcome = boot("", "only=ping-pong");
    let cpus = ["ping-pong", "ping-pong@1"].map(|name| is_the_truth(&outcome, name).0);
    let [[first], [second]] = cpus.each_ref().map(|cpus| &cpus[..]) else { panic!("{cpus:?}") };
    assert_ne!(first, second);
    let merge = outcome.transcript.runs.iter().find(|run| run.name == "merge").unwrap();
    assert_eq!(merge.end, Some(End::Ok));
    let line = outcome.transcript.other.iter().find(|line| line.starts_with("merged "));
    println!("{}", line.unwrap());
    assert!(line.unwrap().starts_with("merged turns=200 "));
}

/// The amount that each sink finds in a trace, and its cost in this kernel.
#[test]
fn each_sink_finds_something_in_the_trace_and_says_what_it_cost() {
    let outcome = boot("", "only=sinks");
    is_the_truth(&outcome, "sinks");
    let costs = outcome.transcript.runs.iter().find(|run| run.name == "costs").unwrap();
    assert_eq!(costs.end, Some(End::Ok));
    let lines = || outcome.transcript.other.iter().filter(|line| line.starts_with("sink "));
    lines().for_each(|line| println!("{line}"));
    assert_eq!(lines().count(), 6);
}
