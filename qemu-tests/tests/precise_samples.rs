//! Each workload on each profile that samples events: every sample is at its event, and none is missing.

use pugmark_qemu_tests::store_matrix::{self, Source};
use pugmark_qemu_tests::sweep::sweep;

/// Boots everything on `profile`.
fn all_as_they_ran(profile: &str) {
    let boot = store_matrix::boot(Source::Pebs, profile, None);
    sweep(profile, &boot, None, |run, truth, symbols, image| {
        store_matrix::check(run, Source::Pebs, profile, truth, symbols, image)
    })
    .unwrap();
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
fn a_processor_without_samples_says_so() {
    all_as_they_ran("prescott");
}

#[test]
fn a_processor_without_a_debug_store_says_so() {
    all_as_they_ran("sapphire-rapids");
}
