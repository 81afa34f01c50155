//! The workloads for Intel's precise samples (PEBS) and last branch records (LBR) by profile, and what each run must
//! give.

use anyhow::{Result, bail, ensure};
use pugmark_protocol::EventKind;
use std::fmt;
use std::path::Path;

use crate::code;
use crate::instructions::Instructions;
use crate::judge::ended_well;
use crate::matrix::{Boot, Loss, WORKLOADS};
use crate::report::{LastBranches, Run};
use crate::symbols::Symbols;
use crate::truth::Truth;
use crate::{last, precise};

/// The hardware that samples events or keeps branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Processor event-based sampling.
    Pebs,
    /// Last branch records.
    Lbr,
}

/// A processor that the monitor can show.
struct Profile {
    name: &'static str,
    /// The events that it samples.
    events: &'static [EventKind],
    /// How many last branch records it has.
    depth: usize,
    /// The last branch records can be filtered by privilege level.
    levels: bool,
    /// The last branch records have a call-stack mode, in which they hold calls alone.
    calls: bool,
}

const BOTH: &[EventKind] = &[EventKind::Instructions, EventKind::Branches];
const ONE: &[EventKind] = &[EventKind::Instructions];

#[rustfmt::skip]
const TABLE: [Profile; 6] = [
    Profile { name: "prescott",  events: &[],  depth: 16, levels: false, calls: false },
    Profile { name: "core2",     events: ONE,  depth: 4,  levels: false, calls: false },
    Profile { name: "nehalem",   events: BOTH, depth: 16, levels: true,  calls: false },
    Profile { name: "broadwell", events: BOTH, depth: 16, levels: true,  calls: true },
    Profile { name: "skylake",   events: BOTH, depth: 32, levels: true,  calls: true },
    Profile { name: "icelake",   events: BOTH, depth: 32, levels: true,  calls: true },
];

const PACKETS: &str = "only Intel PT has the packets";
const AREA: &str = "only the debug store writes through page tables";
const LEVELS: &str = "last branch records cannot be filtered by privilege level";

/// What both sources decline. Texts that begin with a space follow the name of what the source makes.
const DECLINED: [(&str, &str); 7] = [
    ("events", PACKETS),
    ("filter-cr3", " cannot be filtered by CR3"),
    ("filter-range", " cannot be filtered by address"),
    ("trace-stop", " cannot be filtered by address"),
    ("timing", PACKETS),
    ("ptwrite", PACKETS),
    ("overflow", PACKETS),
];

/// Workloads in which a page of the debug store's memory is missing, with the error code of the page fault that
/// follows: a write, by the processor itself, to a page that is absent or read-only.
const MISSED: [(&str, u64); 2] = [("area-absent", 0b10), ("area-read-only", 0b11)];

/// What was measured of a workload and agrees with the truth.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Samples.
    Samples(precise::Verdict),
    /// Last branch records, once per mode.
    Last(Vec<last::Verdict>),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Samples(verdict) => verdict.fmt(f),
            Self::Last(verdicts) => {
                let texts: Vec<String> = verdicts.iter().map(ToString::to_string).collect();
                f.write_str(&texts.join("; "))
            }
        }
    }
}

/// The profiles that have a source.
#[must_use]
pub fn profiles(source: Source) -> Vec<&'static str> {
    let has = |profile: &&Profile| source == Source::Lbr || !profile.events.is_empty();
    TABLE.iter().filter(has).map(|profile| profile.name).collect()
}

/// Returns the boot that makes a whole run on a profile. `only`, names separated by commas, limits it to these
/// workloads.
#[must_use]
pub fn boot(source: Source, profile: &str, only: Option<&str>) -> Boot {
    let source = match source {
        Source::Pebs => "pebs",
        Source::Lbr => "lbr",
    };
    Boot::of(source, profile, only)
}

/// Checks that a run of one of [`WORKLOADS`] went as it should on a profile: each sample is at its event, or the last
/// branch records are the newest branches of the truth. `image` is what ran.
///
/// # Errors
/// What went wrong.
pub fn check(
    run: &Run,
    source: Source,
    profile: &str,
    truth: &Truth,
    symbols: &Symbols,
    image: &Path,
) -> Result<Option<Verdict>> {
    let Some(workload) = WORKLOADS.iter().find(|workload| workload.name == run.name) else {
        bail!("{} is not in the table", run.name)
    };
    let reason = run.refusal.as_deref();
    match (due(source, &run.name, profile), reason) {
        (Due::Nothing(due), Some(reason)) if reason.contains(due) && run.traces_nothing() => {
            return Ok(None);
        }
        (Due::Some(due), Some(reason)) if reason.contains(due) => {}
        (Due::All, None) => {}
        (due, reason) => bail!("the driver declined with {reason:?} where {due:?} was due"),
    }
    ended_well(run)?;
    let Some(profile) = TABLE.iter().find(|row| row.name == profile) else { bail!("no such processor") };
    match source {
        Source::Pebs => {
            let verdict = samples(run, profile, truth, symbols, image)?;
            enough(run, workload.loss, verdict)?;
            Ok(Some(Verdict::Samples(verdict)))
        }
        Source::Lbr => last_branches(run, profile, truth).map(Some),
    }
}

