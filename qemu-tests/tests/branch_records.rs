//! Each workload on each profile that has a Branch Trace Store: its records, and what is decoded from them, are checked
//! against the truth.

use pugmark_qemu_tests::branch_matrix;
use pugmark_qemu_tests::sweep::sweep;

/// Boots all workloads on `profile`.
fn all_as_they_ran(profile: &str) {
    let boot = branch_matrix::boot(profile, None);
    sweep(profile, &boot, None, |run, truth, symbols, _| branch_matrix::check(run, profile, truth, symbols))
        .unwrap();
}

pugmark_qemu_tests::test_on_each!(all_as_they_ran: prescott core2 nehalem broadwell skylake icelake);

/// Here only the index of the next record shows that an interrupt is due.
#[test]
fn skylake_whose_threshold_sets_no_status() {
    let only = Some("small-buffers,circular,stop");
    let mut boot = branch_matrix::boot("skylake", only);
    boot.monitor_options += " bts-sets-status=off";
    sweep("skylake", &boot, only, |run, truth, symbols, _| {
        branch_matrix::check(run, "skylake", truth, symbols)
    })
    .unwrap();
}

/// The manual leaves open whether the level before or after a branch counts.
#[test]
fn nehalem_whose_branches_have_the_level_that_they_come_from() {
    let only = Some("filter-os,filter-user,sort");
    let mut boot = branch_matrix::boot("nehalem", only);
    boot.monitor_options += " branch-level=from";
    sweep("nehalem", &boot, only, |run, truth, symbols, _| {
        branch_matrix::check(run, "nehalem", truth, symbols)
    })
    .unwrap();
}

#[test]
fn a_processor_without_a_debug_store_says_so() {
    all_as_they_ran("sapphire-rapids");
}
