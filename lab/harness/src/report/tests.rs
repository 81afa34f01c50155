//! Lines of a guest, and their interpretation.

use pugmark_protocol::{After, EventKind};

use super::*;

fn transcript(lines: &[&str]) -> Result<Transcript> {
    let mut transcript = Transcript::default();
    lines.iter().try_for_each(|line| match line.starts_with("monitor: ") {
        true => transcript.monitor_line(line),
        false => transcript.line(line),
    })?;
    Ok(transcript)
}

#[test]
fn takes_in_a_whole_run() {
    let transcript = transcript(&[
        "pugmark 0.1.0",
        "sample 0x120",
        "run sort",
        "run out of memory",
        "session sort 3",
        "stat sort instructions=9 bytes=40 bpi=35.5 pmis=2 loss=0 decode_us=7 count=9 hash=0x10",
        "top sort 1 core::slice::sort<T, F> 5",
        "piece sort 0 count=9 hash=0x10 first=0x100 last=0x120 after=start",
        "records sort 0 count=4 hash=0x20 after=off",
        "count sort session=3 event=0xc2 value=77",
        "samples sort session=3 of=ops period=9 taken=3 lost=4 skipped=5 unplaced=6",
        "sample sort 3 0x120 2",
        "sample sort 3 0x100 1",
        "precise sort 3 0x120 0x123",
        "missing sort 3",
        "precise sort 3 none 0x124",
        "last sort session=4 stack=calls entries=1",
        "branch sort 4 0x120 0x100",
        "fault sort address=0x5000 code=0x2",
        "monitor: violation processor=0 ds_page_faults=1",
        "lost sort ovf=0 stop=1",
        "dump sort bytes=40",
        "dump sort bytes=7",
        "section sort base=0x1000 len=16 from=0x2000 cr3=any",
        "section sort base=0x1000 len=8 from=0x3000 cr3=0x5000",
        "ok sort",
        "done 1 0",
    ])
    .unwrap();
    let run = &transcript.runs[0];
    assert_eq!(run.session, Some(3));
    let stat = Stat { count: 9, hash: 16, bytes: 40, pmis: 2, loss: 0, decode_us: Some(7), branches: None };
    assert_eq!(run.stat, Some(stat));
    assert_eq!(run.top, [("core::slice::sort<T, F>".to_string(), 5)]);
    assert_eq!(run.pieces[0].last, 0x120);
    assert_eq!(run.records, [Records { count: 4, hash: 0x20, after: After::Off }]);
    assert_eq!(run.counts, [Count { session: 3, event: 0xc2, value: 77 }]);
    let addresses = BTreeMap::from([(0x100, 1), (0x120, 2)]);
    let event = EventKind::Ops;
    let samples = SampledSession {
        totals: Samples { session: 3, event, period: 9, taken: 3, lost: 4, skipped: 5, unplaced: 6 },
        addresses,
        precise: vec![
            PreciseSample { event: Some(0x120), next: Some(0x123), resumed: false },
            PreciseSample { event: None, next: Some(0x124), resumed: true },
        ],
        missing: false,
    };
    assert_eq!(run.samples, [samples]);
    let last = Last { session: 4, calls: true, entries: 1 };
    let last = LastBranches { last, branches: vec![(0x120, 0x100)] };
    assert_eq!(run.lasts, [last]);
    assert_eq!(run.faults, [Fault { address: 0x5000, code: 2 }]);
    assert_eq!(run.lost.stops, 1);
    assert_eq!(run.dump, [40, 7]);
    let code = CodeSection { base: 0x1000, len: 16, from: 0x2000, cr3: None };
    assert_eq!(run.code, [code, CodeSection { len: 8, from: 0x3000, cr3: Some(0x5000), ..code }]);
    assert_eq!(run.end, Some(End::Ok));
    assert_eq!(transcript.done, Some(Done { passed: 1, failed: 0 }));
    // Lines of the guest's own may begin like those of the protocol.
    assert_eq!(transcript.other, ["pugmark 0.1.0", "sample 0x120", "run out of memory"]);
}

#[test]
fn refuses_lines_out_of_place() {
    for lines in [
        &["ok sort"][..],
        &["run a", "run b"],
        &["run a", "ok b"],
        &["run a", "ok a", "ok a"],
        &["done 0 0", "run a"],
        &["run a", "stat a count=1"],
        &["run a", "stat a count=x hash=0x1 bytes=1 pmis=0 loss=0"],
        &["run a", "piece a 1 count=1 hash=0x1 first=0x1 last=0x1 after=start"],
        &["run a", "sample a 1 0x100 1"],
        &[
            "run a",
            "samples a session=1 of=ops period=1 taken=1 lost=0 skipped=0 unplaced=0",
            "sample a 2 0x1 1",
        ],
        &["run a", "records a 1 count=1 hash=0x1 after=start"],
        &["run a", "precise a 1 0x1 0x2"],
        &["run a", "branch a 1 0x1 0x2"],
        &["run a", "last a session=1 stack=of entries=0"],
        &["run a", "last a session=1 stack=calls entries=0", "branch a 2 0x1 0x2"],
        &["run a", "fault a address=0x1"],
        &["run a", "lost a dropped=1"],
        &["run a", "filter a level=0"],
        &["run a", "filter a cpl"],
    ] {
        assert!(transcript(lines).is_err(), "{lines:?}");
    }
}

