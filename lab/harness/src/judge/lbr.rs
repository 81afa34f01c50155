//! Intel's last branch records (LBR): compares them with the newest branches that really ran.
//!
//! Last branch records are a small stack of registers in which the processor keeps the source and target of its newest
//! branches. In call-stack mode they hold only the calls that have not returned yet.

use anyhow::{Context, Result, ensure};
use std::fmt;

use super::{Conditions, Evidence, Judge, ended_well};
use crate::filter::Filter;
use crate::report::LastBranches;
use crate::truth::{Branch, BranchKind, BranchLevel};

/// Number of last branch records of each processor.
const DEPTHS: [(&str, usize); 6] =
    [("prescott", 16), ("core2", 4), ("nehalem", 16), ("broadwell", 16), ("skylake", 32), ("icelake", 32)];

/// Last branch records that agree with the truth, once per mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LbrVerdict(pub Vec<StackVerdict>);

impl fmt::Display for LbrVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join("; "))
    }
}

impl Judge for LbrVerdict {
    const WORD: &'static str = "lbr";
    const TITLE: &'static str = "last branch records";

    /// Checks that the records of each mode agree with the truth: all branches first, then only calls. If the driver
    /// declines the last part of the request, there are no calls.
    fn judge(evidence: &Evidence<'_>, conditions: &Conditions<'_>) -> Result<Self> {
        let Evidence { run, truth, .. } = *evidence;
        ended_well(run)?;
        let depth = DEPTHS.iter().find(|(profile, _)| *profile == conditions.profile);
        let (_, depth) = depth
            .with_context(|| format!("the depth of the stack of {} is unknown here", conditions.profile))?;
        let modes: Vec<bool> = run.lasts.iter().map(|last| last.last.calls).collect();
        let expected = if conditions.last_declined { &[false][..] } else { &[false, true] };
        ensure!(modes == expected, "with calls alone: {modes:?}, instead of {expected:?}");
        let stack = |last: &LastBranches| {
            let (branches, level) = (truth.branches(last.last.session), truth.branch_level());
            let verdict = compare(last, branches, &run.filter, level, *depth)?;
            ensure!(verdict.last > 0, "there are no last branches");
            Ok(verdict)
        };
        run.lasts.iter().map(stack).collect::<Result<_>>().map(Self)
    }
}

/// The report of last branch records that agree with the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackVerdict {
    /// Number of branches taken while the records were on.
    pub branches: usize,
    /// Number of branches that the records held at the end.
    pub last: usize,
    /// The records are in call-stack mode: they hold only calls.
    pub calls: bool,
}

impl fmt::Display for StackVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { branches, last, calls } = self;
        let what = if *calls { "calls" } else { "branches" };
        write!(f, "the last {last} {what} of {branches} branches")
    }
}

/// Length in bytes of a relative CALL. In call-stack mode a CALL to the next instruction does not count as a call.
const CALL: u64 = 5;

/// Compares the records of a stack of `depth` entries with the branches that were taken while it was on.
///
/// # Errors
/// Returns the first difference.
fn compare(
    last: &LastBranches,
    branches: &[Branch],
    filter: &Filter,
    level: BranchLevel,
    depth: usize,
) -> Result<StackVerdict> {
    let taken = filter.taken(branches, level);
    let expected = if last.last.calls { calls(&taken, depth) } else { newest(&taken, depth) };
    ensure!(
        last.last.entries == last.branches.len() as u64,
        "the guest reports {} entries",
        last.last.entries
    );
    // On a processor that cannot clear its records, older ones from before the start may follow.
    let found = last.branches.get(..expected.len()).unwrap_or(&last.branches);
    let first = expected.iter().zip(found).position(|(one, other)| one != other);
    ensure!(
        found == expected,
        "{} branches, not {}; the first difference is at {first:?}: {:x?}, not {:x?}",
        found.len(),
        expected.len(),
        first.map(|at| found[at]),
        first.map(|at| expected[at])
    );
    ensure!(last.branches.len() <= depth, "{} entries in a stack of {depth}", last.branches.len());
    Ok(StackVerdict { branches: taken.len(), last: expected.len(), calls: last.last.calls })
}

fn newest(taken: &[Branch], depth: usize) -> Vec<(u64, u64)> {
    taken.iter().rev().take(depth).map(|branch| (branch.from, branch.to)).collect()
}