/// Checks that the debug store's page faults are the expected ones.
///
/// # Errors
/// Other page faults were reported.
pub fn faults_as_due(run: &Run) -> Result<()> {
    let codes: Vec<u64> = run.faults.iter().map(|fault| fault.code).collect();
    let due: Vec<u64> = MISSED.iter().filter(|(name, _)| *name == run.name).map(|(_, code)| *code).collect();
    ensure!(codes == due, "page faults {:x?}, where {due:x?} are due", run.faults);
    Ok(())
}

fn samples(
    run: &Run,
    profile: &Profile,
    truth: &Truth,
    symbols: &Symbols,
    image: &Path,
) -> Result<precise::Verdict> {
    let events: Vec<EventKind> = run.samples.iter().map(|samples| samples.totals.event).collect();
    ensure!(events == profile.events, "{events:?} were sampled");
    // Each session has a page fault of its own.
    let missed = MISSED.iter().find(|(name, _)| *name == run.name);
    let codes: Vec<u64> = run.faults.iter().map(|fault| fault.code).collect();
    let due: Vec<u64> = missed.map(|(_, code)| vec![*code; events.len()]).unwrap_or_default();
    ensure!(codes == due, "page faults {:x?}, where {due:x?} are due", run.faults);
    let code = code::of(run, image)?;
    let mut instructions = Instructions::new(code.clone());
    let full = run.lost.stops;
    let resumed = run.samples.iter().flat_map(|samples| &samples.precise).filter(|sample| sample.resumed);
    let resumed = resumed.count() as u64;
    ensure!(resumed <= full, "samples are missing {resumed} times, and {full} are told");
    let all = run.samples.iter().map(|samples| {
        let session = precise::Session {
            records: truth.session(samples.totals.session),
            cpl: run.filter.cpl,
            faults: missed.is_some().into(),
            cut: resumed < full,
        };
        precise::judge(samples, &session, &code, &mut instructions, symbols)
    });
    all.sum::<Result<_>>()
}

/// Checks that samples are missing only if the workload fills its buffer, and that enough samples are there.
fn enough(run: &Run, loss: Loss, verdict: precise::Verdict) -> Result<()> {
    /// In percent; 62 were measured, and 82 on core2.
    const LEAST_OF_A_FULL_BUFFER: u64 = 50;
    let full = run.lost.stops > 0;
    ensure!(full == (loss == Loss::Stop), "lost {}", run.lost);
    // Not all: a period is longer if the counter was stopped in it, or if the first sample's write faulted.
    let least = if full { LEAST_OF_A_FULL_BUFFER } else { 90 };
    Loss::enough("samples", verdict.samples + verdict.lost, verdict.due, least)
}

fn last_branches(run: &Run, profile: &Profile, truth: &Truth) -> Result<Verdict> {
    let modes: Vec<bool> = run.lasts.iter().map(|last| last.last.calls).collect();
    let due = if profile.calls { vec![false, true] } else { vec![false] };
    ensure!(modes == due, "with calls alone: {modes:?}, where {due:?} are due");
    let judge = |last: &LastBranches| {
        let (branches, level) = (truth.branches(last.last.session), truth.branch_level());
        let verdict = last::judge(last, branches, &run.filter, level, profile.depth)?;
        ensure!(verdict.last > 0, "there are no last branches");
        Ok(verdict)
    };
    run.lasts.iter().map(judge).collect::<Result<_>>().map(Verdict::Last)
}

