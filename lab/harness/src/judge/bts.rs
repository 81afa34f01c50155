//! Intel's Branch Trace Store: compares a guest's branch records with the branches that really ran.
//!
//! Branch records name the source and target of each taken branch; the instructions between two branches follow from
//! the code.

use anyhow::{Context, Result, bail, ensure};
use pugmark_protocol::{After, Records};
use std::fmt;

use super::pieces::place;
use super::{Conditions, Evidence, Judge, ended_well, enough, faults};
use crate::report::{End, Run};
use crate::symbols::Symbols;
use crate::truth::{Branch, BranchLevel, Truth, hash};
use crate::workloads::Loss;

/// Maximum number of instructions of straight-line code before the first branch of a part and after its last one, which
/// the records do not show.
const EDGE: u64 = 200;

/// The beginning of the guest's failure reason if it cannot decode its records.
const UNDECODED: &str = "decode: branch record ";

/// Branch records that agree with the truth, and the instructions that were decoded from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BtsVerdict {
    /// Branches at the levels of the filter that were taken while recording was on.
    pub truth_count: u64,
    /// The hash of their sources and targets.
    pub truth_hash: u64,
    /// Branches in the records.
    pub recorded: u64,
    /// Maximum number of branches missing in one place; 0 if nothing was lost.
    pub longest_gap: u64,
    /// Instructions that retired under the filter.
    pub instructions: u64,
    /// Instructions that were decoded.
    pub decoded: u64,
}

impl fmt::Display for BtsVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { truth_count, truth_hash, recorded, longest_gap, instructions, decoded } = self;
        write!(f, "branches={truth_count} hash={truth_hash:#018x} ")?;
        if recorded == truth_count {
            write!(f, "equal")?;
        } else {
            write!(f, "recorded={recorded} longest_gap={longest_gap} in order")?;
        }
        write!(f, "; instructions={instructions} decoded={decoded} in order")
    }
}

impl Judge for BtsVerdict {
    const WORD: &'static str = "bts";
    const TITLE: &'static str = "Branch Trace Store";

    /// Checks that records and decode agree with the truth, that only permitted parts are lost, and that enough was
    /// recorded.
    fn judge(evidence: &Evidence<'_>, conditions: &Conditions<'_>) -> Result<Self> {
        let Evidence { run, truth, symbols, .. } = *evidence;
        faults::as_expected(run, 1)?;
        let verdict = compare(run, truth, symbols)?;
        let expected = (conditions.loss == Loss::Stop, conditions.loss == Loss::Wrap);
        ensure!((run.lost.stops > 0, run.lost.wraps > 0) == expected, "the guest lost {}", run.lost);
        // A full buffer loses branches until its interrupt is served; a circular one keeps only the newest 512 records.
        let least = match conditions.loss {
            Loss::Stop => 15,
            Loss::Wrap => 5,
            Loss::Nothing | Loss::Overflow => 100,
        };
        enough("branches", verdict.recorded, verdict.truth_count, least)?;
        Ok(verdict)
    }
}

/// Compares one workload's branch records, and the instructions decoded from them, with the monitor's log.
///
/// If only the kernel is recorded and a branch counts at the level of its source ([`BranchLevel::From`]), no record
/// shows how the kernel was entered, so only the records are compared. In that case the guest may report that it cannot
/// decode them: if the user-mode code to which the kernel returned has no further branch, the guest cannot even know
/// that.
///
/// Without a loss, records and branches of the truth must match one to one. With a loss, each contiguous part must be a
/// run of the truth, the parts in order, and each gap must follow a loss that the guest counted. An overwritten buffer
/// holds the newest run. The decoded instructions may only miss those at the edges of a part.
///
/// # Errors
/// Returns the first difference.
pub fn compare(run: &Run, truth: &Truth, symbols: &Symbols) -> Result<BtsVerdict> {
    let enters_unseen = truth.branch_level() == BranchLevel::From && run.filter.cpl == Some(0);
    match &run.end {
        Some(End::Fail(reason)) if enters_unseen && reason.starts_with(UNDECODED) => {}
        _ => ended_well(run)?,
    }
    let (Some(session), Some(stat)) = (run.session, run.stat) else { bail!("no session, or no stat line") };
    let taken = run.filter.taken(truth.branches(session), truth.branch_level());
    // A record whose write faults is not written again; in these workloads it is the first record.
    let taken = taken.get(run.faults.len()..).unwrap_or_default();
    ensure!(!taken.is_empty(), "the truth has no branches: nothing was recorded");
    // Records may be missing at the end; if older ones were overwritten, records are missing at the beginning.
    let cut = run.lost.stops > 0 || run.lost.full > 0;
    let longest_gap = place_records(&run.records, taken, cut)?;
    let recorded = run.records.iter().map(|records| records.count).sum();
    ensure!(
        stat.loss > 0 || recorded == taken.len() as u64,
        "{recorded} of {} branches were recorded, and the guest reports no loss",
        taken.len()
    );
    let traced = run.filter.traced(truth.session(session), symbols)?;
    if !enters_unseen {
        let missing = place(&run.pieces, &traced, allowed).context("what was decoded")?;
        ensure!(
            cut || missing.at_end <= EDGE,
            "{} instructions are missing at the end of what was decoded",
            missing.at_end
        );
    }
    Ok(BtsVerdict {
        truth_count: taken.len() as u64,
        truth_hash: hash_of(taken),
        recorded,
        longest_gap,
        instructions: traced.len() as u64,
        decoded: stat.count,
    })
}

