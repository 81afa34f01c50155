//! Which of the guest's violations have been reported.

use alloc::vec::Vec;

use pugmark_model::Violations;

/// The violations that have been reported for one processor.
#[derive(Debug)]
pub(crate) struct ReportedViolations {
    pub(crate) violations: Violations,
    /// Whether any were reported since the session began.
    pub(crate) in_session: bool,
    /// The events that are not modelled and that a counter was enabled for.
    pub(crate) events: Vec<u64>,
}

impl ReportedViolations {
    /// The state in which nothing has been reported, on a processor with these violations.
    pub(crate) const fn new(violations: Violations) -> Self {
        Self { violations, in_session: false, events: Vec::new() }
    }
}
