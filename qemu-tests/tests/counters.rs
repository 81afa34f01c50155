//! Each workload on each of AMD's profiles: what counters count is the truth.

use pugmark_qemu_tests::amd_matrix::{self, Source};
use pugmark_qemu_tests::images::Images;
use pugmark_qemu_tests::machine::Machine;
use pugmark_qemu_tests::matrix::WORKLOADS;
use std::time::Duration;

/// Boots everything on `profile`.
fn all_as_they_ran(profile: &str) {
    let images = Images::build().unwrap();
    let symbols = images.guest_symbols().unwrap();
    let boot = amd_matrix::boot(Source::Counters, profile, None);
    let outcome = Machine::on_monitor(&images, &boot.monitor_options, &boot.command_line)
        .deadline(Duration::from_secs(240))
        .run(|_| {})
        .unwrap();
    let mut wrong = Vec::new();
    for run in &outcome.transcript.runs {
        let checked =
            amd_matrix::check(run, Source::Counters, profile, &outcome.truth, &symbols, &images.guest);
        match checked {
            Ok(Some(verdict)) => println!("{profile} {}: {verdict}", run.name),
            Ok(None) => println!("{profile} {}: {}", run.name, run.refusal.as_deref().unwrap_or_default()),
            Err(error) => wrong.push(format!("{profile} {}: {error:#}", run.name)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(outcome.transcript.runs.len(), WORKLOADS.len());
}

#[test]
fn k8() {
    all_as_they_ran("k8");
}

#[test]
fn barcelona() {
    all_as_they_ran("barcelona");
}

#[test]
fn trinity() {
    all_as_they_ran("trinity");
}

#[test]
fn zen2() {
    all_as_they_ran("zen2");
}

#[test]
fn zen3() {
    all_as_they_ran("zen3");
}

#[test]
fn zen4() {
    all_as_they_ran("zen4");
}

#[test]
fn zen5() {
    all_as_they_ran("zen5");
}

#[test]
fn a_processor_of_intels_says_so() {
    all_as_they_ran("skylake");
}
