//! The workloads for AMD's counters and samples by profile, and what each run must give.

use anyhow::{Context, Result, bail, ensure};
use pugmark_protocol::EventKind;
use std::fmt;
use std::path::Path;

use crate::code;
use crate::counts::Events;
use crate::instructions::Instructions;
use crate::judge::ended_well;
use crate::matrix::{Boot, WORKLOADS};
use crate::report::{Run, SampledSession};
use crate::samples::{Fit, all_interrupted, all_retired, as_often, fit, nmi_handler};
use crate::symbols::Symbols;
use crate::truth::Truth;

/// The hardware that counts or samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Performance counters.
    Counters,
    /// Instruction Based Sampling.
    Ibs,
}

/// AMD's processors that the monitor can show.
pub const PROFILES: [&str; 8] = ["k8", "barcelona", "trinity", "zen2", "zen3", "zen4", "zen5", "zen6"];

/// Families 0Fh to 15h, on which interrupts and exceptions count as instructions.
const COUNT_EVENTS: [&str; 3] = ["k8", "barcelona", "trinity"];

/// The event selects that the guest counts, in this order; with the last one it also takes samples.
const SELECTS: [u16; 4] = [0xc0, 0xc2, 0xc6, 0xc0];

const NOT_AMD: &str = "CPUID.0 names another vendor than AMD";
const PACKETS: &str = "only Intel PT has the packets";
const CR3: &str = "what is counted or sampled cannot be filtered by CR3";
const LEVELS: &str = "the samples of IBS cannot be filtered by privilege level";
const AREA: &str = "only the debug store writes through page tables";
const ADDRESS: &str = "what is counted or sampled cannot be filtered by address";

/// The workload with NMIs of other origin: samples in their handler shift the distribution.
const OTHERS_NMIS: &str = "foreign-nmis";

/// What both sources decline, and why.
const DECLINED: [(&str, &str); 9] = [
    ("events", PACKETS),
    ("area-absent", AREA),
    ("area-read-only", AREA),
    ("filter-cr3", CR3),
    ("filter-range", ADDRESS),
    ("trace-stop", ADDRESS),
    ("timing", PACKETS),
    ("ptwrite", PACKETS),
    ("overflow", PACKETS),
];

/// Below this probability a workload's samples have another distribution. It is so small because there are many
/// workloads.
const IMPOSSIBLE: f64 = 1e-6;

/// What was measured of a workload and agrees with the truth.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The event selects and values that were counted, and how many samples were taken.
    Counts(Vec<(u16, u64)>, u64),
    /// How well the samples of ops fit.
    Samples(Fit),
    /// The number of samples of another kind, all at instructions that retired.
    Retired(u64),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counts(counts, samples) => {
                counts.iter().try_for_each(|(select, value)| write!(f, "{select:#x}={value} "))?;
                write!(f, "equal; samples={samples} in it")
            }
            Self::Samples(fit) => fit.fmt(f),
            Self::Retired(samples) => write!(f, "samples={samples} retired"),
        }
    }
}

/// Returns the boot that makes a whole run on a profile. `only`, names separated by commas, limits it to these
/// workloads.
#[must_use]
pub fn boot(source: Source, profile: &str, only: Option<&str>) -> Boot {
    let source = match source {
        Source::Counters => "counters",
        Source::Ibs => "ibs",
    };
    Boot::of(source, profile, only)
}

/// Checks that a run of one of [`WORKLOADS`] went as it should on a profile: its counts equal the truth, or its samples
/// are at instructions of the truth. `image` is what ran.
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
    ensure!(WORKLOADS.iter().any(|workload| workload.name == run.name), "{} is not in the table", run.name);
    match (due(source, &run.name, profile), &run.refusal) {
        (None, None) => {}
        (Some(due), Some(reason)) if reason.contains(due) && run.traces_nothing() => return Ok(None),
        (due, refusal) => bail!("the driver declined with {refusal:?} where {due:?} was due"),
    }
    ended_well(run)?;
    ensure!(run.lost.total() == 0, "lost {}", run.lost);
    let mut instructions = Instructions::new(code::of(run, image)?);
    for samples in &run.samples {
        let records = truth.session(samples.totals.session);
        match source {
            Source::Counters => {
                all_interrupted(samples, records, &mut instructions, nmi_handler(symbols)?)?;
            }
            Source::Ibs => all_retired(samples, records)?,
        }
    }
    match source {
        Source::Counters => counts(run, profile, truth, symbols, &mut instructions).map(Some),
        Source::Ibs => {
            ensure!(!run.samples.is_empty(), "no session has samples");
            let unplaced: u64 = run.samples.iter().map(|samples| samples.totals.unplaced).sum();
            ensure!(unplaced == 0, "{unplaced} samples have no address");
            if run.samples.iter().any(|samples| samples.totals.event != EventKind::Ops) {
                return Ok(Some(Verdict::Retired(by_clocks(&run.samples)?)));
            }
            if run.name == OTHERS_NMIS {
                let often = |samples: &SampledSession| {
                    as_often(samples, truth.session(samples.totals.session), &mut instructions, symbols)
                };
                return Ok(Some(Verdict::Retired(run.samples.iter().map(often).sum::<Result<u64>>()?)));
            }
            let fits = run.samples.iter().map(|samples| {
                fit(samples, truth.session(samples.totals.session), &mut instructions, symbols)
            });
            let fit: Fit = fits.sum::<Result<Fit>>()?;
            ensure!(fit.p_value() > IMPOSSIBLE, "the samples are not distributed as the truth is: {fit}");
            ensure!(fit.samples > 0, "there are no samples");
            Ok(Some(Verdict::Samples(fit)))
        }
    }
}

