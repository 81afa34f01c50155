//! Each workload on each profile with precise samples: every sample is at its event, and none is missing.

use pugmark_qemu_tests::store_matrix::{self, Source};
use pugmark_qemu_tests::sweep::sweep;

/// Boots all workloads on `profile`.
fn all_as_they_ran(profile: &str) {
    let boot = store_matrix::boot(Source::Pebs, profile, None);
    sweep(profile, &boot, None, |run, truth, symbols, image| {
        store_matrix::check(run, Source::Pebs, profile, truth, symbols, image)
    })
    .unwrap();
}

pugmark_qemu_tests::test_on_each!(all_as_they_ran: core2 nehalem broadwell skylake icelake);

#[test]
fn a_processor_without_samples_says_so() {
    all_as_they_ran("prescott");
}

#[test]
fn a_processor_without_a_debug_store_says_so() {
    all_as_they_ran("sapphire-rapids");
}
