//! Precise samples.

use super::checked;
use crate::judge::{Source, Verdict};
use crate::report::Run;
use crate::testing::{self, CODE};
use crate::truth::Truth;
use anyhow::Result;
use pugmark_protocol::EventKind;

fn pebs(run: &Run, profile: &str, truth: &Truth) -> Result<Option<Verdict>> {
    checked((Source::Pebs, profile), (&[0x90; 4096], 0x9000), run, truth)
}

const NOT_PRECISE: &str = "refuse event 0xc4, unit mask 0x00, is not precise";

const FAULT: &str = "fault address=0x5000 code=0x2\nmonitor: violation processor=0 ds_page_faults=1";

/// Returns a guest that samples every fourth of 40 NOPs, without the last `fewer` samples.
fn sampled(name: &str, fewer: usize, words: &str) -> (Run, Truth) {
    let at: Vec<u64> = (1..=10 - fewer as u64).map(|n| CODE + 4 * n - 1).collect();
    // One more NOP follows the last one; it is not traced and is not a WRMSR.
    let lines: String = at.iter().map(|at| format!("precise 1 {at} {}\n", at + 1)).collect();
    let text = format!(
        "samples session=1 of=instructions period=3 taken={} lost=0 skipped=0 unplaced=0
        {lines}{words}
        section base={CODE} len=4096 from={CODE} cr3=any
        ok",
        at.len()
    );
    (testing::run(name, &text), testing::truth((0..42).map(|n| testing::record(1, CODE + n))))
}

#[test]
fn samples_are_at_their_events_and_nothing_else_happens() {
    for (name, fewer, words, right) in [
        ("sort", 0, NOT_PRECISE, true),
        ("sort", 1, NOT_PRECISE, false),
        ("sort", 0, "", false),
        ("sort", 0, "refuse no", false),
        ("bubble-sort", 0, NOT_PRECISE, false),
        ("timing", 0, NOT_PRECISE, false),
        ("sort", 0, &format!("{NOT_PRECISE}\n{FAULT}"), false),
        ("sort", 0, &format!("{NOT_PRECISE}\nlost stop=1"), false),
        ("area-absent", 0, NOT_PRECISE, false),
        ("stop", 0, &format!("{NOT_PRECISE}\nlost stop=1"), true),
        ("stop", 4, &format!("{NOT_PRECISE}\nlost stop=1"), true),
        ("stop", 6, &format!("{NOT_PRECISE}\nlost stop=1"), false),
        ("stop", 0, &format!("{NOT_PRECISE}\nlost stop=1\nmissing 1\nprecise 1 none {}", CODE + 1), false),
    ] {
        let (run, truth) = sampled(name, fewer, words);
        let found = pebs(&run, "core2", &truth);
        assert_eq!(found.is_ok(), right, "{name}, {fewer} fewer, {words:?}: {found:?}");
    }
    // This processor samples branches too.
    let (run, truth) = sampled("sort", 0, "");
    assert!(pebs(&run, "nehalem", &truth).is_err());
    // Another profile, another source, no end; then another event.
    let (mut run, truth) = sampled("sort", 0, NOT_PRECISE);
    assert!(pebs(&run, "nehalem", &truth).is_err());
    assert!(pebs(&run, "zen4", &truth).is_err());
    assert!(checked((Source::Lbr, "core2"), (&[0x90; 4096], 0x9000), &run, &truth).is_err());
    run.end = None;
    assert!(pebs(&run, "core2", &truth).is_err());
    let (mut run, truth) = sampled("sort", 0, NOT_PRECISE);
    run.samples[0].totals.event = EventKind::Branches;
    assert!(pebs(&run, "core2", &truth).is_err());
}

#[test]
fn a_page_fault_moves_the_first_sample_only_where_it_is_due() {
    let fault = format!("{NOT_PRECISE}\n{FAULT}");
    let (mut run, truth) = sampled("area-absent", 0, &fault);
    assert!(pebs(&run, "core2", &truth).is_err(), "the first one is where it was");
    for sample in &mut run.samples[0].precise {
        (sample.event, sample.next) = (sample.event.map(|at| at + 1), sample.next.map(|at| at + 1));
    }
    assert!(pebs(&run, "core2", &truth).is_ok());
    run.faults[0].code = 3;
    assert!(pebs(&run, "core2", &truth).is_err());
    run.faults.clear();
    assert!(pebs(&run, "core2", &truth).is_err());
}