#[test]
fn a_run_that_measures_is_none_that_declined() {
    for (line, expected) in [
        ("refuse a CPUID.0", true),
        ("stat a count=1 hash=0x1 bytes=1 pmis=0 loss=0", false),
        ("count a session=1 event=0xc0 value=1", false),
        ("samples a session=1 of=ops period=1 taken=0 lost=0 skipped=0 unplaced=0", false),
        ("last a session=1 stack=branches entries=0", false),
    ] {
        let transcript = transcript(&["run a", line, "ok a"]).unwrap();
        assert_eq!(transcript.runs[0].traces_nothing(), expected, "{line}");
    }
}

#[test]
fn a_run_that_breaks_a_rule_of_the_hardware_does_not_end_well() {
    let refused = "monitor: refused processor=0 msr=0x570 value=0x1 rip=0x0: the register keeps 0x0";
    let violation = "monitor: violation processor=0 pmis_dropped=1";
    let probe = "probe a msr=0x570 value=0x1";
    for (lines, in_run, outside) in [
        (&["run a", "ok a"][..], false, false),
        (&["run a", refused, "ok a"], true, false),
        (&["run a", violation, "ok a"], true, false),
        (&["run a", probe, refused, "ok a"], false, false),
        (&["run a", probe, "ok a"], true, false),
        (&[refused, "run a", "ok a"], false, true),
        (&["run a", "ok a", violation], false, true),
        (&["run a", refused, "ok a", "done 1 0", violation], true, true),
    ] {
        let transcript = transcript(lines).unwrap();
        let broke = matches!(transcript.runs[0].end, Some(End::BrokeRules(_)));
        assert_eq!((broke, transcript.broken_outside().next().is_some()), (in_run, outside), "{lines:?}");
        assert_eq!(transcript.broken_rules().len(), usize::from(in_run) + usize::from(outside));
    }
}

/// Several processors run a workload at the same time, and it is then reported for one after another.
#[test]
fn what_each_of_several_processors_breaks_belongs_to_its_own_run() {
    let dropped =
        |processor: u64| format!("monitor: violation processor={processor} branch_records_dropped=1");
    let [first, second, third] = [0, 1, 2].map(dropped);
    let runs = |lines: &[&str]| {
        let transcript = transcript(lines).unwrap();
        let broke: Vec<_> =
            transcript.runs.iter().map(|run| matches!(run.end, Some(End::BrokeRules(_)))).collect();
        (broke, transcript.broken_outside().count())
    };
    let lost = |name: &str| format!("lost {name} stop=1");
    let (lost_0, lost_1) = (lost("a"), lost("a@1"));
    // Before and among the lines of the runs; each has lost records and reports that.
    let reported =
        ["run b", "ok b", &first, &second, "run a", &lost_0, "ok a", &second, "run a@1", &lost_1, "ok a@1"];
    assert_eq!(runs(&reported), (vec![false; 3], 0));
    let unreported = ["run b", "ok b", &first, "run a", "ok a", &second, "run a@1", &lost_1, "ok a@1"];
    assert_eq!(runs(&unreported), (vec![false, true, false], 0));
    let unreported = ["run a", &second, &lost_0, "ok a", "run a@1", "ok a@1"];
    assert_eq!(runs(&unreported), (vec![false, true], 0));
    // A violation that belongs to no run, and one after the last.
    let outside = ["run a", &lost_0, "ok a", &third, "run a@1", &lost_1, "ok a@1", &second];
    assert_eq!(runs(&outside), (vec![false, false], 2));
}

#[test]
fn losses_add_up_by_kind() {
    let lines = ["run a", "lost a ovf=1 stop=2", "lost a stop=0x10 wrap=3 stop=4", "lost a ovf=5", "ok a"];
    let lost = &transcript(&lines).unwrap().runs[0].lost;
    assert_eq!(*lost, Lost { overflows: 6, stops: 22, wraps: 3, ..Lost::default() });
}

#[test]
fn keeps_the_reason_of_a_failure() {
    let transcript = transcript(&["run a", "fail a: sum is 3, not 4", "done 0 1"]).unwrap();
    assert_eq!(transcript.runs[0].end, Some(End::Fail("sum is 3, not 4".into())));
}

#[test]
fn only_the_monitor_reports_a_broken_rule() {
    let line = "monitor: violation processor=0 pmis_dropped=1";
    let mut transcript = Transcript::default();
    for line in ["run a", line, "ok a"] {
        transcript.line(line).unwrap();
    }
    assert_eq!((transcript.broken_rules().len(), &transcript.other[..]), (0, &[line.to_owned()][..]));
    transcript.monitor_line("monitor: 4 processors").unwrap();
    assert_eq!(transcript.monitor, ["monitor: 4 processors"]);
    transcript.monitor_line(line).unwrap();
    assert_eq!(transcript.broken_rules().len(), 1);
    assert!(transcript.monitor_line("monitor: violation processor=x").is_err());
}