/// Returns the number of instructions that may be missing before a piece.
fn allowed(after: After) -> u64 {
    if matches!(after, After::Start | After::Off) { EDGE } else { u64::MAX }
}

/// Finds the parts in the truth, in order, and returns the longest gap before a part or at the end.
fn place_records(parts: &[Records], taken: &[Branch], cut: bool) -> Result<u64> {
    let (mut at, mut longest) = (0, 0);
    for (index, part) in parts.iter().enumerate() {
        let Records { count, hash, after } = part;
        let length = usize::try_from(*count)?;
        let last = taken.len().checked_sub(length).filter(|last| *last >= at);
        let last = last.with_context(|| format!("part {index} has {count} records, more than the truth"))?;
        let mut starts = match after {
            // All but the newest records were overwritten.
            After::Wrap => last..=last,
            After::Stop | After::Full => at..=last,
            _ => at..=at,
        };
        let Some(start) = starts.find(|&start| hash_of(&taken[start..start + length]) == *hash) else {
            bail!("part {index} ({count} records after {after}) is not in the truth at its branch {at}")
        };
        longest = longest.max(start - at);
        at = start + length;
    }
    let left = taken.len() - at;
    ensure!(left == 0 || cut, "{left} branches are missing at the end");
    Ok(longest.max(left) as u64)
}

fn hash_of(branches: &[Branch]) -> u64 {
    let addresses: Vec<u64> = branches.iter().flat_map(|branch| [branch.from, branch.to]).collect();
    hash(&addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::recorded;
    use crate::truth::BranchKind;
    use crate::workloads;
    use std::path::Path;

    fn branches(targets: &[u64]) -> Vec<Branch> {
        targets
            .iter()
            .map(|&to| Branch { from: to + 100, to, kind: BranchKind::Jump, from_cpl: 0, to_cpl: 0 })
            .collect()
    }

    fn part(targets: &[u64], after: After) -> Records {
        Records { count: targets.len() as u64, hash: hash_of(&branches(targets)), after }
    }

    #[test]
    fn records_are_the_truth_but_for_what_was_lost() {
        let truth = branches(&[1, 2, 3, 1, 2, 9]);
        for (parts, cut, expected) in [
            (vec![part(&[1, 2, 3, 1, 2, 9], After::Start)], false, Some(0)),
            (vec![part(&[1, 2, 3], After::Start), part(&[1, 2, 9], After::Off)], false, Some(0)),
            // Nothing is lost while the source is off, at the beginning or at the end.
            (vec![part(&[1, 2, 3], After::Start), part(&[2, 9], After::Off)], false, None),
            (vec![part(&[2, 3, 1, 2, 9], After::Start)], false, None),
            (vec![part(&[1, 2, 3, 1, 2], After::Start)], false, None),
            (vec![part(&[1, 2, 3, 1, 2], After::Start)], true, Some(1)),
            (vec![part(&[1, 2], After::Start), part(&[9], After::Stop)], true, Some(3)),
            (vec![part(&[1, 2], After::Start), part(&[8], After::Stop)], true, None),
            // Only the newest records are right.
            (vec![part(&[1, 2, 9], After::Wrap)], false, Some(3)),
            (vec![part(&[3, 1, 2], After::Wrap)], false, None),
            (vec![part(&[1, 2, 3, 1, 2, 9, 9], After::Start)], false, None),
            (vec![], false, None),
        ] {
            assert_eq!(place_records(&parts, &truth, cut).ok(), expected, "{parts:?} {cut}");
        }
        // The same branches ran at the beginning too: the part is found at the end.
        let found = place_records(&[part(&[1, 2], After::Wrap)], &truth[..5], false);
        assert_eq!(found.ok(), Some(3));
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
            // An unexpected page fault of the debug store.
            (
                "sort",
                100,
                100,
                "start",
                "fault address=0x5000 code=0x2\nmonitor: violation processor=0 ds_page_faults=1",
                false,
            ),
        ] {
            let (run, truth) = recorded(name, all, there, after, words);
            let symbols = Symbols::default();
            let evidence =
                Evidence { run: &run, truth: &truth, symbols: &symbols, image: Path::new("unread") };
            let loss = workloads::find(name).unwrap().loss;
            let conditions = Conditions { profile: "core2", is_intel: true, loss, last_declined: false };
            let found = BtsVerdict::judge(&evidence, &conditions);
            assert_eq!(found.is_ok(), right, "{name}: {there} of {all}, {words:?}: {found:?}");
            let found = found.ok().map(|verdict| (verdict.recorded, verdict.longest_gap));
            assert_eq!(found, right.then_some((there, all - there)), "{name}");
        }
    }
}
