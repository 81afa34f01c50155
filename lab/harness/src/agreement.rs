//! Checks that the instructions of one run and the branches of another run agree.

use anyhow::Result;
use std::ops::Range;

use crate::instructions::Instructions;
use crate::judge::stubs::STUB;
use crate::truth::{Branch, BranchKind, Record};

/// The length in bytes of the longest instruction.
const LONGEST: u64 = 15;

/// The vectors of interrupts, which arrive at different places in each run: NMIs, the timer, the tracing hardware.
const INTERRUPTS: [u64; 3] = [2, 0x20, 0x21];

/// Returns the instructions outside interrupt handlers, whose stubs are at `stubs`. Software interrupts are excluded
/// too, because no trace has them.
///
/// # Errors
/// If a record's address has no instruction.
pub fn outside_handlers(records: &[Record], stubs: u64, instructions: &mut Instructions) -> Result<Vec<u64>> {
    let (mut outside, mut depth) = (Vec::new(), 0);
    for record in records.iter().filter(|record| !record.flags.is_software_interrupt()) {
        depth += u32::from(handles_interrupt(record.rip, stubs));
        if depth == 0 {
            outside.push(record.rip);
        } else if instructions.of(record)?.returns_from_handler {
            depth -= 1;
        }
    }
    Ok(outside)
}

/// Returns the branches without interrupts and without those of their handlers up to the return.
#[must_use]
pub fn branches_outside_handlers(branches: &[Branch], stubs: u64) -> Vec<Branch> {
    let (mut outside, mut interrupted) = (Vec::new(), Vec::new());
    for branch in branches {
        if branch.kind == BranchKind::Event && handles_interrupt(branch.to, stubs) {
            interrupted.push(branch.from);
        } else if interrupted.is_empty() {
            outside.push(*branch);
        } else if branch.kind == BranchKind::Far && interrupted.last() == Some(&branch.to) {
            interrupted.pop();
        }
    }
    outside
}

fn handles_interrupt(rip: u64, stubs: u64) -> bool {
    INTERRUPTS.iter().any(|vector| rip == stubs + vector * STUB)
}

/// A stretch that occurs in both runs, with no branch missing in either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The range of the branches.
    pub branches: Range<usize>,
    /// The range of the instructions: from the first branch's target to the last branch.
    pub instructions: Range<usize>,
}

/// Finds the longest stretch of branches that occurs in the instructions of another run too, with only straight-line
/// code between two of them. The runs may differ before and after the stretch.
#[must_use]
pub fn longest(instructions: &[u64], branches: &[Branch]) -> Option<Stretch> {
    let mut best: Option<Stretch> = None;
    let mut first = 0;
    while first < branches.len() {
        let stretch = |start| {
            let (count, end) = agreed(&instructions[start..], branches[first].to, &branches[first + 1..]);
            Stretch { branches: first..first + 1 + count, instructions: start..start + end }
        };
        let here = starts(instructions, &branches[first]).map(stretch).max_by_key(|here| here.branches.len());
        first = here.as_ref().map_or(first + 1, |here| here.branches.end);
        best = best.into_iter().chain(here).max_by_key(|stretch| stretch.branches.len());
    }
    best
}

/// Returns the indexes at which the instructions have the target of this branch, directly after its source.
fn starts(instructions: &[u64], branch: &Branch) -> impl Iterator<Item = usize> {
    let is = |pair: &[u64]| pair == [branch.from, branch.to];
    let places = instructions.windows(2).enumerate();
    places.filter(move |(_, pair)| is(pair)).map(|(at, _)| at + 1)
}

