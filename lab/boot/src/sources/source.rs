//! The interface of a source.

use crate::plan::Plan;
use crate::session::{Prepared, SourceError};

/// Hardware that traces, counts or samples.
pub(crate) trait Source: Sync {
    /// Returns the number of passes of each workload, each recording something else. `rounds` is the number of rounds
    /// of samples that the command line requests.
    fn passes(&self, rounds: u32) -> u32 {
        let _ = rounds;
        1
    }

    /// Finds the unit, checks the plan and allocates memory for the pass with this number, from 0.
    ///
    /// # Errors
    /// If the source or this processor lacks what the plan needs, or the unit does not work.
    fn prepare(&self, pass: u32, plan: &Plan) -> Result<Prepared, SourceError>;
}
