//! The branches that perf and Pugmark find, each with its count.

use super::MAX_INSTRUCTION;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

/// The number of times that each branch, by source and target, was taken.
type Branches = BTreeMap<(u64, u64), u64>;

/// The first words of flags of perf's lines that are no branches: start and end of tracing, and interrupts.
const NO_BRANCHES: [&str; 3] = ["tr", "hw", "int"];

/// Checks that `pugmark coverage` counts the branches that `perf script` lists. Each closure runs its program with
/// these arguments and returns the output.
pub(super) fn check(
    perf: &dyn Fn(&[&str]) -> Result<String>,
    pugmark: &dyn Fn(&[&str]) -> Result<String>,
) -> Result<()> {
    let theirs = perf_branches(&perf(&["script", "--itrace=b", "-F", "flags,ip,addr"])?)?;
    let ours = pugmark_branches(&pugmark(&["coverage", "-f", "edges"])?)?;
    for (branch, times) in &theirs {
        let found = ours.get(branch).copied().unwrap_or_default();
        ensure!(found == *times, "perf has {branch:x?} {times} times, pugmark coverage {found} times");
    }
    // perf does not list conditional branches that are not taken.
    let is_taken = |(from, to): &(u64, u64)| !(1..=MAX_INSTRUCTION).contains(&to.wrapping_sub(*from));
    let more = ours.keys().find(|branch| is_taken(branch) && !theirs.contains_key(branch));
    ensure!(more.is_none(), "perf does not have {more:x?}");
    ensure!(!theirs.is_empty(), "perf has no branch");
    Ok(())
}

/// Returns the branches in lines such as `jcc  401234 => 401240`.
fn perf_branches(text: &str) -> Result<Branches> {
    let mut branches = Branches::new();
    for line in text.lines() {
        let row = || -> Option<_> {
            let (left, to) = line.split_once("=>")?;
            let (flags, from) = left.trim().rsplit_once(' ')?;
            let kind = flags.split_whitespace().next()?;
            Some((kind, (hex(from)?, hex(to.trim())?)))
        };
        let (kind, branch) = row().with_context(|| format!("no branch: {line:?}"))?;
        if !NO_BRANCHES.contains(&kind) {
            *branches.entry(branch).or_default() += 1;
        }
    }
    Ok(branches)
}

/// Returns the branches in lines such as `0x401234 0x401240 2  f -> f+0x9`.
fn pugmark_branches(text: &str) -> Result<Branches> {
    let row = |line: &str| -> Option<_> {
        let mut words = line.split_whitespace();
        let mut address = || hex(words.next()?.strip_prefix("0x")?);
        let branch = (address()?, address()?);
        Some((branch, words.next()?.parse().ok()?))
    };
    text.lines().map(|line| row(line).with_context(|| format!("no branch: {line:?}"))).collect()
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERF: &str = "  tr strt              0 => 401000\n  call (D)    401000 => 402000\n  jcc  402010 => 402000\n  \
        jcc  402010 => 402000\n  hw int  402000 => ffffffff81000000\n  tr end  async  402010 => 0\n";
    const OURS: &str = "0x401000 0x402000 1  f -> g\n0x402010 0x402000 2\n0x402010 0x402012 1\n";

    fn found(perf: &str, ours: &str) -> Result<(), String> {
        check(&|_| Ok(perf.into()), &|_| Ok(ours.into())).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_the_same_passes_and_each_difference_is_named() {
        assert_eq!(found(PERF, OURS), Ok(()));
        for (ours, said) in [
            (
                OURS.replace("0x402000 2", "0x402000 1"),
                "perf has (402010, 402000) 2 times, pugmark coverage 1 times",
            ),
            (OURS.replace("0x401000 0x402000 1", "0x401000 0x401005 1"), "coverage 0 times"),
            (OURS.to_owned() + "0x402012 0x402000 1\n", "perf does not have Some((402012, 402000))"),
            (OURS.to_owned() + "0x402012 402000 1\n", "no branch"),
        ] {
            let error = found(PERF, &ours).unwrap_err();
            assert!(error.contains(said), "{ours}: {error}");
        }
        for perf in ["", "  tr strt  0 => 401000\n"] {
            assert_eq!(found(perf, ""), Err("perf has no branch".into()));
        }
        assert!(found("  jcc  402010\n", OURS).unwrap_err().contains("no branch"));
    }
}