/// Returns the calls on a stack that wraps around: a return removes the newest record; if that is already overwritten,
/// it still decrements the top.
///
/// Source: SDM vol. 3, Debug, Branch Profile, TSC, and Resource Monitoring Features, "LBR Stack Enhancement in
/// Processors Based on Haswell Microarchitecture".
fn calls(taken: &[Branch], depth: usize) -> Vec<(u64, u64)> {
    let mut entries = vec![None; depth];
    let mut top = 0;
    for branch in taken {
        match branch.kind {
            BranchKind::Call if branch.to != branch.from + CALL => {
                top = (top + 1) % depth;
                entries[top] = Some((branch.from, branch.to));
            }
            BranchKind::Return => {
                entries[top] = None;
                top = (top + depth - 1) % depth;
            }
            _ => {}
        }
    }
    (0..depth).map_while(|back| entries[(top + depth - back) % depth]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use BranchKind::{Call, Jump, Return};
    use pugmark_protocol::Last;

    fn branches(all: &[(BranchKind, u64)]) -> Vec<Branch> {
        let branch =
            |&(kind, from): &(BranchKind, u64)| Branch { from, to: from + 100, kind, from_cpl: 0, to_cpl: 0 };
        all.iter().map(branch).collect()
    }

    fn last(calls: bool, from: &[u64]) -> LastBranches {
        let branches: Vec<_> = from.iter().map(|from| (*from, from + 100)).collect();
        LastBranches { last: Last { session: 1, calls, entries: branches.len() as u64 }, branches }
    }

    #[test]
    fn the_newest_branches_are_there_and_no_others() {
        let all = branches(&[(Jump, 1), (Call, 2), (Jump, 3), (Return, 4)]);
        for (from, depth, right) in [
            (&[4, 3][..], 2, true),
            (&[4, 3, 2, 1], 4, true),
            (&[4, 3, 2, 1], 8, true),
            // The records after the first four are older than the start.
            (&[4, 3, 2, 1, 77, 76, 75, 74], 8, true),
            // More records than the stack has entries.
            (&[4, 3, 2, 1, 77, 76, 75, 74, 73], 8, false),
            (&[4, 3, 2], 2, false),
            (&[3, 2], 2, false),
            (&[4, 2], 2, false),
            (&[4], 2, false),
            (&[4, 3, 2], 8, false),
        ] {
            let found = compare(&last(false, from), &all, &Filter::default(), BranchLevel::To, depth);
            assert_eq!(found.is_ok(), right, "{from:?} of {depth}: {found:?}");
        }
    }

    #[test]
    fn calls_that_have_not_returned_are_there() {
        for (all, depth, from) in [
            (&[(Call, 1), (Jump, 2), (Call, 3), (Return, 4)][..], 4, &[1][..]),
            (&[(Call, 1), (Call, 2), (Call, 3)], 4, &[3, 2, 1]),
            (&[(Call, 1), (Call, 2), (Call, 3)], 2, &[3, 2]),
            // The oldest record was overwritten, so it is still missing after the others have returned.
            (&[(Call, 1), (Call, 2), (Call, 3), (Return, 4), (Return, 5)], 2, &[]),
            (&[(Return, 1), (Return, 2), (Call, 3)], 4, &[3]),
        ] {
            let found =
                compare(&last(true, from), &branches(all), &Filter::default(), BranchLevel::To, depth);
            assert_eq!(found.unwrap().last, from.len(), "{all:?}");
        }
        let next = Branch { to: 6, ..branches(&[(Call, 1)])[0] };
        assert_eq!(
            compare(&last(true, &[]), &[next], &Filter::default(), BranchLevel::To, 4).unwrap().last,
            0
        );
    }

    #[test]
    fn a_verdict_says_of_what_the_records_are() {
        let all = StackVerdict { branches: 9, last: 4, calls: false };
        assert_eq!(all.to_string(), "the last 4 branches of 9 branches");
        assert_eq!(StackVerdict { calls: true, ..all }.to_string(), "the last 4 calls of 9 branches");
    }

    #[test]
    fn other_levels_do_not_count() {
        let mut all = branches(&[(Jump, 1), (Jump, 2)]);
        all[1].to_cpl = 3;
        let user = Filter { cpl: Some(3), ..Filter::default() };
        assert!(compare(&last(false, &[2]), &all, &user, BranchLevel::To, 1).is_ok());
        assert!(compare(&last(false, &[1]), &all, &user, BranchLevel::To, 1).is_err());
    }
}
