//! Programs recorded and decoded again: the decoders must find what was executed.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod programs;
mod recorded;

use programs::{Scratch, compile};
use pugmark_model::Profile;
use pugmark_tools::record::{Ending, Error, Options, record};
use recorded::check;

fn profile(name: &str) -> &'static Profile {
    Profile::by_name(name).expect(name)
}

#[test]
fn the_trace_of_a_program_decodes_to_what_was_executed() {
    let scratch = Scratch::new("true");
    let options = Options { out: scratch.path("out"), ..Options::new(["/bin/true"]) };
    let recording = record(&options, &mut |_| {}).expect("it is recorded");
    assert_eq!((recording.ending, recording.parts.len()), (Ending::Exit(0), 1));
    assert!(check(&recording.parts[0]) > 1000);
}

#[test]
fn system_calls_signals_and_faults_are_where_the_trace_pauses() {
    let Some(program) = compile("events", programs::EVENTS) else { return };
    for (name, tweak) in [
        ("plain", (|options| options) as fn(Options) -> Options),
        ("timing", |options| Options { tsc: true, mtc: Some(0), cyc: Some(0), ..options }),
        ("uncompressed", |options| Options { ret_compression: false, long_tnt: true, ..options }),
        ("broadwell", |options| Options { profile: profile("broadwell"), tsc: true, ..options }),
    ] {
        let options = tweak(Options { out: program.path(name), ..Options::new([program.path("program")]) });
        let recording = record(&options, &mut |_| {}).expect(name);
        // The program looks itself whether stepping shows.
        assert_eq!((recording.ending, recording.parts.len()), (Ending::Exit(0), 1), "{name}");
        check(&recording.parts[0]);
    }
}

#[test]
fn code_that_changes_and_programs_that_are_executed_begin_a_new_part() {
    let Some(program) = compile("parts", programs::PARTS) else { return };
    let options = Options { out: program.path("out"), ..Options::new([program.path("program")]) };
    let recording = record(&options, &mut |_| {}).expect("it is recorded");
    assert_eq!((recording.ending, recording.parts.len()), (Ending::Exit(0), 3));
    for part in &recording.parts {
        check(part);
    }
    assert!(recording.parts[2].program.ends_with("true"), "{:?}", recording.parts[2]);
}

#[test]
fn only_the_functions_of_the_filter_are_traced() {
    let Some(program) = compile("filter", programs::FILTER) else { return };
    let plain = Options { out: program.path("out"), ..Options::new([program.path("program")]) };
    let ranges = vec!["work".parse().expect("a range")];
    let options = Options { ranges: ranges.clone(), ..plain.clone() };
    let recording = record(&options, &mut |_| {}).expect("it is recorded");
    // Three instructions and the rounds of the loop, two instructions each.
    assert_eq!(check(&recording.parts[0]), 3 + 2 * 100);
    let nowhere = Options { ranges: vec!["no_such_function".parse().expect("a range")], ..plain.clone() };
    assert!(record(&nowhere, &mut |_| {}).expect("it runs").parts.is_empty());
    let broadwell = Options { ranges, profile: profile("broadwell"), ..plain };
    assert!(matches!(record(&broadwell, &mut |_| {}), Err(Error::Ranges { most: 0, wanted: 1 })));
}

#[test]
fn after_the_limit_the_program_runs_on_alone() {
    let scratch = Scratch::new("limit");
    let plain = Options { out: scratch.path("out"), ..Options::new(["sh", "-c", "exit 7"]) };
    let options = Options { limit: Some(1000), ..plain };
    let recording = record(&options, &mut |_| {}).expect("it is recorded");
    assert_eq!((recording.ending, check(&recording.parts[0])), (Ending::Exit(7), 1000));
}

#[test]
fn says_why_there_is_no_recording() {
    let scratch = Scratch::new("refused");
    let start = |program: &str, tweak: fn(Options) -> Options| {
        let options = tweak(Options { out: scratch.path("out"), ..Options::new([program]) });
        record(&options, &mut |_| {}).expect_err(program)
    };
    assert!(matches!(start("/no/such/program", |options| options), Error::Start { .. }));
    let no_mtc = |options| Options { profile: profile("broadwell"), mtc: Some(3), ..options };
    assert!(matches!(start("true", no_mtc), Error::Refused { msr: 0x570, .. }));
    let no_place = |options| Options { out: "/dev/null/out".into(), ..options };
    assert!(matches!(start("true", no_place), Error::File { .. }));
}
