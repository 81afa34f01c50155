//! The counts of AMD's and Intel's processors equal the truth: each workload on one profile of each kind, and a few
//! workloads on the others. `cargo xtask run --source counters` runs all workloads on all profiles.

use pugmark_harness::judge::Source;
use pugmark_harness::sweep::Sweep;

/// Workloads with different events: branches alone, interrupts, exceptions, changes of the privilege level.
const FEW: &str = "sort,timer,exceptions,syscall,user-interrupt,filter-os,filter-user,nmi";

/// Returns all workloads on `profile`.
fn all(profile: &str) -> Sweep<'_> {
    Sweep::new(Source::Counters, profile)
}

#[test]
fn everything_on_four_counters_with_interrupts_among_the_instructions() {
    all("k8").run().unwrap();
}

#[test]
fn everything_on_six_counters() {
    all("trinity").run().unwrap();
}

#[test]
fn everything_with_global_control() {
    all("zen4").run().unwrap();
}

#[test]
fn a_few_on_the_other_profiles() {
    for profile in ["barcelona", "zen2", "zen3", "zen5", "zen6"] {
        all(profile).only(FEW).run().unwrap();
    }
}

#[test]
fn everything_on_an_intel_processor() {
    all("skylake").run().unwrap();
}

#[test]
fn a_few_on_intels_other_profiles() {
    for profile in ["prescott", "core2", "nehalem", "sapphire-rapids"] {
        all(profile).only(FEW).run().unwrap();
    }
}
