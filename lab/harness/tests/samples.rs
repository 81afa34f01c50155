//! Ops sampled by Instruction Based Sampling: they retired, and their distribution over the functions is that of the
//! truth.
//!
//! There are three seeds, each on its own profile. By default they have 10 000 samples together, which takes two
//! minutes; with `PUGMARK_LONG=1` each seed has that many.

use pugmark_harness::judge::fit::Fit;
use pugmark_harness::judge::ibs::IbsVerdict;
use pugmark_harness::judge::{Source, Verdict};
use pugmark_harness::sweep::Sweep;

/// Below this probability a distribution counts as different.
const LEAST: f64 = 0.001;
/// The same for a single round: its samples are not independent of each other, because a period begins where the
/// handler of the last sample has returned. Six runs had probabilities of 0.01 to 0.25, one 0.0002.
const LEAST_OF_ONE_ROUND: f64 = 1e-5;
/// The number of samples: by default of all seeds together, with `PUGMARK_LONG=1` of each seed.
const SAMPLES: u64 = 10_000;
/// Workloads that compute, and the rounds of each, limited by the size of the monitor's log. Each part has a third of
/// [`SAMPLES`].
const PARTS: [(&str, u32); 3] = [
    ("sort,hash-map,strings", 7),
    ("recursion,interpreter,dispatch,nmi", 7),
    ("small-buffers,stop,circular,ring", 4),
];
/// A few workloads of all kinds.
const FEW: &str = "sort,exceptions,syscall,user-interrupt";

/// Boots `profile`, whose random numbers start with `seed`, to sample some workloads (`None`: all) `rounds` times.
/// Returns the fit of the samples of ops.
fn sampled(profile: &str, seed: u64, only: Option<&str>, rounds: u32) -> Fit {
    let mut sweep = Sweep::new(Source::Ibs, profile).monitor_options(&format!("seed={seed}"));
    if let Some(only) = only {
        sweep = sweep.only(only);
    }
    let verdicts = sweep.guest_words(&format!("rounds={rounds}")).run();
    let fit = |verdict| if let Verdict::Ibs(IbsVerdict::Fits(fit)) = verdict { Some(fit) } else { None };
    verdicts.unwrap().into_iter().filter_map(fit).sum()
}

/// Checks that the distribution of a seed's samples is that of the truth, and that there are enough: of its own part,
/// or of all parts.
fn as_the_truth_is(profile: &str, seed: u64, part: usize) {
    let long = std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1");
    let (parts, least) =
        if long { (&PARTS[..], SAMPLES) } else { (&PARTS[part..=part], SAMPLES.div_ceil(3)) };
    let fit: Fit = parts.iter().map(|&(only, rounds)| sampled(profile, seed, Some(only), rounds)).sum();
    println!("{profile} seed={seed}: {fit}");
    assert!(fit.p_value() > LEAST, "{profile} seed={seed}: {fit}");
    assert!(fit.samples >= least, "{profile} seed={seed}: {fit}");
}

#[test]
fn samples_of_the_first_seed_are_distributed_as_the_truth_is() {
    as_the_truth_is("trinity", 1, 0);
}

#[test]
fn samples_of_the_second_seed_are_distributed_as_the_truth_is() {
    as_the_truth_is("zen2", 2, 1);
}

#[test]
fn samples_of_the_third_seed_are_distributed_as_the_truth_is() {
    as_the_truth_is("zen4", 3, 2);
}

#[test]
fn each_workload_can_be_sampled() {
    let fit = sampled("zen4", 4, None, 1);
    assert!(fit.p_value() > LEAST_OF_ONE_ROUND, "{fit}");
}

#[test]
fn a_few_on_the_newest_profile() {
    let fit = sampled("zen6", 5, Some(FEW), 1);
    assert!(fit.samples > 100 && fit.p_value() > LEAST, "{fit}");
}

#[test]
fn a_processor_that_cannot_count_ops_samples_by_clocks() {
    assert_eq!(sampled("barcelona", 1, Some(FEW), 1), Fit::default());
}

#[test]
fn a_processor_without_says_so() {
    for profile in ["k8", "skylake"] {
        assert_eq!(sampled(profile, 1, None, 1), Fit::default(), "{profile}");
    }
}
