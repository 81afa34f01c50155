//! Compares time with the truth: the timeline's bounds contain the true TSC at every instruction.
//!
//! `PUGMARK_LONG=1` takes fifty times as many runs.

mod clocks;
mod model;
mod processor;

use pugmark_decoder_core::time::Moment;

/// Returns the number of seeds of a test.
fn seeds(usual: u64) -> u64 {
    if std::env::var_os("PUGMARK_LONG").is_some_and(|value| value == "1") { usual * 50 } else { usual }
}

/// The accuracy of the times.
#[derive(Debug, Default)]
struct TimeScale {
    instructions: u64,
    /// The number of moments with a bound.
    bounded: u64,
    /// The sum and the largest of the errors that the bounds allow.
    error: u64,
    most: u64,
    /// The sum of the guesses' errors, for moments with a bound.
    off: u64,
}

impl TimeScale {
    fn count(&mut self, moment: &Moment, tsc: u64) {
        self.instructions += 1;
        if let Some(error) = moment.error() {
            self.bounded += 1;
            self.error += error;
            self.most = self.most.max(error);
            self.off += moment.tsc().wrapping_sub(tsc).min(tsc.wrapping_sub(moment.tsc()));
        }
    }

    fn add(&mut self, other: &Self) {
        self.instructions += other.instructions;
        self.bounded += other.bounded;
        self.error += other.error;
        self.most = self.most.max(other.most);
        self.off += other.off;
    }
}
