//! What is run where when branches are recorded, and what is expected of it.

use anyhow::{Result, bail, ensure};

use crate::branches::{Verdict, judge};
use crate::matrix::{Boot, Loss, WORKLOADS};
use crate::protocol::Run;
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

/// The boot that makes a whole run on a profile; `only`, names separated by commas, narrows the workloads down.
#[must_use]
pub fn boot(profile: &str, only: Option<&str>) -> Boot {
    Boot::of("bts", profile, only)
}

/// Whether a run of one of [`WORKLOADS`] went as it should on a profile.
///
/// # Errors
/// What went otherwise: a refusal where none is due or records where one is, records that are not the truth, a loss of
/// another kind.
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
    let lost = |kind: &str| run.lost.get(kind).copied().unwrap_or_default() > 0;
    let expected = (workload.loss == Loss::Stop, workload.loss == Loss::Wrap);
    ensure!((lost("stop"), lost("wrap")) == expected, "lost {:?}", run.lost);
    // A full buffer waits for its interrupt, and one that is written over holds 512 records.
    let least = match workload.loss {
        Loss::Stop => 15,
        Loss::Wrap => 5,
        Loss::Nothing | Loss::Overflow => 100,
    };
    Loss::enough("branches", verdict.recorded, verdict.truth_count, least)?;
    Ok(Some(verdict))
}

/// Why a workload is not recorded, if so.
fn due(workload: &str, profile: &str) -> Option<&'static str> {
    if !PROFILES.contains(&profile) {
        return Some(ABSENT);
    }
    DECLINED.iter().find(|(name, _)| *name == workload).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_that_is_declined_is_one() {
        for (name, _) in DECLINED {
            assert!(WORKLOADS.iter().any(|workload| workload.name == name), "{name}");
        }
        assert_eq!((due("sort", "core2"), due("sort", "sapphire-rapids")), (None, Some(ABSENT)));
        assert_eq!((due("timing", "core2"), due("timing", "sapphire-rapids")), (Some(PACKETS), Some(ABSENT)));
    }

    #[test]
    fn the_guest_is_told_what_traces() {
        assert_eq!(boot("core2", None).command_line, "source=bts");
        assert_eq!(boot("core2", Some("sort")).command_line, "source=bts only=sort");
    }
}
