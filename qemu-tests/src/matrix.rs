//! The table of workloads by profiles for Intel PT, and what each run must give.

use Loss::{Nothing, Overflow, Stop, Wrap};
use anyhow::{Result, bail, ensure};

use crate::judge::{Verdict, judge};
use crate::report::Run;
use crate::symbols::Symbols;
use crate::truth::Truth;

/// The profiles with Intel PT that the monitor can show.
pub const PROFILES: [&str; 4] = ["broadwell", "skylake", "icelake", "sapphire-rapids"];

/// What may be missing from a workload's trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing at all.
    Nothing,
    /// What ran between a STOP (the output is full and tracing stops) and the interrupt that restarts the unit.
    Stop,
    /// Everything except what is in the ring at the end.
    Wrap,
    /// What ran until an overflow was resolved; the machine must overflow.
    Overflow,
}

impl Loss {
    /// The most instructions that one gap may have.
    #[must_use]
    pub const fn bound(self) -> u64 {
        match self {
            Self::Nothing => 0,
            // Each half of `stop` is about 15 500 instructions with interrupts off. Broadwell's tables have one region
            // and the interrupt brings the next one, so only 4 KiB of trace, 4400 instructions, are kept and 11 000 are
            // missing. If a table has both regions, 8 KiB are kept and 6700 instructions are missing.
            Self::Stop => 12_000,
            Self::Wrap => 20_000,
            Self::Overflow => 2_000,
        }
    }
}

impl Loss {
    /// The least share of the instructions that must still be there, in percent.
    #[must_use]
    pub const fn least(self) -> u64 {
        match self {
            Self::Nothing => 100,
            Self::Stop => 40,
            Self::Wrap => 25,
            Self::Overflow => 50,
        }
    }

    /// Checks that at least `least` percent of `all` are there.
    ///
    /// # Errors
    /// Fewer are there.
    pub(crate) fn enough(what: &str, there: u64, all: u64, least: u64) -> Result<()> {
        let enough = there > 0 && there * 100 >= all * least;
        ensure!(enough, "{there} {what} of {all} are there, which is less than {least} %");
        Ok(())
    }
}

/// A workload of the guest kernel.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name.
    pub name: &'static str,
    /// What may be missing from its trace.
    pub loss: Loss,
    /// For each profile the CPUID bit that the driver names when it declines; empty if it traces.
    pub refusals: [&'static str; 4],
}

const TRACED: [&str; 4] = ["", "", "", ""];
const CYCLES: [&str; 4] = ["CPUID.14H.0:EBX[1]", "", "", ""];
const IP_FILTER: [&str; 4] = ["CPUID.14H.0:EBX[2]", "", "", ""];
const MANY_ENTRIES: [&str; 4] = ["CPUID.14H.0:ECX[1]", "", "", ""];
const SINGLE_RANGE: [&str; 4] = ["CPUID.14H.0:ECX[2]", "", "", ""];
const PTWRITE: [&str; 4] = ["CPUID.14H.0:EBX[4]", "CPUID.14H.0:EBX[4]", "", ""];
const AREA: [&str; 4] = ["only the debug store"; 4];
const EVENTS: [&str; 4] = ["CPUID.14H.0:EBX[7]", "CPUID.14H.0:EBX[7]", "CPUID.14H.0:EBX[7]", ""];

