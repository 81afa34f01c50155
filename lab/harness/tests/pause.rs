//! Traces that are paused and resumed, by the program and by the overflow of a counter.

use pugmark_harness::images::Images;
use pugmark_harness::judge::Source;
use pugmark_harness::machine::Machine;
use pugmark_harness::report::End;
use pugmark_harness::sweep::Sweep;

#[test]
fn a_trace_that_a_counters_nmis_pause_and_resume_is_what_ran_between_them() {
    // The last one has no counter here: only the program pauses and resumes.
    for profile in ["broadwell", "skylake", "icelake", "sapphire-rapids"] {
        Sweep::new(Source::Pt, profile).only("pause").run().unwrap();
    }
}

/// The truth has both the traced code and the code that ran while the trace was paused and the counter counted.
#[test]
fn what_runs_while_a_trace_is_paused_is_not_in_it() {
    let images = Images::build().unwrap();
    let outcome = Machine::on_monitor(&images, "profile=skylake", "only=pause").run(|_| {}).unwrap();
    let run = outcome.transcript.runs.iter().find(|run| run.name == "pause").unwrap();
    assert_eq!(run.end, Some(End::Ok));
    let (session, stat) = (run.session.unwrap(), run.stat.unwrap());
    let records = outcome.truth.session(session);
    let traced = records.iter().filter(|record| record.flags.is_traced()).count() as u64;
    println!("{} instructions, {traced} traced, {} PMIs: equal", records.len(), stat.pmis);
    assert_eq!(stat.count, traced);
    assert!(records.len() as u64 > traced + 1000 && stat.pmis > 20, "{} {stat:?}", records.len());
}
