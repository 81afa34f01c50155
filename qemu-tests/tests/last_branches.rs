//! Each workload on each profile that has last branch records: they are the last branches of the truth, or its calls that
//! have not returned.

use pugmark_qemu_tests::store_matrix::{self, Source};
use pugmark_qemu_tests::sweep::sweep;

/// Boots everything on `profile`.
fn all_as_they_ran(profile: &str) {
    let boot = store_matrix::boot(Source::Lbr, profile, None);
    sweep(profile, &boot, None, |run, truth, symbols, image| {
        store_matrix::check(run, Source::Lbr, profile, truth, symbols, image)
    })
    .unwrap();
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
