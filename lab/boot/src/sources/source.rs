//! What a source is.

use crate::plan::Plan;
use crate::session::{Prepared, SourceError};

/// Hardware that traces, counts or samples.
pub(crate) trait Source: Sync {
    /// How often each workload runs, each time to record something else. `rounds` is how many rounds of samples the
    /// command line requests.
    fn passes(&self, rounds: u32) -> u32 {
        let _ = rounds;
        1
    }

    /// Finds the unit, checks the plan and allocates memory for the pass with this number, from 0.
    ///
    /// # Errors
    /// The source or this processor lacks what the plan needs, or the unit does not work.
    fn prepare(&self, pass: u32, plan: &Plan) -> Result<Prepared, SourceError>;
}
