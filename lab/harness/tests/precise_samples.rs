//! Each workload on each profile with precise samples: every sample is at its event, and none is missing.

use pugmark_harness::judge::Source;
use pugmark_harness::sweep::Sweep;

/// Boots all workloads on `profile`.
fn all_as_they_ran(profile: &str) {
    Sweep::new(Source::Pebs, profile).run().unwrap();
}

pugmark_harness::test_on_each!(all_as_they_ran: core2 nehalem broadwell skylake icelake);

#[test]
fn a_processor_without_samples_says_so() {
    all_as_they_ran("prescott");
}

#[test]
fn a_processor_without_a_debug_store_says_so() {
    all_as_they_ran("sapphire-rapids");
}
