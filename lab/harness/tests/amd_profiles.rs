//! A kernel from another source tree runs on AMD's profiles: its counts equal the truth, its samples are at
//! instructions of the truth, and its last branches are those that it took.

use std::collections::HashSet;

use pugmark_harness::images::{Images, build_foreign_kernel};
use pugmark_harness::machine::Machine;
use pugmark_harness::report::End;
use pugmark_harness::truth::Truth;

const INSTRUCTIONS_SESSION: u16 = 30;
const SAMPLES_SESSION: u16 = 33;
const BRANCHES_SESSION: u16 = 34;
/// Branch sampling begins after this many taken branches.
const BRANCHES_BEFORE: usize = 100;
/// Number of instructions that the kernel executes while its counter is on.
const INSTRUCTIONS: usize = 2004;

/// Checks that the counts and samples of this profile are those of the truth.
fn counts_and_samples_the_truth(profile: &str) {
    let images = Images::build().unwrap();
    let kernel = build_foreign_kernel().unwrap();
    let options = format!("profile={profile}");
    let outcome = Machine::kernel_on_monitor(&images, &kernel, &options, "processors=1").run(|_| {}).unwrap();
    let ends: Vec<_> =
        outcome.transcript.runs.iter().map(|run| (run.name.as_str(), run.end.clone())).collect();
    let expected = [
        "boot",
        "amd-cpuid",
        "amd-protection",
        "amd-counting",
        "amd-overflow",
        "amd-sampling",
        "amd-branches",
    ];
    let expected = expected.map(|name| format!("foreign-{name}"));
    assert_eq!(ends, expected.each_ref().map(|name| (name.as_str(), Some(End::Ok))), "{profile}");
    // The kernel has read the same number from its counter.
    assert_eq!(outcome.truth.session(INSTRUCTIONS_SESSION).len(), INSTRUCTIONS, "{profile}");
    let retired: HashSet<u64> =
        outcome.truth.session(SAMPLES_SESSION).iter().map(|record| record.rip).collect();
    let samples: Vec<u64> = outcome
        .transcript
        .other
        .iter()
        .filter_map(|line| u64::from_str_radix(line.strip_prefix("sample 0x")?, 16).ok())
        .collect();
    assert_eq!(samples.is_empty(), profile == "k8", "{profile}");
    assert!(samples.iter().all(|rip| retired.contains(rip)), "{profile}: {samples:x?}");
    let branches: Vec<_> = outcome.transcript.other.iter().filter_map(|line| branch(line)).collect();
    assert_eq!(branches, last_branches(&outcome.truth, profile), "{profile}");
}

pugmark_harness::test_on_each!(counts_and_samples_the_truth: k8 barcelona trinity zen2 zen3 zen4 zen5 zen6);

/// Parses source and target from a line that has a branch.
fn branch(line: &str) -> Option<(u64, u64)> {
    let (from, to) = line.strip_prefix("branch ")?.split_once(' ')?;
    let number = |digits: &str| u64::from_str_radix(digits.strip_prefix("0x")?, 16).ok();
    Some((number(from)?, number(to)?))
}

/// Returns the expected contents of the registers, in their order.
fn last_branches(truth: &Truth, profile: &str) -> Vec<(u64, u64)> {
    const DEPTH: usize = 16;
    const VALID: u64 = 1 << 63;
    let taken: Vec<_> = truth.branches(BRANCHES_SESSION).iter().map(|taken| (taken.from, taken.to)).collect();
    match profile {
        "zen3" => taken[BRANCHES_BEFORE..][..DEPTH].to_vec(),
        // The newest branch is first.
        "zen4" | "zen5" | "zen6" => {
            taken.iter().rev().take(DEPTH).map(|&(from, to)| (from, to | VALID)).collect()
        }
        _ => Vec::new(),
    }
}
