//! Ops that Instruction Based Sampling has sampled: they retired, and are distributed over functions as the truth is.

use pugmark_qemu_tests::amd_matrix::{self, Source, Verdict};
use pugmark_qemu_tests::images::Images;
use pugmark_qemu_tests::machine::Machine;
use pugmark_qemu_tests::matrix::WORKLOADS;
use pugmark_qemu_tests::samples::Fit;
use std::time::Duration;

/// The probability below which a distribution counts as another one.
const LEAST: f64 = 0.001;
/// How often each workload is sampled.
const ROUNDS: u32 = 2;
/// Samples of all seeds together.
const SAMPLES: u64 = 10_000;

/// Boots everything on `profile`, whose random numbers begin with `seed`; how well samples of ops fit.
fn sampled(profile: &str, seed: u64) -> Fit {
    let images = Images::build().unwrap();
    let symbols = images.guest_symbols().unwrap();
    let boot = amd_matrix::boot(Source::Ibs, profile, None);
    let options = format!("{} seed={seed}", boot.monitor_options);
    let command_line = format!("{} rounds={ROUNDS}", boot.command_line);
    let outcome = Machine::on_monitor(&images, &options, &command_line)
        .deadline(Duration::from_secs(600))
        .run(|_| {})
        .unwrap();
    let (mut fits, mut wrong) = (Vec::new(), Vec::new());
    for run in &outcome.transcript.runs {
        match amd_matrix::check(run, Source::Ibs, profile, &outcome.truth, &symbols, &images.guest) {
            Ok(Some(Verdict::Samples(fit))) => {
                println!("{profile} {}: {fit}", run.name);
                fits.push(fit);
            }
            Ok(Some(verdict)) => println!("{profile} {}: {verdict}", run.name),
            Ok(None) => println!("{profile} {}: {}", run.name, run.refusal.as_deref().unwrap_or_default()),
            Err(error) => wrong.push(format!("{profile} {}: {error:#}", run.name)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(outcome.transcript.runs.len(), WORKLOADS.len());
    fits.into_iter().sum()
}

/// Whether samples are distributed as the truth is, and enough for three seeds to have [`SAMPLES`].
fn as_the_truth_is(profile: &str, seed: u64) {
    let fit = sampled(profile, seed);
    println!("{profile} seed={seed}: {fit}");
    assert!(fit.p_value() > LEAST, "{profile} seed={seed}: {fit}");
    assert!(fit.samples >= SAMPLES.div_ceil(3), "{profile} seed={seed}: {fit}");
}

#[test]
fn samples_of_the_first_seed_are_distributed_as_the_truth_is() {
    as_the_truth_is("trinity", 1);
}

#[test]
fn samples_of_the_second_seed_are_distributed_as_the_truth_is() {
    as_the_truth_is("zen2", 2);
}

#[test]
fn samples_of_the_third_seed_are_distributed_as_the_truth_is() {
    as_the_truth_is("zen4", 3);
}

#[test]
fn a_processor_that_cannot_count_ops_samples_by_clocks() {
    assert_eq!(sampled("barcelona", 1), Fit::default());
}

#[test]
fn a_processor_without_says_so() {
    for profile in ["k8", "skylake"] {
        assert_eq!(sampled(profile, 1), Fit::default(), "{profile}");
    }
}
