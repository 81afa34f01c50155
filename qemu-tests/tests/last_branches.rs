//! Each workload on each profile that has last branch records: they are the last branches of the truth, or its calls that
//! have not returned.

use pugmark_qemu_tests::images::Images;
use pugmark_qemu_tests::machine::Machine;
use pugmark_qemu_tests::matrix::WORKLOADS;
use pugmark_qemu_tests::store_matrix::{self, Source};
use std::time::Duration;

/// Boots everything on `profile`.
fn all_as_they_ran(profile: &str) {
    let images = Images::build().unwrap();
    let symbols = images.guest_symbols().unwrap();
    let boot = store_matrix::boot(Source::Lbr, profile, None);
    let outcome = Machine::on_monitor(&images, &boot.monitor_options, &boot.command_line)
        .deadline(Duration::from_secs(240))
        .run(|_| {})
        .unwrap();
    let mut wrong = Vec::new();
    for run in &outcome.transcript.runs {
        match store_matrix::check(run, Source::Lbr, profile, &outcome.truth, &symbols, &images.guest) {
            Ok(Some(verdict)) => println!("{profile} {}: {verdict}", run.name),
            Ok(None) => println!("{profile} {}: {}", run.name, run.refusal.as_deref().unwrap_or_default()),
            Err(error) => wrong.push(format!("{profile} {}: {error:#}", run.name)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(outcome.transcript.runs.len(), WORKLOADS.len());
}

#[test]
fn prescott() {
    all_as_they_ran("prescott");
}

#[test]
fn core2() {
    all_as_they_ran("core2");
}

#[test]
fn nehalem() {
    all_as_they_ran("nehalem");
}

#[test]
fn broadwell() {
    all_as_they_ran("broadwell");
}

#[test]
fn skylake() {
    all_as_they_ran("skylake");
}

#[test]
fn icelake() {
    all_as_they_ran("icelake");
}

#[test]
fn a_processor_without_last_branch_records_says_so() {
    all_as_they_ran("sapphire-rapids");
}
