//! What the counters of AMD's processors count equals the truth: each workload on one profile of each kind, and a few
//! workloads on the others. `cargo xtask run --source counters` runs all workloads on all profiles.

use pugmark_qemu_tests::amd_matrix::{self, Source};
use pugmark_qemu_tests::sweep::sweep;

/// Workloads that differ in what counts: branches alone, interrupts, exceptions, changes of the privilege level.
const FEW: &str = "sort,timer,exceptions,syscall,user-interrupt,filter-os,filter-user,nmi";

/// Boots some workloads (`None`: all) on `profile`.
fn as_they_ran(profile: &str, only: Option<&str>) {
    let boot = amd_matrix::boot(Source::Counters, profile, only);
    sweep(profile, &boot, only, |run, truth, symbols, image| {
        amd_matrix::check(run, Source::Counters, profile, truth, symbols, image)
    })
    .unwrap();
}

#[test]
fn everything_on_four_counters_with_interrupts_among_the_instructions() {
    as_they_ran("k8", None);
}

#[test]
fn everything_on_six_counters() {
    as_they_ran("trinity", None);
}

#[test]
fn everything_with_global_control() {
    as_they_ran("zen4", None);
}

#[test]
fn a_few_on_the_other_profiles() {
    for profile in ["barcelona", "zen2", "zen3", "zen5", "zen6"] {
        as_they_ran(profile, Some(FEW));
    }
}

#[test]
fn a_processor_of_intels_says_so() {
    as_they_ran("skylake", None);
}
