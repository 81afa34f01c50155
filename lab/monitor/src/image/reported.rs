//! The guest's violations that have been reported.

use alloc::vec::Vec;

use pugmark_model::Violations;

/// The violations that have been reported for one processor.
#[derive(Debug)]
pub(crate) struct ReportedViolations {
    pub(crate) violations: Violations,
    /// A violation was reported since the session began.
    pub(crate) in_session: bool,
    /// The unmodelled events for which a counter was enabled.
    pub(crate) events: Vec<u64>,
}

impl ReportedViolations {
    /// Returns the state in which nothing has been reported, on a processor with these violations.
    pub(crate) const fn new(violations: Violations) -> Self {
        Self { violations, in_session: false, events: Vec::new() }
    }
}
