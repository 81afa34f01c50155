//! Each workload on each profile that has last branch records: they are the newest branches of the truth, or its calls
//! that have not returned.

use pugmark_harness::judge::Source;
use pugmark_harness::sweep::Sweep;

/// Boots all workloads on `profile`.
fn all_as_they_ran(profile: &str) {
    Sweep::new(Source::Lbr, profile).run().unwrap();
}

pugmark_harness::test_on_each!(all_as_they_ran: prescott core2 nehalem broadwell skylake icelake);

#[test]
fn a_processor_without_last_branch_records_says_so() {
    all_as_they_ran("sapphire-rapids");
}
