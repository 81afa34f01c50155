//! The workloads for branch records (BTS) by profile, and what each run must give.

use anyhow::{Result, bail, ensure};

use crate::branches::{Verdict, judge};
use crate::matrix::{Boot, Loss, WORKLOADS};
use crate::report::Run;
use crate::store_matrix::faults_as_due;
use crate::symbols::Symbols;
use crate::truth::Truth;

/// The processors with a Branch Trace Store that the monitor can show.
pub const PROFILES: [&str; 6] = ["prescott", "core2", "nehalem", "broadwell", "skylake", "icelake"];

const ABSENT: &str = "absent: CPUID.1:EDX[21]";
const PACKETS: &str = "only Intel PT has the packets";

/// What the Branch Trace Store declines, and why.
const DECLINED: [(&str, &str); 7] = [
    ("events", PACKETS),
    ("filter-cr3", "branch records cannot be filtered by CR3"),
    ("filter-range", "branch records cannot be filtered by address"),
    ("trace-stop", "branch records cannot be filtered by address"),
    ("timing", PACKETS),
    ("ptwrite", PACKETS),
    ("overflow", PACKETS),
];

/// Returns the boot that makes a whole run on a profile. `only`, names separated by commas, limits it to these
/// workloads.
#[must_use]
pub fn boot(profile: &str, only: Option<&str>) -> Boot {
    Boot::of("bts", profile, only)
}

/// Checks that a run of one of [`WORKLOADS`] went as it should on a profile.
///
/// # Errors
/// What went wrong: an unexpected refusal or a missing one, records that are not the truth, a loss of another kind.
pub fn check(run: &Run, profile: &str, truth: &Truth, symbols: &Symbols) -> Result<Option<Verdict>> {
    let Some(workload) = WORKLOADS.iter().find(|workload| workload.name == run.name) else {
        bail!("{} is not in the table", run.name)
    };
    match (due(workload.name, profile), &run.refusal) {
        (None, None) => {}
        (Some(due), Some(reason)) if reason.starts_with(due) && run.traces_nothing() => return Ok(None),
        (due, refusal) => bail!("the driver declined with {refusal:?} where {due:?} was due"),
    }
    faults_as_due(run)?;
    let verdict = judge(run, truth, symbols)?;
    let expected = (workload.loss == Loss::Stop, workload.loss == Loss::Wrap);
    ensure!((run.lost.stops > 0, run.lost.wraps > 0) == expected, "lost {}", run.lost);
    // A full buffer loses branches until its interrupt comes; a circular one keeps only the newest 512 records.
    let least = match workload.loss {
        Loss::Stop => 15,
        Loss::Wrap => 5,
        Loss::Nothing | Loss::Overflow => 100,
    };
    Loss::enough("branches", verdict.recorded, verdict.truth_count, least)?;
    Ok(Some(verdict))
}

