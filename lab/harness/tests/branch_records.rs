//! Each workload on each profile that has a Branch Trace Store: its records, and the instructions decoded from them,
//! are compared with the truth.

use pugmark_harness::judge::Source;
use pugmark_harness::sweep::Sweep;

/// Boots all workloads on `profile`.
fn all_as_they_ran(profile: &str) {
    Sweep::new(Source::Bts, profile).run().unwrap();
}

pugmark_harness::test_on_each!(all_as_they_ran: prescott core2 nehalem broadwell skylake icelake);

/// Here only the index of the next record shows that an interrupt is due.
#[test]
fn skylake_whose_threshold_sets_no_status() {
    let sweep = Sweep::new(Source::Bts, "skylake").only("small-buffers,circular,stop");
    sweep.monitor_options("bts-sets-status=off").run().unwrap();
}

/// The manual leaves open whether the level before or after a branch counts.
#[test]
fn nehalem_whose_branches_have_the_level_that_they_come_from() {
    let sweep = Sweep::new(Source::Bts, "nehalem").only("filter-os,filter-user,sort");
    sweep.monitor_options("branch-level=from").run().unwrap();
}

#[test]
fn a_processor_without_a_debug_store_says_so() {
    all_as_they_ran("sapphire-rapids");
}