/// All workloads, in the order in which the guest runs them.
#[rustfmt::skip]
pub const WORKLOADS: &[Workload] = &[
    Workload { name: "recursion",       loss: Nothing,  refusals: TRACED },
    Workload { name: "sort",            loss: Nothing,  refusals: TRACED },
    Workload { name: "hash-map",        loss: Nothing,  refusals: TRACED },
    Workload { name: "dispatch",        loss: Nothing,  refusals: TRACED },
    Workload { name: "interpreter",     loss: Nothing,  refusals: TRACED },
    Workload { name: "strings",         loss: Nothing,  refusals: TRACED },
    Workload { name: "timer",           loss: Nothing,  refusals: TRACED },
    Workload { name: "exceptions",      loss: Nothing,  refusals: TRACED },
    Workload { name: "events",          loss: Nothing,  refusals: EVENTS },
    Workload { name: "shadows",         loss: Nothing,  refusals: TRACED },
    Workload { name: "syscall",         loss: Nothing,  refusals: TRACED },
    Workload { name: "syscall-tf-kept", loss: Nothing,  refusals: TRACED },
    Workload { name: "user-interrupt",  loss: Nothing,  refusals: TRACED },
    Workload { name: "filter-os",       loss: Nothing,  refusals: TRACED },
    Workload { name: "filter-user",     loss: Nothing,  refusals: TRACED },
    Workload { name: "area-absent",     loss: Nothing,  refusals: AREA },
    Workload { name: "area-read-only",  loss: Nothing,  refusals: AREA },
    Workload { name: "address-spaces",  loss: Nothing,  refusals: TRACED },
    Workload { name: "filter-cr3",      loss: Nothing,  refusals: TRACED },
    Workload { name: "filter-range",    loss: Nothing,  refusals: IP_FILTER },
    Workload { name: "trace-stop",      loss: Nothing,  refusals: IP_FILTER },
    Workload { name: "timing",          loss: Nothing,  refusals: CYCLES },
    Workload { name: "ptwrite",         loss: Nothing,  refusals: PTWRITE },
    Workload { name: "small-buffers",   loss: Nothing,  refusals: CYCLES },
    Workload { name: "circular",        loss: Nothing,  refusals: MANY_ENTRIES },
    Workload { name: "nmi",             loss: Nothing,  refusals: TRACED },
    Workload { name: "foreign-nmis",    loss: Nothing,  refusals: TRACED },
    Workload { name: "single-range",    loss: Nothing,  refusals: SINGLE_RANGE },
    Workload { name: "stop",            loss: Stop,     refusals: TRACED },
    Workload { name: "ring",            loss: Wrap,     refusals: MANY_ENTRIES },
    Workload { name: "overflow",        loss: Overflow, refusals: TRACED },
];

/// One boot of the guest kernel: the machine's settings and the workloads to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// The monitor's command line.
    pub monitor_options: String,
    /// The guest's command line.
    pub command_line: String,
}

impl Boot {
    /// A whole run with a source on a profile. `only`, names separated by commas, limits it to these workloads.
    #[must_use]
    pub fn of(source: &str, profile: &str, only: Option<&str>) -> Self {
        let only = only.map(|only| format!(" only={only}")).unwrap_or_default();
        Self { monitor_options: format!("profile={profile}"), command_line: format!("source={source}{only}") }
    }
}

/// Returns the boots that make a whole run on a profile. `only`, names separated by commas, limits it to these
/// workloads.
///
/// The workload that overflows gets a machine of its own, whose trace output is too slow on purpose.
#[must_use]
pub fn boots(profile: &str, only: Option<&str>) -> Vec<Boot> {
    let chosen = |name: &str| only.is_none_or(|only| only.split(',').any(|only_name| only_name == name));
    let names = |overflows: bool| -> Vec<&str> {
        let matching =
            |workload: &&Workload| (workload.loss == Overflow) == overflows && chosen(workload.name);
        WORKLOADS.iter().filter(matching).map(|workload| workload.name).collect()
    };
    let unknown = only.into_iter().flat_map(|only| only.split(','));
    let unknown = unknown.filter(|name| WORKLOADS.iter().all(|workload| workload.name != *name));
    // The guest reports unknown workloads.
    let steady: Vec<&str> = names(false).into_iter().chain(unknown).collect();
    let boot = |options: &str, names: Vec<&str>, words: &str| Boot {
        monitor_options: format!("profile={profile}{options}"),
        command_line: format!("only={}{words}", names.join(",")),
    };
    let boots = [boot("", steady, ""), boot(" ovf=256:1", names(true), " expect-ovf")];
    boots
        .into_iter()
        .filter(|boot| !boot.command_line.starts_with("only= ") && boot.command_line != "only=")
        .collect()
}