/// Returns how many samples were taken by clocks. The shortest workload takes longer than one period.
///
/// # Errors
/// A session has no samples.
fn by_clocks(sessions: &[SampledSession]) -> Result<u64> {
    for SampledSession { totals: session, .. } in sessions {
        ensure!(session.taken > 0, "there are no samples in session {}", session.session);
    }
    Ok(sessions.iter().map(|session| session.totals.taken).sum())
}

fn counts(
    run: &Run,
    profile: &str,
    truth: &Truth,
    symbols: &Symbols,
    instructions: &mut Instructions,
) -> Result<Verdict> {
    let selects: Vec<u16> = run.counts.iter().map(|count| count.event).collect();
    ensure!(selects == SELECTS, "counted {selects:x?}");
    let as_instructions = COUNT_EVENTS.contains(&profile);
    for count in &run.counts {
        let events = Events::of(truth.session(count.session), run.filter.cpl, instructions, symbols)?;
        let expected = events.counted(count.event, as_instructions)?;
        let event = count.event;
        ensure!(
            count.value == expected,
            "event {event:#x} was counted {} times, and happened {expected} times: {events:?}",
            count.value
        );
    }
    let [samples] = &run.samples[..] else { bail!("{} sessions with samples", run.samples.len()) };
    let samples = &samples.totals;
    let sampled = run.counts.iter().find(|count| count.session == samples.session);
    let value = sampled.context("samples of nothing that was counted")?.value;
    let periods = value.checked_div(samples.period).context("a period of nothing")?;
    let told = samples.taken + samples.skipped + samples.unplaced;
    ensure!(told == periods, "{periods} periods, and {told} are told of");
    let counts = run.counts.iter().map(|count| (count.event, count.value)).collect();
    Ok(Verdict::Counts(counts, samples.taken))
}