/// The reason why a workload is declined; `None` if it is recorded.
fn due(workload: &str, profile: &str) -> Option<&'static str> {
    if !PROFILES.contains(&profile) {
        return Some(ABSENT);
    }
    DECLINED.iter().find(|(name, _)| *name == workload).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crate::truth::{Branch, BranchKind, Record, hash};

    #[test]
    fn each_workload_that_is_declined_is_one() {
        for (name, _) in DECLINED {
            assert!(WORKLOADS.iter().any(|workload| workload.name == name), "{name}");
        }
        assert_eq!((due("sort", "core2"), due("sort", "sapphire-rapids")), (None, Some(ABSENT)));
        assert_eq!((due("timing", "core2"), due("timing", "sapphire-rapids")), (Some(PACKETS), Some(ABSENT)));
    }

    /// A guest that has recorded the first or the last `recorded` branches of `all`, each from one instruction to the
    /// next.
    fn recorded(name: &str, all: u64, recorded: u64, after: &str, words: &str) -> (Run, Truth) {
        let addresses: Vec<u64> = (0..=all).map(|n| 0x1000 + n).collect();
        let branches: Vec<u64> = addresses.windows(2).flatten().copied().collect();
        let branches = match after {
            "wrap" => &branches[2 * (all - recorded) as usize..],
            _ => &branches[..2 * recorded as usize],
        };
        let (hash_of_all, last) = (hash(&addresses), 0x1000 + all);
        let text = format!(
            "session 1
            records 0 count={recorded} hash={:#x} after={after}
            piece 0 count={count} hash={hash_of_all:#x} first=0x1000 last={last} after=start
            stat count={count} hash={hash_of_all:#x} bytes=1 pmis=0 loss={}
            {words}
            ok",
            hash(branches),
            u64::from(recorded < all),
            count = all + 1,
        );
        let branch = |from| Branch { from, to: from + 1, kind: BranchKind::Jump, from_cpl: 0, to_cpl: 0 };
        let records = addresses.iter().map(|&address| testing::record(1, address));
        let branches = addresses[..all as usize].iter().map(|&from| Record::of_branch(branch(from), 1, 0));
        (testing::run(name, &text), testing::truth(records.chain(branches)))
    }

    #[test]
    fn only_what_may_be_lost_is_and_enough_is_there() {
        for (name, all, there, after, words, right) in [
            ("sort", 100, 100, "start", "", true),
            ("sort", 100, 99, "start", "lost stop=1", false),
            ("sort", 100, 100, "start", "lost stop=1 wrap=0", false),
            ("sort", 100, 100, "start", "lost stop=0 wrap=1", false),
            ("sort", 100, 100, "start", "lost stop=0 wrap=0", true),
            ("stop", 100, 15, "start", "lost stop=1", true),
            ("stop", 100, 14, "start", "lost stop=1", false),
            ("stop", 100, 100, "start", "", false),
            ("stop", 100, 50, "start", "lost stop=1 wrap=1", false),
            ("ring", 100, 5, "wrap", "lost wrap=1", true),
            ("ring", 100, 4, "wrap", "lost wrap=1", false),
            ("ring", 100, 100, "start", "", false),
            // A page fault of the debug store that is not expected.
            (
                "sort",
                100,
                100,
                "start",
                "fault address=0x5000 code=0x2\nmonitor: violation processor=0 ds_page_faults=1",
                false,
            ),
            ("bubble-sort", 100, 100, "start", "", false),
        ] {
            let (run, truth) = recorded(name, all, there, after, words);
            let found = check(&run, "core2", &truth, &Symbols::default());
            assert_eq!(found.is_ok(), right, "{name}: {there} of {all}, {words:?}: {found:?}");
            let found = found.ok().flatten().map(|verdict| (verdict.recorded, verdict.longest_gap));
            assert_eq!(found, right.then_some((there, all - there)), "{name}");
        }
    }

    #[test]
    fn the_driver_declines_where_it_is_due_and_nowhere_else() {
        let (absent, packets) = (format!("refuse {ABSENT} is clear"), format!("refuse {PACKETS}"));
        for (name, profile, words, traces, right) in [
            ("sort", "core2", "", true, true),
            ("sort", "core2", &*absent, false, false),
            ("sort", "core2", &absent, true, false),
            ("sort", "sapphire-rapids", &absent, false, true),
            ("sort", "sapphire-rapids", &absent, true, false),
            ("sort", "sapphire-rapids", &packets, false, false),
            ("sort", "sapphire-rapids", "", false, false),
            ("sort", "sapphire-rapids", "", true, false),
            ("timing", "core2", &packets, false, true),
            ("timing", "core2", "refuse it cannot", false, false),
        ] {
            let (traced, truth) = recorded(name, 100, 100, "start", words);
            let run = if traces { traced } else { testing::run(name, &format!("{words}\nok")) };
            let found = check(&run, profile, &truth, &Symbols::default());
            assert_eq!(found.is_ok(), right, "{name} on {profile}, {words:?}: {found:?}");
            if let Ok(verdict) = found {
                assert_eq!(verdict.is_some(), traces);
            }
        }
    }

    #[test]
    fn the_guest_is_told_what_traces() {
        assert_eq!(boot("core2", None).command_line, "source=bts");
        assert_eq!(boot("core2", Some("sort")).command_line, "source=bts only=sort");
    }
}