/// Returns the number of consecutive branches that agree with the instructions from address `at` on, and the index to
/// which the last one leads.
fn agreed(instructions: &[u64], mut at: u64, branches: &[Branch]) -> (usize, usize) {
    let (all, mut left, mut reached) = (instructions.len(), instructions, 0);
    let mut last = None;
    for (count, &Branch { from, to, .. }) in branches.iter().enumerate() {
        loop {
            let Some((&now, left_after)) = left.split_first() else { return (count, reached) };
            // A trap reports the instruction before it as its source.
            if at == from || now != at && last == Some(from) {
                // If the target itself is not executed, it was interrupted there and the next branch continues.
                let goes_on = branches.get(count + 1).filter(|next| next.from == to).map(|next| next.to);
                match left_after.first() {
                    // The source was executed, and it branched.
                    Some(&next) if now == from && (next == to || goes_on == Some(next)) => {
                        left = left_after;
                        last = Some(from);
                    }
                    // It was interrupted before or after the instruction.
                    _ if now == to => {}
                    _ => return (count, reached),
                }
                (at, reached) = (to, all - left.len());
                break;
            }
            let Some(&next) = left_after.first().filter(|_| now == at) else {
                return (count, reached);
            };
            let follows = |address: u64| (1..=LONGEST).contains(&address.wrapping_sub(at));
            at = match (follows(next), follows(from)) {
                (true, _) => next,
                (false, true) => from,
                (false, false) => return (count, reached),
            };
            left = left_after;
            last = Some(now);
        }
    }
    (branches.len(), reached)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;
    use crate::truth::RecordFlags;

    #[test]
    fn finds_what_both_have() {
        let branch = |(from, to)| Branch { from, to, kind: BranchKind::Jump, from_cpl: 0, to_cpl: 0 };
        // Two iterations of a loop with a call to 2000, and an interrupt before 2003 that leads to 9000.
        let instructions =
            [1, 2, 1000, 1003, 2000, 9000, 9005, 2003, 1008, 1010, 1000, 1003, 2000, 2003, 1008, 1010, 7, 8];
        let call = [(1003, 2000), (2003, 1008), (1010, 1000)];
        let interrupted = [(1003, 2000), (2003, 9000), (9005, 2003), (2003, 1008), (1010, 1000)];
        let all: Vec<(u64, u64)> = [&[(66, 1000)][..], &interrupted, &call[..2], &[(1010, 70)]].concat();
        let agreement = |branches: &[(u64, u64)], instructions: &[u64]| {
            let branches: Vec<Branch> = branches.iter().copied().map(branch).collect();
            longest(instructions, &branches).map(|stretch| stretch.branches)
        };
        assert_eq!(agreement(&all, &instructions), Some(1..8));
        // A trap after 1003, which returns to 1008.
        let trap = [(1000, 1003), (1003, 9000), (9005, 1008), (1010, 1000)];
        assert_eq!(agreement(&trap, &[1000, 1003, 9000, 9005, 1008, 1010, 1000]), Some(0..4));
        // A return to 1003, which faults.
        let fault = [(1000, 1003), (1003, 9000), (9005, 1003), (1003, 1010), (1010, 1000)];
        assert_eq!(agreement(&fault[1..], &[1003, 9000, 9005, 1003, 1010, 1000]), Some(0..4));
        assert_eq!(agreement(&[fault[4], (1000, 1003), fault[1]], &[1010, 1000, 9000, 9005]), Some(0..3));
        // A branch is missing: nothing explains the jump.
        let without: Vec<(u64, u64)> = [&interrupted[..3], &interrupted[4..], &call[..2]].concat();
        assert_eq!(agreement(&without, &instructions).map(|found| found.len()), Some(3));
        // An instruction is missing.
        let straight = [1000, 1003, 2000, 2003, 1008, 1010, 1000, 1003, 1008, 1010];
        assert_eq!(agreement(&[call, call].concat(), &straight).map(|found| found.len()), Some(3));
        assert_eq!(agreement(&[(5, 6)], &instructions), None);
        // A handler's first instruction is executed twice, and no branch explains it.
        let faulted = [(1, 1000), (1000, 2000), (2000, 3000), (3005, 70)];
        assert_eq!(agreement(&faulted, &[1, 1000, 3000, 3005, 70]), Some(0..4));
        assert_eq!(agreement(&faulted, &[1, 1000, 3000, 3000, 3005, 70]), Some(0..3));
    }

    #[test]
    fn handlers_of_interrupts_are_left_out() {
        // 1000: nops; 2000: stubs of nops, at 2222 IRETQ.
        let mut stubs = vec![0x90; 4096];
        stubs[0x222..0x224].copy_from_slice(&[0x48, 0xcf]);
        let code = [(0x1000, vec![0x90; 16]), (0x2000, stubs)];
        let code = code.map(|(base, bytes)| Code { base, bytes, cr3: None }).to_vec();
        let record = |rip| Record { rip, cr3: 0, session: 1, flags: RecordFlags::new(0), cpu: 0 };
        // The tracing hardware's interrupt arrives within the timer's, and then an exception.
        let all = [0x1000, 0x2200, 0x2210, 0x2222, 0x2201, 0x2222, 0x1001, 0x2030, 0x2222, 0x1002];
        let found = outside_handlers(&all.map(record), 0x2000, &mut Instructions::new(code)).unwrap();
        assert_eq!(found, [0x1000, 0x1001, 0x2030, 0x2222, 0x1002]);
        let branch = |(from, to, kind)| Branch { from, to, kind, from_cpl: 0, to_cpl: 0 };
        let (event, far, jump) = (BranchKind::Event, BranchKind::Far, BranchKind::Jump);
        let branches = [
            (0x1001, 0x2200, event),
            (0x2200, 0x2210, event),
            (0x2211, 0x2220, jump),
            (0x2222, 0x2200, far),
            (0x2222, 0x1001, far),
            (0x1001, 0x2030, event),
            (0x2222, 0x1002, far),
        ];
        let branches = branches.map(branch);
        assert_eq!(branches_outside_handlers(&branches, 0x2000), branches[5..]);
    }

    #[test]
    fn a_stretch_goes_from_the_first_target_to_the_last() {
        let branch = |(from, to)| Branch { from, to, kind: BranchKind::Jump, from_cpl: 0, to_cpl: 0 };
        let branches = [(2, 10), (12, 20), (21, 1)].map(branch);
        let found = longest(&[1, 2, 10, 11, 12, 20, 21, 1, 2, 3], &branches);
        assert_eq!(found, Some(Stretch { branches: 0..3, instructions: 2..7 }));
    }
}