/// The reason why a workload is declined; `None` if it is counted or sampled.
fn due(source: Source, workload: &str, profile: &str) -> Option<&'static str> {
    let declined = DECLINED.iter().find(|(name, _)| *name == workload).map(|(_, reason)| *reason);
    match (source, profile, workload) {
        _ if declined.is_some() => declined,
        (Source::Ibs, _, "filter-os" | "filter-user") => Some(LEVELS),
        _ if !PROFILES.contains(&profile) => Some(NOT_AMD),
        (Source::Ibs, "k8", _) => Some("CPUID.8000_0001H:ECX[10]"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use crate::testing::{self, CODE};
    use crate::truth::{Record, RecordFlags};
    use pugmark_protocol::Samples;

    fn verdict(run: &Run, source: Source, profile: &str, truth: &Truth) -> Result<Option<Verdict>> {
        let scratch = Scratch::new()?;
        // NOPs, a jump, INT 80h, and stubs of NOPs at 3000H.
        let mut code = vec![0x90; 0x3000];
        code[0x10..0x12].copy_from_slice(&[0xeb, 0]);
        code[0x20..0x22].copy_from_slice(&[0xcd, 0x80]);
        let image = testing::image(&scratch, &code);
        check(run, source, profile, truth, &Symbols::from_pairs([("trap_stubs", 0x3000)]), &image)
    }

    const SECTION: &str = "section base=0x1000 len=0x3000 from=0x1000 cr3=any";

    /// Ten NOPs, a jump, INT 80h and its handler's first NOP, in each of sessions 1 to 4.
    fn ran() -> Truth {
        let session = |session| {
            let of = move |rip| testing::record(session, rip);
            let int = Record { flags: RecordFlags::new(0).software_interrupt(), ..of(CODE + 0x20) };
            (0..10).map(move |n| of(CODE + n)).chain([of(CODE + 0x10), int, of(0x3800)])
        };
        testing::truth((1..=4).flat_map(session))
    }

    #[test]
    fn counts_and_samples_are_the_truths() {
        let counts = |values: [u64; 4]| -> String {
            let line = |(session, (select, value))| {
                format!("count session={session} event={select:#x} value={value}\n")
            };
            (1..).zip(SELECTS.into_iter().zip(values)).map(line).collect()
        };
        // 13 instructions, one branch, no far transfer, one delivery.
        let right = counts([13, 2, 1, 13]);
        let samples = |period: u64, taken: u64, skipped: u64, unplaced: u64| {
            let line = "samples session=4 of=instructions lost=0";
            let sample = if taken > 0 { format!("sample 4 {CODE} {taken}\n") } else { String::new() };
            format!("{line} period={period} taken={taken} skipped={skipped} unplaced={unplaced}\n{sample}")
        };
        let good = samples(4, 3, 0, 0);
        for (text, profile, is_right) in [
            (format!("{right}{good}"), "zen4", true),
            (format!("{right}{}", samples(4, 1, 1, 1)), "zen4", true),
            (format!("{right}{}", samples(4, 2, 0, 0)), "zen4", false),
            (format!("{right}{}", samples(0, 3, 0, 0)), "zen4", false),
            (format!("{right}{}", samples(4, 3, 0, 1)), "zen4", false),
            (format!("{right}{}", samples(4, 3, 1, 0)), "zen4", false),
            (format!("{right}{}", samples(3, 4, 0, 0)), "zen4", true),
            (right.clone(), "zen4", false),
            (format!("{right}{good}{good}"), "zen4", false),
            (good.clone(), "zen4", false),
            (format!("{}{good}", counts([12, 2, 1, 13])), "zen4", false),
            (format!("{}{good}", counts([13, 1, 1, 13])), "zen4", false),
            (format!("{}{good}", counts([13, 2, 0, 13])), "zen4", false),
            (format!("{}{good}", counts([13, 2, 1, 14])), "zen4", false),
            (format!("{right}{good}lost stray=5\n"), "zen4", true),
            (format!("{right}{good}lost stop=1\n"), "zen4", false),
            (format!("{right}{good}lost stop=0\n"), "zen4", true),
            (format!("{right}{good}refuse so\n"), "zen4", false),
            (format!("{right}{}", good.replace("sample 4 4096", "sample 4 8192")), "zen4", false),
            (
                format!("{right}{}", good.replace("session=4", "session=5").replace("sample 4", "sample 5")),
                "zen4",
                false,
            ),
            (format!("{right}{}", good.replace("lost=0", "lost=1")), "zen4", false),
            // On k8 an interrupt counts as an instruction, but the INT already is one.
            (format!("{right}{good}"), "k8", true),
            (format!("{right}{good}"), "skylake", false),
        ] {
            let run = testing::run("sort", &format!("{SECTION}\n{text}ok"));
            let found = verdict(&run, Source::Counters, profile, &ran());
            assert_eq!(found.is_ok(), is_right, "{text} on {profile}: {found:?}");
        }
        let failed = testing::run("sort", &format!("{SECTION}\n{right}{good}fail so"));
        assert!(verdict(&failed, Source::Counters, "zen4", &ran()).is_err());
        let unknown = testing::run("bubble-sort", &format!("{SECTION}\n{right}{good}ok"));
        assert!(verdict(&unknown, Source::Counters, "zen4", &ran()).is_err());
    }

    #[test]
    fn samples_of_ops_lie_where_they_ran() {
        let of = |what: &str, at: u64, taken: u64, unplaced: u64| {
            let line = format!("samples session=1 of={what} period=256 lost=0 skipped=0 unplaced={unplaced}");
            let sample = if taken > 0 { format!("sample 1 {at} {taken}\n") } else { String::new() };
            format!("{line} taken={taken}\n{sample}")
        };
        for (name, text, right) in [
            ("sort", of("ops", CODE, 5, 0), true),
            ("sort", of("ops", CODE + 0x100, 5, 0), false),
            ("sort", of("ops", CODE, 5, 1), false),
            ("sort", of("ops", CODE, 0, 0), false),
            ("sort", of("cycles", CODE, 5, 0), true),
            ("sort", of("cycles", CODE + 0x100, 5, 0), false),
            ("sort", of("cycles", CODE, 0, 0), false),
            ("sort", format!("{}lost stop=1\n", of("ops", CODE, 5, 0)), false),
            ("sort", String::new(), false),
            ("filter-user", of("ops", CODE, 5, 0), false),
        ] {
            let run = testing::run(name, &format!("{SECTION}\n{text}ok"));
            let found = verdict(&run, Source::Ibs, "zen4", &ran());
            assert_eq!(found.is_ok(), right, "{name} {text}: {found:?}");
        }
    }

    #[test]
    fn a_distribution_that_is_not_the_truths_is_seen() {
        // The functions of the first and the second NOP have equally many ops.
        let truth = testing::truth((0..20).map(|n| testing::record(1, CODE + n % 2 * 0x100)));
        let symbols = Symbols::from_pairs([("a", CODE), ("b", CODE + 0x100), ("trap_stubs", 0x3000)]);
        let scratch = Scratch::new().unwrap();
        let image = testing::image(&scratch, &[0x90; 0x3000]);
        for (first, second, right) in [(50, 50, true), (60, 40, true), (95, 5, false), (5, 95, false)] {
            let line = "samples session=1 of=ops period=256 lost=0 skipped=0 unplaced=0 taken=100";
            let text = format!("{SECTION}\n{line}\nsample 1 0x1000 {first}\nsample 1 0x1100 {second}\nok");
            let run = testing::run("sort", &text);
            let found = check(&run, Source::Ibs, "zen4", &truth, &symbols, &image);
            assert_eq!(found.is_ok(), right, "{first} {second}: {found:?}");
            // With NMIs of other origin only the number of samples counts, and here it is too large.
            let run = testing::run("foreign-nmis", &text);
            assert!(check(&run, Source::Ibs, "zen4", &truth, &symbols, &image).is_err());
        }
    }

    #[test]
    fn the_driver_declines_where_it_is_due_and_nowhere_else() {
        for (source, name, profile, reason, right) in [
            (Source::Counters, "timing", "zen4", PACKETS, true),
            (Source::Counters, "timing", "zen4", CR3, false),
            (Source::Counters, "sort", "zen4", PACKETS, false),
            (Source::Counters, "sort", "skylake", NOT_AMD, true),
            (Source::Ibs, "sort", "k8", "CPUID.8000_0001H:ECX[10]", true),
            (Source::Ibs, "filter-os", "zen4", LEVELS, true),
        ] {
            let run = testing::run(name, &format!("refuse {reason} and more\nok"));
            let found = verdict(&run, source, profile, &Truth::default());
            assert_eq!(matches!(found, Ok(None)), right, "{name} on {profile}, {reason}: {found:?}");
            assert_eq!(found.is_ok(), right);
            let measured =
                testing::run(name, &format!("refuse {reason}\ncount session=1 event=0xc0 value=1\nok"));
            assert!(verdict(&measured, source, profile, &Truth::default()).is_err(), "{name} measured");
        }
    }

    #[test]
    fn each_workload_that_is_declined_is_one() {
        for (name, _) in DECLINED {
            assert!(WORKLOADS.iter().any(|workload| workload.name == name), "{name}");
        }
        for (source, workload, profile, expected) in [
            (Source::Counters, "sort", "k8", None),
            (Source::Counters, "sort", "skylake", Some(NOT_AMD)),
            (Source::Counters, "filter-os", "zen4", None),
            (Source::Counters, "timing", "zen4", Some(PACKETS)),
            (Source::Ibs, "sort", "zen2", None),
            (Source::Ibs, "sort", "k8", Some("CPUID.8000_0001H:ECX[10]")),
            (Source::Ibs, "sort", "barcelona", None),
            (Source::Ibs, "filter-user", "zen4", Some(LEVELS)),
        ] {
            assert_eq!(due(source, workload, profile), expected, "{workload} on {profile}");
        }
    }

    #[test]
    fn each_session_has_samples() {
        let session = |taken| {
            let totals = Samples { taken, ..Samples::default() };
            SampledSession { totals, ..SampledSession::default() }
        };
        assert_eq!(by_clocks(&[session(2), session(1)]).ok(), Some(3));
        assert!(by_clocks(&[session(2), session(0)]).is_err());
    }

    #[test]
    fn the_guest_is_told_what_measures() {
        assert_eq!(boot(Source::Counters, "k8", None).command_line, "source=counters");
        assert_eq!(boot(Source::Ibs, "zen4", Some("sort")).command_line, "source=ibs only=sort");
    }
}
