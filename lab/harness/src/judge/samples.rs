//! The common part of the samples of all sources.

use anyhow::{Result, ensure};

use crate::report::SampledSession;

/// Checks that each sample has an address, and that none was lost.
///
/// # Errors
/// If the numbers do not add up, or there was no room for a sample.
pub(super) fn none_missing(samples: &SampledSession) -> Result<()> {
    let addressed: u64 = samples.addresses.values().sum();
    ensure!(addressed == samples.totals.taken, "{} samples, {addressed} addresses", samples.totals.taken);
    ensure!(samples.totals.lost == 0, "{} samples had no room", samples.totals.lost);
    Ok(())
}