/// Checks that a run of one of [`WORKLOADS`] went as the table says.
///
/// # Errors
/// What went wrong: an unexpected refusal or a missing one, a decode that is not the truth, a loss of another kind, a
/// gap over its bound.
pub fn check(run: &Run, profile: &str, truth: &Truth, symbols: &Symbols) -> Result<Option<Verdict>> {
    let workload = WORKLOADS.iter().find(|workload| workload.name == run.name);
    let column = PROFILES.iter().position(|name| *name == profile);
    let (Some(workload), Some(column)) = (workload, column) else {
        bail!("{} on {profile} is not in the table", run.name)
    };
    let due = workload.refusals[column];
    match (due, &run.refusal) {
        ("", None) => {}
        (due, Some(reason)) if !due.is_empty() && reason.starts_with(due) && run.traces_nothing() => {
            return Ok(None);
        }
        (due, refusal) => bail!("the driver declined with {refusal:?} where {due:?} was due"),
    }
    let verdict = judge(run, truth, symbols)?;
    let bound = workload.loss.bound();
    ensure!(verdict.longest_gap <= bound, "a gap of {} instructions, over {bound}", verdict.longest_gap);
    Loss::enough("instructions", verdict.decoded, verdict.truth_count, workload.loss.least())?;
    Ok(Some(verdict))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::End;
    use crate::testing;
    use crate::truth::hash;

    #[test]
    fn what_is_lost_leaves_enough() {
        for (there, all, least, right) in [
            (100, 100, 100, true),
            (99, 100, 100, false),
            (40, 100, 40, true),
            (39, 100, 40, false),
            (0, 0, 100, false),
            (0, 100, 0, false),
        ] {
            assert_eq!(Loss::enough("x", there, all, least).is_ok(), right, "{there} of {all}");
        }
    }

    /// A guest that has decoded the first `front` instructions of `all`, and after a gap of `gap` instructions the
    /// rest.
    fn decoded(name: &str, all: u64, front: u64, gap: u64, after: &str, words: &str) -> (Run, Truth) {
        let addresses: Vec<u64> = (0..all).map(|n| 0x1000 + n).collect();
        let [first, last] = [&addresses[..front as usize], &addresses[(front + gap) as usize..]];
        let there: Vec<u64> = [first, last].concat();
        let piece = |index: usize, addresses: &[u64], after: &str| {
            let (count, hash) = (addresses.len(), hash(addresses));
            let (first, last) = (addresses[0], addresses[count - 1]);
            format!("piece {index} count={count} hash={hash:#x} first={first} last={last} after={after}\n")
        };
        let pieces = match gap {
            0 => piece(0, &addresses, "start"),
            _ => piece(0, first, "start") + &piece(1, last, after),
        };
        let (count, hash, loss) = (there.len(), hash(&there), u64::from(gap > 0));
        let stat = format!("stat count={count} hash={hash:#x} bytes=1 pmis=0 loss={loss}\n");
        let run = testing::run(name, &format!("session 1\n{pieces}{stat}{words}\nok"));
        (run, testing::truth(addresses.iter().map(|&address| testing::record(1, address))))
    }

    #[test]
    fn a_gap_is_as_long_as_the_workload_may_have_it_and_leaves_enough() {
        // All instructions, those before the gap, those in it, and what the guest reports before the second piece.
        for (name, all, front, gap, after, right) in [
            ("sort", 100, 50, 0, "", true),
            ("sort", 100, 50, 1, "ovf", false),
            ("stop", 30_000, 9_000, 12_000, "stop", true),
            ("stop", 30_000, 9_000, 12_001, "stop", false),
            ("stop", 30_000, 9_000, 12_000, "off", false),
            ("stop", 19_999, 4_000, 12_000, "stop", false),
            ("stop", 20_000, 4_000, 12_000, "stop", true),
            ("ring", 30_000, 1, 20_000, "wrap", true),
            ("ring", 30_000, 1, 20_001, "wrap", false),
            ("ring", 26_668, 1, 20_000, "wrap", true),
            ("ring", 26_666, 1, 20_000, "wrap", false),
            ("overflow", 30_000, 1, 2_000, "ovf", true),
            ("overflow", 30_000, 1, 2_001, "ovf", false),
            ("overflow", 4_000, 1, 2_000, "ovf", true),
            ("overflow", 3_999, 1, 2_000, "ovf", false),
        ] {
            let (run, truth) = decoded(name, all, front, gap, after, "");
            let found = check(&run, "skylake", &truth, &Symbols::default());
            assert_eq!(found.is_ok(), right, "{name}: {gap} of {all} after {after}: {found:?}");
            let longest = found.ok().map(|verdict| verdict.unwrap().longest_gap);
            assert_eq!(longest, right.then_some(gap), "{name}");
        }
    }

    #[test]
    fn the_driver_declines_where_it_is_due_and_nowhere_else() {
        let cycles = "refuse CPUID.14H.0:EBX[1] is clear";
        for (name, profile, words, traces, right) in [
            ("timing", "broadwell", cycles, false, true),
            ("timing", "broadwell", "refuse CPUID.14H.0:EBX[2] is clear", false, false),
            // The driver declined, and traced nonetheless.
            ("timing", "broadwell", cycles, true, false),
            ("timing", "broadwell", "", false, false),
            ("timing", "broadwell", "", true, false),
            ("timing", "skylake", cycles, false, false),
            ("timing", "skylake", "", true, true),
            ("sort", "broadwell", cycles, false, false),
            ("sort", "broadwell", "", true, true),
            ("sort", "broadwell", "", false, false),
            ("sort", "haswell", "", true, false),
            ("bubble-sort", "broadwell", "", true, false),
        ] {
            let (traced, truth) = decoded(name, 100, 50, 0, "", words);
            let run = if traces { traced } else { testing::run(name, &format!("{words}\nok")) };
            let found = check(&run, profile, &truth, &Symbols::default());
            assert_eq!(found.is_ok(), right, "{name} on {profile}, {words:?}: {found:?}");
            if let Ok(verdict) = found {
                assert_eq!(verdict.is_some(), traces);
            }
        }
        // The driver declined, and the workload failed.
        let failed = testing::run("timing", "refuse CPUID.14H.0:EBX[1]\nfail something");
        assert!(check(&failed, "broadwell", &Truth::default(), &Symbols::default()).is_err());
    }

    #[test]
    fn what_does_not_add_up_is_no_verdict() {
        let (run, truth) = decoded("sort", 100, 50, 0, "", "");
        let changed = |change: &dyn Fn(&mut Run)| {
            let (mut run, _) = decoded("sort", 100, 50, 0, "", "");
            change(&mut run);
            check(&run, "skylake", &truth, &Symbols::default()).is_ok()
        };
        assert!(check(&run, "skylake", &truth, &Symbols::default()).is_ok());
        assert!(changed(&|_| ()));
        assert!(!changed(&|run| run.end = None));
        assert!(!changed(&|run| run.end = Some(End::Fail("so".into()))));
        assert!(!changed(&|run| run.end = Some(End::Broke("so".into()))));
        assert!(!changed(&|run| run.session = None));
        assert!(!changed(&|run| run.session = Some(2)));
        assert!(!changed(&|run| run.stat = None));
        assert!(!changed(&|run| run.stat.as_mut().unwrap().count += 1));
        assert!(!changed(&|run| run.stat.as_mut().unwrap().hash += 1));
        assert!(!changed(&|run| run.pieces[0].count += 1));
        assert!(!changed(&|run| run.pieces.clear()));
        // An empty truth would agree with everything.
        let empty =
            testing::run("sort", "session 1\nstat count=0 hash=0xcbf29ce484222325 bytes=1 pmis=0 loss=0\nok");
        assert!(check(&empty, "skylake", &Truth::default(), &Symbols::default()).is_err());
    }

    #[test]
    fn the_workload_that_overflows_has_its_own_boot() {
        let lines = |only| -> Vec<String> {
            boots("skylake", only).into_iter().map(|boot| boot.command_line).collect()
        };
        assert_eq!(lines(Some("sort,timer")), ["only=sort,timer"]);
        assert_eq!(lines(Some("overflow")), ["only=overflow expect-ovf"]);
        assert_eq!(lines(Some("nothing")), ["only=nothing"]);
        assert_eq!(lines(None).len(), 2);
        assert!(!lines(None)[0].contains("overflow"));
    }
}