/// How much of a workload a processor declines.
#[derive(Debug)]
enum Due {
    All,
    /// The last part of the request is declined; the reason contains this text.
    Some(&'static str),
    /// Everything is declined; the reason contains this text.
    Nothing(&'static str),
}

fn due(source: Source, workload: &str, profile: &str) -> Due {
    let Some(profile) = TABLE.iter().find(|row| row.name == profile) else {
        return Due::Nothing(match source {
            Source::Pebs => "absent: CPUID.1:EDX[21]",
            Source::Lbr => "absent: no last branch records are known",
        });
    };
    if let Some((_, reason)) = DECLINED.iter().find(|(name, _)| *name == workload) {
        return Due::Nothing(reason);
    }
    if source == Source::Lbr && MISSED.iter().any(|(name, _)| *name == workload) {
        return Due::Nothing(AREA);
    }
    let filtered = matches!(workload, "filter-os" | "filter-user");
    match (source, profile.events) {
        (Source::Pebs, []) => Due::Nothing("IA32_MISC_ENABLE[12]"),
        (Source::Pebs, [_]) => Due::Some("event 0xc4, unit mask 0x00, is not precise"),
        (Source::Lbr, _) if filtered && !profile.levels => Due::Nothing(LEVELS),
        (Source::Lbr, _) if !profile.calls => Due::Some("there is no call-stack mode"),
        _ => Due::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use crate::testing::{self, CODE};
    use crate::truth::{Branch, BranchKind, Record};
    use pugmark_protocol::{Fault, Lost};

    fn verdict(run: &Run, source: Source, profile: &str, truth: &Truth) -> Result<Option<Verdict>> {
        let scratch = Scratch::new()?;
        let image = testing::image(&scratch, &[0x90; 4096]);
        check(run, source, profile, truth, &Symbols::from_pairs([("trap_stubs", 0x9000)]), &image)
    }

    const NOT_PRECISE: &str = "refuse branches: event 0xc4, unit mask 0x00, is not precise";

    const FAULT: &str = "fault address=0x5000 code=0x2\nmonitor: violation processor=0 ds_page_faults=1";

    /// A guest that samples every fourth of 40 NOPs, without the last `fewer` samples.
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
            (
                "stop",
                0,
                &format!("{NOT_PRECISE}\nlost stop=1\nmissing 1\nprecise 1 none {}", CODE + 1),
                false,
            ),
        ] {
            let (run, truth) = sampled(name, fewer, words);
            let found = verdict(&run, Source::Pebs, "core2", &truth);
            assert_eq!(found.is_ok(), right, "{name}, {fewer} fewer, {words:?}: {found:?}");
        }
        // Another profile, another source, no end; then another event.
        let (mut run, truth) = sampled("sort", 0, NOT_PRECISE);
        assert!(verdict(&run, Source::Pebs, "nehalem", &truth).is_err());
        assert!(verdict(&run, Source::Pebs, "zen4", &truth).is_err());
        assert!(verdict(&run, Source::Lbr, "core2", &truth).is_err());
        run.end = None;
        assert!(verdict(&run, Source::Pebs, "core2", &truth).is_err());
        let (mut run, truth) = sampled("sort", 0, NOT_PRECISE);
        run.samples[0].totals.event = EventKind::Branches;
        assert!(verdict(&run, Source::Pebs, "core2", &truth).is_err());
    }

    #[test]
    fn a_page_fault_moves_the_first_sample_only_where_it_is_due() {
        let fault = format!("{NOT_PRECISE}\n{FAULT}");
        let (mut run, truth) = sampled("area-absent", 0, &fault);
        assert!(verdict(&run, Source::Pebs, "core2", &truth).is_err(), "the first one is where it was");
        for sample in &mut run.samples[0].precise {
            (sample.event, sample.next) = (sample.event.map(|at| at + 1), sample.next.map(|at| at + 1));
        }
        assert!(verdict(&run, Source::Pebs, "core2", &truth).is_ok());
        run.faults[0].code = 3;
        assert!(verdict(&run, Source::Pebs, "core2", &truth).is_err());
        run.faults.clear();
        assert!(verdict(&run, Source::Pebs, "core2", &truth).is_err());
    }

    #[test]
    fn last_branches_are_there_in_each_mode() {
        let branch = Branch { from: 1, to: 100, kind: BranchKind::Call, from_cpl: 0, to_cpl: 0 };
        let truth = || testing::truth([1, 2].map(|session| Record::of_branch(branch, session, 0)));
        let plain = "last session=1 stack=branches entries=1\nbranch 1 1 100\n";
        let calls = "last session=2 stack=calls entries=1\nbranch 2 1 100\n";
        let none = "refuse there is no call-stack mode";
        for (profile, lines, right) in [
            ("skylake", &[plain, calls][..], true),
            ("skylake", &[plain], false),
            ("skylake", &[calls], false),
            ("skylake", &[calls, plain], false),
            ("skylake", &[plain, calls, none], false),
            ("skylake", &[plain, calls, "fail something"], false),
            ("nehalem", &[plain, none], true),
            ("nehalem", &[plain], false),
            ("nehalem", &[plain, calls, none], false),
            ("nehalem", &[none], false),
            // No records, because the session has no branches; and a record that is not the truth's.
            ("nehalem", &["last session=3 stack=branches entries=0", none], false),
            ("nehalem", &["last session=1 stack=branches entries=1\nbranch 1 1 101\n", none], false),
        ] {
            let run =
                testing::run("sort", &format!("{}\nok", lines.join("\n")).replace("something\nok", "so"));
            let found = verdict(&run, Source::Lbr, profile, &truth());
            assert_eq!(found.is_ok(), right, "{profile} {lines:?}: {found:?}");
        }
    }

    #[test]
    fn each_processor_declines_what_it_does_not_have() {
        // What is declined, with the reason, and whether something is measured nonetheless.
        for (source, name, profile, expected, measures) in [
            (Source::Pebs, "sort", "prescott", "IA32_MISC_ENABLE[12]", false),
            (Source::Pebs, "sort", "core2", "event 0xc4, unit mask 0x00, is not precise", true),
            (Source::Pebs, "sort", "nehalem", "", true),
            (Source::Pebs, "sort", "zen4", "absent: CPUID.1:EDX[21]", false),
            (Source::Pebs, "area-absent", "nehalem", "", true),
            (Source::Pebs, "filter-os", "nehalem", "", true),
            (Source::Pebs, "timing", "nehalem", PACKETS, false),
            (Source::Lbr, "sort", "core2", "there is no call-stack mode", true),
            (Source::Lbr, "sort", "broadwell", "", true),
            (Source::Lbr, "sort", "zen4", "absent: no last branch records are known", false),
            (Source::Lbr, "area-absent", "broadwell", AREA, false),
            (Source::Lbr, "filter-os", "core2", LEVELS, false),
            (Source::Lbr, "filter-user", "core2", LEVELS, false),
            (Source::Lbr, "filter-cr3", "broadwell", " cannot be filtered by CR3", false),
            (Source::Lbr, "filter-user", "nehalem", "there is no call-stack mode", true),
            (Source::Lbr, "filter-user", "skylake", "", true),
        ] {
            let found = match due(source, name, profile) {
                Due::All => ("", true),
                Due::Some(reason) => (reason, true),
                Due::Nothing(reason) => (reason, false),
            };
            assert_eq!(found, (expected, measures), "{source:?} {name} on {profile}");
            let declined = testing::run(name, &format!("refuse x{expected}\nok"));
            let found = verdict(&declined, source, profile, &Truth::default());
            assert_eq!(matches!(found, Ok(None)), !measures, "{source:?} {name} on {profile}: {found:?}");
            let measured = format!("refuse x{expected}\nlast session=1 stack=branches entries=0\nok");
            let found = verdict(&testing::run(name, &measured), source, profile, &Truth::default());
            assert!(!matches!(found, Ok(None)), "{source:?} {name} on {profile}: {found:?}");
            let silent = testing::run(name, "ok");
            assert!(verdict(&silent, source, profile, &Truth::default()).is_err(), "{name} on {profile}");
        }
    }

    #[test]
    fn what_is_declined_or_missed_is_a_workload() {
        for name in DECLINED.map(|(name, _)| name).into_iter().chain(MISSED.map(|(name, _)| name)) {
            assert!(WORKLOADS.iter().any(|workload| workload.name == name), "{name}");
        }
    }

    #[test]
    fn each_page_fault_is_due() {
        let run = |name: &str, codes: &[u64]| Run {
            name: name.into(),
            faults: codes.iter().map(|&code| Fault { address: 0x1000, code }).collect(),
            ..Run::default()
        };
        for (name, codes, right) in [
            ("sort", &[][..], true),
            ("sort", &[2], false),
            ("area-absent", &[2], true),
            ("area-absent", &[], false),
            ("area-absent", &[3], false),
            ("area-absent", &[2, 2], false),
            ("area-read-only", &[3], true),
        ] {
            assert_eq!(faults_as_due(&run(name, codes)).is_ok(), right, "{name} {codes:?}");
        }
    }

    #[test]
    fn samples_are_missing_only_where_the_buffer_is_to_run_full() {
        let verdict = |samples, lost| precise::Verdict { events: 1000, due: 100, samples, lost };
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
            let found = enough(&run, loss, verdict(samples, lost));
            assert_eq!(found.is_ok(), right, "{loss:?} {full} {samples} {lost}: {found:?}");
        }
        // No samples at all are never enough.
        assert!(enough(&Run::default(), Loss::Nothing, precise::Verdict::default()).is_err());
    }

    #[test]
    fn the_guest_is_told_what_samples() {
        assert_eq!(boot(Source::Pebs, "core2", None).command_line, "source=pebs");
        assert_eq!(boot(Source::Lbr, "core2", Some("sort")).command_line, "source=lbr only=sort");
        assert_eq!(profiles(Source::Pebs)[0], "core2");
        assert_eq!(profiles(Source::Lbr).len(), 6);
    }
}
